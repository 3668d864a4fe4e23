"""Points, segments and sets of no width: every question about them has an answer."""

import math

import pytest
import torch
from laws import float64

from torchdp.domains import (
    Box,
    Ellipsoid,
    FiniteSet,
    LpBall,
    Polytope,
    Product,
    SchattenBall,
    Zonotope,
    difference_shape,
    least_error_shape,
    linear_image,
    lp_ball,
    minkowski_sum,
    noise_shape,
    round_shape,
)
from torchdp.mean import (
    GaussianCovariance,
    GaussianMean,
    GaussianMoments,
)
from torchdp.noise import SeededNoise


def vector(*values):
    return float64(values)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


HERE = vector(3.0, 4.0)
POINT = FiniteSet(HERE[None])
POINTS = {
    "one point": POINT,
    "one point twice": Polytope(HERE.expand(2, 2)),
    "box": Box(HERE, HERE),
    "ellipsoid": Ellipsoid(zeros(2, 2), HERE),
    "zonotope": Zonotope(zeros(2, 3), HERE),
    "ellipsoid to a point": linear_image(
        zeros(2, 3),
        Ellipsoid(torch.eye(3).double(), vector(1.0, 2.0, 3.0)),
    ),
    "l4 ball to a point": linear_image(zeros(2, 2), LpBall(vector(1.0, 1.0), 4.0, HERE)),
    "matrices to a point": linear_image(zeros(2, 4), SchattenBall(2, 2)),
    "points to a point": linear_image(zeros(2, 2), FiniteSet(torch.eye(2).double())),
    "product": Product(
        (
            FiniteSet(vector(3.0)[None]),
            Polytope(vector(4.0)[None]),
        )
    ),
    "product of a box and a point": Product(
        (Box(vector(3.0), vector(3.0)), FiniteSet(vector(4.0)[None]))
    ),
    "sum": minkowski_sum([POINT, FiniteSet(zeros(1, 2))]),
    "sum of an ellipsoid and a point": minkowski_sum([Ellipsoid(zeros(2, 1), HERE), POINT]),
}
START = vector(1.0, 1.0)
END = vector(3.0, 5.0)
HALF = (END - START) / 2
SEGMENTS = {
    "two points": FiniteSet(torch.stack([START, END])),
    "hull of three points on a line": Polytope(torch.stack([START, END, (START + END) / 2])),
    "ellipsoid": Ellipsoid(torch.stack([HALF, zeros(2)], 1), (START + END) / 2),
    "ellipsoid with two equal axes": Ellipsoid(
        torch.stack([HALF, HALF], 1) / math.sqrt(2), (START + END) / 2
    ),
    "zonotope": Zonotope(torch.stack([HALF / 4, 3 * HALF / 4], 1), (START + END) / 2),
    "image of a ball": linear_image(torch.stack([HALF, zeros(2)], 1), lp_ball(2, 4.0)),
    "image of matrices": linear_image(
        torch.stack([HALF, *[zeros(2)] * 3], 1), SchattenBall(2, 2, 2.0)
    ),
    "sum of a point and a segment": minkowski_sum([POINT, Polytope(torch.stack([START, END]))]),
    "sum of a point and a flat ball": minkowski_sum([POINT, Ellipsoid(HALF[:, None], zeros(2))]),
}


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize("name", POINTS)
def test_a_point_needs_no_noise(name, p):
    domain = POINTS[name]
    here = domain.spanning()[0]
    shape = noise_shape(domain, p)
    assert shape.upper == 0
    assert shape.root.shape == (2, 0)
    assert float(shape.certificate.lower) == 0
    from_origin = noise_shape(domain, p, shift=False)
    assert from_origin.upper == pytest.approx(
        float(torch.linalg.vector_norm(here, ord=p)), abs=1e-12
    )
    x = here.expand(3, 2)
    assert bool(domain.contains(x).all())
    assert torch.allclose(domain.project(x + 1), x)
    assert not bool(domain.contains(x + 1).any())
    mechanism = GaussianMean.calibrated(domain, shape, epsilon=1.0, delta=1e-6)
    released = mechanism.estimate(x, noise=SeededNoise(1))
    assert torch.allclose(released.value, here)
    assert not bool(released.standard_error.any())
    assert mechanism.error(3).root_mean_square.value == 0
    assert not mechanism.guarantee.exact
    for other in (difference_shape, least_error_shape):
        assert other(domain, p).upper == 0
    assert round_shape(domain, p).upper == 0
    release = GaussianCovariance.calibrated(
        domain,
        shape,
        epsilon=1.0,
        delta=1e-6,
    )
    covariance = release.estimate(x, noise=SeededNoise(2))
    assert torch.allclose(covariance.mean.value, here)
    assert not bool(covariance.value.any())
    moments = GaussianMoments.calibrated(
        domain,
        from_origin,
        epsilon=1.0,
        delta=1e-6,
    )
    assert moments.estimate(x, noise=SeededNoise(3)).value.isfinite().all()


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_needs_noise_along_it(name, p):
    domain = SEGMENTS[name]
    shape = noise_shape(domain, p)
    assert shape.root.shape == (2, 1)
    ends = domain.extreme(torch.stack([HALF, -HALF]))
    half = float(torch.linalg.vector_norm(ends[0] - ends[1], ord=p)) / 2
    assert shape.upper == pytest.approx(half, rel=1e-4)
    assert float(shape.certificate.gap) <= 1e-4
    assert bool(domain.contains(ends).all())
    if name != "two points":
        assert bool(domain.contains(ends.mean(0)))
        assert torch.allclose(
            domain.project(ends.mean(0) + vector(2.0, -1.0)),
            ends.mean(0),
            atol=1e-6,
        )
    mechanism = GaussianMean.calibrated(domain, shape, epsilon=1.0, delta=1e-6)
    published = mechanism.estimate(ends, noise=SeededNoise(1)).value
    noise = (published - ends.mean(0)).double()
    across = noise @ vector(HALF[1], -HALF[0])
    assert abs(float(across)) <= 1e-9 * float(noise.norm() * HALF.norm())


def test_products_with_a_point():
    joined = Product((lp_ball(2, 2.0), POINT))
    shape = noise_shape(joined, 2.0)
    assert shape.root.shape == (4, 2)
    assert shape.upper == pytest.approx(math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_guarantee_short_floats_come_no_further_out_of_a_domain_than_others(dtype):
    corners = float64([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    box = Box(torch.full((2,), 0.25), torch.full((2,), 0.75))
    ball = lp_ball(2, 1.0)
    for domain in (box, ball, Polytope(corners), FiniteSet(corners)):
        middle = domain.spanning().mean(0)
        out = domain.spanning() - middle
        x = torch.cat([middle + grown * out for grown in (1.0, 1.005, 1.02, 1.06)])
        x = x.to(dtype)[domain.contains(x.to(dtype))]
        # nothing is lost
        assert domain.validate(x).dtype == torch.float32
        assert len(x)
        double = x.double()
        assert float((double - domain.project(double)).norm(dim=1).max()) < 4e-6
        assert domain.contains(domain.project(x + 1)).all()
