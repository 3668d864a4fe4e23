"""Covariance by a strategy: roundings that keep two moments, errors and intervals by sampling, the choice."""

import functools
import itertools
import math

import pytest
import torch
from channels import nested

from torchdp.domains import Box
from torchdp.mean import LocalCovariance, StrategyCovariance, choose_covariance
from torchdp.noise import SeededNoise
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


def test_what_users_draw_has_the_law_that_is_stated():
    protocol, x = tuned(), X[:1].expand(40_000, -1)
    sent = protocol.randomize(x, noise=SeededNoise(3))
    found = torch.bincount(sent, minlength=protocol.client.outputs) / 40_000
    law = protocol._laws(X[:1])[0]
    assert float(((found - law) / (law * (1 - law) / 40_000).sqrt()).abs().max()) < 5
    assert float(protocol._laws(X).sum(1).sub(1).abs().max()) < 1e-9


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


@pytest.mark.parametrize("steps", [2, 3])
def test_types_tell_what_the_roundings_add(steps):
    """By enumeration of all roundings of each user: exactly for two numbers, nearly for one; not the most they can."""
    protocol = StrategyCovariance(BOX, steps, nested((2 * steps + 1) ** 2, 1.0))
    w, D = protocol.scaled(X), 2 / steps
    position = (w + 1) / D
    below = position.floor()
    share, m = position - below, w.mean(0)
    h, wanted = torch.zeros((2 * steps + 1) ** 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    first, second, (rows, columns) = protocol._tables
    meant = second.mT - m[rows, None] * first.mT[columns] - m[columns, None] * first.mT[rows]
    for low, p in zip(below, share, strict=True):
        law = torch.zeros_like(h)
        for ups in itertools.product((0, 1), repeat=4):  # of r and s of the one number, then of the other
            chance = math.prod(float(p[i // 2]) if up else 1 - float(p[i // 2]) for i, up in enumerate(ups))
            twice = [2 * int(low[i]) + ups[2 * i] + ups[2 * i + 1] for i in range(2)]
            law[twice[0] * (2 * steps + 1) + twice[1]] += chance
        h += law / len(X)
        wanted += (law @ meant.mT.square() - (law @ meant.mT).square()) / len(X)
    found = protocol._rounding(h, m, meant)
    assert float(found[1]) == pytest.approx(float(wanted[1]), rel=1e-9)
    torch.testing.assert_close(found, wanted, rtol=0.15, atol=0)
    most = D**4 / 16 + D**2 / 2 * w.var(0, correction=0)
    assert bool((found[[0, 2]] < 0.85 * most).all())


def test_the_choice_is_the_least_predicted_error():
    choice = choose_covariance(BOX, 20_000, 2.0)
    named = {each.name: each.error for each in choice.candidates}
    assert next(iter(named)) == "optimised strategy, 3 steps"
    assert named["numbers and products"] > 1.3 * min(named.values())
    many = Box(torch.zeros(4), torch.ones(4))  # 81 types at least: vectors alone
    (only,) = choose_covariance(many, 1_000, 1.0).candidates
    assert isinstance(only.protocol, LocalCovariance)
    assert math.isinf(float(choice.best.worst_mse(100)))
