"""Two small protocols: one whose tallies are counts, one whose tallies are numbers that rounding
touches.
"""

import math
from dataclasses import dataclass

import torch

from torchdp import checks
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.protocol import Estimate, Limits, Tally, TypeProtocol


@dataclass(frozen=True)
class Votes(TypeProtocol):
    """Each user says its type with chance p, else any other."""

    k: int
    epsilon: float

    @property
    def truth(self):
        return math.exp(self.epsilon) / (math.exp(self.epsilon) + self.k - 1)

    @property
    def guarantee(self):
        return Guarantee(
            self.epsilon, 0.0, Model.LOCAL, Neighbours.REPLACE_ONE, True, "Warner (1965)"
        )

    @property
    def layout(self):
        return {"votes": ((self.k,), torch.int64)}

    def limits(self, n):
        return {"votes": Limits(0, n, n)}

    @property
    def outputs(self):
        return self.k

    def randomize_unchecked(self, x, draws):
        other = (x + 1 + draws.below(self.k - 1, tuple(x.shape))) % self.k
        return torch.where(draws.uniform(tuple(x.shape)) < self.truth, x, other)

    def tally(self, messages):
        messages = checks.indices("messages", messages, self.k)
        return Tally(len(messages), {"votes": torch.bincount(messages, minlength=self.k)})

    def analyse(self, tally):
        votes = self.check(tally, 2)["votes"].double()
        q = (1 - self.truth) / (self.k - 1)
        value = (votes / tally.n - q) / (self.truth - q)
        return Estimate(value, self.worst_mse(tally.n).sqrt().expand_as(value), tally.n)

    def exact(self, summary):
        return summary.double() / summary.sum()

    def predicted_mse(self, summary):
        return self.worst_mse(int(summary.sum())).expand(self.k)

    def worst_unchecked(self, n, objective):
        q = (1 - self.truth) / (self.k - 1)
        return torch.tensor(0.25 / (self.truth - q) ** 2 / n, dtype=torch.float64)


@dataclass(frozen=True)
class Places(Votes):
    """The same of users in places: the tally is where those whom they name are, added up; the value
    is its mean.
    """

    places: torch.Tensor  # (k, r)
    words: str = ""

    @property
    def layout(self):
        return {"place": ((self.places.shape[1],), torch.float64), "square": ((), torch.float64)}

    def limits(self, n):
        size = float(self.places.abs().max())
        return {
            "place": Limits.around(n * size),
            "square": Limits(0.0, n * self.places.shape[1] * size**2),
        }

    @property
    def subject(self):
        return Places(self.k, 1.0, self.places)

    def tally(self, messages):
        there = self.places[checks.indices("messages", messages, self.k)]
        return Tally(len(messages), {"place": there.sum(0), "square": there.square().sum()})

    def analyse(self, tally):
        value = self.check(tally, 2)["place"] / tally.n
        return Estimate(value, torch.full_like(value, 1 / math.sqrt(tally.n)), tally.n)
