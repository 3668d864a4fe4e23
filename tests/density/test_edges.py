"""The edges of densities: overflow, norms of many small numbers, gradients, mixed dtypes, wrong objects by name."""

import pytest
import torch
from laws import generator

from torchdp.density import (
    Exponential,
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    InnerProduct,
    LaplacianSigns,
    ShuffledKDE,
    kernel_means,
)
from torchdp.density.family import SLACK
from torchdp.protocol import Crowd
from torchdp.shuffle import PoissonSum

D = 5


def unit(n, seed=1):
    return torch.nn.functional.normalize(torch.randn(n, D, dtype=torch.float64, generator=generator(seed)), dim=1)


@pytest.fixture(scope="module")
def kde():
    return ShuffledKDE(GaussianFourier(D).draw(3, generator=generator()), PoissonSum(8, 30.0), 1e-6, epsilon=3.0)


@pytest.mark.parametrize("family", [GaussianFourier(D), GaussianOrthogonal(D), GaussianSquareWave(D)])
def test_guarantee_angles_that_overflow_stay_in_range(family):
    features = family.draw(40, generator=generator())
    for x in (torch.full((2, D), 3e38), torch.full((2, D), 1.7e308, dtype=torch.float64)):
        left = features.left(x)
        assert torch.isfinite(left).all() and float(left.abs().max()) <= family.bound * (1 + 1e-6)


@pytest.mark.parametrize("make", [InnerProduct, lambda d: GaussianOrthogonal(d, 1.0, 1.0)])
def test_guarantee_norms_count_every_small_number(make):
    """In float32 the many small squares vanish beside the large ones."""
    d = 2**20
    x = torch.full((1, d), 2.0**-15)
    x[0, :64] = 1 / 8
    assert float(x.double().norm()) > 1 + 100 * SLACK
    with pytest.raises(ValueError, match="norm at most 1"):
        make(d).validate(x)
    assert len(make(d).validate(x / x.double().norm()))


def test_error_is_predicted_without_a_graph(kde):
    x, y = unit(8), unit(3, seed=2)
    plain = kde.density_mse(Crowd.of(x), y).total, kernel_means(GaussianFourier(D), x, y)
    x.requires_grad_(), y.requires_grad_()
    for a, b in zip(
        plain, (kde.density_mse(Crowd.of(x), y).total, kernel_means(GaussianFourier(D), x, y)), strict=True
    ):
        assert not b.requires_grad
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("family", [GaussianFourier(D), InnerProduct(D), LaplacianSigns(D), Exponential(D)])
def test_kernels_take_two_dtypes(family):
    x, y = unit(4), unit(3, seed=2)
    mixed = family.kernel(x.float(), y)
    assert mixed.dtype == torch.float64
    torch.testing.assert_close(mixed, family.kernel(x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", [GaussianFourier(D), LaplacianSigns(D), Exponential(D, radius=5.0)])
def test_whole_numbers_are_the_same_vectors_as_floats(family):
    whole = torch.randint(-1, 2, (8, D), generator=generator())
    features = family.draw(6, generator=generator())
    torch.testing.assert_close(features.left(whole), features.left(whole.double()), rtol=0, atol=1e-12)
    kde = ShuffledKDE(features, PoissonSum(8, 200.0), 1e-3)
    assert kde.validate(whole).dtype == torch.float64
    summaries = [kde.summary(whole), kde.summary(whole.double())]
    torch.testing.assert_close(*(kde.exact(each) for each in summaries), rtol=0, atol=1e-12)
    totals = [kde.sample_tally(each, generator=generator()).parts["total"] for each in summaries]
    assert (totals[0] == totals[1]).all()


def test_a_radius_whose_square_overflows_bounds_nothing():
    family = GaussianOrthogonal(D, 1.0, radius=1e300)
    assert family.draw(4, generator=generator()).movement == 4
