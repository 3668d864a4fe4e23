"""The local mechanism: what a user shows its client, the error in l_p, the bound for few users."""

import math

import pytest
import torch
from laws import generator

from torchdp.domains import Box, FiniteSet, lp_ball, noise_shape
from torchdp.mean import LocalMean
from torchdp.privacy import Model
from torchdp.protocol import Crowd


def box(*sides):
    high = torch.tensor(sides, dtype=torch.float64)
    return Box(torch.zeros_like(high), high)


POINTS = FiniteSet(torch.rand(8, 3, dtype=torch.float64, generator=generator(3)) + 5)
DOMAINS = [box(1.0, 4.0, 16.0), POINTS, lp_ball(3, 2.0, 5.0)]


@pytest.mark.parametrize("domain", DOMAINS, ids=["box", "points", "ball"])
def test_guarantee_every_user_has_the_randomizers(domain):
    mechanism = LocalMean.calibrated(domain, noise_shape(domain, 2.0), epsilon=1.3)
    assert mechanism.guarantee == mechanism.client.guarantee
    assert mechanism.guarantee.epsilon == 1.3 and mechanism.guarantee.delta < 2**-128
    assert mechanism.guarantee.model is Model.LOCAL
    # what a user sends is the randomizer's message for a point of its ball, whatever the point of the domain
    encoded = mechanism.encoding(domain.spanning())
    assert encoded.norm(dim=-1).max() <= mechanism.client.radius


def test_the_error_of_draws_is_the_predicted_one():
    p = math.inf
    domain = box(1.0, 4.0, 16.0, 64.0)
    mechanism = LocalMean.calibrated(domain, noise_shape(domain, p), epsilon=1.0)
    x = torch.rand(20, 4, dtype=torch.float64, generator=generator(8)) * domain.high
    crowd = Crowd(x, torch.full((20,), 50))
    drawn = mechanism.sample_estimate(crowd, generator=generator(9), sample_shape=(8_000,))
    norms = torch.linalg.vector_norm(drawn.value - x.mean(0), ord=p, dim=1)
    error = mechanism.error(1000)
    assert float(norms.square().mean().sqrt()) / error.root_mean_square.value == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("p", [2.0, 4.0, math.inf])
@pytest.mark.parametrize("n", [1, 5])
def test_guarantee_the_bound_holds_also_for_few_users(p, n):
    domain = box(1.0, 2.0, 2.0)
    mechanism = LocalMean.calibrated(domain, noise_shape(domain, p), epsilon=1.0)
    corner = domain.high[None]
    crowd = Crowd(corner, torch.tensor([n]))
    drawn = mechanism.sample_estimate(crowd, generator=generator(10), sample_shape=(4_000,))
    squares = torch.linalg.vector_norm(drawn.value - corner, ord=p, dim=1).square()
    worst = float(squares.mean() - 5 * squares.std() / math.sqrt(4_000))
    assert math.sqrt(worst) <= mechanism.error_bound(n) <= 4 * mechanism.error(n).floor
