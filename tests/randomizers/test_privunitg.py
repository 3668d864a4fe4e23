"""PrivUnitG draws: the exact law in one dimension, mean and covariance at every kind of point, sums over users."""

import math

import numpy as np
import pytest
import torch
from laws import generator
from scipy import stats
from scipy.special import log_ndtr, ndtr

from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnitG

ALPHA = 1e-6


def points_at(norm, dim, radius):
    x = torch.arange(1, dim + 1, dtype=torch.float64) * torch.tensor([1.0, -1.0]).double().repeat(dim)[:dim]
    return x / x.norm() * norm * radius


def distribution_function(randomizer, x):
    """Exact F of k Y/C in one dimension, on a fine grid: the integral of phi (c0 + (c1 - c0) Phi((x' y - k)/h))."""
    tau, height = randomizer.tau, math.sqrt(1 - x * x)
    k, c0, c1 = tau.threshold, tau.low_density, tau.high_density
    if height == 0:
        sign = math.copysign(1, x)

        def one_sided(y):
            t = sign * y
            low, high = c0 * ndtr(t), 1 - c1 * np.exp(log_ndtr(-t))
            below = np.where(t < k, low, high)
            return below if sign > 0 else 1 - below

        return one_sided
    y = np.linspace(-25, 25, 400_001)
    density = np.exp(-y * y / 2) / math.sqrt(2 * math.pi) * (c0 + (c1 - c0) * ndtr((x * y - k) / height))
    integral = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(y))])
    return lambda t: np.interp(t, y, integral)


@pytest.mark.parametrize("epsilon", [0.5, 4, 20])
@pytest.mark.parametrize("x", [0.0, -0.6, 1.0])
def test_law_in_one_dimension(epsilon, x, monkeypatch):
    monkeypatch.setattr(PrivUnitG, "grid", 2.0**-11)
    randomizer = PrivUnitG(1, epsilon, 2.0)
    points = torch.full((1_000_000, 1), 2.0 * x, dtype=torch.float64)
    spread = torch.rand(len(points), dtype=torch.float64, generator=generator()) - 0.5  # over the lattice's cells
    sent = randomizer.randomize_unchecked(points, SeededNoise(3))[:, 0] + spread * randomizer.step
    y = sent.numpy() * randomizer.tau.threshold / 2.0

    def chi_square(y):
        counts = np.histogram(distribution_function(randomizer, x)(y), 100, (0, 1))[0]
        return ((counts - 1e4) ** 2 / 1e4).sum()

    critical = stats.chi2.isf(ALPHA, 99)
    assert chi_square(y) < critical
    assert chi_square(1.01 * y) > critical


@pytest.mark.parametrize("epsilon", [1, 8])
def test_sums_of_single_users_keep_the_law_of_the_message(epsilon, monkeypatch):
    """Counts of 1 at a point of the sphere: the sum is one message, skewness and all, on a lattice that is fine."""
    monkeypatch.setattr(PrivUnitG, "grid", 2.0**-11)
    randomizer, x = PrivUnitG(1, epsilon), torch.tensor([[-1.0]], dtype=torch.float64)
    sums = randomizer.sample_tally(Crowd(x, torch.tensor([1])), generator=generator(9), sample_shape=(1_000_000,))[
        "sum"
    ]
    uniform = distribution_function(randomizer, -1.0)(sums[:, 0].numpy() * randomizer.tau.threshold)
    critical = stats.chi2.isf(ALPHA, 99)
    assert stats.chisquare(np.histogram(uniform, 100, (0, 1))[0]).statistic < critical
    off = distribution_function(randomizer, -1.0)(1.01 * sums[:, 0].numpy() * randomizer.tau.threshold)
    assert stats.chisquare(np.histogram(off, 100, (0, 1))[0]).statistic > critical


@pytest.mark.parametrize("users", [10**9, 10**12, 8 * 10**13])
@pytest.mark.parametrize("epsilon", [0.5, 20])
def test_sums_over_very_many_users(epsilon, users):
    """||sum - n x||^2/(n v) is chi-square with dim degrees of freedom, at a cost that n does not touch."""
    randomizer, dim, repeats = PrivUnitG(32, epsilon, 2.0), 32, 5000
    x = torch.stack([points_at(1.0, dim, 2.0), -points_at(0.5, dim, 2.0)])
    counts = torch.tensor([users, users // 7])
    sums = randomizer.sample_tally(Crowd(x, counts), generator=generator(10), sample_shape=(repeats,))["sum"]
    error = (sums - counts.double() @ x) / math.sqrt(float(counts.sum()) * randomizer.moments.variance)
    total = float(error.square().sum())
    tails = stats.chi2.isf(1 - ALPHA / 2, dim * repeats), stats.chi2.isf(ALPHA / 2, dim * repeats)
    assert tails[0] < total < tails[1]
    assert not tails[0] < total * 1.01**2 < tails[1]  # scale 1 % off
    assert stats.kstest(error.square().sum(-1).numpy(), stats.chi2(dim).cdf).pvalue > ALPHA
    assert (error.mean(0).abs() * math.sqrt(repeats) < 5.5).all()
