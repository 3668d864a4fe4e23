"""Sums of many truncated normals, each at the cost of one draw."""

import math
from functools import lru_cache

import numpy as np
import torch
from scipy.special import ndtr, ndtri, wofz
from torch import Tensor

from torchdp.draws import Draws

# Up to MOST_SINGLE copies each number of copies has its own quantile table; beyond, one polynomial in
# 1/sqrt(copies) serves all numbers, because the quantiles are smooth in it (Cornish and Fisher 1938).
MOST_SINGLE, DEGREE = 15, 8
# Tables: density on [-HALF_WIDTH, HALF_WIDTH) standard deviations; quantiles at z = -REACH, ..., REACH.
HALF_WIDTH, REACH, STEPS_PER_UNIT = 32.0, 7, 64
STEEPEST = 20.0  # no slope of a table comes near it; where the density drowns in rounding it must end somewhere


def truncated_sums(threshold: float, counts: Tensor, draws: Draws) -> Tensor:
    """For each entry n of ``counts`` (int64) the sum of n copies of N(0, 1) given >= threshold, float64.

    The sum is F^{-1}(Phi(z)), z standard normal, with F its distribution function; F comes from its characteristic
    function by an FFT. What is drawn has a distribution function within about 1e-8 of F.
    """
    mean, deviation = excess_moments(threshold)
    counts = counts.double()  # an integer tensor times a float, or its root, would be float32
    z = draws.normal(tuple(counts.shape))
    return counts * (threshold + mean) + counts.sqrt() * deviation * quantile(threshold, counts, z)


def quantile(threshold: float, copies: Tensor, z: Tensor) -> Tensor:
    """F^{-1}(Phi(z)), F the distribution function of the standardised sum of this many copies (0 for 0 copies)."""
    single, smooth = (torch.from_numpy(a).to(z.device) for a in _tables(threshold))
    nodes, copies = single.shape[-1], copies.double()  # int64 would make s float32
    inside = z.clamp(-REACH, REACH)
    position = (inside + REACH) * STEPS_PER_UNIT
    index = position.long().clamp_max(nodes - 2)
    t = position - index
    few = copies <= MOST_SINGLE
    row = torch.where(few, copies, 0).long() * nodes + index

    # Clenshaw's recurrence in s = 1/sqrt(copies), mapped from [0, 1/sqrt(MOST_SINGLE + 1)] to [-1, 1].
    s = 2 * (copies.clamp_min(MOST_SINGLE + 1) / (MOST_SINGLE + 1)).rsqrt() - 1

    def at(kind: int, offset: int) -> Tensor:
        above, current = torch.zeros_like(s), torch.zeros_like(s)
        for coefficient in smooth[kind].flip(0)[:-1]:
            above, current = current, torch.addcmul(coefficient[index + offset] - above, s, current, value=2)
        many = torch.addcmul(smooth[kind, 0][index + offset] - above, s, current)
        return torch.where(few, single[kind].flatten()[row + offset], many)

    v0, v1, s0, s1 = at(0, 0), at(0, 1), at(1, 0) / STEPS_PER_UNIT, at(1, 1) / STEPS_PER_UNIT
    cubic = v0 + t * (s0 + t * (3 * (v1 - v0) - 2 * s0 - s1 + t * (2 * (v0 - v1) + s0 + s1)))
    # About 1 draw in 4e11 lies beyond the table: continue along its end slope.
    return cubic + (z - inside) * STEPS_PER_UNIT * torch.where(z < 0, s0, s1)


def excess_moments(threshold: float) -> tuple[float, float]:
    """Mean and standard deviation of N(0, 1) - threshold given that it is >= 0."""
    mean, variance = _cumulants(threshold)[:2]
    return float(mean), math.sqrt(variance)


