"""The message formulas against the theorems' own construction in d + 1 dimensions, from the same
random numbers.
"""

import math

import pytest
import torch
from laws import generator
from torch.testing import assert_close

from torchdp.kernels import privunit

# of the mean of the messages
SCALE = 0.7
RADIUS = 2.5


def inputs(batch, dim, norm, dtype=torch.float64):
    """Points of norm ``norm * RADIUS``, g, g0, and T, sqrt(1 - T^2)."""
    options = {"dtype": torch.float64, "generator": generator()}
    points = torch.randn((*batch, dim), **options)
    points *= norm * RADIUS / points.norm(dim=-1, keepdim=True)
    normals = torch.randn((*batch, dim), **options)
    lift = torch.randn(batch, **options)
    uniform = torch.rand(batch, **options)
    rest = (math.pi * uniform).cos(), (math.pi * uniform).sin()
    return tuple(t.to(dtype) for t in (points, normals, lift, *rest))


def direct(points, normals, lift, along, across):
    """(T u + sqrt(1 - T^2) w)/mean, w the direction of (I - u u^T) g: on the sphere of R^{d+1}, the
    last coordinate dropped, times the radius."""
    scaled = points / RADIUS
    squares = scaled.square().sum(-1, keepdim=True)
    height = (1 - squares).clamp_min(0).sqrt()
    u = torch.cat([scaled, height], -1)
    g = torch.cat([normals, lift[..., None]], -1)
    projection = torch.eye(u.shape[-1], dtype=u.dtype) - u[..., :, None] * u[..., None, :]
    w = (projection @ g[..., None])[..., 0]
    w = across[..., None] * w / w.norm(dim=-1, keepdim=True)
    return RADIUS * (along[..., None] * u + w)[..., :-1] / SCALE


def message(*arguments):
    return privunit.message(*arguments, radius=RADIUS, mean=SCALE)


@pytest.mark.parametrize("norm", [0.0, 0.3, 0.999999, 1.0])
@pytest.mark.parametrize(
    "shape",
    [
        ((), 1),
        ((1,), 1),
        ((63,), 2),
        ((1000,), 7),
        ((3, 5), 63),
    ],
)
def test_the_message_is_the_theorem_with_a_coordinate_dropped(shape, norm):
    arguments = inputs(*shape, norm)
    # On the sphere the height is the root of a rounding error; it moves the result by as little.
    tolerance = 1e-4 if norm > 0.9 else 1e-9
    assert_close(message(*arguments), direct(*arguments), rtol=tolerance, atol=tolerance)
    off = message(*arguments[:-1], 1.01 * arguments[-1])
    if shape[1] > 1:
        # negative control: one per cent more is seen
        assert not torch.allclose(off, direct(*arguments), rtol=1e-4, atol=1e-4)


def test_points_outside_are_projected_onto_the_ball_and_inputs_left_alone():
    arguments = inputs((100,), 4, 1.0)
    copies = [t.clone() for t in arguments]
    points, *rest = arguments
    assert_close(message(1.5 * points, *rest), message(points, *rest), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(
        message(0.99 * points, *rest), message(points, *rest), rtol=1e-3, atol=1e-3
    )
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))


def test_a_vanishing_remainder_stays_finite():
    """Normals exactly along u leave no direction across it: no NaN, what is left is T u."""
    points, _, lift, along, across = inputs((10,), 3, 1.0)
    still = message(
        points,
        torch.zeros_like(points),
        torch.zeros_like(lift),
        along,
        across,
    )
    assert_close(still, along[:, None] * points / SCALE)
