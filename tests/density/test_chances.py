"""The chances that bits are drawn with, floats and all, move no more than the accounting says."""

import pytest
import torch
from laws import generator, normal

from torchdp.density import (
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    InnerProduct,
    InnerProductRotated,
)
from torchdp.density.density import ERROR, moved

D = 48
FAMILIES = [
    GaussianFourier(D, 0.4),
    GaussianOrthogonal(D, 0.4),
    GaussianSquareWave(D, 0.4),
    InnerProduct(D),
    InnerProductRotated(D, 3.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_guarantee_chances_move_by_change_at_most(family, dtype):
    """Opposite vectors along each direction that the features know, and others; in the dtype that
    users have.
    """
    features = family.draw(6, generator=generator(1))
    change = moved(features).change
    x = normal(60, D, seed=2)
    for name in ("signs", "frequencies"):
        known = getattr(features, name, x)
        x = torch.cat([x, known.mT if len(known) == D else known[:, :D]])
    x = (x / x.norm(dim=1, keepdim=True)).to(dtype)
    x = torch.cat([x, -x])
    shares = features.share(x).double().clamp(-1, 1)
    apart = torch.cdist(shares, shares, compute_mode="donot_use_mm_for_euclid_dist").square() / 4
    assert float(apart.max()) <= change


def test_cosines_are_right_to_the_stated_error_at_the_angle_they_are_given():
    for scale in (1.0, 100.0, 1e4):
        angles = torch.randn(20_000, generator=generator(3)) * scale
        for function in (torch.cos, torch.sin):
            off = function(angles).double() - function(angles.double())
            # a quarter of the room
            assert float(off.abs().max()) <= 2 * ERROR / 4


def test_sums_of_products_are_taken_in_float64():
    x = torch.nn.functional.normalize(torch.randn(50, D, generator=generator(4)), dim=1)
    features = InnerProductRotated(D, 3.0).draw(9, generator=generator(5))
    exact = features.share(x.double())
    assert torch.equal(features.share(x), exact)
    single = features.f(x).double() / features.bound
    # what float32 would have done
    assert float((single - exact).abs().max()) > 1e-9
