"""Noisy mean vectors improved by the projection on the hull of the users' vectors, in three rounds or in two."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchdp import checks
from torchdp.factorization.solvers.iteration import descended
from torchdp.pairwise.forms import Form, one_kernel
from torchdp.pairwise.rounds.interactive import Extremes, PairsInRounds, draws, extremes
from torchdp.pairwise.rounds.round import (
    Question,
    ask,
    searched_variance,
    searched_worst_variance,
    worst_variance,
)
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.randomizers.base import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread

# of the projection: an inexact point costs no bias, and next to no variance
TOLERANCE, STEPS = 1e-5, 300
MOST_STEPS = 20_000
FIRST_STEPS = 10  # before the first look at the gap; each stretch is twice as long as the last


@dataclass(frozen=True)
class Projection:
    """A point of a hull and how near it is to the nearest one.

    point: (*batch, r), sum_v weights_v v; weights: (*batch, m), a probability vector. gap: (*batch,), the duality gap
    max_v <point - target, point - v>: the squared distance from ``point`` to the true projection is at most ``gap``.
    """

    point: Tensor
    weights: Tensor
    gap: Tensor


@one_thread
def project(
    vertices: Tensor, target: Tensor, *, tol: float = 1e-7, most_steps: int = MOST_STEPS
) -> Projection:
    """The point of conv(vertices) nearest to each target, by accelerated projected gradients on the simplex.

    vertices: (m, r); target: (*batch, r); both float64. It stops where every gap is at most tol * max ||v||^2, or
    after about ``most_steps``; the gap returned is recomputed from the weights, and is 0 or more up to rounding.
    The symmetric hull of the columns of R is ``project(torch.cat([R.mT, -R.mT]), ...)``. Raises ValueError, TypeError.

    Guarantees: weights on the simplex; ||point - projection||^2 <= gap. With p the projection and y the target,
    <point - y, point - p> <= gap and <p - y, point - p> >= 0; subtract.
    Source: Beck, Teboulle (2009), with the restarts of O'Donoghue, Candes (2015); the gap is Frank and Wolfe's.
    """
    vertices, target = (
        checks.matrix("vertices", vertices).double(),
        checks.floating("target", target).double(),
    )
    if vertices.ndim != 2 or target.ndim == 0 or target.shape[-1] != vertices.shape[1]:
        raise ValueError(
            f"vertices must be (m, r) and target (..., r), not {tuple(vertices.shape)} and {tuple(target.shape)}"
        )
    tol, most_steps = checks.positive("tol", tol), checks.integer("most_steps", most_steps, 1)
    flat = target.reshape(-1, target.shape[-1])
    size = vertices.norm(dim=1).max()
    allowed = tol * float(size.square())
    rate = torch.linalg.matrix_norm(vertices, 2).square().clamp_min(torch.finfo(torch.float64).tiny)
    weights = flat.new_zeros(len(flat), len(vertices))
    nearest = (flat @ vertices.mT - vertices.square().sum(1) / 2).argmax(1, keepdim=True)
    weights.scatter_(1, nearest, 1.0)
    open_rows = torch.arange(len(flat), device=flat.device)
    steps = FIRST_STEPS
    while most_steps > 0:
        gaps = _gap(vertices, flat[open_rows], weights[open_rows])
        open_rows = open_rows[gaps > allowed]
        if not len(open_rows):
            break
        slope = partial(_slope, vertices, flat[open_rows])
        weights[open_rows] = descended(slope, weights[open_rows], rate, steps)
        most_steps, steps = most_steps - steps, min(2 * steps, 1000)
    gap = _gap(vertices, flat, weights)
    shape = target.shape[:-1]
    return Projection(
        (weights @ vertices).reshape(target.shape),
        weights.reshape(*shape, len(vertices)),
        gap.reshape(shape),
    )


def _slope(vertices: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    return (weights @ vertices - target) @ vertices.mT


def _gap(vertices: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    point = weights @ vertices
    slope = point - target
    return (slope * point).sum(1) - (slope @ vertices.mT).amin(1)


@dataclass(frozen=True)
class ProjectedProtocol(PairsInRounds):
    """Two vectors and one answer or more, at ``budgets`` that add up to epsilon.

    The first mean vector is projected on the hull of the points, mu; the second, Y = s + Z, stays as it is. Every
    estimate has the mean s^T J s and, but for the answers' noise, the error Z^T J (s - mu): no bias, since Z and mu are
    independent, and E ||s - mu||^2 <= min(r v/n, (2 C^2 proxy log k/n)^{1/2}) by Theorem 19.
    """

    messages: ClassVar[int]  # of one user
    budgets: tuple[float, ...]

    def __post_init__(self) -> None:
        budgets = checks.instance("budgets", self.budgets, tuple)
        budgets = tuple(checks.positive("budgets", each) for each in budgets)
        object.__setattr__(self, "budgets", budgets)
        checks.keep(self, epsilon=checks.positive)
        if len(budgets) != self.messages:
            raise ValueError(
                f"budgets must hold {self.messages} numbers, one for each message, not {len(budgets)}"
            )
        if math.fsum(budgets) > self.epsilon * (1 + 1e-12):
            raise ValueError(
                f"budgets must add up to at most epsilon = {self.epsilon:g}, not {math.fsum(budgets):g}"
            )
        super().__post_init__()

    @classmethod
    def tuned(cls, statistic: PairwiseStatistic, n: int, epsilon: float) -> Self:
        """With the budgets of the least bound for the worst data of n users. Raises ValueError."""
        return cls(
            statistic, epsilon, _best(statistic, n, epsilon, cls.messages, cls.answers_error)
        )

    @property
    def vector_budgets(self) -> tuple[float, ...]:
        return self.budgets[:2]

    @property
    def answer_budgets(self) -> tuple[float, ...]:
        return self.budgets[2:]

    @staticmethod
    @abstractmethod
    def answers_error(most: Extremes, second: float, answers: tuple[float, ...]) -> float:
        """A bound of n times the variance of all answers, from the half ranges.

        second: v_Y/n. answers: ``worst_variance`` of each.
        """

    def worst(self, n: float, most: Extremes) -> float:
        """v_Y max weights^2 min(r v, (2 C^2 proxy n log k)^{1/2})/n^2, Theorem 19, plus the bound of the answers."""
        statistic, (first, second) = self.statistic, self.randomizers
        near = statistic.radius * math.sqrt(
            2 * first.subgaussian.proxy * math.log(max(statistic.types, 2)) * n
        )
        near = min(statistic.dim * first.moments.variance, near)
        published = (
            second.moments.variance * float(statistic.form.weights.square().max()) * near / n**2
        )
        answers = tuple(worst_variance(budget) for budget in self.answer_budgets)
        return published + self.answers_error(most, second.moments.variance / n, answers) / n

    def offset(self, means: tuple[Tensor, ...], n: float) -> Tensor:
        return -(self.statistic.form.weights * means[1] * self.project(means[0])).sum(-1)

    def project(self, mean: Tensor) -> Tensor:
        """mu, the point of the hull of the users' vectors that is nearest to a noisy mean."""
        return project(self.statistic.points, mean, tol=TOLERANCE, most_steps=STEPS).point

    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        """v_Y E ||J (s - mu)||^2/n, the mean over normal ``draws`` of the first vector's noise."""
        n, points = float(counts.sum()), self.statistic.points
        mean = counts.to(points) @ points / n
        generator = keyed_generator(b"projected prediction", points.device)
        normals = torch.randn(
            draws(points), len(mean), dtype=torch.float64, device=points.device, generator=generator
        )
        first, second = (each.moments.variance / n for each in self.randomizers)
        near = self.project(mean + first**0.5 * normals)
        return second * (form.weights * (near - mean)).square().sum(-1).mean()

    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """v_Y ||J (Y - mu)||^2/n less what Y's own noise adds."""
        second = self.randomizers[1].moments.variance / n
        square = (form.weights * (means[1] - self.project(means[0]))).square().sum(-1)
        return second * (square - second * form.weights.square().sum(-1)).clamp_min(0)


