"""A call of one, whose axes of length 1 may have any stride; pointers are of contiguous tensors."""

import pytest
import torch
from torch.testing import assert_close

from torchdp import secure, sketching, training
from torchdp.kernels import correlated_noise, guided_draws
from torchdp.kernels.correlated_noise import Step
from torchdp.noise import SeededNoise

CPU = torch.device("cpu")


def one_and_many(count):
    sketch = sketching.osnap(count, 8, 2, generator=torch.Generator().manual_seed(1))
    x = torch.full((count, 4), 0.1, dtype=torch.float64)
    made = secure.SecureSketch(sketch, 4, 1.0, 1.0, 1e-5)
    return lambda: made.collect(x, noise=SeededNoise(0, CPU))["words"]


def counter(size):
    C = torch.eye(6).double()
    for band in (1, 2):
        identity = torch.eye(6).double()
        C += 0.5**band * identity.roll(band, 0).tril(-band)

    def run():
        noise = training.CorrelatedNoise(C, size, 1.0, noise=SeededNoise(0, CPU))
        return torch.stack([noise(torch.zeros(size)) for _ in range(3)])

    return run


@pytest.mark.parametrize(
    "call",
    [
        one_and_many(1),
        one_and_many(3),
        counter(1),
        counter(5),
    ],
)
def test_a_call_of_one_runs_fused_and_agrees(device, monkeypatch, call):
    if device.type != "cpu":
        pytest.skip("planned for Triton's interpreter")
    monkeypatch.setenv("TORCHDP_KERNELS", "reference")
    wanted = call()
    # which raises where the reference would take over
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    found = call()
    if wanted.is_floating_point():
        assert_close(found, wanted)
    else:
        # a half within the error of floats
        assert int((found - wanted).abs().max()) <= 1


def test_strided_tensors_are_refused_where_only_their_address_is_passed():
    parts = torch.zeros(64, dtype=torch.int16)
    cells = torch.zeros(256, dtype=torch.int16)
    with pytest.raises(ValueError, match="out must be contiguous"):
        guided_draws.fill(torch.zeros(128, dtype=torch.int64)[::2], parts, cells)
    key = torch.zeros(8, dtype=torch.int32)
    one = torch.ones(1).double()
    lags = torch.zeros(1, dtype=torch.int32)
    now = Step(one, one, torch.ones(2).double(), lags)
    wide = torch.zeros(16).double()
    state = torch.zeros(1, 8).double()
    with pytest.raises(ValueError, match="total must be contiguous"):
        correlated_noise.add(
            (wide[:8], state),
            wide[::2],
            now,
            key,
            0,
            0,
        )
