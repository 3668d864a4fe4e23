"""Noisy mean vectors improved by the projection on the hull of the users' vectors.

Notation: s is the users' mean vector, mu the first noisy mean vector, projected, Y = s + Z the
second, v the variance of one message, J the diagonal matrix of the form's weights.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.optimize import minimize
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.forms import Form, one_kernel
from torchdp.pairwise.rounds.interactive import Extremes, PairsInRounds, extremes, normals
from torchdp.pairwise.rounds.round import (
    Question,
    ask,
    searched_variance,
    searched_worst_variance,
)
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.queries.channel import NEAR, nearest
from torchdp.randomizers.base import LARGEST_EPSILON, SMALLEST_EPSILON


@dataclass(frozen=True)
class ProjectedProtocol(PairsInRounds):
    """Two vectors and one answer or two, at ``budgets`` that add up to epsilon.

    The first mean vector is projected on the hull of the points, mu; the second, Y = s + Z, stays
    as it is. Asked for are <u_x, J mu> and <u_x, J Y>, or their sum; the analyst takes away Y^T J
    mu. Every estimate has the mean s^T J s and, but for the answers' noise, the error Z^T J
    (s - mu): no bias, since Z and mu are independent, and E ||s - mu||^2 <= min(r v/n, (2 C^2 proxy
    log k/n)^{1/2}) by Theorem 19.
    """

    messages: ClassVar[int]  # of one user
    budgets: tuple[float, ...]

    def __post_init__(self) -> None:
        given = checks.instance("budgets", self.budgets, tuple)
        budgets = tuple(checks.positive("budgets", budget) for budget in given)
        object.__setattr__(self, "budgets", budgets)
        checks.keep(self, epsilon=checks.positive)
        if len(budgets) != self.messages:
            raise ValueError(
                f"budgets must hold {self.messages} numbers, one for each message, "
                f"not {len(budgets)}"
            )
        total = math.fsum(budgets)
        # Shares of epsilon add up to it only up to rounding.
        if total > self.epsilon * (1 + 1e-12):
            raise ValueError(
                f"budgets must add up to at most epsilon = {self.epsilon:g}, not {total:g}"
            )
        super().__post_init__()

    @classmethod
    def tuned(cls, statistic: PairwiseStatistic, n: int, epsilon: float) -> Self:
        """With the budgets of the least bound for the worst data of n users. Raises ValueError.

        The bound is that of ``worst``, with v in the place of the first vector's proxy. The shares
        are found by Nelder and Mead's method on their logits.
        """
        n = checks.integer("n", n, 2)
        epsilon = checks.positive("epsilon", epsilon)
        most = extremes(statistic)
        messages = cls.messages
        checks.within("epsilon", epsilon, messages * SMALLEST_EPSILON, messages * LARGEST_EPSILON)

        def split(logits: np.ndarray) -> tuple[float, ...]:
            # A logit for each share but the last, whose logit is 0: e^12 is the largest ratio of two.
            powers = np.exp(np.clip(np.append(logits, 0.0), -6, 6))
            # A little less than epsilon, so that rounding adds up to no more.
            budgets = epsilon * (1 - 1e-15) * powers / powers.sum()
            return tuple(budgets.tolist())

        def log_bound(logits: np.ndarray) -> float:
            budgets = split(logits)
            # No randomizer has such a budget: the search turns back.
            if min(budgets) < SMALLEST_EPSILON or max(budgets) > LARGEST_EPSILON:
                return math.inf
            scale = statistic.radius**2 / n
            first = scale * searched_variance(statistic.dim, budgets[0])
            second = scale * searched_variance(statistic.dim, budgets[1])
            answers = [searched_worst_variance(budget) / n for budget in budgets[2:]]
            # The logarithm makes the search's tolerance a relative one.
            return math.log(cls._bound(statistic, most, (first, first), second, answers))

        start = np.zeros(messages - 1)
        options = {"xatol": 1e-3, "fatol": 1e-6}
        best = minimize(log_bound, start, method="Nelder-Mead", options=options)
        return cls(statistic, epsilon, split(best.x))

    @staticmethod
    @abstractmethod
    def answered(parts: list[Any]) -> list[Any]:
        """What the answers are about, of what belongs to mu and to Y: each, or their sum."""

    @property
    def message_budgets(self) -> tuple[float, ...]:
        return self.budgets

    def questions(self, means: tuple[Tensor, ...]) -> tuple[Question, ...]:
        vectors = self.answered([self.project(means[0]), *means[1:]])
        weights = self.statistic.form.weights
        return tuple(ask(self.statistic.points, weights * vector, self.clip) for vector in vectors)

    def offset(self, means: tuple[Tensor, ...], n: float) -> Tensor:
        mu = self.project(means[0])
        turned = self.statistic.form.weights * means[1]
        return -(turned * mu).sum(-1)

    def project(self, mean: Tensor) -> Tensor:
        """mu, the point of the hull of the users' vectors that is nearest to a noisy mean."""
        points = self.statistic.points
        return nearest(points, mean, NEAR) @ points

    def worst(self, n: float, most: Extremes) -> float:
        """v_Y max weights^2 min(r v, (2 C^2 proxy n log k)^{1/2})/n^2, plus that of the answers.

        Theorem 19 for the first term.
        """
        first, second = self.randomizers
        spread = first.moments.variance / n, first.subgaussian.proxy / n
        answers = [response.moments.variance / n for response in self.responses]
        return self._bound(self.statistic, most, spread, second.moments.variance / n, answers)

    @classmethod
    def _bound(
        cls,
        statistic: PairwiseStatistic,
        most: Extremes,
        first: tuple[float, float],
        second: float,
        answers: Sequence[float],
    ) -> float:
        """``worst`` by the variances of mean messages; first: variance and proxy of the first."""
        v, proxy = first
        # E ||s - mu||^2 is at most r v, that of no projection, and Theorem 19's for the hull.
        log_types = math.log(max(statistic.types, 2))
        projected = statistic.radius * math.sqrt(2 * proxy * log_types)
        largest = float(statistic.form.weights.square().max())
        bound = second * largest * min(statistic.dim * v, projected)
        # Half ranges of the kernel, and of the kernel and Y's noise.
        half_ranges = cls.answered([most.half, most.half + most.noise * second**0.5])
        for half_range, variance in zip(half_ranges, answers, strict=True):
            bound += half_range**2 * variance
        return bound

    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        """v_Y E ||J (s - mu)||^2/n, the mean over normal draws of the first vector's noise."""
        n = float(counts.sum())
        points = self.statistic.points
        mean = counts.to(points) @ points / n
        first, second = [client.moments.variance / n for client in self.randomizers]
        mu = self.project(mean + first**0.5 * normals(points, b"projected prediction"))
        missed = form.weights * (mu - mean)
        return second * missed.square().sum(-1).mean()

    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """v_Y ||J (Y - mu)||^2/n less what Y's own noise adds."""
        second = self.randomizers[1].moments.variance / n
        error = means[1] - self.project(means[0])
        square = (form.weights * error).square().sum(-1)
        # Y is noisy: its noise adds second sum weights^2 to the square on average.
        of_noise = second * form.weights.square().sum(-1)
        return second * (square - of_noise).clamp_min(0)