@dataclass(frozen=True)
class ThreeRound(ProjectedProtocol):
    """Round one: mu. Round two: Y, and the answers to <u_x, J mu>. Round three: the answers to <Y, J (u_x - mu)>.

    The estimate is the sum of both mean answers. budgets: of mu, Y, and the answers of rounds two and three. With C^2 =
    gamma_2, MSE = O(||W||_inf^2/(epsilon^2 n)) once n >= gamma_2^4 log k/(||W||_inf^4 epsilon^2) up to constants and
    logs. Unbiased where nothing is clipped, which is the default.

    Guarantees: epsilon-LDP for each user (adaptive composition of the four messages).
    Source: Ghazi et al. (2023), Theorem 24, with exact randomizers, the convex hull and ranges known to everyone.
    """

    messages = 4

    @classmethod
    def paper(cls, statistic: PairwiseStatistic, epsilon: float) -> "ThreeRound":
        """A quarter of epsilon for each message, and clipping at 4 ||W||_inf.

        Source: Ghazi et al. (2023), Theorem 24.
        """
        epsilon = checks.positive("epsilon", epsilon)
        one_kernel(statistic)
        largest = float((statistic.kernel(statistic.form) - statistic.form.constant).abs().max())
        return cls(statistic, epsilon, (epsilon / 4,) * 4, clip=4 * largest)

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        return (1, 0), (1, 1), (0, 1)

    def questions(self, means: tuple[Tensor, ...]) -> tuple[Question, ...]:
        turned = [
            self.statistic.form.weights * each for each in (self.project(means[0]), *means[1:])
        ]
        return tuple(ask(self.statistic.points, each, self.clip) for each in turned)

    @staticmethod
    def answers_error(most: Extremes, second: float, answers: tuple[float, ...]) -> float:
        third = (most.half + most.noise * second**0.5) ** 2
        return most.half**2 * answers[0] + third * answers[1]


