"""Sums of truncated normals: cumulants, quantile tables and draws against laws computed without any of the code."""

import math

import mpmath
import numpy as np
import pytest
import torch
from laws import generator
from scipy import stats
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from scipy.special import ndtr, ndtri

from torchdp.draws import Simulated
from torchdp.randomizers.ball.truncated_sums import excess_moments, quantile, truncated_sums

THRESHOLDS = [4e-7, 0.004, 0.4, 2.7, 9.0]
Z = torch.linspace(-7, 7, 14 * 500 + 1, dtype=torch.float64)


def at(threshold, copies, z):
    return quantile(threshold, torch.full_like(z, copies), z)


def raw_moments(threshold):
    """E (X - threshold)^i, i = 0..4, X standard normal given >= threshold: the recurrence of partial integration."""
    with mpmath.workdps(40):
        k = mpmath.mpf(threshold)
        hazard = mpmath.npdf(k) / mpmath.ncdf(-k)
        moments = [mpmath.mpf(1), hazard - k]
        for order in (2, 3, 4):
            moments.append((order - 1) * moments[-2] - k * moments[-1])
        return moments


def standardised_cumulants(threshold):
    """(mean, deviation, skewness, excess kurtosis) of one copy less the threshold."""
    with mpmath.workdps(40):
        _, m1, m2, m3, m4 = raw_moments(threshold)
        variance = m2 - m1**2
        third = m3 - 3 * m1 * m2 + 2 * m1**3
        fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        return tuple(map(float, (m1, mpmath.sqrt(variance), third / variance**1.5, fourth / variance**2 - 3)))


def distribution_of_few(threshold, copies):
    """F of the sum of 1 to 4 copies less the threshold, from the densities of one and of two (closed forms)."""
    k, survival = threshold, float(ndtr(-threshold))

    def two(y):
        bell = math.exp(-((y + 2 * k) ** 2) / 4) / math.sqrt(4 * math.pi)
        return bell * math.erf(y / 2) / survival**2 if y > 0 else 0.0

    def integral(f, y):
        return quad(f, 0, y, epsabs=1e-12, epsrel=1e-11, limit=200)[0]

    def one(y):
        return -math.expm1(float(stats.norm.logsf(k + y)) - math.log(survival)) if y > 0 else 0.0

    return {
        1: one,
        2: lambda y: integral(two, y),
        3: lambda y: integral(lambda u: two(u) * one(y - u), y),
        4: lambda y: integral(lambda u: two(u) * integral(two, y - u), y),
    }[copies]


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_mean_and_deviation(threshold):
    assert excess_moments(threshold) == pytest.approx(standardised_cumulants(threshold)[:2], rel=1e-13)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_few_copies_match_quadrature(threshold, copies):
    z = torch.tensor([-4.5, -1.507, 0.01, 1.9, 4.2] if copies == 4 else [-6, -4.5, -2.3, -0.31, 0.7, 3.1, 5.1])
    mean, deviation, *_ = standardised_cumulants(threshold)
    distribution = distribution_of_few(threshold, copies)
    sums = copies * mean + math.sqrt(copies) * deviation * at(threshold, copies, z.double())
    errors = [distribution(y) - ndtr(float(t)) for y, t in zip(sums.tolist(), z, strict=True)]
    assert max(map(abs, errors)) < 1e-8
    errors = [distribution(1.01 * y) - ndtr(float(t)) for y, t in zip(sums.tolist(), z, strict=True)]
    assert max(map(abs, errors)) > 1e-4


def lattice_law(threshold, step, squarings=4):
    """Distribution function of the sum of 16 copies, by squaring the law of one on a lattice four times."""
    edges = np.arange(0, min(13.0, 45 / threshold) + step, step)
    mass = -np.diff(np.exp(stats.norm.logsf(edges + threshold) - stats.norm.logsf(threshold)))
    size = 2 ** math.ceil(math.log2(2**squarings * len(mass)))
    mass = np.fft.irfft(np.fft.rfft(mass, size) ** 2**squarings, size)
    # Cell i of one copy stands at (i + 1/2) step, the sum of 16 at (i + 8) step, its cell's edge half a step on.
    return (np.arange(size) + 2**squarings / 2 + 0.5) * step, np.cumsum(mass)


@pytest.mark.parametrize("threshold", [0.004, 0.4, 2.7, 9.0])
def test_16_copies_match_repeated_convolution(threshold):
    mean, deviation, *_ = standardised_cumulants(threshold)
    points, distribution = lattice_law(threshold, deviation / 1000)
    points, distribution = points[::20], distribution[::20]
    inside = (distribution > 1e-9) & (distribution < 1 - 1e-9)
    x = (points[inside] - 16 * mean) / (4 * deviation)
    grid = CubicSpline(at(threshold, 16, Z).numpy(), ndtr(Z.numpy()))
    assert np.abs(grid(x) - distribution[inside]).max() < 1e-6
    assert np.abs(grid(1.01 * x) - distribution[inside]).max() > 1e-4
    # The table at the lattice's own quantiles, by density: the same comparison the other way round.
    z = ndtri(distribution[inside])
    error = (at(threshold, 16, torch.from_numpy(z)).numpy() - x) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    assert np.abs(error).max() < 1e-6


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("copies", [1, 2, 3, 6, 15, 16, 17, 30, 2**6, 1000, 2**20 + 7, 10**9, 10**14])
def test_quantiles_have_the_moments_of_the_sum(threshold, copies):
    q = at(threshold, copies, Z).numpy()
    weight = np.exp(-(Z.numpy() ** 2) / 2) / math.sqrt(2 * math.pi) / 500  # trapezoid rule in z
    *_, skewness, kurtosis = standardised_cumulants(threshold)
    got = [float(weight @ q**power) for power in (1, 2, 3, 4)]
    wanted = [0, 1, skewness / math.sqrt(copies), 3 + kurtosis / copies]
    assert got == pytest.approx(wanted, abs=1e-6)
    assert [float(weight @ (1.01 * q) ** power) for power in (1, 2, 3, 4)] != pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("copies", [1, 2, 3, 15, 16, 100, 10**9])
