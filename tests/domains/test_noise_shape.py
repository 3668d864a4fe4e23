"""The shape of the noise: it holds the domain, its norm is certified, and closed forms say what it
must be.
"""

import itertools
import math

import pytest
import torch
from laws import normal
from torch.testing import assert_close

from torchdp.domains import (
    Box,
    Ellipsoid,
    FiniteSet,
    LpBall,
    Polytope,
    Product,
    SchattenBall,
    Zonotope,
    linear_image,
    lp_ball,
    minkowski_sum,
    noise_shape,
)
from torchdp.domains.composite import LinearImage
from torchdp.domains.domain import Proposal
from torchdp.domains.noise_shape import dual_value, enclose
from torchdp.factorization import gamma_box, gamma_ellipsoid, reference
from torchdp.factorization.constructive import gamma_product_domain

exponents = pytest.mark.parametrize("p", [2.0, 3.0, 8.0, math.inf])


def identity(d):
    return torch.eye(d).double()


LOW = normal(5, seed=1)
HIGH = LOW + normal(5, seed=2).abs()
ROOT = normal(4, 4, seed=3)
FLAT = normal(5, 2, seed=4)
AXES = normal(6, seed=5).abs()
POINTS = normal(8, 3, seed=6)


def order(p):
    return 2.0 if p == math.inf else 2 * p / (p + 2)


def norm(values, t):
    return float(torch.linalg.vector_norm(torch.as_tensor(values, dtype=torch.float64), ord=t))


def lp_gamma(axes, q, p):
    """||axes||_t, 1/t = 1/p + max(0, 1/2 - 1/q)."""
    inverse = 1 / p + max(0.0, 1 / 2 - 1 / q)
    return norm(axes, 1 / inverse if inverse else math.inf)


CLOSED = {
    "box": (Box(LOW, HIGH), lambda p: float(gamma_box(LOW, HIGH, p))),
    "ellipsoid": (Ellipsoid(ROOT, normal(4, seed=7)), lambda p: float(gamma_ellipsoid(ROOT, p))),
    "l1": (LpBall(AXES, 1.0, normal(6, seed=8)), lambda p: lp_gamma(AXES, 1.0, p)),
    "l3": (LpBall(AXES, 3.0, normal(6, seed=8)), lambda p: lp_gamma(AXES, 3.0, p)),
    "large l4": (lp_ball(50, 4.0, 2.0), lambda p: 2 * 50 ** (1 / p + 1 / 4)),
    "operator": (SchattenBall(3, 5), lambda p: 15 ** (1 / p) * 3**0.5),
    "schatten 4": (SchattenBall(4, 2, 4.0, 3.0), lambda p: 3 * 8 ** (1 / p) * 2**0.25),
    "trace norm": (SchattenBall(2, 3, 1.0), lambda p: 6 ** (1 / p)),
    "product": (
        Product((Ellipsoid(ROOT, normal(4, seed=9)), Box(LOW, HIGH), lp_ball(2, 3.0))),
        lambda p: norm(
            [
                float(gamma_ellipsoid(ROOT, p)),
                float(gamma_box(LOW, HIGH, p)),
                2 ** (1 / p + 1 / 6),
            ],
            order(p),
        ),
    ),
    "cross-polytope": (Polytope(torch.cat([identity(4), -identity(4)])), lambda p: 4 ** (1 / p)),
    "cube's corners": (
        FiniteSet(torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))),
        lambda p: 4 ** (1 / 2 + 1 / p) / 2,
    ),
}


@exponents
@pytest.mark.parametrize("name", CLOSED)
def test_certified_norm_is_the_closed_form(name, p):
    domain, exact = CLOSED[name]
    shape = noise_shape(domain, p)
    lower = float(shape.certificate.lower)
    upper = shape.upper
    # the bracket holds the closed form, and is as narrow as tol
    assert lower <= exact(p) * (1 + 1e-9)
    assert exact(p) <= upper * (1 + 1e-9)
    assert upper <= exact(p) * (1 + 1e-4)
    assert float(shape.certificate.gap) <= 1e-4


@exponents
@pytest.mark.parametrize("shift", [True, False])
def test_fifteen_points_in_five_dimensions_agree_with_the_semidefinite_program(p, shift):
    pytest.importorskip("cvxpy")
    points = normal(15, 5, seed=10)
    exact = reference(points.mT, p, shift).certificate
    shape = noise_shape(
        FiniteSet(points),
        p,
        shift=shift,
        tol=1e-5,
    )
    # the semidefinite solver is good to some 1e-6
    assert shape.upper == pytest.approx(float(exact.upper), rel=1e-5)
    assert float(shape.certificate.lower) == pytest.approx(float(exact.lower), rel=1e-5)
    assert shape.upper <= float(shape.certificate.lower) * (1 + 1e-5)