@lru_cache(maxsize=64)
def _tables(threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Values and slopes on the grid of z, (2, ., nodes): for 0, ..., 15 copies, and as coefficients in s."""
    single = [_table(threshold, copies) for copies in range(MOST_SINGLE + 1)]
    angles = (np.arange(DEGREE + 1) + 0.5) * math.pi / (DEGREE + 1)
    s = (np.cos(angles) + 1) / 2 / math.sqrt(MOST_SINGLE + 1)
    samples = np.stack([_table(threshold, 1 / node**2) for node in s], axis=1)  # (2, DEGREE + 1, nodes)
    basis = np.cos(np.arange(DEGREE + 1)[:, None] * angles) * 2 / (DEGREE + 1)
    basis[0] /= 2
    return np.stack(single, axis=1), np.einsum("cd,vdn->vcn", basis, samples)


def _table(threshold: float, copies: float) -> np.ndarray:
    """Values and slopes of z -> F^{-1}(Phi(z)) at z = -7, -7 + 1/64, ..., 7; copies: 0, or any real >= 1."""
    z = np.arange(-REACH * STEPS_PER_UNIT, REACH * STEPS_PER_UNIT + 1) / STEPS_PER_UNIT
    bell = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    if copies == 0:
        return np.zeros((2, len(z)))
    if copies == 1:
        mean, deviation = excess_moments(threshold)
        x = -ndtri(ndtr(-z) * ndtr(-threshold))
        # The density of one copy: phi(x) / Phibar(threshold).
        slopes = bell * ndtr(-threshold) / (np.exp(-x * x / 2) / math.sqrt(2 * math.pi))
        return np.stack([(x - threshold - mean) / deviation, slopes / deviation])
    # The transform decays like t^-copies: few copies need high frequencies.
    n = 2**18 if copies < 3 else 2**17 if copies < 4 else 2**15
    frequency = np.fft.fftfreq(n, 1 / n) * (math.pi / HALF_WIDTH)
    transform = _standardised_transform(threshold, copies, frequency) / (2 * HALF_WIDTH)
    alternating = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)  # puts the grid's origin at -HALF_WIDTH
    grid = -HALF_WIDTH + np.arange(n) * (2 * HALF_WIDTH / n)
    density = np.fft.fft(transform * alternating).real
    integral = np.zeros(n, dtype=complex)
    integral[1:] = transform[1:] / (-1j * frequency[1:])
    periodic = np.fft.fft(integral * alternating).real
    cdf = (grid + HALF_WIDTH) / (2 * HALF_WIDTH) + periodic - periodic[0]

    target = ndtr(z)
    right = np.clip(np.searchsorted(np.maximum.accumulate(cdf), target), 1, n - 1)
    low, high = grid[right - 1], grid[right]
    from scipy.interpolate import CubicHermiteSpline  # here, because loading it takes long

    spline = CubicHermiteSpline(grid, cdf, density)
    x = (low + high) / 2
    for _ in range(6):  # Newton's method, kept inside the grid cell that holds the quantile
        x = np.clip(x - (spline(x) - target) / np.maximum(spline(x, 1), 1e-300), low, high)
    slopes = np.clip(bell / np.maximum(spline(x, 1), 1e-300), 0, STEEPEST)
    return np.stack([np.maximum.accumulate(x), slopes])


def _standardised_transform(threshold: float, copies: float, frequency: np.ndarray) -> np.ndarray:
    """Characteristic function of the standardised sum of ``copies`` copies.

    One copy less the threshold has the transform w((t + i k)/sqrt 2) / w(i k/sqrt 2), w the Faddeeva function,
    which has no zeros there; its logarithm is followed continuously from t = 0.
    """
    cumulants = _cumulants(threshold)
    t = frequency / math.sqrt(copies * cumulants[1])
    one = wofz((np.abs(t) + 1j * threshold) / math.sqrt(2)) / wofz(1j * threshold / math.sqrt(2))
    # w(z) ~ i/(sqrt(pi) z): its phase stays within (0, pi), so the principal branch is continuous.
    logarithm = np.log(np.abs(one)) + 1j * np.angle(one) - 1j * np.abs(t) * cumulants[0]
    logarithm = np.where(t < 0, logarithm.conj(), logarithm)
    small = np.abs(t) < 0.02 / math.sqrt(cumulants[1])  # log(1 - tiny) would lose digits that copies multiply
    orders = np.arange(2, len(cumulants) + 1)
    factorials = np.array([math.factorial(order) for order in orders])
    logarithm[small] = (1j * t[small])[:, None] ** orders @ (cumulants[1:] / factorials)
    with np.errstate(under="ignore"):
        return np.exp(copies * logarithm)


@lru_cache(maxsize=128)
def _cumulants(threshold: float) -> np.ndarray:
    """Cumulants 1, ..., 8 of N(0, 1) - threshold given that it is >= 0, by Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    reach = min(13.0, 45 / threshold if threshold > 0 else 13.0)  # the density there is below 1e-19 of its top
    x, weights = (nodes + 1) * reach / 2, weights * reach / 2
    density = weights * np.exp(-x * x / 2 - threshold * x)
    density = density / density.sum()
    mean = float(density @ x)
    central = [float(density @ (x - mean) ** order) for order in range(9)]
    cumulants = [0.0, mean]
    for order in range(2, 9):
        lower = sum(math.comb(order - 1, i - 1) * cumulants[i] * central[order - i] for i in range(2, order))
        cumulants.append(central[order] - lower)
    return np.array(cumulants[1:])
