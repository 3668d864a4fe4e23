"""The message formula against the theorem's own construction in d + 1 dimensions, from the same random numbers."""

import math

import pytest
import torch

from torchdp.kernels import privunitg

K, RADIUS = 0.7, 2.5


def inputs(batch, dim, norm, dtype=torch.float64, seed=0):
    """(points of norm ``norm * RADIUS``, g, g0, tau)."""
    generator = torch.Generator().manual_seed(seed)
    options = {"dtype": torch.float64, "generator": generator}
    points = torch.randn((*batch, dim), **options)
    points *= norm * RADIUS / points.norm(dim=-1, keepdim=True)
    normals, lift, tau = (
        torch.randn((*batch, dim), **options),
        torch.randn(batch, **options),
        1 + torch.rand(batch, **options),
    )
    return tuple(t.to(dtype) for t in (points, normals, lift, tau))


def direct(points, normals, lift, tau):
    """(tau u + (I - u u^T) g)/k on the sphere of R^{d+1}, the last coordinate dropped, times the radius."""
    scaled = points / RADIUS
    height = (1 - scaled.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
    u, g = torch.cat([scaled, height], -1), torch.cat([normals, lift[..., None]], -1)
    projection = torch.eye(u.shape[-1], dtype=u.dtype) - u[..., :, None] * u[..., None, :]
    y = tau[..., None] * u + (projection @ g[..., None])[..., 0]
    return RADIUS * y[..., :-1] / K


def message(*arguments):
    return privunitg.message(*arguments, radius=RADIUS, threshold=K)


@pytest.mark.parametrize("norm", [0.0, 0.3, 0.999999, 1.0])
@pytest.mark.parametrize("shape", [((), 1), ((1,), 1), ((63,), 2), ((1000,), 7), ((3, 5), 63)])
def test_the_message_is_the_theorem_with_a_coordinate_dropped(shape, norm):
    arguments = inputs(*shape, norm)
    # On the sphere the height is the root of a rounding error; it moves the result by as little.
    tolerance = 1e-12 if norm < 0.9 else 1e-6
    torch.testing.assert_close(message(*arguments), direct(*arguments), rtol=tolerance, atol=tolerance)
    if norm == 0:
        torch.testing.assert_close(message(*arguments), arguments[1] * RADIUS / K, rtol=1e-15, atol=0)
    else:
        points, normals, lift, tau = arguments
        off = message(points, normals, lift, 1.01 * tau)
        assert not torch.allclose(off, direct(*arguments), rtol=1e-3, atol=1e-3 * norm)


@pytest.mark.parametrize("size", [1, 63, 1000])
def test_strided_inputs_give_the_same_message(size):
    plain = inputs((size,), 5, 0.8)
    strided = [torch.stack([t, t + 9], -1)[..., 0] for t in plain]
    transposed = [t.mT.contiguous().mT if t.ndim > 1 else t for t in plain]
    assert not any(t.is_contiguous() for t in strided if t.numel() > 1)
    for other in (strided, transposed):  # sums may run in another order
        torch.testing.assert_close(message(*other), message(*plain), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("size", [1, 63, 1000])
@pytest.mark.parametrize("norm", [0.0, 0.3, 0.8])
def test_float32_stays_within_its_rounding(size, norm):
    dim = 16
    points, normals, lift, tau = inputs((size,), dim, norm, torch.float32)
    single = message(points, normals, lift, tau.double())
    double = message(points.double(), normals.double(), lift.double(), tau.double())
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    # Forward error: dim + 8 roundings of the terms that are added up, each at most their absolute sum.
    scaled = points.double().abs() / RADIUS
    along = (normals.double().abs() * scaled).sum(-1) + tau.abs() + lift.abs() * 3
    size_of_terms = (normals.double().abs() + along[:, None] * scaled) * RADIUS / K
    assert ((single - double).abs() <= 2 * (dim + 8) * 2**-24 * size_of_terms).all()
    assert norm == 0 or not torch.equal(single.double(), double)


def test_a_lift_in_float32_is_a_unit_vector():
    """u = (x', height) decides privacy: on the sphere, where the height cancels, its norm must still be 1."""
    points = inputs((1000,), 63, 1.0, torch.float32)[0]
    zero, one = torch.zeros(1000), torch.ones(1000)
    scaled = message(points, torch.zeros_like(points), zero, one) * K / RADIUS  # tau x'
    squares = scaled.double().square().sum(-1)
    height = -(message(points, torch.zeros_like(points), one, zero) * K / RADIUS).double()  # -height x'
    squares = squares + height.square().sum(-1) / squares
    assert (squares - 1).abs().max() < 16 * math.sqrt(63) * 2**-24


def test_points_outside_are_projected_onto_the_ball():
    points, *rest = inputs((100,), 4, 1.0)
    torch.testing.assert_close(message(1.5 * points, *rest), message(points, *rest), rtol=1e-7, atol=1e-7)
    assert not torch.allclose(message(0.99 * points, *rest), message(points, *rest), rtol=1e-3, atol=1e-3)


def test_inputs_are_left_alone():
    arguments = inputs((10,), 3, 1.0)
    copies = [t.clone() for t in arguments]
    message(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))