@dataclass(frozen=True)
class ThreeRound(ProjectedProtocol):
    """Round one: mu. Round two: Y, and answers to <u_x, J mu>. Round three: to <Y, J (u_x - mu)>.

    The estimate is the sum of both mean answers. budgets: of mu, Y, and the answers of rounds two
    and three. With C^2 = gamma_2, MSE = O(||W||_inf^2/(epsilon^2 n)) once n >= gamma_2^4 log
    k/(||W||_inf^4 epsilon^2) up to constants and logs. Unbiased where nothing is clipped, which is
    the default.

    Guarantees: epsilon-LDP for each user (adaptive composition of the four messages).
    Source: Ghazi et al. (2023), Theorem 24, with exact randomizers, the convex hull and ranges
    known to everyone.
    """

    messages = 4
    schedule = ((0,), ()), ((1,), (2,)), ((), (3,))

    @staticmethod
    def answered(parts: list[Any]) -> list[Any]:
        return parts

    @classmethod
    def paper(cls, statistic: PairwiseStatistic, epsilon: float) -> "ThreeRound":
        """A quarter of epsilon for each message, and clipping at 4 ||W||_inf.

        Source: Ghazi et al. (2023), Theorem 24.
        """
        epsilon = checks.positive("epsilon", epsilon)
        form = one_kernel(statistic).form
        kernel = statistic.kernel(form) - form.constant
        largest = float(kernel.abs().max())
        return cls(statistic, epsilon, (epsilon / 4,) * 4, clip=4 * largest)


@dataclass(frozen=True)
class ProjectedTwoRound(ProjectedProtocol):
    """Round one: mu and Y. Round two: answers to <u_x, J (mu + Y)>, from which Y^T J mu is taken.

    Y does not depend on mu, and the two answers of :class:`ThreeRound` add up to one: the same
    error from two rounds, three messages and larger budgets. budgets: of mu, Y and the answer.
    Against :class:`TwoRound` it pays where the projection gains more than the second vector costs:
    many types, few of them in use. Unbiased where nothing is clipped, which is the default.

    Guarantees: epsilon-LDP for each user (adaptive composition of the three messages).
    Source: derived here from Ghazi et al. (2023), Theorem 24.
    """

    messages = 3
    schedule = ((0, 1), ()), ((), (2,))

    @staticmethod
    def answered(parts: list[Any]) -> list[Any]:
        return [parts[0] + parts[1]]
