"""Covariance under local differential privacy: the radius of what users show, the weights, the mean beside it."""

import itertools
import math

import pytest
import torch

from torchdp.domains import Box
from torchdp.mean import LocalCovariance
from torchdp.protocol import Crowd, Objective
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator


def cube(d):
    return Box(-torch.ones(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64))


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_nothing_that_users_show_leaves_the_ball(d):
    """Corners, points of zeros and ones, and points at random; the radius is reached, so it is not too large."""
    protocol = LocalCovariance.calibrated(cube(d), epsilon=1.0)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 0.5, 1.0])] * d).view(-1, d).double()
    inside = 2 * torch.rand(2_000, d, dtype=torch.float64, generator=keyed_generator(b"cube")) - 1
    norms = protocol.client_input(torch.cat([corners, inside])).norm(dim=1)
    assert float(norms.max()) == pytest.approx(LocalCovariance.radius(d), rel=1e-9)
    assert LocalCovariance.radius(d) <= protocol.client.radius <= LocalCovariance.radius(d) * (1 + 1e-9)


def cost(d, square, own):
    """Mean squared error of an entry at means of 1/2, in units of the unit ball's variance over n."""
    q = square + d - 1
    c = min(1.0, 0.5 + q / (2 * own))
    radius = max(own * d * c**2, d * (q + own * (1 - c) ** 2))
    return radius * (d / own + (d * d - d) / 2 + (d * d + d) / (2 * square)) / d**2


@pytest.mark.parametrize("d", [1, 2, 3, 4, 6, 10, 20])
def test_the_weights_are_within_one_per_cent_of_the_best(d):
    grid = [10 ** (i / 20) for i in range(-20, 50)]
    best = min(cost(d, square, own) for square, own in itertools.product(grid, grid))
    square, own, _ = LocalCovariance.weights(d)
    assert cost(d, square, own) <= 1.01 * best
    protocol, n = LocalCovariance.calibrated(cube(d), epsilon=1.0), 10**12
    crowd = Crowd(torch.full((1, d), 0.5, dtype=torch.float64), torch.tensor([n]))
    unit = PrivUnit(protocol.client.dim, 1.0).moments.variance
    assert float(protocol.predicted_mse(crowd).mean()) * n == pytest.approx(cost(d, square, own) * unit, rel=1e-6)


def test_the_mean_comes_with_it_and_intervals_cover():
    box = Box(torch.tensor([0.0, -5.0]), torch.tensor([1.0, 15.0]))
    places = torch.rand(40, 2, dtype=torch.float64, generator=keyed_generator(b"x"))
    x = box.low + places**2 * (box.high - box.low)
    protocol, crowd = LocalCovariance.calibrated(box, epsilon=2.0), Crowd(x, torch.full((40,), 200))
    found = protocol.sample_estimate(crowd, generator=keyed_generator(b"draws"), sample_shape=(3_000,))
    for estimate, truth in ((found, protocol.exact(crowd)), (found.mean, x.mean(0))):
        low, high = estimate.interval()
        covered = ((low <= truth) & (truth <= high)).double().mean(0)
        assert bool(((covered > 0.935) & (covered < 0.965)).all())
    squares = (found.mean.value - x.mean(0)).square().mean(0)
    torch.testing.assert_close(squares, found.mean.standard_error[0].square(), rtol=0.12, atol=0)


def test_the_worst_means_are_at_the_ends():
    protocol = LocalCovariance.calibrated(cube(2), epsilon=1.0)
    corners, users = itertools.product((-1, 0, 1), repeat=2), torch.tensor([900])
    ends = [Crowd(torch.tensor([corner]).double(), users) for corner in corners]
    for objective in Objective:
        worst = max(float(objective.of(protocol.predicted_mse(each))) for each in ends)
        assert float(protocol.worst_mse(900, objective)) == pytest.approx(worst, rel=1e-12)


def test_one_coordinate_has_a_finite_error():
    assert math.isfinite(float(LocalCovariance.calibrated(cube(1), epsilon=1.0).worst_mse(10)))
