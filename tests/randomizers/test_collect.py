"""Sums of every user's own message: those of ``sample`` for the same draws, and in law those drawn at once."""

import math

import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.randomizers import DuchiJordanWainwright, GaussianVector, PointRelease, PrivUnit, PrivUnitG, ProjUnit
from torchdp.randomizers.ball import ball
from torchdp.randomizers.ball.ball import consecutive

ALPHA = 1e-6
COUNTS = torch.tensor([0, 1, 3, 17, 0, 40])
KINDS = [
    lambda dim: PrivUnitG(dim, 4.0, 1.5),
    lambda dim: PrivUnit(dim, 4.0, 1.5),
    lambda dim: ProjUnit(dim, 4.0, 1.5, k=2),
    lambda dim: DuchiJordanWainwright(dim, 4.0, 1.5),
    lambda dim: PointRelease(dim, 4.0, 1.5),
    lambda dim: GaussianVector(dim, 4.0, 1.5, delta=1e-6),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def points(dim, dtype=torch.float64):
    """Six points: the centre, inside, on the sphere."""
    x = torch.randn(6, dim, dtype=torch.float64, generator=generator(9))
    norms = torch.tensor([[1.5], [1.5], [0], [0.4], [1], [1.5]], dtype=torch.float64)
    return (x * norms / x.norm(dim=1, keepdim=True) * (1 - 1e-6)).to(dtype)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [2**21, 200])
def test_collect_is_the_sum_of_the_messages_that_sample_makes_of_the_same_draws(make, dtype, block, monkeypatch):
    """In one block and in many, whose edges cut through types."""
    monkeypatch.setattr(ball, "CPU_BLOCK", block)
    randomizer, x = make(5), points(5, dtype)
    messages = randomizer.sample(x.repeat_interleave(COUNTS, 0), noise=SeededNoise(1))
    total = randomizer.collect(x, COUNTS, noise=SeededNoise(1))
    assert total.dtype == torch.float64 and total.shape == (5,)
    rounding = 100 * torch.finfo(dtype).eps * float(messages.abs().sum())
    torch.testing.assert_close(total, randomizer.decode_sum(messages), rtol=0, atol=rounding)
    other = randomizer.collect(x, COUNTS, noise=SeededNoise(2))
    assert not torch.allclose(other, total, rtol=0, atol=rounding)


@pytest.mark.parametrize("kind", [PrivUnit, PrivUnitG])
@pytest.mark.parametrize("counts", [[0, 1, 3, 17, 0, 40], [0, 0, 0, 0, 3, 0]])
def test_collect_has_the_law_of_sample_sum(kind, counts):
    randomizer, x, counts, repeats = kind(3, 8.0, 1.5), points(3), torch.tensor(counts), 800
    noise = SeededNoise(3)
    slow = torch.stack([randomizer.collect(x, counts, noise=noise) for _ in range(repeats)])
    fast = randomizer.sample_sum(x, counts, generator=generator(4), sample_shape=(4 * repeats,))
    center = counts.double() @ x
    spread = math.sqrt(int(counts.sum()) * randomizer.moments.variance)
    axes = torch.linalg.svd(center[None])[2]  # along the mean, and two directions across
    found, wanted = ((sums - center) @ axes.mT / spread for sums in (slow, fast))
    for views in (found.mT, wanted.mT), (found.square().sum(-1)[None], wanted.square().sum(-1)[None]):
        for one, two in zip(*(view.numpy() for view in views), strict=True):
            assert stats.ks_2samp(one, two).pvalue > ALPHA
            assert stats.ks_2samp(one, 1.4 * two + 0.4).pvalue < ALPHA
    assert float(found.mean(0).abs().max()) * math.sqrt(repeats) < stats.norm.isf(ALPHA / 6)
    squares = found.square().sum(-1)
    assert abs(float(squares.mean()) - 3) < stats.norm.isf(ALPHA / 2) * float(squares.std()) / math.sqrt(repeats)


@pytest.mark.parametrize("counts", [[0], [], [1], [0, 5, 0, 0, 7, 1, 0], [100]])
@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_consecutive_users_hold_their_types(counts, at_once):
    counts = torch.tensor(counts, dtype=torch.int64)
    found = list(consecutive(counts, at_once))
    wanted = torch.arange(len(counts)).repeat_interleave(counts)
    assert torch.equal(torch.cat([wanted[:0], *found]), wanted)
    assert all(0 < len(part) <= at_once for part in found)


@pytest.mark.parametrize("make", KINDS)
def test_no_users(make):
    for x, counts in ((points(4), torch.zeros(6)), (points(4)[:0], torch.zeros(0))):
        assert torch.equal(make(4).collect(x, counts, noise=SeededNoise(0)), torch.zeros(4, dtype=torch.float64))


def test_bad_input_is_refused_before_any_work():
    randomizer, x = PrivUnitG(4, 1.0, 1.5), points(4)
    with pytest.raises(ValueError, match=r"points must have shape \(types, 4\)"):
        randomizer.collect(x[0], COUNTS, noise=SeededNoise(0))
    with pytest.raises(ValueError, match="points holds points outside the ball"):
        randomizer.collect(2 * x, COUNTS, noise=SeededNoise(0))
    with pytest.raises(ValueError, match=r"counts must have shape \(6,\)"):
        randomizer.collect(x, COUNTS[1:], noise=SeededNoise(0))
    with pytest.raises(ValueError, match="counts must hold no negative counts"):
        randomizer.collect(x, COUNTS - 1, noise=SeededNoise(0))
    with pytest.raises(TypeError, match="noise must be None"):
        randomizer.collect(x, COUNTS, noise=3)
