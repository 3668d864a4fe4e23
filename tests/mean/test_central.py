"""The curator's mechanism: privacy from the distances it must hide, then its error and its mean."""

import itertools
import math

import pytest
import torch
from gaussians import rounded
from laws import float64, generator, uniform

from torchdp.domains import (
    Box,
    FiniteSet,
    Polytope,
    difference_shape,
    lp_ball,
    noise_shape,
    round_shape,
)
from torchdp.mean import GaussianMean
from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_log_delta
from torchdp.protocol import Crowd
from torchdp.rounded import RoundedNormal


def box(*sides):
    high = float64(sides)
    return Box(torch.zeros_like(high), high)


def corners(domain):
    ends = zip(domain.low.tolist(), domain.high.tolist(), strict=True)
    sides = itertools.product(*ends)
    return float64(list(sides))


def simplex(d):
    return FiniteSet(torch.eye(d, dtype=torch.float64))


DOMAINS = [
    box(1.0, 4.0, 16.0),
    simplex(4),
    lp_ball(3, 2.0, 5.0),
    FiniteSet(uniform(9, 4, seed=3)),
]


def distances(mechanism, points, n):
    """How far apart the means of neighbours are, in standard deviations of the noise."""
    inverse = torch.linalg.pinv(mechanism.noise_root(n))
    u = points @ inverse.mT / n
    return torch.cdist(u, u)


@pytest.mark.parametrize("domain", DOMAINS, ids=["box", "simplex", "ball", "points"])
@pytest.mark.parametrize("p", [2.0, 4.0, math.inf])
@pytest.mark.parametrize("make", [noise_shape, difference_shape, round_shape])
def test_guarantee_no_two_neighbours_are_further_apart_than_the_noise_hides(domain, p, make):
    mechanism = GaussianMean.calibrated(
        domain,
        make(domain, p),
        epsilon=0.8,
        delta=1e-5,
    )
    points = corners(domain) if isinstance(domain, Box) else domain.spanning()
    apart = distances(mechanism, points, 7)
    assert apart.max() <= 1 / mechanism.multiplier * (1 + 1e-9)
    # the exact curve of a shift by that much, and the promise that it keeps
    assert gaussian_log_delta(mechanism.multiplier, mechanism.guarantee.epsilon) <= math.log(1e-5)
    assert 0.8 * (1 - 1e-6) <= mechanism.guarantee.epsilon <= 0.8 * (1 + 1e-12)
    assert apart.max() >= 1 / mechanism.multiplier * (1 - 1e-5) or domain.middle is None


def test_guarantee_rho_is_the_renyi_divergence_of_the_furthest_neighbours():
    mechanism = GaussianMean.calibrated(
        DOMAINS[0], noise_shape(DOMAINS[0], 2.0), rho=0.3, delta=1e-6
    )
    assert mechanism.rho == pytest.approx(0.3)
    apart = distances(mechanism, corners(DOMAINS[0]), 5)
    furthest = float(apart.max())
    # D_alpha of two Gaussians of one covariance, m deviations apart: alpha m^2/2
    assert furthest**2 / 2 == pytest.approx(0.3, rel=1e-6)
    # a tenth less noise breaks the promise
    assert (furthest / 0.9) ** 2 / 2 > 0.3


def test_points_that_the_membership_test_lets_through_cost_nothing():
    # the tolerance is as large as the second side
    thin = box(1.0, 1e-9)
    mechanism = GaussianMean.calibrated(
        thin,
        noise_shape(thin, 2.0),
        epsilon=1.0,
        delta=1e-6,
    )
    x = float64([[0.5, 2e-9], [0.5, -1e-9], [1.0, 1e-9]])
    encoding = mechanism.encoding
    assert (encoding(x).norm(dim=-1) <= encoding.radius * (1 + 1e-12)).all()


class Constant(SeededNoise):
    """Draws that are all the same."""

    def __init__(self, value):
        super().__init__(0)
        self.value = value

    def normal(self, shape, dtype=torch.float64):
        return torch.full(shape, self.value, dtype=dtype)