VARIED = {
    "points": FiniteSet(POINTS),
    "polytope": Polytope(POINTS),
    "few signs": Zonotope(normal(3, 7, seed=11), normal(3, seed=12)),
    "many signs": Zonotope(normal(4, 25, seed=11), normal(4, seed=12)),
    "box": Box(LOW, HIGH),
    "ball": Ellipsoid(ROOT, normal(4, seed=9)),
    "l3": LpBall(AXES[:3], 3.0, normal(3, seed=8)),
    "sum": minkowski_sum([Ellipsoid(ROOT, normal(4, seed=9)), lp_ball(4, math.inf)]),
    "image": linear_image(normal(3, 4, seed=13), SchattenBall(2, 2)),
    "product": Product((FiniteSet(POINTS), lp_ball(2, 2.0))),
}
varied = pytest.mark.parametrize("name", VARIED)


@pytest.mark.parametrize("p", [3.0, math.inf])
@pytest.mark.parametrize("shift", [True, False])
@varied
def test_guarantee_the_ellipsoid_holds_the_domain_and_the_bounds_are_in_order(name, shift, p):
    domain = VARIED[name]
    shape = noise_shape(domain, p, shift=shift)
    points = torch.cat([domain.extreme(normal(200, domain.dimension, seed=14)), domain.spanning()])
    u = (points - shape.centre) @ torch.linalg.pinv(shape.root).mT
    # coordinates in the ellipsoid, up to rounding
    assert u.norm(dim=-1).max() <= 1 + 1e-7
    assert torch.allclose(shape.centre + u @ shape.root.mT, points, atol=1e-6)
    assert float(shape.certificate.lower) <= shape.upper * (1 + 1e-12)
    rows = shape.root.norm(dim=-1)
    assert shape.upper == pytest.approx(norm(rows, p), rel=1e-12)
    heaviest = torch.argsort(shape.weights, descending=True)[:20]
    assert domain.contains(shape.support[heaviest]).all()
    assert float(shape.weights.sum()) == pytest.approx(1)
    if not shift:
        assert not shape.centre.any()
    if domain.factor < math.inf:
        assert shape.upper <= float(shape.certificate.lower) * max(
            1 + 1e-4, math.sqrt(domain.factor)
        )


@varied
def test_guarantee_a_smaller_ellipsoid_does_not_hold_the_domain(name):
    domain = VARIED[name]
    shape = noise_shape(domain, 2.0)
    lost = 0.99 if domain.factor == 1 else 0.99 / math.sqrt(min(domain.factor, 4.0))
    inverse = torch.linalg.pinv(lost * shape.root)
    assert domain.maximise(inverse, shape.centre).value > 1


@exponents
@varied
def test_guarantee_both_bounds_hold_for_any_ellipsoid_and_any_weights(name, p):
    domain = VARIED[name]
    best = noise_shape(domain, p).certificate
    for seed in range(3):
        root = normal(domain.dimension, domain.dimension, seed=seed)
        centre = normal(domain.dimension, seed=seed + 9)
        points = domain.extreme(normal(6, domain.dimension, seed=seed))
        weights = normal(6, seed=seed).abs()
        rows = normal(domain.dimension, seed=seed).abs()
        proposal = Proposal(root, centre, points, weights, rows)
        enclosed = enclose(
            domain,
            identity(domain.dimension),
            root,
            centre,
            p,
        )
        assert float(best.lower) <= enclosed.upper
        inside = (points - centre) @ torch.linalg.pinv(enclosed.root).mT
        # inside, up to rounding
        assert inside.norm(dim=-1).max() <= 1 + 1e-9
        assert dual_value(domain, proposal, p, True) <= float(best.upper) * (1 + 1e-12)


