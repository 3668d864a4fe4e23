"""Random features against their kernels: means, moments, ranges, supports, and what a bit keeps of
them.
"""

import math

import pytest
import torch
from buckets import LaplacianBuckets
from laws import ball, float64, generator, normal

from torchdp.density import (
    Exponential,
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    InnerProduct,
    InnerProductRotated,
    LaplacianSigns,
    Projected,
)
from torchdp.density.inner_product import rotate
from torchdp.draws import Simulated

D = 6
# means are known to .7 per cent of a deviation
TRIALS = 20_000
UNBIASED = [
    GaussianFourier(D, 1.3),
    GaussianSquareWave(D, 1.3),
    LaplacianSigns(D, 2.0),
    Exponential(D, 0.7, 1.0),
]
EVERY = [
    *UNBIASED,
    GaussianOrthogonal(D, 0.7),
    InnerProduct(D),
    InnerProductRotated(D),
    InnerProductRotated(D, 1.5),
    LaplacianBuckets(D, 2.0, 4),
    Projected(40, GaussianSquareWave(D, 1.3)),
    Projected(40, GaussianFourier(D, 1.3)),
]


def products(family, x, y, trials=TRIALS, seed=3):
    """<f_i(x_u), g_i(y_v)> of each repetition: (n, q, trials)."""
    features = family.draw(trials, generator=generator(seed))
    left = features.left(x).unflatten(1, (trials, -1))
    right = features.right(y).unflatten(1, (trials, -1))
    return torch.einsum("uij,vij->uvi", left, right)


def z_scores(samples, mean):
    error = samples.std(-1) / math.sqrt(samples.shape[-1])
    return (samples.mean(-1) - mean) / (error + 1e-9)


@pytest.mark.parametrize("family", UNBIASED, ids=lambda family: type(family).__name__)
def test_products_have_the_kernel_as_their_mean(family):
    x = ball(4, D, 1)
    y = ball(3, D, 5)
    # kernels are 1 where points meet
    y[0] = x[0]
    found = products(family, x, y)
    assert z_scores(found, family.kernel(x, y)).abs().max() < 4.5
    # control: nine tenths of the kernel are seen
    assert z_scores(found, 0.9 * family.kernel(x, y)).abs().max() > 6


@pytest.mark.parametrize("family", EVERY, ids=lambda family: type(family).__name__)
def test_every_family_keeps_to_what_it_declares(family):
    d = family.dimension
    x = ball(20, d, 1)
    y = ball(5, d, 5)
    features = family.draw(50, generator=generator())
    left = features.left(x)
    right = features.right(y)
    assert left.shape == (20, features.instances)
    assert right.shape == (5, features.instances)
    assert features.instances == 50 * family.coordinates
    assert float(left.abs().max()) <= family.bound * (1 + 1e-12)
    # how many coordinates of a repetition a point moves
    support = (left.unflatten(1, (50, -1)) != 0).sum(-1)
    assert int(support.max()) <= family.support
    assert features.composed == 50 * family.support
    for dtype in (torch.float32, torch.float64):
        assert features.left(x.to(dtype)).dtype == features.right(y.to(dtype)).dtype == dtype


def test_guarantee_the_bias_of_rotated_coordinates_is_at_most_the_one_stated():
    for width, d in ((1.0, 64), (1.5, 100), (2.0, 64)):
        family = InnerProductRotated(d, width)
        x = torch.nn.functional.normalize(ball(3, d, 7), dim=1)
        # flat once it is rotated: never clipped
        x[1] = torch.eye(d)[0]
        x[2, 2:] = 0
        x[2] = x[2] / x[2].norm()
        found = products(family, x, x, trials=2000)
        error = found.std(-1) / math.sqrt(2000)
        excess = (found.mean(-1) - x @ x.mT).abs() - 4 * error
        assert float(excess.max()) <= family.bias
        # there is a bias to bound
        assert float(excess[0, 0]) > 0.005
    assert InnerProductRotated(768).bias < 0.0086
    assert InnerProductRotated(16).bias == 0
    assert InnerProductRotated(16).bound == 1
    assert InnerProductRotated(768).bound == 4 / 32


def test_guarantee_the_stated_bias_bounds_the_exact_mean_over_every_sign():
    d = 8
    both = float64([-1.0, 1.0])
    signs = torch.cartesian_prod(*[both] * d)
    x = torch.nn.functional.normalize(ball(6, d, 11), dim=1)
    # (6, 2^d, d)
    z = rotate(x[:, None], signs)
    for width in (0.5, 1.0, 1.5):
        family = InnerProductRotated(d, width)
        # over all 2^d signs of the rotation
        mean = torch.einsum("uij,vij->uv", z.clamp(-family.bound, family.bound), z) / len(signs)
        bias = (mean - x @ x.mT).abs()
        assert 0.01 < float(bias.max()) <= family.bias


