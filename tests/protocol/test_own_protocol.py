"""A protocol as its user would write it, outside the package, and its battery."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from contract import LocalContract
from laws import generator

from torchdp import checks
from torchdp.noise import SeededNoise
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.protocol import Estimate, Objective, Tally, TypeProtocol


@dataclass(frozen=True)
class PrivateCDF(TypeProtocol):
    """Each user is asked "is yours at most t?" for one threshold t, and answers by a coin.

    Numbers 0, ..., k - 1; the value is F(0), ..., F(k - 2). Guarantees: exactly epsilon-LDP.
    """

    k: int
    epsilon: float

    @property
    def truth(self):  # chance of the true answer
        return 1 / (1 + math.exp(-self.epsilon))

    @property
    def guarantee(self):
        return Guarantee(self.epsilon, 0.0, Model.LOCAL, Neighbours.REPLACE_ONE, True, "Warner (1965)")

    @property
    def layout(self):
        return {"asked": ((self.k - 1,), torch.int64), "yes": ((self.k - 1,), torch.int64)}

    @property
    def outputs(self):
        return 2 * (self.k - 1)

    def speak(self, x, draws):
        t = draws.below(self.k - 1, tuple(x.shape))
        return 2 * t + ((x <= t) ^ (draws.uniform(tuple(x.shape)) >= self.truth))

    def tally(self, messages):
        asked, yes = checks.indices("messages", messages, self.outputs) // 2, messages % 2 == 1
        counts = [torch.bincount(t, minlength=self.k - 1) for t in (asked, asked[yes])]
        return Tally(len(asked), dict(zip(self.layout, counts, strict=True)))

    def analyse(self, tally):
        tally, scale = self.check(tally), (self.k - 1) / tally.n / (2 * self.truth - 1)
        value = (tally["yes"] - tally["asked"] * (1 - self.truth)) * scale
        return Estimate(value, self.worst_mse(tally.n).sqrt().expand_as(value), tally.n)

    def exact(self, summary):
        return summary.double().cumsum(-1)[:-1] / summary.sum()

    def predicted_mse(self, summary):  # Y = (k - 1)/(2p - 1) (bit - (1 - p)) for the one asked, else 0
        n, F, p = summary.sum().double(), self.exact(summary), self.truth
        second = F * (p**3 + (1 - p) ** 3) + (1 - F) * p * (1 - p)
        mean_of_squares = F  # E Y of a user is 1 or 0
        return ((self.k - 1) / (2 * p - 1) ** 2 * second - mean_of_squares) / n

    def worst_mse(self, n, objective=Objective.WORST):  # linear in F, and the same at every threshold
        ends = [self.predicted_mse(torch.eye(self.k, dtype=torch.float64)[j] * n) for j in (0, self.k - 1)]
        return torch.maximum(*ends).amax()


TYPES = torch.tensor([0, 0, 1, 2, 3, 3, 3, 5]).repeat(5)


class TestPrivateCDF(LocalContract):
    protocol = PrivateCDF(6, 1.0)
    x = TYPES
    bad: ClassVar = [torch.tensor([6]), torch.tensor([-1]), torch.tensor([0.5]), TYPES[None]]
    repeats = 1000  # its law is drawn from messages

    def loss(self, protocol):  # which threshold is asked does not depend on the value; the coin's two chances do
        return math.log(protocol.truth / (1 - protocol.truth))

    def bound(self, protocol):
        return self.protocol.epsilon

    def truth(self):
        return torch.stack([(self.x <= t).double().mean() for t in range(5)])


class TooSure(PrivateCDF):
    """Says epsilon and answers by a coin of 1.1 epsilon."""

    @property
    def truth(self):
        return 1 / (1 + math.exp(-1.1 * self.epsilon))


class WrongVariance(PrivateCDF):
    def predicted_mse(self, summary):
        return 1.15 * super().predicted_mse(summary)


class WrongHalf(PrivateCDF):
    def tally(self, messages):
        return Tally(len(messages), {n: p // 2 for n, p in super().tally(messages).parts.items()})


class Biased(PrivateCDF):
    def analyse(self, tally):
        found = super().analyse(tally)
        return dataclasses.replace(found, value=found.value * 1.2)


class Same(PrivateCDF):
    """Every user's words are the first one's."""

    def speak(self, x, draws):
        one = super().speak(x[:1], draws)
        return one.expand(len(x)).clone()


class Lopsided(PrivateCDF):
    def drawn(self, summary, draws, shape):
        return super().drawn(summary.flip(0), draws, shape)


@pytest.mark.parametrize(
    ("fault", "seen_by"),
    [
        (TooSure, "test_guarantee_is_what_the_law_says"),
        (WrongVariance, "test_predicted_mse"),
        (WrongHalf, "test_predicted_mse"),
        (Biased, "test_predicted_mse"),
        (Same, "test_predicted_mse"),
        (Lopsided, "test_two_paths_one_law"),
    ],
)
def test_the_battery_sees_a_planted_fault(fault, seen_by):
    entry = TestPrivateCDF()
    entry.protocol = protocol = fault(6, 3.0)
    summary = protocol.summary(TYPES)
    each = [protocol.collect(TYPES, noise=SeededNoise(seed)) for seed in range(entry.runs)]
    given = {
        "test_guarantee_is_what_the_law_says": (),
        "test_predicted_mse": (summary,),
        "test_two_paths_one_law": (
            {name: torch.stack([t[name] for t in each]) for name in each[0].parts},
            summary,
        ),
    }
    with pytest.raises(AssertionError):
        getattr(entry, seen_by)(*given[seen_by])


def test_the_median_is_a_function_of_the_estimate():
    found = PrivateCDF(6, 4.0).sample_estimate(torch.tensor([0, 0, 900, 200, 0, 100]) * 100, generator=generator())
    assert int((found.value < 0.5).sum()) == 2
