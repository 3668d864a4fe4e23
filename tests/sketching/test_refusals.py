"""Whatever stands in the place of an argument, what is raised is a TypeError or ValueError that says which it was."""

import math

import pytest
import torch

from torchdp import regression, secure, sketching
from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate
from torchdp.regression import FrequencyMoments, GramRelease, LocalRows, SecureHistogram
from torchdp.regression.sensitivity import joint_sensitivity
from torchdp.secure import Links, SecureSketch
from torchdp.secure.ring import Ring
from torchdp.secure.rounding import grid_sensitivity, grid_sigma
from torchdp.sketching import AdaptiveCoalition, GaussianNoise, LaplaceNoise, StaticCoalition
from torchdp.sketching.transform import RowLayout, add_rows

SKETCH = sketching.osnap(30, 5, 2, generator=torch.Generator().manual_seed(1))
A = torch.full((30, 3), 0.2, dtype=torch.float64)
X = torch.cat([A, A[:, :1]], 1)
MOMENTS = regression.SecondMoments.of(X)
PROTOCOL = SecureSketch(SKETCH, 3, 1.0, 1.0, 1e-6)
GRAM, LOCAL = GramRelease(30, 3, 1.0, 1.0, 1e-6, 1.0), LocalRows(3, 1.0, 1.0, 1e-6, 1.0)
STATIC, LAYOUT, WORDS = StaticCoalition(1), RowLayout(SKETCH), torch.zeros(2, 30, 3, dtype=torch.int64)
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
NOISE = SeededNoise(1)

CALLS = [
    (lambda s: AdaptiveCoalition(1).honest(s, 1e-6), (SKETCH,)), (STATIC.honest, (SKETCH, 1e-6)),
    (STATIC.leverages, (SKETCH, 1e-6)),
    (lambda *a: STATIC.losses(*a, 1e-6), (SKETCH, torch.ones(5))), (STATIC.one_copy_losses, (SKETCH, 1e-6)),
    *((noise, (SKETCH, 1.0, *BUDGET.values(), STATIC)) for noise in (
        lambda *a: GaussianNoise.calibrated(*a[:2], epsilon=a[2], delta=a[3], coalition=a[4]),
        lambda *a: GaussianNoise.calibrated(*a[:2], epsilon=a[2], delta=a[3], coalition=a[4], rows=False),
        lambda *a: sketching.OneCopyGaussianNoise.calibrated(*a[:2], epsilon=a[2], delta=a[3], coalition=a[4]),
        lambda *a: sketching.LaplaceNoise.calibrated(*a[:2], epsilon=a[2], delta=a[3], coalition=a[4]))),
    *((lambda *a, k=noise: k.guarantee(*a[:2], delta=a[2], coalition=a[3]), (SKETCH, 1.0, 1e-6, STATIC))
      for noise in (GaussianNoise(9.0), LaplaceNoise(9.0, torch.ones(5)))),
    (GaussianNoise, (1.0,)), (LaplaceNoise, (1.0, torch.ones(5))), (GaussianNoise(1.0).variance, (SKETCH,)),
    (lambda *a: GaussianNoise(1.0).collect(*a[:2], noise=a[2]), (SKETCH, A, NOISE)),
    (SKETCH.part, (torch.arange(3),)), (SKETCH.apply, (A,)),
    (SecureSketch, (SKETCH, 3, 1.0, 1.0, 1e-6)), (lambda x, k: PROTOCOL.randomize(x, first=k), (A[:3], 0)),
    (PROTOCOL.collect, (A,)), (PROTOCOL.tally, (PROTOCOL.randomize(A),)),
    (PROTOCOL.decode, (PROTOCOL.encode(PROTOCOL.randomize(A)),)),
    (PROTOCOL.session, (bytes(32),)),
    (lambda *a: SecureSketch(SKETCH, 3, 1.0, 1.0, 1e-6, servers=a[0], coalition=a[1], bits=a[2]), (2, STATIC, 64)),
    (lambda *a: secure.share(*a[:2], noise=a[2]), (WORDS, 2, NOISE)), (secure.reconstruct, (WORDS,)),
    (grid_sensitivity, (Ring(64, 3), 1.0, 3)), (grid_sigma, (torch.ones(2), 1, 3, Ring(64, 3), 1.0, 1.0)),
    (GRAM.randomize, (X,)), (GRAM.tally, (GRAM.randomize(X),)), (GRAM.predicted_mse, (MOMENTS,)),
    (GRAM.guarantee_of, (30,)), (LOCAL.randomize, (X,)), (LOCAL.tally, (LOCAL.randomize(X),)),
    (FrequencyMoments, (30, 1.0, (1.0,), 1.0, 1e-6)),
    (SecureHistogram(30, 4, 1.0).predicted_mse, (torch.ones(4),)),
    (SecureHistogram(30, 4, 1.0).randomize, (torch.arange(4),)),
    (regression.SufficientStatistics, (3, 1.0, 1.0, 1.0, 1e-6)), (regression.ModSulq.calibrated, (3, 1.0, 1.0, 1e-6)),
    (lambda *a: regression.choose_regression(*a[:4], **BUDGET, generator=torch.Generator()), (MOMENTS, 1.0, 1.0, 1.0)),
    (regression.phi, (MOMENTS, torch.zeros(3), 1.0)), (regression.predicted_phi, (MOMENTS, 1.0, 0.1, 0.1)),
    (joint_sensitivity, (1.0, 1.0, 3)), (regression.debiased, (Estimate(A, A, 30),)),
    (LAYOUT.put, (LAYOUT.empty(3, torch.int64), WORDS, 0)),
    (add_rows, (torch.zeros(5, 3, dtype=torch.int64), SKETCH.rows, WORDS)),
    (Links.derived, (bytes(32), "server 0", 2)), (Links, ({"analyst": bytes(32)},)),
    (secure.Server, (PROTOCOL, bytes(16), 0, Links.derived(bytes(32), "server 0", 2))),
    (secure.client_frames, (PROTOCOL, bytes(16), torch.zeros(2, 2, 1, 3, dtype=torch.int64), 0, [bytes(32)] * 2)),
]  # fmt: skip
NUMBERS = [True, -1.0, math.nan, 2**70, "1"]
TENSORS = [
    torch.zeros(30, 3).to_sparse(), torch.zeros(30, 3, device="meta"), torch.zeros(30, 3, dtype=torch.complex64),
    torch.zeros(30, 3, dtype=torch.float8_e4m3fn), torch.zeros(30, 3, dtype=torch.uint16), torch.zeros(1, 1, 1, 1, 1),
]  # fmt: skip
PASS = {(float, 2**70)}  # a very large bound, budget or ridge is one


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_the_wrong_thing_in_any_place_is_refused(call, arguments):
    call(*arguments)
    for place, good in enumerate(arguments):
        wrong = TENSORS if isinstance(good, torch.Tensor) else NUMBERS if isinstance(good, int | float) else []
        for bad in (None, object(), b"x", SKETCH if good is not SKETCH else MOMENTS, *wrong):
            if (bad is None and isinstance(good, SeededNoise | torch.Tensor)) or (type(good), bad) in PASS:
                continue  # labels and noise may be None
            with pytest.raises((TypeError, ValueError)):
                call(*arguments[:place], bad, *arguments[place + 1 :])