@dataclass(frozen=True)
class ProjectedTwoRound(ProjectedProtocol):
    """Round one: mu and Y. Round two: the answers to <u_x, J (mu + Y)>; the analyst takes away Y^T J mu.

    Y does not depend on mu, and the two answers of :class:`ThreeRound` add up to one: the same error from two rounds,
    three messages and larger budgets. budgets: of mu, Y and the answer. Against :class:`TwoRound` it pays where the
    projection gains more than the second vector costs: many types, few of them in use. Unbiased where nothing is
    clipped, which is the default.

    Guarantees: epsilon-LDP for each user (adaptive composition of the three messages).
    Source: derived here from Ghazi et al. (2023), Theorem 24.
    """

    messages = 3

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        return (2, 0), (0, 1)

    def questions(self, means: tuple[Tensor, ...]) -> tuple[Question, ...]:
        both = self.project(means[0]) + means[1]
        return (ask(self.statistic.points, self.statistic.form.weights * both, self.clip),)

    @staticmethod
    def answers_error(most: Extremes, second: float, answers: tuple[float, ...]) -> float:
        return (2 * most.half + most.noise * second**0.5) ** 2 * answers[0]


def _best(
    statistic: PairwiseStatistic,
    n: int,
    epsilon: float,
    messages: int,
    answers: Callable[[Extremes, float, tuple[float, ...]], float],
) -> tuple[float, ...]:
    """The budgets of least v_Y max weights^2 min(r v/n, width (v/n)^{1/2})/n + answers/n, width^2 = 2 C^2 log k.

    The first term bounds the published variance by Theorem 19; ``answers`` that of the answers from the half ranges of
    the kernel and of Y's noise, v_Y/n = ``second``. The shares are found by Nelder and Mead's method on their logits.
    """
    n, epsilon, most = (
        checks.integer("n", n, 2),
        checks.positive("epsilon", epsilon),
        extremes(statistic),
    )
    if not SMALLEST_EPSILON <= epsilon / messages <= LARGEST_EPSILON:
        raise ValueError(
            f"epsilon must lie in [{messages * SMALLEST_EPSILON:g}, {messages * LARGEST_EPSILON:g}], not {epsilon!r}"
        )
    width = statistic.radius * math.sqrt(2 * math.log(max(statistic.types, 2)))
    largest = float(statistic.form.weights.square().max())

    def split(logits: np.ndarray) -> tuple[float, ...]:
        powers = np.exp(np.clip(np.append(logits, 0.0), -6, 6))
        return tuple(
            float(each) for each in epsilon * (1 - 1e-15) * powers / powers.sum()
        )  # add up to at most epsilon

    def value(logits: np.ndarray) -> float:
        budgets = split(logits)
        if min(budgets) < SMALLEST_EPSILON or max(budgets) > LARGEST_EPSILON:
            return math.inf
        scale = statistic.radius**2 / n
        first = scale * searched_variance(statistic.dim, budgets[0])
        second = scale * searched_variance(statistic.dim, budgets[1])
        answering = tuple(searched_worst_variance(budget) for budget in budgets[2:])
        near = min(statistic.dim * first, width * first**0.5)
        return math.log(second * largest * near + answers(most, second, answering) / n)

    found = minimize(
        value, np.zeros(messages - 1), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6}
    )
    return split(found.x)
