"""Privacy, mean and variance of a PrivUnitG message from its exact density: no draws, no seeds.

Relative to the standard normal of R^{d+1} the lifted message k (tau u + (I - u u^T) g)/k has density c1 where
<., u> >= k and c0 elsewhere; what is left when the last coordinate is dropped follows by conditioning on it.
That the code computes this message: tests/kernels; that it draws this tau: test_tilted_normal.py.
"""

import math
from itertools import product

import numpy as np
import pytest
import torch
from channels import lifted, random_ball
from scipy.integrate import quad
from scipy.special import ndtr

from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import PrivUnitG

EPSILONS = [1e-3, 0.1, 0.5, 1, 4, 8, 20, 50]
POINTS = [-1.0, -0.8, -0.3, 0.0, 1e-3, 0.6, 0.999, 1.0]  # x' in one dimension


def log_density(y, u, tau, high=1.0):
    """log of the lifted message's density at y relative to the standard normal; ``high`` scales c1."""
    above = (y * u).sum(-1) >= tau.threshold
    return np.where(above, math.log(high * tau.high_density), math.log(tau.low_density))


def relative_density(along, norm, tau, high=1.0):
    """Density, relative to N(0, I_d), of the first d coordinates at y with <y, x'> = along, ||x'|| = norm."""
    height = math.sqrt(max(0.0, 1 - norm**2))
    with np.errstate(divide="ignore"):
        above = ndtr((along - tau.threshold) / height) if height else (along >= tau.threshold).astype(float)
    return tau.low_density + (high * tau.high_density - tau.low_density) * above


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_guarantee_privunitg_exactly_epsilon_ldp(epsilon, dim):
    """Before the last coordinate is dropped: every ratio of densities is e^-epsilon, 1 or e^epsilon."""
    tau, rng = PrivUnitG(dim, epsilon).tau, np.random.default_rng(dim)
    x, other = random_ball(rng, 2000, dim), random_ball(rng, 2000, dim)
    other[::4] = -x[::4]  # adversarial pairs: opposite, equal but for the sign of the last digit, the centre
    other[1::4] = x[1::4] * (1 - 1e-15)
    other[2::4] = 0
    u, v = lifted(x), lifted(other)
    outputs = [tau.threshold * scale * w for scale in (0.999, 1.001, 3) for w in (u, v, -u, u - v)]
    ratios = []
    for y in [*outputs, 4 * rng.standard_normal(u.shape)]:
        assert np.abs(log_density(y, u, tau) - log_density(y, v, tau)).max() <= epsilon + 1e-12 * max(1, epsilon)
        ratios.append(log_density(y, u, tau, high=1.01) - log_density(y, v, tau, high=1.01))
    assert np.max(ratios) > epsilon + 1e-3  # a high density 1 % off would break it
    # Attained: antipodal points of the sphere, also after the last coordinate is dropped (it carries nothing).
    along = np.array([1.001 * tau.threshold])
    attained = np.log(relative_density(along, 1.0, tau) / relative_density(-along, 1.0, tau))
    assert attained == pytest.approx(epsilon, rel=1e-12)
    guarantee = PrivUnitG(dim, epsilon).guarantee
    assert (guarantee.epsilon, guarantee.exact) == (epsilon, False) and 0 < guarantee.delta < 2**-128
    assert (guarantee.model, guarantee.neighbours) == (Model.LOCAL, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_guarantee_privunitg_exactly_epsilon_ldp_after_the_coordinate_is_dropped(epsilon):
    tau = PrivUnitG(1, epsilon).tau
    y = np.concatenate([np.linspace(-40, 40, 4001), tau.threshold * np.array([-1.0001, -1, 1, 1.0001])])
    densities = {x: relative_density(x * y, abs(x), tau) for x in POINTS}
    worst = max(float(np.log(densities[a] / densities[b]).max()) for a, b in product(POINTS, POINTS))
    assert worst == pytest.approx(epsilon, rel=1e-9)
    wrong = [relative_density(x * y, 1.0, tau, high=1.01) for x in (-1, 1)]
    assert np.log(wrong[0] / wrong[1]).max() > epsilon * (1 + 1e-9) + 1e-3


@pytest.mark.parametrize("epsilon", [0.5, 4, 20])
@pytest.mark.parametrize("x", [0.0, 0.3, -0.9])
def test_the_density_of_the_marginal_is_the_convolution_of_its_two_parts(epsilon, x):
    """In one dimension the message is (tau x' + height w)/k with w ~ N(0, 1): integrate over tau."""
    tau, height = PrivUnitG(1, epsilon).tau, math.sqrt(1 - x * x)
    k = tau.threshold
    for y in (-4.0, -0.7, 0.2, 1.3, k, 2 * k):

        def joint(t):
            return math.exp(-(t**2 + ((y - t * x) / height) ** 2) / 2) / (2 * math.pi * height)  # noqa: B023

        # Given y the normal t has mean x y and deviation `height`.
        ends = min(x * y, k) - 12, max(x * y, k) + 12
        low = quad(joint, ends[0], k, epsabs=1e-14, epsrel=1e-11, limit=300, points=[min(x * y, k - 1e-9)])[0]
        high = quad(joint, k, ends[1], epsabs=0, epsrel=1e-11, limit=300, points=[max(x * y, k + 1e-9)])[0]
        density = tau.low_density * low + tau.high_density * high
        normal = math.exp(-y * y / 2) / math.sqrt(2 * math.pi)
        assert density == pytest.approx(normal * relative_density(np.array(x * y), abs(x), tau), rel=1e-8)


def moments_of_density(randomizer, x, high=1.0):
    """Mass, mean and covariance of the message at x' by the trapezoid rule; d = 1 or 2, refined at the threshold."""
    tau, k = randomizer.tau, randomizer.tau.threshold
    norm = float(np.linalg.norm(x))
    axis = np.array([1.0, *[0.0] * (len(x) - 1)]) if norm == 0 else x / norm
    # Gauss-Legendre panels along x' with an edge where the density jumps, along the rest the standard normal.
    edges = np.unique(
        [*np.linspace(-12, k / max(norm, 1e-9) if norm > 0.1 else 12, 60), *np.linspace(-12, 22, 120)]
    )
    if norm:
        edges = np.unique([*edges, k / norm]) if k / norm < 22 else edges
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    t = ((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel()
    weight = (half * weights).ravel() * np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    weight = weight * relative_density(t * norm, norm, tau, high)
    mass, mean, square = weight.sum(), weight @ t, weight @ t**2
    across = np.eye(len(x)) - np.outer(axis, axis)
    covariance = (square - mean**2) * np.outer(axis, axis) + mass * across
    scale = randomizer.radius / k
    return mass, mean * axis * scale, covariance * scale**2


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 4, 8, 20])
@pytest.mark.parametrize("x", [(0.0,), (0.3,), (-0.9,), (1.0,), (0.0, 0.0), (0.3, -0.4), (0.6, 0.8)])
def test_mass_1_mean_x_and_covariance_v_from_the_density(epsilon, x):
    randomizer = PrivUnitG(len(x), epsilon, 3.0)
    x = np.array(x)
    mass, mean, covariance = moments_of_density(randomizer, x)
    assert mass == pytest.approx(1, abs=1e-10)
    assert mean == pytest.approx(3.0 * x, abs=1e-9 / randomizer.tau.threshold)
    variance = randomizer.moments.variance - randomizer.step**2 / 6  # before it is rounded
    assert covariance == pytest.approx(variance * np.eye(len(x)), rel=1e-8, abs=1e-8)
    wrong = moments_of_density(randomizer, x, high=1.01)
    assert abs(wrong[0] - 1) > 1e-3


@pytest.mark.parametrize("dim", [1, 2, 64])
@pytest.mark.parametrize("epsilon", [0.01, 1, 20])
def test_stated_moments(dim, epsilon):
    randomizer = PrivUnitG(dim, epsilon, 2.5)
    k = randomizer.tau.threshold
    assert randomizer.moments.variance == pytest.approx((2.5 / k) ** 2 * (1 + 2**-16 / 6), rel=1e-15)
    assert (randomizer.moments.third, randomizer.moments.fourth) == (-k, 3 + k * k)
    assert randomizer.bits_per_user == 16 * dim


def test_published_variances():
    values = {0.1: 628.366, 0.5: 25.1799, 1: 6.33004, 2: 1.61668, 4: 0.435321, 8: 0.132913, 20: 0.0357454}
    for epsilon, variance in values.items():
        assert PrivUnitG(3, epsilon).moments.variance == pytest.approx(variance, rel=4e-6)


def test_parameters_are_kept_as_plain_numbers():
    assert PrivUnitG(np.int64(3), np.float32(0.5), torch.tensor(2)) == PrivUnitG(3, 0.5, 2.0)
