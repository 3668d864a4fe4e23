"""All domains, and what rests on them: where a set lies, its turn and its unit change nothing."""

from functools import cache

import pytest
import torch
from laws import generator, normal
from torch.testing import assert_close

import torchdp.domains
from torchdp.domains import (
    Box,
    Domain,
    Ellipsoid,
    FiniteSet,
    LpBall,
    Polytope,
    Product,
    SchattenBall,
    Zonotope,
    difference_shape,
    linear_image,
    lp_ball,
    minkowski_sum,
    noise_shape,
)
from torchdp.domains.balls import BallSum
from torchdp.domains.composite import LinearImage
from torchdp.mean import GaussianMean
from torchdp.protocol import Crowd

EPS = torch.finfo(torch.float64).eps


ZERO = torch.zeros(3).double()
ROOT = normal(3, 3, seed=1)
POINTS = normal(7, 3, seed=2)
SETS = {
    "points": FiniteSet(POINTS),
    "points about 0": FiniteSet(torch.cat([POINTS, -POINTS])),
    "polytope": Polytope(POINTS),
    "thin polytope": Polytope(POINTS * torch.tensor([1.0, 1e-2, 1e-4], dtype=torch.float64)),
    "flat polytope": Polytope(torch.eye(3).double()),
    "box": Box(-ROOT[0].abs(), ROOT[1].abs()),
    "l1": LpBall(ROOT[0].abs(), 1.0, ROOT[1]),
    "l1.5": LpBall(ROOT[0].abs(), 1.5, ROOT[1]),
    "l4": LpBall(ROOT[0].abs(), 4.0, ROOT[1]),
    "ellipsoid": Ellipsoid(ROOT, ROOT[1]),
    "flat ellipsoid": Ellipsoid(ROOT[:, :2], ROOT[1]),
    "zonotope": Zonotope(normal(3, 5, seed=3), ROOT[1]),
    "ball sum": BallSum(
        normal(3, 5, seed=4),
        ((2, 2.0), (3, 3.0)),
        ROOT[1],
    ),
    "product": Product((Polytope(POINTS[:4, :2]), lp_ball(1, 2.0))),
    "image": LinearImage(normal(3, 4, seed=5), SchattenBall(2, 2)),
    # that its oracle alone knows
    "hidden polytope": LinearImage(torch.eye(3), Polytope(POINTS)),
    "operator": SchattenBall(3, 1),
}


def by_a_sum(domain, s, t):
    identity = torch.eye(domain.dimension).double()
    return minkowski_sum([linear_image(s * identity, domain), FiniteSet(t[None])])


def by_image(domain, s, t):
    if type(domain.domain) is Polytope:
        return LinearImage(domain.transform, PLACED[Polytope](domain.domain, s, t))
    return by_a_sum(domain, s, t)


def by_columns(domain, s, t):
    groups = [domain.groups] * (type(domain) is BallSum)
    return type(domain)(s * domain.generators, *groups, s * domain.middle + t)


def by_parts(domain, s, t):
    each = zip(domain.parts, t.split(domain.sizes), strict=True)
    return Product(tuple(PLACED[type(part)](part, s, own) for part, own in each))


# s K + t of each class of domains, in its own words where it has them
PLACED = {
    FiniteSet: lambda K, s, t: FiniteSet(s * K.points + t),
    Polytope: lambda K, s, t: Polytope(s * K.points + t),
    Box: lambda K, s, t: Box(s * K.low + t, s * K.high + t),
    LpBall: lambda K, s, t: LpBall(s * K.axes, K.q, s * K.centre + t),
    Ellipsoid: by_columns,
    Zonotope: by_columns,
    BallSum: by_columns,
    Product: by_parts,
    LinearImage: by_image,
    SchattenBall: by_a_sum,
}
TURN = torch.linalg.qr(normal(3, 3, seed=6)).Q
DIRECTION = torch.tensor([1.0, -0.7, 0.4], dtype=torch.float64)
STILL = (1.0, 0.0, False)
MOVES = {
    "1e9": (1.0, 1e9, False),
    "turned, 1e6": (1.0, 1e6, True),
    "1e-6 times": (1e-6, 0.0, False),
}
# others take seconds
QUICKLY = {
    "ball sum": 1,
    "image": 0,
    "operator": 1,
}
cells = pytest.mark.parametrize(
    ("name", "move"),
    [
        pytest.param(name, move, marks=() if at < QUICKLY.get(name, 3) else pytest.mark.slow)
        for name in SETS
        for at, move in enumerate(MOVES)
    ],
)


@cache
def placed(name, s, offset, turn):
    """s Q K + offset DIRECTION, Q the TURN or the identity."""
    domain = linear_image(TURN, SETS[name]) if turn else SETS[name]
    return PLACED[type(domain)](domain, s, offset * DIRECTION)


@cache
def shape(name, move, make):
    return make(placed(name, *move), 2.0)


def both(name, move):
    """The set and the same one elsewhere, how points follow, how lengths do, the relative error
    allowed.

    That is 1e-6, and 64 times what coordinates are rounded by over the set's least reach.
    """
    s, offset, turn = MOVES[move]
    base = placed(name, *STILL)
    moved = placed(name, s, offset, turn)
    Q = TURN if turn else torch.eye(3).double()
    least = s * float(base.frame.axes.norm(dim=0).min())
    bound = 1e-6 + 64 * EPS * offset / least
    return base, moved, lambda x: s * x @ Q.mT + offset * DIRECTION, s, bound


