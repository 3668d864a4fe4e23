"""What the protocols promise: the densities of the messages for any two types differ by e^epsilon
at most.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import pytest
import torch
from laws import normal
from pairs import from_factors

from pairwise.common import twice, vectors
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import Pairs
from torchdp.privacy import Model, Neighbours
from torchdp.queries import Twice, through
from torchdp.randomizers import PrivUnit

STATISTICS = [
    pairwise.absolute_difference(2),
    pairwise.absolute_difference(5, spacing=0.3),
    pairwise.unequal(4),
    pairwise.kendall(2, 3),
    pairwise.auc(3),
    from_factors(torch.eye(3), torch.eye(3) * torch.arange(1.0, 4.0)),
]
EPSILONS = [0.1, 1.0, 4.0]


@dataclass(frozen=True, eq=False)
class ForgetsToHalve(Twice):
    """Two messages, each at the whole budget: what Twice must not be."""

    @cached_property
    def randomizer(self):
        return PrivUnit(len(self.queries.right), self.epsilon, self.queries.radius)


def randomizer(protocol):
    """What a user runs for each message."""
    channel = protocol.channel
    return channel.randomizer if isinstance(channel, Twice) else channel.client


def lifted(protocol):
    """The k points on the sphere of one more dimension, (k, r + 1)."""
    points = protocol.question.points / protocol.question.radius
    rest = 1 - points.square().sum(1, keepdim=True)
    return torch.cat([points, rest.clamp_min(0).sqrt()], 1)


def outputs(protocol):
    """Messages of the lifted sphere: random ones, and those that tell two types apart best."""
    u = lifted(protocol)
    # directions that no type prefers
    random = normal(500, u.shape[1], name=b"outputs")
    # from one type to another: where their densities differ most
    apart = (u[:, None] - u).flatten(0, 1)
    found = torch.cat([random, u, apart])
    return found / found.norm(dim=1, keepdim=True).clamp_min(1e-300)


def log_density(protocol, z):
    """Log density of one message at each z for each type, against the uniform one: (outputs, k)."""
    cap = randomizer(protocol).cap
    inside = z @ lifted(protocol).mT
    low = math.log(cap.low_density)
    high = math.log(cap.high_density)
    favoured = (inside >= cap.threshold).double()
    return low + (high - low) * favoured


def worst(protocol):
    """Largest log ratio between two types of one message's density, over the outputs."""
    density = log_density(protocol, outputs(protocol))
    ratios = density.amax(1) - density.amin(1)
    return float(ratios.max())


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: f"{each.name}{each.types}")
def test_guarantee_two_message(statistic, epsilon):
    statistic = replace(statistic, pairs=Pairs.ALL)
    protocol = twice(statistic, epsilon)
    promised = protocol.guarantee
    assert promised.epsilon == pytest.approx(epsilon, rel=1e-15)
    assert promised.delta < 2**-128
    assert not promised.exact
    assert promised.model == Model.LOCAL
    assert promised.neighbours == Neighbours.REPLACE_ONE
    assert randomizer(protocol).epsilon == epsilon / 2
    assert protocol.bits_per_user == 2 * 16 * statistic.dim
    assert 0 < worst(protocol) <= epsilon / 2 * (1 + 1e-12)
    # both messages at once: their log densities add up, whatever pair of outputs
    density = log_density(protocol, outputs(protocol))
    both = density[:, None] + density[torch.arange(0, len(density), 7)]
    ratios = both.amax(-1) - both.amin(-1)
    assert float(ratios.max()) <= epsilon * (1 + 1e-12)
    assert (
        2
        * worst(
            through(
                statistic,
                ForgetsToHalve(protocol.channel.queries, epsilon),
            )
        )
        > epsilon * 1.9
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: f"{each.name}{each.types}")
def test_guarantee_one_message(statistic, epsilon):
    protocol = vectors(replace(statistic, pairs=Pairs.ALL), epsilon)
    promised = protocol.guarantee
    assert promised.epsilon == randomizer(protocol).epsilon == epsilon
    assert promised.delta < 2**-128
    assert not promised.exact
    assert promised.model is Model.LOCAL
    assert protocol.bits_per_user == 16 * statistic.dim
    assert 0.9 * epsilon < worst(protocol) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize("kind", [twice, vectors])
def test_guarantee_the_messages_are_those_of_the_randomizer(kind):
    """Same draws, same sum: sums are made type by type."""
    protocol = kind(pairwise.unequal(4), 2.0)
    x = torch.tensor([0, 1, 3, 3])
    tally = protocol.collect(x, noise=SeededNoise(1))
    noise = SeededNoise(1)
    for name in protocol.layout:
        messages = randomizer(protocol).randomize_unchecked(protocol.question.points[x], noise)
        torch.testing.assert_close(tally[name], messages.sum(0))


def test_guarantee_the_two_messages_of_a_user_have_noise_of_their_own():
    protocol = twice(pairwise.unequal(4), 2.0)
    n = 20_000
    sent = protocol.randomize(torch.zeros(n, dtype=torch.int64), noise=SeededNoise(1))
    correlation = torch.corrcoef(sent.flatten(1).mT)
    assert float(correlation[:3, 3:].abs().max()) < 5 / n**0.5
    # the control
    same = torch.corrcoef(sent[:, [0, 0]].flatten(1).mT)
    assert float(same[:3, 3:].abs().max()) > 0.99