def test_guarantee_projection_raises_the_kernel_by_at_most_its_bias():
    d = 48
    kept = 8
    family = Projected(d, GaussianFourier(kept, 1.0))
    assert family.bias == pytest.approx(2 / 8 * 56 / 63)
    x = ball(1, d, 1)
    y = torch.zeros(1, d, dtype=torch.float64)
    for scale in (0.5, 1.0, 1.8, 3.0):
        # a point at this distance from the origin, where y is
        point = x / x.norm() * scale
        kernels = []
        for seed in range(500):
            features = family.draw(1, generator=generator(seed))
            kernel = family.family.kernel(features.project(point), features.project(y))
            kernels.append(float(kernel[0, 0]))
        kernels = float64(kernels)
        bias = float(kernels.mean()) - math.exp(-(scale**2))
        error = float(kernels.std()) / math.sqrt(500)
        assert -4 * error < bias < family.bias + 4 * error
        # there is a bias to bound
        assert scale != 1.8 or bias > 6 * error


@pytest.mark.parametrize("family", EVERY, ids=lambda family: type(family).__name__)
def test_bits_are_unbiased_for_the_features(family):
    x = ball(3, family.dimension, 1)
    features = family.draw(4, generator=generator())
    ones = features.ones(x[:1], Simulated(generator(9)), (20_000,)).double()
    share = features.left(x[:1])[0] / family.bound
    p = (1 + share) / 2
    # of a share of 20,000 bits
    error = (p * (1 - p) / 20_000).sqrt()
    assert ((ones.mean(0) - p).abs() <= 4.5 * error + 1e-12).all()
    variances = p * (1 - p)
    rounded = float(variances.sum()) > 0
    assert (features.rounding == 0) == (not rounded)


@pytest.mark.parametrize("family", EVERY, ids=lambda family: type(family).__name__)
def test_guarantee_probabilities_move_by_no_more_than_stated(family):
    features = family.draw(20, generator=generator())
    assert features.movement <= features.composed * (1 + 3e-6)
    x = torch.nn.functional.normalize(ball(200, family.dimension, 1), dim=1)
    # the farthest points of the ball, and random ones
    pairs = [(x, -x), (x, x.roll(1, 0))]

    def moved(a, b):
        """The largest squared distance of what two points add."""
        apart = (features.left(a) - features.left(b)) / (2 * family.bound)
        return apart.square().sum(1).max()

    moves = [moved(a, b) for a, b in pairs]
    largest = float(torch.stack(moves).max())
    assert largest <= features.movement
    assert largest > (0.99 if isinstance(family, InnerProduct) else 0.3) * features.movement


def test_rotation_is_an_isometry_for_any_dimension_and_mixes_every_coordinate():
    for d, size in (
        (1, 1),
        (2, 2),
        (3, 4),
        (8, 8),
        (100, 128),
        (768, 1024),
    ):
        x = normal(4, d)
        # signs of the rotation
        bits = torch.randint(0, 2, (size,), generator=generator())
        signs = 2.0 * bits.double() - 1
        z = rotate(x, signs)
        assert z.shape == (4, size)
        torch.testing.assert_close(z @ z.mT, x @ x.mT)
        axis = torch.eye(d, dtype=torch.float64)[:1]
        flat = rotate(axis, signs).abs()
        torch.testing.assert_close(flat, torch.full_like(flat, size**-0.5))


@pytest.mark.parametrize("family", EVERY, ids=lambda family: type(family).__name__)
def test_parts_of_any_size_give_the_same_features(family, monkeypatch):
    x = ball(23, family.dimension, 1)
    features = family.draw(7, generator=generator())
    # all points at once
    whole = [part.shape[0] for part in features.parts(x)]
    assert whole == [23]
    left = features.left(x)
    monkeypatch.setattr(
        "torchdp.density.family.NUMBERS_AT_ONCE",
        40 * features.numbers // 8,
    )
    parts = list(features.parts(x))
    assert len(parts) == 5
    torch.testing.assert_close(
        torch.cat([features.left(part) for part in parts]),
        left,
        rtol=1e-12,
        atol=1e-12,
    )
    assert features.ones(x, Simulated(generator()), (2,)).shape == (
        2,
        features.instances,
    )