def concrete(kind):
    below = {each for sub in kind.__subclasses__() for each in concrete(sub)}
    return below or {each for each in [kind] if each.__module__.startswith("torchdp.")}


def test_no_class_of_domains_is_missing_here():
    named = {each for each in vars(torchdp.domains).values() if isinstance(each, type)}
    named = {each for each in named if issubclass(each, Domain)}
    assert (
        concrete(Domain) | (named - {Domain})
        == set(PLACED)
        == {type(domain) for domain in SETS.values()}
    )
    assert len(SETS) >= 12


@cells
def test_membership_follows(name, move):
    base, moved, follow, s, bound = both(name, move)
    ends = base.extreme(normal(6, 3, seed=7))
    centre = base.frame.centre
    room = 10 * bound
    inside = ends
    outside = ends + room * (ends - centre)
    if type(SETS[name]) not in (FiniteSet, Product):
        inside = torch.cat([ends, ends - room * (ends - centre)])
    assert base.contains(inside).all()
    assert moved.contains(follow(inside)).all()
    assert not base.contains(outside).any()
    assert not moved.contains(follow(outside)).any()
    axes = base.frame.axes
    cloud = centre + 1.5 * normal(40, 3, seed=8) @ axes.mT / 3**0.5
    followed = follow(cloud)
    assert_close(moved.contains(followed), base.contains(cloud))
    here = (cloud - base.project(cloud)).norm(dim=1)
    there = (followed - moved.project(followed)).norm(dim=1)
    assert_close(there, s * here, rtol=room, atol=room * s * float(axes.norm()))


@cells
def test_norm_support_and_shape_follow(name, move):
    base, moved, follow, s, bound = both(name, move)
    slopes = normal(5, 3, seed=9)
    longest = float(base.frame.axes.norm())
    size = s * longest
    turned = follow(slopes) - follow(ZERO)
    reach = moved.supports(turned / s, follow(base.frame.centre))
    assert_close(reach, s * base.supports(slopes, base.frame.centre), rtol=0, atol=bound * size)
    assert (base.middle is None) == (moved.middle is None)
    for make in (noise_shape, difference_shape):
        one = shape(name, STILL, make)
        two = shape(name, MOVES[move], make)
        gap = float(one.certificate.gap)
        assert two.upper == pytest.approx(s * one.upper, rel=bound + min(gap, 1e-4), abs=0)
        lower = s * float(one.certificate.lower)
        assert float(two.certificate.lower) == pytest.approx(lower, rel=bound + gap, abs=0)
        # the other's is the mean of points that a set is listed by
        if make is noise_shape:
            room = (bound + min(gap, 1e-4)) * size
            assert_close(two.centre, follow(one.centre), rtol=0, atol=room)


def test_users_outside_a_day_in_seconds_since_1970_are_refused():
    """The negative control: a room measured from the origin held points 1,500 s outside."""
    day = Polytope(torch.tensor([[1.7e9], [1.7e9 + 86400]], dtype=torch.float64))
    for dtype, off in ((torch.float64, 0.2), (torch.float32, 1500.0)):
        ends = day.points.to(dtype)
        assert day.contains(ends).all()
        beyond = torch.stack([ends[0] - off, ends[1] + off])
        assert not day.contains(beyond).any()
    protocol = GaussianMean.tuned(day, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="100 points outside"):
        protocol.estimate(torch.full((100, 1), 1.7e9 - 1500.0, dtype=torch.float64))
    with pytest.raises(ValueError, match="1 points outside"):
        late = torch.full((1, 1), 1.7e9 + 86400.2, dtype=torch.float64)
        crowd = Crowd(late, torch.tensor([5]))
        protocol.sample_tally(crowd, generator=generator(1))


def test_a_point_far_off_decides_nothing_about_the_others():
    sides = [torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3
    square = Polytope(torch.cartesian_prod(*sides))
    x = torch.rand(20, 3, generator=generator(1)).double()
    x = torch.cat([x, torch.full((1, 3), 1e12)])
    assert square.contains(x).tolist() == [True] * 20 + [False]
    # beside a number of 1e12
    assert_close(square.project(x), x.clamp(0, 1), rtol=0, atol=1e-6)


def test_asymmetric_points_of_a_few_thousand_floats_are_not_symmetric():
    points = 1 + EPS * torch.tensor([[0.0], [60.0], [6300.0]], dtype=torch.float64)
    assert FiniteSet(points).middle is None
    # half of the length is what a centre reaches
    assert noise_shape(FiniteSet(points), 2.0).certificate.lower <= 6300 * EPS / 2 * (1 + 1e-10)


@pytest.mark.parametrize("kind", [FiniteSet, Polytope, Box])
def test_a_narrow_coordinate_is_judged_by_its_own_width(kind):
    ends = torch.tensor([[0.0, 0.0], [1.0, 1e9]], dtype=torch.float64)
    corners = torch.cartesian_prod(*ends.mT)
    domain = Box(*ends) if kind is Box else kind(corners)
    # a thousandth of the first coordinate's width, out on either side
    step = torch.tensor([1e-3, 0.0], dtype=torch.float64)
    outside = corners + step * (2 * corners[:, :1] - 1)
    assert domain.contains(corners).all()
    assert not domain.contains(outside).any()
