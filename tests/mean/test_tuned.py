"""The default routes to a mean: least error, and projected answers."""

import math

import pytest
import torch
from laws import float64, normal, uniform

from torchdp.domains import (
    Box,
    FiniteSet,
    Polytope,
    Product,
    Zonotope,
    difference_shape,
    least_error_shape,
    lp_ball,
    minkowski_sum,
    noise_shape,
    round_shape,
)
from torchdp.domains.shapes import differences, encoding
from torchdp.mean import GaussianMean, LocalMean

SIMPLEX = FiniteSet(torch.eye(4, dtype=torch.float64))
BOX = Box(torch.zeros(3), torch.tensor([1.0, 4.0, 16.0]))
CORNERS = FiniteSet(torch.eye(3, dtype=torch.float64))
PARTS = Product((CORNERS, BOX))
BOTH = Product((CORNERS, lp_ball(2, 2.0, 3.0)))
TRIANGLE = Polytope(float64([[0.0, 0, 0], [1.0, 0, 0], [0, 2.0, 0], [0, 0, 1.0]]))
SUM = minkowski_sum([TRIANGLE, Zonotope(uniform(3, 2, seed=1), torch.zeros(3))])
ROUND = minkowski_sum([TRIANGLE, lp_ball(3, 2.0, 0.5)])
DOMAINS = {
    "simplex": SIMPLEX,
    "box": BOX,
    "simplex x box": PARTS,
    "simplex x ball": BOTH,
    "sum": SUM,
    "with ball": ROUND,
}


def points_of(domain, count=400):
    directions = normal(count, domain.dimension, seed=3)
    return domain.extreme(directions)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_guarantee_no_two_points_are_further_apart_than_the_diameter_and_it_is_near(domain):
    for make in (noise_shape, difference_shape):
        own = encoding(domain, make(domain, 2.0))
        u = own(points_of(domain))
        apart = float(torch.cdist(u, u).max())
        assert apart <= own.diameter * (1 + 1e-12)
        # of a sum the oracle knows a bound
        assert apart >= 0.8 * own.diameter
        assert own.diameter <= 2 * own.radius


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_differences_are_of_two_points(domain):
    apart = differences(domain)
    assert apart.symmetric
    g = normal(50, domain.dimension, seed=4)
    width = domain.extreme(g) - domain.extreme(-g)
    farthest = apart.extreme(g)
    torch.testing.assert_close((farthest * g).sum(1), (width * g).sum(1))


@pytest.mark.parametrize(
    ("name", "p"),
    [
        *((name, 2.0) for name in DOMAINS),
        *((name, math.inf) for name in ("simplex", "box", "simplex x ball")),
    ],
)
def test_guarantee_the_shape_of_least_error_is_never_worse_than_others(name, p):
    domain = DOMAINS[name]
    least = GaussianMean.calibrated(
        domain,
        least_error_shape(domain, p),
        rho=0.5,
        delta=1e-6,
    )
    best = least.error(10, p).root_mean_square
    for make in (noise_shape, difference_shape, round_shape):
        other = (
            GaussianMean.calibrated(domain, make(domain, p), rho=0.5, delta=1e-6)
            .error(10, p)
            .root_mean_square
        )
        assert best.value <= other.value * (1 + 1e-3) + 3 * (
            best.standard_error + other.standard_error
        )


def test_local_means_are_tuned_by_the_radius():
    protocol = LocalMean.tuned(BOX, math.inf, epsilon=1.0)
    shaped = LocalMean.calibrated(BOX, noise_shape(BOX, math.inf), epsilon=1.0)
    assert (
        protocol.error(10, math.inf).root_mean_square.value
        < shaped.error(10, math.inf).root_mean_square.value
    )
    assert (
        least_error_shape(SIMPLEX, 2.0, local=True).certificate.upper
        == noise_shape(SIMPLEX, 2.0).certificate.upper
    )