def test_guarantee_an_ellipsoid_that_misses_a_direction_is_completed_and_one_beside_the_domain_proves_nothing():
    flat = torch.tensor([[1.0], [0.0]]).double()
    origin = torch.zeros(2).double()
    completed = enclose(
        lp_ball(2, 2.0),
        identity(2),
        flat,
        origin,
        2.0,
    )
    assert completed.upper >= 2**0.5
    assert float(torch.linalg.svdvals(completed.root)[-1]) >= 1
    segment = FiniteSet(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    assert enclose(segment, flat, flat, torch.tensor([0.0, 1.0]).double(), 2.0).upper == math.inf


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize(
    ("plain", "hidden"),
    [
        (lp_ball(3, 4.0), LinearImage(identity(3), lp_ball(3, 4.0))),
        (SchattenBall(2, 2), LinearImage(identity(4), SchattenBall(2, 2))),
        (Ellipsoid(FLAT, FLAT[:, 0]), LinearImage(identity(5), Ellipsoid(FLAT, FLAT[:, 0]))),
        (Box(LOW, HIGH), LinearImage(identity(5), Box(LOW, HIGH))),
    ],
    ids=["l4", "operator", "ellipsoid", "box"],
)
def test_column_generation_from_the_oracle_alone_finds_what_closed_forms_know(plain, hidden, p):
    assert hidden.proposal(p, True, 1e-4) is None
    exact = noise_shape(plain, p)
    found = noise_shape(hidden, p)
    # a true bracket; the oracle's factor stays open above
    assert float(found.certificate.lower) <= exact.upper * (1 + 1e-9)
    assert float(found.certificate.lower) >= exact.upper * (1 - 1e-3)
    assert found.upper <= exact.upper * max(1 + 1e-4, math.sqrt(plain.factor))


@exponents
def test_products_without_symmetry_and_images_of_products(p):
    parts = [
        FiniteSet(POINTS),
        Ellipsoid(ROOT[:2], normal(2, seed=18)),
        FiniteSet(normal(4, 2, seed=19)),
    ]
    shape = noise_shape(Product(tuple(parts)), p)
    norms = torch.tensor([noise_shape(part, p, tol=1e-6).upper for part in parts])
    assert shape.upper == pytest.approx(float(gamma_product_domain(norms, p)), rel=1e-4)
    assert float(shape.certificate.gap) <= 1e-4
    summed = minkowski_sum([FiniteSet(POINTS), FiniteSet(normal(4, 3, seed=19))])
    every = FiniteSet((POINTS[:, None] + normal(4, 3, seed=19)).flatten(0, 1))
    exact = noise_shape(every, p).upper
    found = noise_shape(summed, p)
    assert float(found.certificate.lower) <= exact * (1 + 1e-9)
    assert exact <= found.upper * (1 + 2e-4)
    # the search stops where a round gains little
    assert float(found.certificate.lower) >= exact * (1 - 1e-2)


@pytest.mark.parametrize(
    "parts",
    [
        (lp_ball(3, 1.0), lp_ball(3, math.inf)),
        (Box(LOW[:3], HIGH[:3]), Polytope(POINTS)),
        (LpBall(AXES[:3], 1.0, LOW[:3]),) * 2,
    ],
)
def test_corners_are_those_of_the_hull(parts):
    for domain in (
        Product(parts),
        linear_image(normal(2, 6, seed=31), Product(parts)),
        minkowski_sum(parts),
    ):
        corners = domain.corners(2048)
        slopes = normal(50, domain.dimension, seed=30)
        reached = (domain.extreme(slopes) * slopes).sum(-1)
        assert_close((slopes @ corners.mT).amax(-1), reached)
        assert domain.corners(len(corners) - 1) is None


def test_a_wide_gap_is_said_where_the_oracle_is_not_exact():
    with pytest.warns(RuntimeWarning, match="gap of .* for an oracle that is not exact"):
        hidden = linear_image(normal(4, 40, seed=28), SchattenBall(10, 4, 1.0))
        certificate = noise_shape(hidden, 2.0).certificate
        # the trace norm's oracle is not exact
        assert float(certificate.gap) > 0.26


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
def test_norm_grows_with_the_set(p):
    base = noise_shape(FiniteSet(POINTS), p).upper
    assert noise_shape(FiniteSet(POINTS[:5]), p).upper <= base * (1 + 1e-4)
    assert noise_shape(FiniteSet(POINTS), p, shift=False).upper >= base * (1 - 1e-4)
    repeated = FiniteSet(torch.cat([POINTS, POINTS[:3], POINTS.mean(0, keepdim=True)]))
    assert noise_shape(repeated, p).upper == pytest.approx(base, rel=2e-4)


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
def test_norm_is_homogeneous_and_blind_to_translation_and_grows_with_the_set(p):
    base = noise_shape(FiniteSet(POINTS), p).upper
    moved = noise_shape(FiniteSet(-2.5 * POINTS + 1e4), p)
    # tol of either
    assert moved.upper == pytest.approx(2.5 * base, rel=1e-4)
    assert noise_shape(FiniteSet(POINTS[:5]), p).upper <= base * (1 + 1e-4)
    assert noise_shape(FiniteSet(POINTS), p, shift=False).upper >= base * (1 - 1e-4)
    repeated = FiniteSet(torch.cat([POINTS, POINTS[:3], POINTS.mean(0, keepdim=True)]))
    assert noise_shape(repeated, p).upper == pytest.approx(base, rel=2e-4)
