"""PrivUnit on the ball: its exact privacy, its mean and covariance from the density, and its law by
rejection.
"""

import math

import numpy as np
import pytest
import torch
from responses import lifted, random_ball
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.sphere import (
    threshold,
    uniform_coordinate,
)

EPSILONS = [1e-3, 0.1, 1, 4, 8, 20, 50]


def log_density(v, u, cap, high=1.0):
    """log of the density of V at v relative to the uniform law; ``high`` scales c1."""
    inside = (v * u).sum(-1) >= cap.threshold
    return np.where(
        inside,
        math.log(high * cap.high_density),
        math.log(cap.low_density),
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_guarantee_privunit_exactly_epsilon_ldp(epsilon, dim):
    """On the sphere every ratio of densities is e^-epsilon, 1 or e^epsilon; what is dropped is
    post-processing.
    """
    cap = PrivUnit(dim, epsilon).cap
    rng = np.random.default_rng(dim)
    x = random_ball(rng, 500, dim)
    other = random_ball(rng, 500, dim)
    # adversarial pairs
    other[::4] = -x[::4]
    other[1::4] = x[1::4] * (1 - 1e-15)
    other[2::4] = 0
    u = lifted(x)
    v = lifted(other)
    worst = 0.0
    wrong = 0.0
    # where the densities differ, where they do not, and random ones
    outputs = [
        u,
        v,
        -u,
        u - v + 1e-9,
        rng.standard_normal(u.shape),
        u + 0.3 * rng.standard_normal(u.shape),
    ]
    for y in outputs:
        y = y / np.linalg.norm(y, axis=-1, keepdims=True)
        lower = log_density(y, v, cap)
        worst = max(worst, float(np.abs(log_density(y, u, cap) - lower).max()))
        more = log_density(y, u, cap, 1.01) - log_density(y, v, cap, 1.01)
        wrong = max(wrong, float(more.max()))
    # attained, and never more
    assert worst == pytest.approx(epsilon, rel=1e-12)
    # a high density 1 % off would break it
    assert wrong > epsilon + 5e-3
    # both parts together have the mass 1
    mass = cap.low_density * (1 - cap.survival) + cap.high_density * cap.survival
    assert mass == pytest.approx(1, abs=1e-13)
    guarantee = PrivUnit(dim, epsilon).guarantee
    assert guarantee.epsilon == epsilon
    assert guarantee.exact is False
    assert 0 < guarantee.delta < 2**-110
    assert guarantee.model == Model.LOCAL
    assert guarantee.neighbours == Neighbours.REPLACE_ONE


@pytest.mark.parametrize("epsilon", [0.01, 1, 20])
@pytest.mark.parametrize("dim", [1, 2, 64, 100_000])
def test_guarantee_privunit_exactly_epsilon_ldp_as_it_is_drawn(epsilon, dim):
    """T is the quantile function of a normal z with density c1 phi or c0 phi: on the sphere that is
    c1 or c0.

    The log density of T from a standard normal z, less the exact one, is what the table adds to any
    log ratio: less than 1e-12 (test_logit_beta.py), here seen through the rounding of T itself.
    """
    z = torch.linspace(-8.5, 8.5, 5001, dtype=torch.float64, requires_grad=True)
    t, across = uniform_coordinate(dim + 1, z)
    rapidity = torch.asinh(t / across)
    (slope,) = torch.autograd.grad(rapidity.sum(), z)
    log_cosh = torch.log1p(2 * torch.sinh(rapidity / 2).square()).detach()
    # density over sech^dim, the uniform one
    z = z.detach()
    drawn = dim * log_cosh - z.square() / 2 - slope.log().detach()
    # beyond, the inverse of tanh that this test takes loses digits
    inside = z.abs() < 6
    inner = drawn[inside]
    assert float((inner - inner.mean()).abs().max()) < 2e-11
    # control: a dimension .001 off
    wrong = (drawn + 1e-3 * log_cosh * dim)[inside]
    assert float((wrong - wrong.mean()).abs().max()) > 1e-4


def rejected(dim, epsilon, x, number, seed):
    """Messages by the definition: uniform points of the sphere, kept with probability density
    / c1.
    """
    cap = PrivUnit(dim, epsilon).cap
    rng = np.random.default_rng(seed)
    found = []
    while sum(map(len, found)) < number:
        v = rng.standard_normal((200_000, dim + 1))
        v /= np.linalg.norm(v, axis=-1, keepdims=True)
        inside = v @ lifted(x[None])[0] >= cap.threshold
        chance = np.where(inside, 1, math.exp(-epsilon))
        found.append(v[rng.random(len(v)) < chance])
    return np.concatenate(found)[:number, :-1] / cap.threshold


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("norm", [0.0, 0.7, 1.0])
def test_messages_have_the_law_of_rejection_sampling(dim, norm):
    epsilon = 3.0
    x = np.arange(1.0, dim + 1)
    x *= norm / np.linalg.norm(x)
    step = PrivUnit(dim, epsilon).step
    rng = np.random.default_rng(3)
    slow = rejected(dim, epsilon, x, 30_000, 1)
    # rounded to the lattice as messages are
    slow = np.floor(slow / step + rng.random(slow.shape)) * step
    users = torch.from_numpy(x).expand(30_000, dim)

    def drawn(epsilon):
        return PrivUnit(dim, epsilon).randomize_unchecked(users, SeededNoise(2)).numpy()

    fast = drawn(epsilon)
    # control: a quarter more epsilon is told from it by one of the views at least
    off = drawn(1.25 * epsilon)
    # first and last coordinate, their sum, and the distance from x
    views = [
        lambda y: y[:, 0],
        lambda y: y[:, -1],
        lambda y: y.sum(-1),
        lambda y: np.square(y - x).sum(-1),
    ]
    assert min(stats.ks_2samp(view(slow), view(fast)).pvalue for view in views) > 1e-6
    # control: the law of a quarter more epsilon is told apart
    assert min(stats.ks_2samp(view(slow), view(off)).pvalue for view in views) < 1e-6


@pytest.mark.parametrize("epsilon", [0.5, 1, 4, 8, 20])
def test_the_noise_grows_with_the_dimension_up_to_that_of_a_half_space(epsilon):
    """In many dimensions a coordinate is normal: variance 1/k^2, third moment -k, fourth 3 + k^2, k
    the fixed point.
    """
    k = threshold(epsilon)
    shares = [PrivUnit.unit_variance(d, epsilon) * k**2 for d in (1, 16, 256, 10**5)]
    assert shares == sorted(shares)
    assert 1 - 1e-3 < shares[-1] < 1
    limit = PrivUnit(10**6, epsilon).moments
    assert limit.third == pytest.approx(-k, rel=1e-4)
    assert limit.fourth == pytest.approx(3 + k**2, rel=1e-4)
