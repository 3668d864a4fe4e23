"""Domains: what each oracle finds lies inside, and what it promises is never exceeded."""

import math

import pytest
import torch
from laws import normal
from scipy.optimize import linprog

from torchdp.domains import (
    Box,
    Ellipsoid,
    FiniteSet,
    LpBall,
    Polytope,
    Product,
    SchattenBall,
    Zonotope,
    lp_ball,
    minkowski_sum,
)
from torchdp.domains.balls import BallSum
from torchdp.domains.composite import LinearImage

NEAR = 1e-6
POINTS = normal(12, 4, seed=1)
OTHERS = normal(6, 3, seed=2)
DOMAINS = {
    "points": FiniteSet(POINTS),
    "polytope": Polytope(POINTS),
    "mirrored points": FiniteSet(torch.cat([OTHERS + 1, 1 - OTHERS])),
    "box": Box(-normal(4, seed=3).abs(), normal(4, seed=4).abs()),
    "large box": Box(torch.zeros(14).double(), torch.arange(1.0, 15.0).double()),
    "l1": LpBall(
        normal(4, seed=5).abs(),
        1.0,
        normal(4, seed=6),
    ),
    "l1.5": LpBall(
        normal(4, seed=5).abs(),
        1.5,
        normal(4, seed=6),
    ),
    "l2": LpBall(
        normal(4, seed=5).abs(),
        2.0,
        normal(4, seed=6),
    ),
    "l4": LpBall(
        normal(4, seed=5).abs(),
        4.0,
        normal(4, seed=6),
    ),
    "l50": LpBall(
        normal(4, seed=5).abs(),
        50.0,
        normal(4, seed=6),
    ),
    "ellipsoid": Ellipsoid(normal(4, 4, seed=7), normal(4, seed=8)),
    "zonotope": Zonotope(normal(3, 8, seed=9), normal(3, seed=10)),
    "large zonotope": Zonotope(normal(4, 30, seed=9), normal(4, seed=10)),
    "ball sum": BallSum(
        normal(4, 7, seed=11),
        ((3, 2.0), (4, 3.0)),
        normal(4, seed=12),
    ),
    "operator": SchattenBall(2, 3),
    "trace norm": SchattenBall(2, 2, 1.0),
    "product of points and a ball": Product((FiniteSet(OTHERS), lp_ball(2, 2.0))),
    "product of balls": Product(
        (lp_ball(2, 2.0), Box(torch.zeros(2).double(), torch.ones(2).double()))
    ),
    "product of symmetric sets": Product((SchattenBall(2, 2), lp_ball(2, 4.0))),
    "image": LinearImage(normal(3, 4, seed=14), SchattenBall(2, 2)),
    "sum": minkowski_sum([Ellipsoid(normal(3, 3, seed=15), normal(3, seed=16)), lp_ball(3, 1.0)]),
    "sum with a polytope": minkowski_sum([Polytope(OTHERS), lp_ball(3, 2.0)]),
}
CONVEX = [name for name in DOMAINS if "points" not in name]
each = pytest.mark.parametrize("name", DOMAINS)