def test_quantiles_increase_and_are_smooth_between_the_nodes(threshold, copies):
    z = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    q = at(threshold, copies, z)
    assert q.isfinite().all() and (q.diff() >= 0).all()
    mean, deviation, *_ = standardised_cumulants(threshold)
    assert (copies * mean + math.sqrt(copies) * deviation * q[z.abs() <= 6] > 0).all()  # copies exceed k


def test_no_copies_add_nothing():
    assert (at(0.4, 0, Z) == 0).all()
    counts = torch.zeros(2, 0, dtype=torch.int64)
    assert truncated_sums(0.4, counts, Simulated(generator())).shape == (2, 0)
    assert (truncated_sums(0.4, torch.zeros(5, dtype=torch.int64), Simulated(generator())) == 0).all()


@pytest.mark.parametrize("threshold", [0.2, 1.5, 5.3])
@pytest.mark.parametrize("copies", [1, 3, 16, 21])
def test_draws_match_sums_of_single_draws(threshold, copies):
    repeats = 100_000
    counts = torch.full((repeats,), copies)
    fast = truncated_sums(threshold, counts, Simulated(generator(1))).numpy()
    uniform = np.random.default_rng(2).random((repeats, copies))
    slow = -ndtri((1 - uniform) * ndtr(-threshold)).sum(-1)
    assert stats.ks_2samp(fast, slow).pvalue > 1e-6
    _, deviation, *_ = standardised_cumulants(threshold)
    off = 0.05 * math.sqrt(copies) * deviation  # the mean off by 1/20 of a deviation
    assert stats.ks_2samp(fast, slow + off).pvalue < 1e-6


def test_sums_of_many_copies_are_float64_to_the_last_digits():
    """One draw at every size around 1e14: rounding to float32 anywhere would be a million deviations off."""
    counts = torch.arange(10**14, 10**14 + 1000)
    mean, deviation, *_ = standardised_cumulants(0.4)
    sums = truncated_sums(0.4, counts, Simulated(generator(3)))
    z = (sums - counts.double() * (0.4 + mean)) / (deviation * counts.double().sqrt())
    assert abs(float(z.mean())) < 5 / math.sqrt(1000)
    assert abs(float(z.square().mean()) - 1) < 5 * math.sqrt(2 / 1000)


def test_whole_numbers_of_copies_may_be_integers_or_floats():
    copies = torch.tensor([0, 1, 15, 16, 17, 1000, 10**14])
    z = torch.linspace(-3, 3, 7, dtype=torch.float64)
    assert torch.equal(quantile(0.4, copies, z), quantile(0.4, copies.double(), z))


@pytest.mark.parametrize("threshold", [0.004, 2.7, 9.0])
@pytest.mark.parametrize("copies", [15, 16, 17, 23, 60, 1000])
def test_distribution_function_is_within_1e_8(threshold, copies):
    """F at the quantiles, by Gil-Pelaez inversion of the characteristic function in 30 digits."""
    mean, deviation, *_ = standardised_cumulants(threshold)
    z = torch.tensor([-5.0, -3.2, -1.507, -0.31, 0.01, 0.7, 1.9, 3.1, 4.2], dtype=torch.float64)
    quantiles = at(threshold, copies, z).tolist()
    with mpmath.workdps(30):
        root, step, terms = mpmath.mpf(threshold) / mpmath.sqrt(2), mpmath.mpf(2) * mpmath.pi / 60, []
        while not terms or abs(terms[-1][1]) > 1e-14:
            frequency = step * (len(terms) + mpmath.mpf(1) / 2)
            t = frequency / (math.sqrt(copies) * deviation)
            shifted = root - 1j * t / mpmath.sqrt(2)
            one = mpmath.exp(shifted**2 - root**2 - 1j * t * mean) * mpmath.erfc(shifted) / mpmath.erfc(root)
            terms.append((frequency, one**copies))
        for scale, close in ((1, True), (1.01, False)):  # 1 % too wide is seen
            errors = [
                0.5 - sum((v * mpmath.expj(-w * scale * x)).imag / w for w, v in terms) * step / mpmath.pi - p
                for x, p in zip(quantiles, ndtr(z.numpy()), strict=True)
            ]
            assert (max(map(abs, errors)) < 1e-8) == close
