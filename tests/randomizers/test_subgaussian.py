"""Sub-Gaussian constants: the defining inequalities in every direction, from laws computed another
way.
"""

import math

import numpy as np
import pytest
from scipy.special import betainc, betaln

from torchdp.randomizers import (
    DuchiJordanWainwright,
    GaussianVector,
    PrivUnit,
)
from torchdp.randomizers.ball.ball import constants

# cosine of the angle with (the lifted) x
DIRECTIONS = [-1.0, -0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.0]
# times a standard deviation
RATES = np.geomspace(0.02, 5, 40)
RATES = np.concatenate([-RATES, RATES])


def square_bound(z, weights, psi2):
    """E exp(Z^2/psi2^2), at most 2."""
    exponents = np.minimum((z / psi2) ** 2, 700)
    return float(weights @ np.exp(exponents))


def rate_bound(z, weights, proxy):
    """max over rates of log E exp(l Z)/(l^2 proxy/2), at most 1."""
    rates = RATES / math.sqrt(proxy)
    exponents = rates[:, None] * z
    top = exponents.max(1)
    # log sum exp: the largest exponent is taken out
    moments = np.exp(exponents - top[:, None]) @ weights
    logs = top + np.log(moments)
    return float((logs / (rates**2 * proxy / 2)).max())


def sphere(dim, edges=()):
    """Nodes X and weights for a coordinate of a uniform point of the sphere in R^dim, panels
    refined at ``edges``.
    """
    if dim == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    nodes, weights = np.polynomial.legendre.leggauss(24)
    # beyond 22 deviations there is no mass
    wide = min(math.pi / 2, 22 / math.sqrt(dim))
    fine = [
        e + d
        for e in edges
        for d in (
            -0.1,
            -0.03,
            -0.01,
            -0.003,
            -0.001,
            0,
            0.001,
            0.003,
            0.01,
            0.03,
            0.1,
        )
    ]
    fine = [e for e in fine if abs(e) < wide]
    ends = np.unique([*np.linspace(-wide, wide, 25), *fine])
    half = np.diff(ends)[:, None] / 2
    middle = (ends[1:] + ends[:-1])[:, None] / 2
    angle = (middle + half * nodes).ravel()
    log = (dim - 2) * np.log(np.cos(angle)) - betaln(0.5, (dim - 1) / 2)
    return np.sin(angle), (half * weights).ravel() * np.exp(log)


def beyond(t, dim):
    """P(W >= t) for a coordinate W of a uniform point of the sphere in R^dim."""
    if dim == 1:
        return np.where(t <= -1, 1.0, np.where(t <= 1, 0.5, 0.0))
    t = np.clip(t, -1, 1)
    half = 0.5 * betainc((dim - 1) / 2, 0.5, 1 - t * t)
    return np.where(t >= 0, half, 1 - half)


def seen_from(direction, dim, threshold, low, high):
    """<V, theta> for V uniform, times c1 where <V, u> >= threshold and c0 elsewhere;
    cos(theta, u) = direction.
    """
    polar = math.acos(direction)
    edge = math.acos(threshold)
    ends = [math.pi / 2 - abs(polar + s * edge) for s in (1, -1)]
    # beyond a pole the angle is mirrored
    edges = [e if abs(e) <= math.pi / 2 else math.copysign(math.pi, e) - e for e in ends]
    x, weights = sphere(dim, edges)
    reach = math.sqrt(1 - direction**2) * np.sqrt(1 - x * x)
    if abs(direction) == 1:
        inside = (direction * x >= threshold).astype(float)
    else:
        inside = beyond(
            (threshold - direction * x) / np.maximum(reach, 1e-300),
            dim - 1,
        )
    return x, weights * (low + (high - low) * inside)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4, 8])
