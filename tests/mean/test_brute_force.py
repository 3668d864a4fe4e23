"""Central mechanisms as black boxes: what two neighbours' releases tell apart, against what is
claimed.
"""

import math
from dataclasses import replace

import pytest
import torch
from gaussians import furthest, neighbours, true_epsilon

from torchdp.domains import (
    Box,
    FiniteSet,
    KroneckerProduct,
    Polytope,
    Product,
    difference_shape,
    linear_image,
    lp_ball,
    noise_shape,
    round_shape,
)
from torchdp.factorization import factorize
from torchdp.mean import GaussianMean, GaussianMoments, pure_lower_bound
from torchdp.queries import CentralFactorization, FactoredQueries

SHAPES = (noise_shape, difference_shape, round_shape)


def mean_instance(seed):
    """A mechanism for a random domain, and points among which its two furthest are."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    d = integer(1, 4)
    kind = seed % 5
    points = torch.randn(
        integer(2, 8), d, dtype=torch.float64, generator=generator
    ) * 10.0 ** integer(-3, 4)
    points[:, 0] += integer(0, 100)
    make = [
        FiniteSet,
        Polytope,
        FiniteSet,
        lambda x: Box(x.amin(0), x.amax(0)),
        lambda x: lp_ball(d, 2.0, 3.0),
    ]
    if kind == 2:
        points = torch.cat([points, 2 * points.mean(0) - points])
    domain = make[kind](points)
    if kind == 3:
        points = torch.cartesian_prod(*torch.stack([domain.low, domain.high], 1)).reshape(-1, d)
    if kind == 4:
        points = torch.cat([3 * torch.eye(d).double(), -3 * torch.eye(d).double()])
    shape = SHAPES[seed % 3](domain, (2.0, math.inf)[seed % 2])
    epsilon = float(torch.rand(1, generator=generator)) * 3 + 0.01
    if seed % 4 == 0:
        return GaussianMean.calibrated(domain, shape, rho=epsilon / 4, delta=1e-5), points
    return GaussianMean.calibrated(
        domain, shape, epsilon=epsilon, delta=10.0 ** -integer(1, 9)
    ), points


def mean_release(mechanism):
    return lambda x, noise: mechanism.estimate(x, noise=noise).value


def ratio(mechanism, release, data_sets):
    """True epsilon over the claimed one."""
    claim = mechanism.guarantee
    return true_epsilon(furthest(release, data_sets), claim.delta) / claim.epsilon


def test_guarantee_means_of_every_neighbour_are_no_further_apart_than_claimed():
    attained = 0
    for seed in range(40):
        mechanism, points = mean_instance(seed)
        found = ratio(mechanism, mean_release(mechanism), neighbours(points))
        assert found <= 1 + 1e-9, seed
        attained += found >= 1 - 1e-5
    assert attained >= 13


def test_guarantee_moments_of_every_neighbour_are_no_further_apart_than_claimed():
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(6, 2, dtype=torch.float64, generator=generator)
        domain = Polytope(torch.cat([points, -points]))
        mechanism = GaussianMoments.calibrated(
            domain,
            noise_shape(domain, 2.0, shift=False),
            order=1 + seed % 4,
            epsilon=0.7,
            delta=1e-5,
        )
        assert (
            0.1 < ratio(mechanism, mean_release(mechanism), neighbours(domain.points)) <= 1 + 1e-9
        )


def query_instance(seed):
    generator = torch.Generator().manual_seed(seed)
    m, k = (int(torch.randint(1, 6, (1,), generator=generator)) for _ in range(2))
    W = torch.randn(m, k + 1, dtype=torch.float64, generator=generator)
    if seed % 5 == 4:  # right has rows that left does not show
        hidden = torch.randn(2, k + 1, dtype=torch.float64, generator=generator)
        left = torch.cat([torch.eye(m).double(), torch.zeros(m, 2).double()], 1)
        q = FactoredQueries(W, left, torch.cat([W, hidden]), torch.zeros(m))
    else:
        q = [lambda: FactoredQueries.of(W, factorize(W, shift=True)), lambda: FactoredQueries.of(W, factorize(W, 2.0)),
             lambda: FactoredQueries.identity(W), lambda: FactoredQueries.plain(W)][seed % 5]()  # fmt: skip
    return CentralFactorization(
        q, float(torch.rand(1, generator=generator)) * 4 + 0.01, 10.0 ** -(1 + seed % 8)
    )


def query_release(mechanism):
    return lambda types, noise: mechanism.estimate(types, noise=noise).value


def test_guarantee_answers_of_every_neighbour_are_no_further_apart_than_claimed():
    attained = 0
    for seed in range(40):
        mechanism = query_instance(seed)
        data_sets = [torch.tensor([x, 0, 1]) for x in range(mechanism.workload.shape[1])]
        found = ratio(mechanism, query_release(mechanism), data_sets)
        assert found <= 1 + 1e-9, seed
        attained += found >= 1 - 1e-5
    assert attained >= 16
    constant = CentralFactorization(FactoredQueries.plain(torch.full((2, 3), 0.3)), 1.0, 1e-6)
    assert torch.allclose(
        constant.estimate(torch.tensor([0, 1])).value, torch.tensor(0.3, dtype=torch.float64)
    )


class HalfNoise(GaussianMean):
    @property
    def sums(self):
        whole = GaussianMean.sums.func(self)
        return replace(whole, sigma=whole.sigma / 2)


class HalfSigma(CentralFactorization):
    @property
    def sums(self):
        whole = CentralFactorization.sums.func(self)
        return replace(whole, sigma=whole.sigma / 2)


class MissingRoot(GaussianMoments):
    @property
    def sensitivity(self):
        return super().sensitivity / 2


def test_half_the_noise_is_caught():
    """Negative control of the three tests above."""
    mechanism, points = mean_instance(1)
    fault = HalfNoise(mechanism.domain, mechanism.shape, mechanism.multiplier, mechanism.delta)
    assert ratio(fault, mean_release(fault), neighbours(points)) > 1.3
    mechanism = query_instance(0)
    fault = HalfSigma(mechanism.queries, mechanism.epsilon, mechanism.delta)
    data_sets = [torch.tensor([x, 0, 1]) for x in range(fault.workload.shape[1])]
    assert ratio(fault, query_release(fault), data_sets) > 1.3
    points = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    domain = FiniteSet(points)
    fault = MissingRoot(domain, noise_shape(domain, 2.0), 1.0, 1e-5, 1)
    assert ratio(fault, mean_release(fault), neighbours(domain.points)) > 1.3


def least_error(channel, values, x):
    """The least deviation at x of an unbiased estimate of ``values`` (k,) from the channel's (k, m)
    messages.
    """
    weighted = channel / channel[x]
    phi = weighted.mT @ torch.linalg.solve(weighted @ channel.mT, values)
    return math.sqrt(float(channel[x] @ phi.square() - values[x] ** 2))


def test_guarantee_no_private_channel_is_better_than_the_pure_bound_and_randomized_response_attains_it():
    most = 0.0
    for seed in range(150):
        generator = torch.Generator().manual_seed(seed)
        k, m = (int(v) for v in torch.randint(2, 7, (2,), generator=generator))
        epsilon = float(torch.rand(1, generator=generator)) * 4 + 0.01
        m = max(m, k)
        levels = torch.randint(2, (k, m), generator=generator).double() * epsilon
        channel = levels.exp() * torch.rand(m, dtype=torch.float64, generator=generator)
        channel = channel / channel.sum(1, keepdim=True)
        loss = float((channel[:, None] / channel[None]).log().max())
        if loss < 1e-3 or float(torch.linalg.svdvals(channel)[-1]) < 1e-4:
            continue
        values = torch.randn(k, dtype=torch.float64, generator=generator)
        for x in range(k):
            reach = float((values - values[x]).abs().max())
            most = max(most, pure_lower_bound(reach, 1, loss) / least_error(channel, values, x))
    assert most <= 1 + 1e-9
    for epsilon in (0.1, 1.0, 5.0):
        response = torch.tensor(
            [[math.exp(epsilon), 1.0], [1.0, math.exp(epsilon)]], dtype=torch.float64
        )
        response = response / response.sum(1, keepdim=True)
        attained = pure_lower_bound(1.0, 1, epsilon) / least_error(
            response, torch.tensor([0.0, 1.0]).double(), 0
        )
        assert attained == pytest.approx(1, rel=1e-9)  # twice the bound would be above it


@pytest.mark.parametrize("kind", ["product", "parts", "image"])
def test_guarantee_supports_of_products_reach_points_that_no_search_finds(kind):
    """x in [-1, 1]^2, y in [-3, 1] x [-2, 1]: the largest entry of x (x) y is at y = -3, behind a
    local maximum.
    """
    left = lp_ball(2, math.inf)
    low = torch.tensor([-3.0, -2.0]).double()
    right = Box(low, torch.ones(2).double())
    domain = KroneckerProduct(left, right)
    ends = [torch.cartesian_prod(*torch.stack([each.middle - r, each.middle + r], 1)) for each, r in (
        (left, 1.0), (right, (1 - low) / 2))]  # fmt: skip
    corners = torch.stack([torch.kron(x, y) for x in ends[0] for y in ends[1]])
    if kind == "parts":
        domain = Product((domain, lp_ball(1, 2.0)))
        corners = torch.cat([corners, corners[:, :1] / 3], 1)
    if kind == "image":
        mixed = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 2]]).double()
        domain = linear_image(mixed, domain)
        corners = corners @ mixed.mT
    g = torch.randn(
        40, domain.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    g = torch.cat([g, torch.eye(domain.dimension, dtype=torch.float64)])
    farthest = (corners @ g.mT).amax(0)
    bound = domain.supports(g, torch.zeros(domain.dimension, dtype=torch.float64))
    assert bool((bound >= farthest - 1e-9 * farthest.abs()).all())
