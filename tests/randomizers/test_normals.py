"""The normals behind every message: their law, that pairs are independent, shapes and dtypes."""

import math

import pytest
import torch
from scipy import stats

from torchdp.randomizers import normals
from torchdp.randomizers.normals import normals_like


def draw(*shape, dtype=torch.float64, seed=0):
    return normals_like(torch.empty(shape, dtype=dtype), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_law_is_standard_normal(dtype):
    x = draw(400_000, dtype=dtype)
    assert x.dtype == dtype
    uniform = stats.norm.cdf(x.double().numpy())
    for scale, plausible in ((1.0, True), (1.02, False)):
        counts = torch.histc(torch.from_numpy(stats.norm.cdf(scale * x.double().numpy())), 100, 0, 1)
        assert (float(((counts - 4000) ** 2 / 4000).sum()) < stats.chi2.isf(1e-6, 99)) == plausible
    far = int((x.abs() > 4).sum())
    assert stats.binomtest(far, 400_000, 2 * stats.norm.sf(4)).pvalue > 1e-6
    assert 0 < uniform.min() and uniform.max() < 1


def test_pairs_that_share_a_radius_are_independent():
    """What is first and what is second in a pair: uncorrelated, also in their squares; the angle is uniform."""
    first, second = draw(200_000).reshape(2, -1)
    for power in (1, 2):
        a, b = first.pow(power), second.pow(power)
        correlation = float(((a - a.mean()) * (b - b.mean())).mean() / (a.std() * b.std()))
        assert abs(correlation) < 5.2 / math.sqrt(100_000)
    angle = torch.atan2(second, first) / (2 * math.pi) + 0.5
    assert stats.kstest(angle.numpy(), "uniform").pvalue > 1e-6
    square = (first.square() + second.square()).numpy()
    assert stats.kstest(square, stats.chi2(2).cdf).pvalue > 1e-6
    assert stats.kstest(1.03 * square, stats.chi2(2).cdf).pvalue < 1e-6


def test_extreme_uniforms_stay_finite(monkeypatch):
    edges = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-53] * 2, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: edges.clone())
    x = draw(8)
    assert x.isfinite().all() and (x[0] == 0) and float(x.abs().max()) < 9


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (3, 5), (2, 0, 4), (2 * normals.BLOCK - 1,), (4 * normals.BLOCK + 3,)]
)
def test_shapes(shape):
    x = draw(*shape)
    assert x.shape == shape and x.isfinite().all()
    assert torch.equal(x, draw(*shape)) and (x.numel() == 0 or not torch.equal(x, draw(*shape, seed=1)))
    assert x.flatten().unique().numel() == x.numel()
