"""Covariance by a strategy: roundings that keep two moments, errors and intervals by sampling, the choice."""

import functools
import math

import pytest
import torch

from torchdp.domains import Box
from torchdp.mean import LocalCovariance, StrategyCovariance, choose_covariance
from torchdp.protocol import Crowd
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

pytestmark = pytest.mark.usefixtures("brief")
BOX = Box(torch.tensor([0.0, -5.0]), torch.tensor([1.0, 15.0]))
X = BOX.low + torch.rand(60, 2, dtype=torch.float64, generator=keyed_generator(b"x")) ** 2 * (BOX.high - BOX.low)


@functools.cache
def tuned(domain=BOX, epsilon=2.0, steps=2):
    return StrategyCovariance.tuned(domain, epsilon, steps=steps, generator=keyed_generator(b"tuned"), effort=20)


@pytest.mark.parametrize(("d", "steps"), [(1, 3), (2, 2), (3, 1)])
def test_the_types_have_the_moments_of_the_numbers(d, steps):
    """The laws that users draw types from, times what the types are decoded to."""
    box = Box(torch.full((d,), -2.0), torch.full((d,), 4.0))
    protocol = tuned(box, steps=steps)
    x = -2 + 6 * torch.rand(50, d, dtype=torch.float64, generator=keyed_generator(b"moments"))
    x[0], x[1], x[2] = -2.0, 4.0, 1.0
    w = (x - 1) / 3
    decoded = protocol._laws(x) @ protocol._decoder.mT
    rows, columns = torch.triu_indices(d, d)
    torch.testing.assert_close(decoded, torch.cat([w, w[:, rows] * w[:, columns]], 1), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_errors_are_the_predicted_ones_and_intervals_cover(epsilon):
    protocol, crowd = tuned(epsilon=epsilon), Crowd(X, torch.full((60,), 200))
    found = protocol.sample_estimate(crowd, generator=keyed_generator(b"draws"), sample_shape=(2_000,))
    truth, predicted = protocol.exact(crowd), protocol.predicted_mse(crowd)
    error = found.value - truth
    for i, j in ((0, 0), (0, 1), (1, 1)):
        squared = Moments.of(error[:, i, j].square())
        assert (
            max(abs(squared.z_score(float(predicted[i, j]))), abs(Moments.of(error[:, i, j]).z_score(0.0))) < 4.5
        )
    low, high = found.interval()
    covered = ((low <= truth) & (truth <= high)).double().mean(0)
    assert bool(((covered > 0.935) & (covered < 0.97)).all())
    low, high = found.mean.interval()
    covered = ((low <= X.mean(0)) & (X.mean(0) <= high)).double().mean(0)
    assert bool(((covered > 0.93) & (covered < 0.97)).all())


def test_the_choice_is_the_least_predicted_error():
    choice = choose_covariance(BOX, 20_000, 2.0)
    named = {each.name: each.error for each in choice.candidates}
    assert next(iter(named)) == "optimised strategy, 3 steps"
    assert named["numbers and products"] > 1.3 * min(named.values())
    many = Box(torch.zeros(4), torch.ones(4))  # 81 types at least: vectors alone
    (only,) = choose_covariance(many, 1_000, 1.0).candidates
    assert isinstance(only.protocol, LocalCovariance)
    assert math.isinf(float(choice.best.worst_mse(100)))
