"""Agnostic PAC learning under local differential privacy: every concept's loss from one message of each user."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol import Crowd, Estimate, Objective, Relay, Tally, Users
from torchdp.protocol.records import single
from torchdp.queries.concepts import ConceptClass
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, Made, check_client


@dataclass(frozen=True, eq=False)
class Learned:
    """The concept of least estimated loss.

    concept: its index; losses: of all concepts, unbiased. half_width(failure): all estimates are that close to the
    users' true losses. The chosen concept's estimate is the least of many, and so too small on average: half_width
    accounts for that.
    """

    concept: int
    name: str
    losses: Estimate
    proxy: float

    @property
    def loss(self) -> float:
        """Estimated loss of the concept."""
        return float(self.losses.value[self.concept])

    def half_width(self, failure: float = 0.05, population: bool = False) -> float:
        """h such that with probability 1 - failure every estimate is within h of the loss on these users.

        The concept's loss is then within 2 h of the least. population: of the loss on the distribution that the users
        are a sample of; half of ``failure`` goes to Hoeffding's bound for the sample.
        """
        failure, n = checks.fraction("failure", failure), self.losses.n
        count = 2 * len(self.losses.value)
        if not population:
            return math.sqrt(2 * self.proxy * math.log(count / failure) / n)
        noise = math.sqrt(2 * self.proxy * math.log(2 * count / failure) / n)
        return noise + math.sqrt(math.log(2 * count / failure) / (2 * n))


@dataclass(frozen=True, eq=False)
class PrivateLearner(Relay[Crowd, Tensor, BallRandomizer]):
    """Each user sends y code(record) through a randomizer of the ball; the analyst reads off every concept's loss.

    loss of concept i = 1/2 - <readers_i, mean of y code(record)>/2. Its variance over the noise is
    ||readers_i||^2 v / (4 n), v the randomizer's; one message of each user serves all concepts. The estimate is of all
    losses, (concepts,); ``best`` makes a concept of it.

    x: (n, features + 1) integers, a record and its label, +1 or -1, in each row.
    concepts: the class. client: what users run, of the codes' dimension, its radius at least theirs; ``calibrated``
    makes one, whose epsilon is each user's whole budget, for record and label together. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user: exactly epsilon-LDP.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 24.
    """

    concepts: ConceptClass
    client: BallRandomizer

    def __post_init__(self) -> None:
        concepts = checks.instance("concepts", self.concepts, ConceptClass)
        check_client(self.client, concepts.dim, concepts.radius)

    @classmethod
    def calibrated(
        cls, concepts: ConceptClass, *, epsilon: float, randomizer: Made = PrivUnit
    ) -> "PrivateLearner":
        """Of this epsilon; randomizer: called with dim, epsilon, radius. Raises ValueError, TypeError."""
        radius = checks.instance("concepts", concepts, ConceptClass).radius * (1 + 1e-12)
        make = checks.function("randomizer", randomizer)
        return cls(concepts, make(concepts.dim, epsilon, radius))

    @property
    def held(self) -> tuple[int]:
        return (len(self.concepts.tables) + 1,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, features + 1) int64, the last column +1 or -1, n >= 1. Raises TypeError, ValueError."""
        wanted = ": a record and its label, +1 or -1"
        x = checks.shaped("x", checks.integers("x", x), "n", *self.held, note=wanted)
        if not bool((x[:, -1].abs() == 1).all()):
            raise ValueError(f"x must hold rows{wanted}; some label is neither")
        columns = zip(x.mT, self.concepts.tables, strict=False)
        records = [checks.indices("x", column, table.shape[1]) for column, table in columns]
        return torch.stack([*records, x[:, -1].to(torch.int64)], 1)

    def client_input(self, x: Tensor) -> Tensor:
        """y code(record), (n, dim)."""
        return x[:, -1:].double() * self.concepts.codes(x[:, :-1])

    def analyse(self, tally: Tally) -> Estimate:
        """The losses; the standard error is that of the worst records."""
        value = (1 - self.check(tally)["sum"] / tally.users(1) @ self.concepts.readers.mT) / 2
        return Estimate(value, (self.variance / tally.users(1)).sqrt().expand_as(value), tally.n)

    def best(self, losses: Estimate) -> Learned:
        """The concept of least estimated loss. Raises TypeError, ValueError for what ``estimate`` does not give."""
        if checks.instance("losses", losses, Estimate).value.shape != (len(self.concepts),):
            raise ValueError(
                f"losses must hold one for each of the {len(self.concepts)} concepts, not {tuple(losses.value.shape)}"
            )
        at = int(losses.value.argmin())
        return Learned(at, self.concepts.names[at], losses, self.proxy)

    def validate_summary(self, summary: Crowd) -> Crowd:
        crowd = super().validate_summary(summary)
        single(crowd.n)
        return crowd

    def exact(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        return self.concepts.losses(crowd.values[:, :-1], crowd.values[:, -1], crowd.counts)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        crowd, moments, readers = self.validate_summary(summary), self.client.moments, self.concepts.readers
        along = crowd.counts.double() @ (self.client_input(crowd.values) @ readers.mT).square() / crowd.n
        return (moments.variance * readers.square().sum(1) + moments.outer * along) / (4 * crowd.n)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """(): exact for an isotropic randomizer, else a bound."""
        return checks.instance("objective", objective, Objective).of(self.variance / checks.integer("n", n, 1))

    @property
    def variance(self) -> Tensor:
        """n times the variance of each loss estimate, at its largest over records: (concepts,)."""
        each = self.client.moments.variance + max(0.0, self.client.moments.outer) * self.client.radius**2
        return each * self.concepts.readers.square().sum(1) / 4

    @property
    def proxy(self) -> float:
        """n times the variance proxy of the worst loss estimate: P(error > t) <= 2 exp(-n t^2 / (2 proxy))."""
        return self.client.subgaussian.proxy * float(self.concepts.readers.square().sum(1).max()) / 4

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom, for any distribution of records, the concept's loss exceeds the least by at most alpha and
        its estimate has error at most alpha / 2, with probability 1 - failure.

        Guarantees: that many users are enough, by the sub-Gaussian bound, Hoeffding's, and the union over concepts.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 24, with its constants.
        """
        alpha, failure = checks.squarable("alpha", alpha), checks.fraction("failure", failure)
        log = math.log(4 * len(self.concepts) / failure)
        width = (math.sqrt(2 * self.proxy) + math.sqrt(0.5)) * math.sqrt(log)
        return math.ceil((2 * width / alpha) ** 2)
