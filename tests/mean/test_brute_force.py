"""Central mechanisms as black boxes: what two neighbours' releases tell apart, against what is
claimed.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from gaussians import furthest, neighbours, true_epsilon
from laws import float64, normal

from torchdp.domains import (
    Box,
    FiniteSet,
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


def corners(low, high):
    """Of the box between these ends, (2^d, d)."""
    return torch.cartesian_prod(*torch.stack([low, high], 1)).reshape(-1, len(low))


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
        points = corners(domain.low, domain.high)
    if kind == 4:
        axes = 3 * torch.eye(d).double()
        points = torch.cat([axes, -axes])
    shape = SHAPES[seed % 3](domain, (2.0, math.inf)[seed % 2])
    epsilon = float(torch.rand(1, generator=generator)) * 3 + 0.01
    # some are calibrated by rho instead
    if seed % 4 == 0:
        return GaussianMean.calibrated(domain, shape, rho=epsilon / 4, delta=1e-5), points
    delta = 10.0 ** -integer(1, 9)
    return GaussianMean.calibrated(domain, shape, epsilon=epsilon, delta=delta), points


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
            0.1
            < ratio(
                mechanism,
                mean_release(mechanism),
                neighbours(domain.points),
            )
            <= 1 + 1e-9
        )


def query_instance(seed):
    generator = torch.Generator().manual_seed(seed)
    m, k = (int(torch.randint(1, 6, (1,), generator=generator)) for _ in range(2))
    W = torch.randn(m, k + 1, dtype=torch.float64, generator=generator)
    # right has rows that left does not show
    if seed % 5 == 4:
        hidden = torch.randn(2, k + 1, dtype=torch.float64, generator=generator)
        identity = torch.eye(m).double()
        left = torch.cat([identity, torch.zeros(m, 2).double()], 1)
        q = FactoredQueries(W, left, torch.cat([W, hidden]), torch.zeros(m))
    else:
        kinds = [
            lambda: FactoredQueries.of(W, factorize(W, shift=True)),
            lambda: FactoredQueries.of(W, factorize(W, 2.0)),
            lambda: FactoredQueries.identity(W),
            lambda: FactoredQueries.plain(W),
        ]
        q = kinds[seed % 5]()
    epsilon = float(torch.rand(1, generator=generator)) * 4 + 0.01
    return CentralFactorization(q, epsilon, 10.0 ** -(1 + seed % 8))


def query_release(mechanism):
    return lambda types, noise: mechanism.estimate(types, noise=noise).value


def test_guarantee_answers_of_every_neighbour_are_no_further_apart_than_claimed():
    attained = 0
    for seed in range(40):
        mechanism = query_instance(seed)
        types = mechanism.workload.shape[1]
        data_sets = [torch.tensor([x, 0, 1]) for x in range(types)]
        found = ratio(mechanism, query_release(mechanism), data_sets)
        assert found <= 1 + 1e-9, seed
        attained += found >= 1 - 1e-5
    assert attained >= 16
    constant = CentralFactorization(FactoredQueries.plain(torch.full((2, 3), 0.3)), 1.0, 1e-6)
    assert torch.allclose(constant.estimate(torch.tensor([0, 1])).value, float64(0.3))


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
    fault = HalfNoise(
        mechanism.domain,
        mechanism.shape,
        mechanism.multiplier,
        mechanism.delta,
    )
    assert ratio(fault, mean_release(fault), neighbours(points)) > 1.3
    mechanism = query_instance(0)
    fault = HalfSigma(mechanism.queries, mechanism.epsilon, mechanism.delta)
    types = fault.workload.shape[1]
    data_sets = [torch.tensor([x, 0, 1]) for x in range(types)]
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
    square = channel[x] @ phi.square()
    return math.sqrt(float(square - values[x] ** 2))


def test_guarantee_no_private_channel_is_better_than_the_pure_bound_and_randomized_response_attains_it():
    most = 0.0
    for seed in range(150):
        generator = torch.Generator().manual_seed(seed)
        k, m = (int(v) for v in torch.randint(2, 7, (2,), generator=generator))
        epsilon = float(torch.rand(1, generator=generator)) * 4 + 0.01
        m = max(m, k)
        # each chance is one of two sizes, e^epsilon apart
        levels = torch.randint(2, (k, m), generator=generator).double() * epsilon
        channel = levels.exp() * torch.rand(m, dtype=torch.float64, generator=generator)
        channel = channel / channel.sum(1, keepdim=True)
        ratios = channel[:, None] / channel[None]
        loss = float(ratios.max().log())
        # no channel to speak of, or one that no estimate inverts
        if loss < 1e-3 or float(torch.linalg.svdvals(channel)[-1]) < 1e-4:
            continue
        values = torch.randn(k, dtype=torch.float64, generator=generator)
        for x in range(k):
            reach = float((values - values[x]).abs().amax())
            bound = pure_lower_bound(reach, 1, loss)
            most = max(most, bound / least_error(channel, values, x))
    assert most <= 1 + 1e-9
    for epsilon in (0.1, 1.0, 5.0):
        response = float64([[math.exp(epsilon), 1.0], [1.0, math.exp(epsilon)]])
        response = response / response.sum(1, keepdim=True)
        least = least_error(response, torch.tensor([0.0, 1.0]).double(), 0)
        attained = pure_lower_bound(1.0, 1, epsilon) / least
        # twice the bound would be above it
        assert attained == pytest.approx(1, rel=1e-9)


class Searched(FiniteSet):
    """A set whose extreme points a search misses, and which bounds them."""

    def extreme(self, directions):
        return self.points[:1].expand(len(directions), -1)

    def supports(self, directions, centre):
        return ((self.points - centre) @ directions.mT).amax(0)


def test_guarantee_supports_of_products_and_images_reach_points_that_no_search_finds():
    points = normal(8, 2)
    ends = float64([[-1.0], [1.0]])
    both = torch.stack([torch.cat(pair) for pair in itertools.product(points, ends)])
    product = Product((Searched(points), FiniteSet(ends)))
    mixed = normal(4, 3, seed=2)
    for domain, reached in ((product, both), (linear_image(mixed, product), both @ mixed.mT)):
        directions = normal(40, domain.dimension, seed=1)
        origin = torch.zeros(domain.dimension, dtype=torch.float64)
        bound = domain.supports(directions, origin)
        torch.testing.assert_close(bound, (reached @ directions.mT).amax(0))
