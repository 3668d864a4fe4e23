"""The edges of densities: overflow, norms of many small numbers, gradients, mixed dtypes, wrong
objects by name.
"""

import pytest
import torch
from laws import generator

from torchdp.density import (
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    InnerProduct,
)
from torchdp.density.family import SLACK

D = 5


@pytest.mark.parametrize(
    "family",
    [GaussianFourier(D), GaussianOrthogonal(D), GaussianSquareWave(D)],
)
def test_guarantee_angles_that_overflow_stay_in_range(family):
    features = family.draw(40, generator=generator())
    for x in (
        torch.full((2, D), 3e38),
        torch.full((2, D), 1.7e308, dtype=torch.float64),
    ):
        left = features.left(x)
        assert torch.isfinite(left).all()
        assert float(left.abs().max()) <= family.bound * (1 + 1e-6)


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


def test_a_radius_whose_square_overflows_bounds_nothing():
    family = GaussianOrthogonal(D, 1.0, radius=1e300)
    assert family.draw(4, generator=generator()).movement == 4
