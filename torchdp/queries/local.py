"""The local factorization mechanism for linear queries."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.mechanism import Answers, Errors, QueryMechanism, users
from torchdp.randomizers import BallRandomizer, PrivUnit


@dataclass(frozen=True)
class LocalFactorization(QueryMechanism):
    """Each user sends its column of R through a randomizer of the ball; the analyst applies L to the mean message.

    With E Y = R_x and Cov Y = variance I + outer R_x R_x^T the answer to query i has, from one user of type x, the
    variance variance ||l_i||^2 + outer <l_i, R_x>^2: for an isotropic randomizer gamma_2^2 variance at most, whatever
    the data. Its bias is what the factorization leaves out, at most alpha.

    queries: encoder and decoder. randomizer: of dimension r, its radius at least the encoder's. Raises ValueError,
    TypeError.

    Guarantees: the randomizer's own, for each user.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with any unbiased randomizer in the place of their Lemma 9.
    """

    queries: FactoredQueries
    randomizer: BallRandomizer
    workload: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", checks.instance("queries", self.queries, FactoredQueries).workload)
        checks.instance("randomizer", self.randomizer, BallRandomizer)
        r = self.queries.right.shape[0]
        if self.randomizer.dim != r:
            raise ValueError(f"randomizer must have dim = {r}, the rows of right, not {self.randomizer.dim}")
        if self.randomizer.radius < self.queries.radius * (1 - 1e-12):
            raise ValueError(
                f"randomizer has radius {self.randomizer.radius:g}, less than the largest column of right, "
                f"{self.queries.radius:g}"
            )

    @property
    def guarantee(self) -> Guarantee:
        return self.randomizer.guarantee

    def half_width(self, n: int, failure: float = 0.05) -> float:
        """h such that with probability 1 - ``failure`` all answers are within h, whatever the data of the n users.

        h = max_i ||l_i|| (2 proxy log(2 m / failure) / n)^{1/2} + (largest bias), by the randomizer's variance proxy.
        Guarantees: P(largest error > h) <= failure.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with its constants.
        """
        n, failure = checks.integer("n", n, 1), checks.fraction("failure", failure)
        m = len(self.workload)
        tail = math.sqrt(2 * self.randomizer.subgaussian.proxy * math.log(2 * m / failure) / n)
        return float(self.queries.left.norm(dim=1).max()) * tail + float(self.errors.bias.abs().max())

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom :meth:`half_width` is at most alpha. Raises ValueError where the bias alone is not below it.

        Guarantees: that many users are enough, whatever their data.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10.
        """
        alpha, bias = checks.positive("alpha", alpha), float(self.errors.bias.abs().max())
        if bias >= alpha:
            raise ValueError(f"alpha must be above the bias {bias:g} of these factors, not {alpha!r}")
        return math.ceil(((self.half_width(1, failure) - bias) / (alpha - bias)) ** 2)

    @cached_property
    def errors(self) -> Errors:
        moments = self.randomizer.moments
        square = self.queries.left.square().sum(1, keepdim=True)
        along = (self.queries.left @ self.queries.right).square()
        return Errors(self.queries.bias, moments.variance * square + moments.outer * along, power=1)

    def _answer(self, types: Tensor, noise: Noise) -> Answers:
        points = self.queries.right.mT
        counts = torch.bincount(types, minlength=len(points))
        total = self.randomizer.hear_types(points, counts, source(noise, points.device))["sum"]
        return self._answers(total, len(types))

    def answer_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Answers:
        counts = checks.counts("counts", counts, self.workload.shape[1])
        n, points = users(counts), self.queries.right.mT
        total = self.randomizer.sample_sum(points, counts, generator=generator, sample_shape=sample_shape)
        return self._answers(total, n)

    def _answers(self, total: Tensor, n: int) -> Answers:
        value = total / n @ self.queries.left.mT + self.queries.shift
        error = (self.errors.variance.amax(1) / n).sqrt()
        return Answers(value, error.expand_as(value), self.errors.bias.abs().amax(1), n)


def local_factorization(
    queries: FactoredQueries, epsilon: float, randomizer: Callable[[int, float, float], BallRandomizer] = PrivUnit
) -> LocalFactorization:
    """The mechanism of these factors at the whole budget epsilon; randomizer: called with dim, epsilon, radius.

    Raises ValueError, TypeError.
    """
    radius = checks.instance("queries", queries, FactoredQueries).radius * (1 + 1e-12)
    return LocalFactorization(
        queries, checks.function("randomizer", randomizer)(queries.right.shape[0], epsilon, radius or 1.0)
    )
