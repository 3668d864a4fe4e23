"""Agnostic PAC learning under local differential privacy: every concept's loss from one message of each user."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.queries.concepts import ConceptClass, check_labels
from torchdp.randomizers import BallRandomizer, PrivUnit

CHUNK = 2**24  # numbers of a chunk of messages: 128 MB


@dataclass(frozen=True)
class Learned:
    """The concept of least estimated loss, and all estimates.

    concept: its index; loss: its estimated loss; losses: (concepts,), all of them, unbiased; standard_error:
    (concepts,), of the privacy noise. half_width(failure): all estimates are that close to the users' true losses.
    The chosen concept's estimate is the least of many, and so too small on average: half_width accounts for that.
    """

    concept: int
    name: str
    losses: Tensor
    standard_error: Tensor
    proxy: float
    n: int

    @property
    def loss(self) -> float:
        """Estimated loss of the concept."""
        return float(self.losses[self.concept])

    def half_width(self, failure: float = 0.05, population: bool = False) -> float:
        """h such that with probability 1 - failure every estimate is within h of the loss on these users.

        The concept's loss is then within 2 h of the least. population: of the loss on the law that the users are a
        sample of; half of ``failure`` goes to Hoeffding's bound for the sample.
        """
        failure = checks.fraction("failure", failure)
        count = 2 * len(self.losses)
        if not population:
            return math.sqrt(2 * self.proxy * math.log(count / failure) / self.n)
        noise = math.sqrt(2 * self.proxy * math.log(2 * count / failure) / self.n)
        return noise + math.sqrt(math.log(2 * count / failure) / (2 * self.n))


@dataclass(frozen=True)
class PrivateLearner:
    """Each user sends y code(x) through a randomizer of the ball; the analyst reads off every concept's loss.

    loss of concept i = 1/2 - <readers_i, mean of y code(x)>/2. Its variance over the noise is
    ||readers_i||^2 v / (4 n), v the randomizer's; one message of each user serves all concepts.

    concepts: the class. epsilon: each user's whole budget, for record and label together. randomizer: called with
    dim, epsilon, radius. Raises ValueError, TypeError.

    Guarantees: the randomizer's own, for each user: exactly epsilon-LDP.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 24.
    """

    concepts: ConceptClass
    epsilon: float
    randomizer: Callable[[int, float, float], BallRandomizer] = PrivUnit

    def __post_init__(self) -> None:
        checks.instance("concepts", self.concepts, ConceptClass)
        checks.function("randomizer", self.randomizer)
        object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        _ = self.message  # refuses an epsilon out of its range

    @cached_property
    def message(self) -> BallRandomizer:
        """What a user runs."""
        radius = self.concepts.radius * (1 + 1e-12)
        return self.randomizer(self.concepts.dim, self.epsilon, radius)

    @property
    def guarantee(self) -> Guarantee:
        """What a user is promised."""
        return self.message.guarantee

    @cached_property
    def variance(self) -> Tensor:
        """n times the variance of each loss estimate, at its largest over records: (concepts,)."""
        square = self.concepts.readers.square().sum(1)
        return (
            (self.message.moments.variance + max(0.0, self.message.moments.outer) * self.message.radius**2)
            * square
            / 4
        )

    @property
    def proxy(self) -> float:
        """n times the variance proxy of the worst loss estimate: P(error > t) <= 2 exp(-n t^2 / (2 proxy))."""
        return self.message.subgaussian.proxy * float(self.concepts.readers.square().sum(1).max()) / 4

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom, for any law of records, the concept's loss exceeds the least by at most alpha and its
        estimate is off by at most alpha / 2, with probability 1 - failure.

        Guarantees: that many users are enough, by the sub-Gaussian bound, Hoeffding's, and the union over concepts.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 24, with its constants.
        """
        alpha, failure = checks.positive("alpha", alpha), checks.fraction("failure", failure)
        width = (math.sqrt(2 * self.proxy) + math.sqrt(0.5)) * math.sqrt(
            math.log(4 * len(self.concepts) / failure)
        )
        return math.ceil((2 * width / alpha) ** 2)

    def learn(self, records: Tensor, labels: Tensor, *, noise: Noise | None = None) -> Learned:
        """The concept of least estimated loss: records (n, features) or (n,), labels (n,) of +1 and -1.

        noise: the system's where None. Raises TypeError, ValueError.
        """
        x = self.concepts.records(records)
        labels, noise = check_labels(labels, x), source(noise, x.device)
        size = max(1, CHUNK // self.concepts.dim)
        total = torch.zeros(self.concepts.dim, dtype=torch.float64, device=x.device)
        for some, signs in zip(x.split(size), labels.split(size), strict=True):
            codes = signs[:, None] * self.concepts.encode(some)
            total += self.message.decode_sum(self.message.sample(codes, noise=noise))
        losses = (1 - self.concepts.readers @ (total / len(x))) / 2
        best = int(losses.argmin())
        error = (self.variance / len(x)).sqrt()
        return Learned(best, self.concepts.names[best], losses, error, self.proxy, len(x))