@pytest.mark.parametrize("draw", [0.0, 1.0, -2.5])
def test_what_is_published_is_the_mean_and_the_noise_root_times_the_draws(draw, monkeypatch):
    monkeypatch.setattr(RoundedNormal, "draw", rounded)
    domain = DOMAINS[3]
    mechanism = GaussianMean.calibrated(
        domain,
        noise_shape(domain, 2.0),
        epsilon=1.0,
        delta=1e-6,
    )
    x = domain.points[[0, 3, 3, 8]]
    published = mechanism.estimate(x, noise=Constant(draw))
    root = mechanism.noise_root(4)
    expected = x.mean(0) + draw * root.sum(1)
    torch.testing.assert_close(published.value, expected, rtol=1e-6, atol=1e-6)
    assert published.n == 4
    assert torch.allclose(published.standard_error, mechanism.noise_root(4).norm(dim=1))
    # by value and count, in two parts
    crowd = Crowd(domain.points, torch.tensor([1, 0, 0, 2, 0, 0, 0, 0, 1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdp.protocol.rounded_sum.BLOCK", 4)
        again = mechanism.analyse(mechanism.release(crowd, Constant(draw), ()))
    torch.testing.assert_close(again.value, published.value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers_are_taken_without_rounding_or_refused(dtype):
    small = GaussianMean.tuned(box(9.0, 9.0), epsilon=1.0, delta=1e-6)
    x = torch.tensor([[3, 9], [0, 1], [7, 7]], dtype=dtype)
    found = small.estimate(x, noise=SeededNoise(0)).value
    assert torch.equal(found, small.estimate(x.double(), noise=SeededNoise(0)).value)
    large = GaussianMean.tuned(box(2.0**60, 2.0**60), epsilon=1.0, delta=1e-6)
    ends = torch.tensor([[2**53, 2**53 - 1]])
    assert large.validate(ends).tolist() == ends.tolist()
    for beyond in (2**53 + 1, -(2**53) - 1, -(2**63)):
        with pytest.raises(
            ValueError,
            match=r"beyond 2\^53 in size, which float64 rounds; change the unit",
        ):
            large.validate(torch.tensor([[0, beyond]]))


@pytest.mark.parametrize("d", [3, 8])
def test_noise_for_the_differences_of_a_simplex_is_what_its_diameter_needs(d):
    around = GaussianMean.calibrated(
        simplex(d),
        noise_shape(simplex(d), 2.0),
        rho=0.5,
        delta=1e-6,
    )
    between = GaussianMean.calibrated(
        simplex(d),
        difference_shape(simplex(d), 2.0),
        rho=0.5,
        delta=1e-6,
    )
    # noise on the hyperplane of sums, isotropic, hiding a distance of sqrt(2): by symmetry the best
    best = math.sqrt(2 * (d - 1))
    assert between.error(1).floor == pytest.approx(best, rel=1e-4)
    # its diameter, not twice its radius, is charged
    assert around.error(1).floor == pytest.approx(best, rel=1e-4)
    assert around.encoding.diameter < 2 * around.encoding.radius * 0.95


@pytest.mark.parametrize("make", [noise_shape, difference_shape, round_shape])
def test_guarantee_points_let_through_beside_vertices_are_no_further_apart_than_the_diameter(make):
    """Vertices that are not symmetric, each moved outwards by as much as the membership test lets
    through.
    """
    vertices = float64([[0.0, 0.0], [1.0, 0.0], [0.2, 0.7]])
    outwards = vertices - vertices.mean(0)
    moved = vertices + 3e-7 * outwards / outwards.norm(dim=1, keepdim=True)
    # rounding is let through
    for x, offset in (
        (moved, 0.0),
        (moved.float(), 0.0),
        ((moved + 1e7).float(), 1e7),
    ):
        domain = Polytope(vertices + offset)
        encoding = GaussianMean.calibrated(
            domain, make(domain, 2.0), epsilon=1.0, delta=1e-6
        ).encoding
        encoded = encoding(domain.validate(x))
        assert encoded.norm(dim=-1).max() <= encoding.radius * (1 + 1e-12)
        assert torch.cdist(encoded, encoded).max() <= encoding.diameter
        assert x.dtype == torch.float32 or encoding.widest < torch.cdist(encoded, encoded).max()


def test_each_group_of_a_pass_has_the_sensitivity_and_the_noise_of_its_own():
    """Whole steps before the noise, over blocks: a user moves its own group alone, and no two
    groups share a draw.
    """
    square = Box(torch.zeros(2), torch.ones(2))
    # so little noise that steps show
    release = GaussianMean(square, noise_shape(square, 2.0), 1e-3, 1e-5)
    # users beyond one block of 2^13, within which vectors are summed
    n = 20_000
    x = uniform(n, 2)
    groups = torch.randint(7, (n,), generator=generator(2))
    base = release.collect(x, groups=groups, size=8, noise=SeededNoise(1))["sum"]
    for user in (0, 2**13 - 1, 2**13, n - 1):
        other = x.clone()
        other[user] = 1 - other[user].round()
        sums = release.collect(other, groups=groups, size=8, noise=SeededNoise(1))["sum"]
        moved = (sums - base).norm(dim=1)
        own = int(groups[user])
        assert 0 < float(moved[own]) <= release.sums.sensitivity
        assert not moved[torch.arange(8) != own].any()
    members = [x[groups == each] for each in range(7)]
    alone = torch.stack([release.encoding(each).sum(0) for each in members])
    assert float((base[:7] - alone).abs().max()) < 8 * release.sums.sigma
    assert not base[7].any()
    halves = torch.arange(2 * n) // n
    # two groups of the same users have noise of their own
    alike = release.collect(torch.cat([x, x]), groups=halves, noise=SeededNoise(1))["sum"]
    assert not bool((alike[0] == alike[1]).any())


def test_rho_converts_to_epsilon_by_the_exact_curve_below_the_textbook_bound():
    mechanism = GaussianMean.calibrated(
        DOMAINS[0], noise_shape(DOMAINS[0], 2.0), rho=0.3, delta=1e-6
    )
    # Bun and Steinke's conversion, Lemma 12 of the paper
    textbook = 0.3 + 2 * (0.3 * math.log(1e6)) ** 0.5
    assert mechanism.guarantee.epsilon < 0.9 * textbook
