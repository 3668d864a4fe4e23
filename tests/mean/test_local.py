"""The local mechanism: what a user shows its client, the error in l_p, the bound for few users."""

import itertools

import pytest
import torch
from laws import float64, sampled, uniform

from torchdp.domains import Box, FiniteSet, lp_ball, noise_shape
from torchdp.mean import LocalCovariance, LocalMean
from torchdp.privacy import Model
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit


def box(*sides):
    high = float64(sides)
    return Box(torch.zeros_like(high), high)


POINTS = FiniteSet(uniform(8, 3, seed=3) + 5)
DOMAINS = [box(1.0, 4.0, 16.0), POINTS, lp_ball(3, 2.0, 5.0)]


@pytest.mark.parametrize("domain", DOMAINS, ids=["box", "points", "ball"])
def test_guarantee_every_user_has_the_randomizers(domain):
    mechanism = LocalMean.calibrated(domain, noise_shape(domain, 2.0), epsilon=1.3)
    assert mechanism.guarantee == mechanism.client.guarantee
    assert mechanism.guarantee.epsilon == 1.3
    assert mechanism.guarantee.delta < 2**-128
    assert mechanism.guarantee.model is Model.LOCAL
    # what a user sends is the randomizer's message for a point of its ball, whatever the point of
    # the domain
    encoded = mechanism.encoding(domain.spanning())
    assert encoded.norm(dim=-1).max() <= mechanism.client.radius


def cube(d):
    return Box(
        -torch.ones(d, dtype=torch.float64),
        torch.ones(d, dtype=torch.float64),
    )


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_nothing_that_users_show_leaves_the_ball(d):
    """Corners, points of zeros and ones, and points at random; the radius is reached, so it is not
    too large.
    """
    protocol = LocalCovariance.calibrated(cube(d), epsilon=1.0)
    levels = float64([-1.0, 0.0, 0.5, 1.0])
    corners = torch.cartesian_prod(*[levels] * d).view(-1, d)
    inside = 2 * uniform(2_000, d, name=b"cube") - 1
    norms = protocol.client_input(torch.cat([corners, inside])).norm(dim=1)
    assert float(norms.max()) == pytest.approx(LocalCovariance.radius(d), rel=1e-9)
    assert (
        LocalCovariance.radius(d)
        <= protocol.client.radius
        <= LocalCovariance.radius(d) * (1 + 1e-9)
    )


def cost(d, square, own):
    """Mean squared error of an entry at means of 1/2, in units of the unit ball's variance
    over n.
    """
    q = square + d - 1
    c = min(1.0, 0.5 + q / (2 * own))
    at_end = own * d * c**2
    radius = max(at_end, d * (q + own * (1 - c) ** 2))
    entries = d / own + (d * d - d) / 2 + (d * d + d) / (2 * square)
    return radius * entries / d**2


@pytest.mark.parametrize("d", [1, 2, 3, 4, 6, 10, 20])
def test_the_weights_are_within_one_per_cent_of_the_best(d):
    # from a tenth to some three hundred, in steps of 12 per cent
    grid = [10 ** (i / 20) for i in range(-20, 50)]
    best = min(cost(d, square, own) for square, own in itertools.product(grid, grid))
    square, own, _ = LocalCovariance.weights(d)
    assert cost(d, square, own) <= 1.01 * best
    protocol = LocalCovariance.calibrated(cube(d), epsilon=1.0)
    # so many users that the leading term is left
    n = 10**12
    crowd = Crowd(torch.full((1, d), 0.5, dtype=torch.float64), torch.tensor([n]))
    unit = PrivUnit(protocol.client.dim, 1.0).moments.variance
    assert float(protocol.predicted_mse(crowd).mean()) * n == pytest.approx(
        cost(d, square, own) * unit, rel=1e-6
    )


def test_the_mean_comes_with_it_and_intervals_cover():
    box = Box(torch.tensor([0.0, -5.0]), torch.tensor([1.0, 15.0]))
    # squared: most points near the lower corner
    places = uniform(40, 2, name=b"x")
    x = box.low + places**2 * (box.high - box.low)
    protocol = LocalCovariance.calibrated(box, epsilon=2.0)
    crowd = Crowd(x, torch.full((40,), 200))
    found = protocol.sample_estimate(crowd, **sampled(3_000, b"draws"))
    for estimate, truth in (
        (found, protocol.exact(crowd)),
        (found.mean, x.mean(0)),
    ):
        low, high = estimate.interval()
        held = (low <= truth) & (truth <= high)
        covered = held.double().mean(0)
        assert bool(((covered > 0.935) & (covered < 0.965)).all())
    mean = found.mean
    squares = (mean.value - x.mean(0)).square().mean(0)
    torch.testing.assert_close(squares, mean.standard_error[0].square(), rtol=0.12, atol=0)