@pytest.mark.parametrize("dim", [1, 2, 4, 16, 256])
def test_privunit_holds_in_every_direction_and_is_attained(dim, epsilon):
    randomizer = PrivUnit(dim, epsilon, 2.0)
    cap = randomizer.cap
    bound = randomizer.subgaussian
    squares = []
    rates = []
    for direction in DIRECTIONS:
        x, weights = seen_from(
            direction,
            dim + 1,
            cap.threshold,
            cap.low_density,
            cap.high_density,
        )
        z = 2.0 * (x / cap.threshold - direction)
        squares.append(square_bound(z, weights, bound.psi2))
        rates.append(rate_bound(z, weights, bound.proxy))
    assert max(squares) == pytest.approx(2, rel=1e-6)
    assert max(rates) < 1 + 1e-7
    # on a grid of rates
    assert max(rates) > 0.98
    # in the last direction, along x
    assert square_bound(z, weights, 0.99 * bound.psi2) > 2.005
    assert bound.proxy >= randomizer.moments.variance


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1, 3, 8, 20, 50])
def test_the_constant_behind_the_pairwise_bounds(epsilon):
    """Ghazi et al. (2023), Theorem 9, wants sigma = O(C/epsilon): with PrivUnit at most 2.05 C
    coth(epsilon/2).
    """
    for dim in (1, 2, 16, 512, 10**5):
        assert PrivUnit(dim, epsilon, 3.0).subgaussian.psi2 < 2.05 * 3 / math.tanh(epsilon / 2)
    # which is nearly reached
    assert PrivUnit(10**5, 1e-6).subgaussian.psi2 > 2.04 / math.tanh(5e-7)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4, 20])
def test_the_sign_holds_at_every_point_and_is_attained(epsilon):
    randomizer = DuchiJordanWainwright(1, epsilon, 2.0)
    bound = randomizer.subgaussian
    # the size of what is sent
    size = 2.0 / math.tanh(epsilon / 2)
    squares = []
    rates = []
    for x in np.linspace(-2, 2, 41) * (1 - 1e-9):
        z = np.array([size - x, -size - x])
        weights = np.array([size + x, size - x]) / (2 * size)
        squares.append(square_bound(z, weights, bound.psi2))
        rates.append(rate_bound(z, weights, bound.proxy))
    assert 1.998 < max(squares) < 2 + 1e-7
    assert 0.97 < max(rates) < 1 + 1e-7


def test_gaussian_vector():
    randomizer = GaussianVector(3, 1.0, delta=1e-6)
    bound = randomizer.subgaussian
    square = (1 - 2 * randomizer.sigma**2 / bound.psi2**2) ** -0.5
    assert square == pytest.approx(2, rel=1e-12)
    assert bound.proxy == randomizer.sigma**2


def test_constants_of_known_laws():
    """A fair coin: 1/log 2 and 1. A biased one: Kearns and Saul (1998). A normal: 8/3 and 1."""
    coin = constants((np.array([-1.0, 1.0]), np.array([0.5, 0.5])))
    assert coin.psi2**2 == pytest.approx(1 / math.log(2), rel=1e-12)
    assert coin.proxy == pytest.approx(1, rel=1e-12)
    for p in (0.01, 0.2, 0.4, 0.9):
        values = np.array([1 - p, -p])
        biased = constants((values, np.array([p, 1 - p])))
        exact = (1 - 2 * p) / (2 * math.log((1 - p) / p))
        assert biased.proxy == pytest.approx(exact, rel=1e-9)
        above = p * math.exp(((1 - p) / biased.psi2) ** 2)
        below = (1 - p) * math.exp((p / biased.psi2) ** 2)
        assert above + below == pytest.approx(2, rel=1e-12)
    # a grid of steps .001, so that its sum is the integral
    t = np.linspace(-30, 30, 60_001)
    density = np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    normal = constants((t, density * 1e-3))
    assert normal.psi2**2 == pytest.approx(8 / 3, rel=1e-9)
    assert normal.proxy == pytest.approx(1, rel=1e-9)