def forms(d, seed=20):
    """Maps B of the form ||B x||^2: random, one row, fewer rows than columns, and the identity."""
    A = normal(d, d, seed=seed)
    return [
        A,
        A[:1],
        A[: (d + 1) // 2],
        torch.eye(d).double(),
    ]


def value(x, B, centre):
    image = (x - centre) @ B.mT
    return image.square().sum(-1)


def some_points(domain, count=40):
    return torch.cat([domain.extreme(normal(count, domain.dimension, seed=21)), domain.spanning()])


@each
def test_guarantee_no_point_of_the_domain_exceeds_the_oracles_upper_bound(name):
    domain = DOMAINS[name]
    points = some_points(domain)
    middle = points.mean(0) if domain.middle is None else domain.middle
    for B in forms(domain.dimension):
        for centre in (middle, middle + normal(domain.dimension, seed=22)):
            found = domain.maximise(B, centre)
            reached = float(value(found.points[0], B, centre))
            # the value is that of the point which is returned
            assert found.value == pytest.approx(reached, rel=1e-9)
            assert found.value <= found.upper
            assert value(points, B, centre).max() <= found.upper * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("name", [name for name in DOMAINS if DOMAINS[name].factor < math.inf])
def test_oracle_is_as_good_as_its_factor(name):
    domain = DOMAINS[name]
    middle = some_points(domain).mean(0) if domain.middle is None else domain.middle
    for B in forms(domain.dimension):
        found = domain.maximise(B, middle)
        # the factor that the domain states, up to rounding
        assert found.upper <= domain.factor * found.value * (1 + 1e-6) + 1e-12


@each
def test_what_the_oracles_return_lies_in_the_domain(name):
    domain = DOMAINS[name]
    assert domain.contains(some_points(domain, 10)).all()
    B = forms(domain.dimension)[0]
    origin = torch.zeros(domain.dimension).double()
    points = domain.maximise(B, origin).points
    assert domain.contains(points[:20]).all()


@each
def test_middle_is_a_point_of_symmetry(name):
    domain = DOMAINS[name]
    if domain.middle is None:
        points = some_points(domain)
        assert not domain.contains(2 * points.mean(0) - points).all()
    else:
        assert domain.contains(2 * domain.middle - some_points(domain, 10)).all()
        assert domain.symmetric == (float(domain.middle.abs().max()) == 0)


@each
def test_points_beyond_an_extreme_one_are_outside_and_refused_without_being_shown(name):
    domain = DOMAINS[name]
    directions = normal(5, domain.dimension, seed=23)
    outside = domain.extreme(directions) + 0.01 * directions
    assert not domain.contains(outside).any()
    with pytest.raises(ValueError, match="5 points outside the domain") as error:
        domain.validate(outside)
    assert str(float(outside[0, 0]))[:6] not in str(error.value)
    inside = domain.spanning()
    assert domain.validate(inside) is inside


@each
def test_extreme_points_are_extreme(name):
    domain = DOMAINS[name]
    directions = normal(6, domain.dimension, seed=24)
    best = (domain.extreme(directions) * directions).sum(-1)
    others = some_points(domain) @ directions.mT
    assert (others.amax(0) <= best + 1e-9).all()


@pytest.mark.parametrize("name", CONVEX)
def test_projection_is_the_nearest_point(name):
    domain = DOMAINS[name]
    x = 4 * normal(6, domain.dimension, seed=25)
    nearest = domain.project(x)
    assert domain.contains(nearest).all()
    points = some_points(domain)
    beyond = x - nearest
    gain = beyond @ points.mT - (beyond * nearest).sum(-1, keepdim=True)
    longest = float(points.norm(dim=-1).max())
    size = float(beyond.norm(dim=-1).max()) * longest
    inside = NEAR * longest**2
    # no point of K lies beyond the plane through the nearest one
    assert gain.max() <= 2e-4 * size + inside
    # a projection of a projection
    assert torch.allclose(domain.project(nearest), nearest, atol=1e-5)


def test_projection_on_points_is_the_nearest_of_them_and_float32_stays_float32():
    x = normal(50, 4, seed=26)
    nearest = DOMAINS["points"].project(x)
    assert torch.equal(nearest, POINTS[torch.cdist(x, POINTS).argmin(-1)])
    assert DOMAINS["box"].project(x.float()).dtype == torch.float32
    assert DOMAINS["points"].project(x[0]).shape == (4,)


@pytest.mark.parametrize("seed", range(4))
def test_polytope_membership_agrees_with_linear_programming(seed):
    d = 1 + seed
    k = 4 + 3 * seed
    domain = Polytope(normal(k, d, seed=seed))
    shares = normal(8, k, seed=seed + 50).softmax(-1)
    mixtures = shares @ domain.points
    outside = 0.7 * normal(12, d, seed=seed + 99)
    x = torch.cat([domain.points[:3], mixtures, outside])
    edge = torch.ones(d, 1).double()
    for point, inside in zip(x, domain.contains(x).tolist(), strict=True):
        above = torch.cat([domain.points.mT, -edge], 1)
        below = torch.cat([-domain.points.mT, -edge], 1)
        rows = torch.cat([above, below])
        sides = torch.cat([point, -point])
        # the least t with a mixture within t of the point in every coordinate
        sums = [[1.0] * k + [0.0]]
        found = linprog(
            [0.0] * k + [1.0],
            rows.numpy(),
            sides.numpy(),
            sums,
            [1.0],
        )
        # the linear program's tolerance
        assert inside == (found.fun <= 1e-6)
