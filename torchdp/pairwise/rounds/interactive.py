"""Protocols in rounds: users first send noisy vectors, then answer what the analyst asks about their own vector."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.analyst import PairwiseAnalyst
from torchdp.pairwise.forms import Form, Pairs, one_kernel
from torchdp.pairwise.rounds.round import (
    Question,
    Round,
    check_clip,
    variance,
)
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.privacy import Guarantee, compose
from torchdp.protocol import InteractiveProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.records import single, users_of
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer
from torchdp.randomness import keyed_generator

LARGE = 2**16  # numbers in the points, from which predictions take fewer draws


@dataclass(frozen=True)
class PairsInRounds(PairwiseAnalyst, InteractiveProtocol[Tensor]):
    """Noisy vectors at ``vector_budgets``, answers to questions about them at ``answer_budgets``.

    Every question is a function of the vectors before it. Part i of round r is r.vectori or r.answeri. For means; a
    ratio (AUC) is refused. A summary is counts (k,).

    statistic: what is estimated; its kernel must have one value on the diagonal where it averages over distinct pairs.
    epsilon: the whole budget of one user. clip: the most that a question's half width may be; inf clips nothing.
    Raises TypeError, ValueError.
    """

    statistic: PairwiseStatistic
    epsilon: float
    clip: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        check_clip(self.clip)
        checks.instance("statistic", self.statistic, PairwiseStatistic)
        if one_kernel(self.statistic).denominator is not None:
            raise ValueError(
                f"{self.statistic.name!r} is a ratio, whose question would change; take a channel for it"
            )
        self.refuse()
        checks.keep(self, epsilon=checks.positive)
        checks.validated(self, "guarantee")  # an epsilon out of the randomizer's range

    @property
    def subject(self) -> PairwiseStatistic:
        """What is asked: protocols of one statistic may be compared."""
        return self.statistic

    @property
    def held(self) -> int:
        return self.statistic.types

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types in [0, k), n >= 1, on the statistic's device. Raises TypeError, ValueError."""
        return super().validate(x).to(self.statistic.points.device)

    @property
    @abstractmethod
    def vector_budgets(self) -> tuple[float, ...]:
        """Epsilon of each vector message."""

    @property
    @abstractmethod
    def answer_budgets(self) -> tuple[float, ...]:
        """Epsilon of each answer."""

    @property
    @abstractmethod
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """How many vectors and how many answers a user sends in each round."""

    @abstractmethod
    def questions(self, means: tuple[Tensor, ...]) -> tuple[Question, ...]:
        """Those that the first mean vector messages (*batch, r) determine, in order."""

    @abstractmethod
    def offset(self, means: tuple[Tensor, ...], n: float) -> Tensor:
        """What is added to the mean answers, (*batch,)."""

    @abstractmethod
    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance, over the vector messages, of the estimate that exact answers would give (nothing clipped)."""

    @abstractmethod
    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Estimate of that variance from the messages, or an upper bound of it."""

    @cached_property
    def unasked(self) -> tuple[Round, ...]:
        """The rounds, with nothing in the place of the questions that are still to be made."""
        points = self.statistic.points
        nothing = Question(
            points.new_zeros(self.statistic.dim), points.new_zeros(()), points.new_zeros(())
        )
        rounds = []
        first = asked = 0
        for vectors, answers in self.schedule:
            budgets = self.answer_budgets[asked : asked + answers]
            rounds.append(
                Round(
                    points,
                    self.vector_budgets[first : first + vectors],
                    (nothing,) * answers,
                    budgets,
                )
            )
            first += vectors
            asked += answers
        return tuple(rounds)

    @property
    def randomizers(self) -> tuple[PrivUnit, ...]:
        """What a user runs for each vector."""
        return tuple(one for each in self.unasked for one in each.randomizers)

    @property
    def responses(self) -> tuple[BallRandomizer, ...]:
        """What a user runs for each answer."""
        return tuple(one for each in self.unasked for one in each.responses)

    @cached_property
    def guarantee(self) -> Guarantee:
        return compose([each.guarantee for each in self.unasked])

    estimated_pairs = Pairs.ALL
    check = InteractiveProtocol.check  # of the analyst's it is abstract

    @property
    def rounds(self) -> int:
        return len(self.schedule)

    def validate_summary(self, summary: Tensor) -> Tensor:
        counts = super().validate_summary(summary).to(self.statistic.points.device)
        single(users_of(counts))
        return counts

    def round(self, heard: tuple[Tally, ...]) -> Round:
        at = len(checks.instance("heard", heard, tuple))
        if at >= self.rounds:
            raise ValueError(
                f"heard must hold at most {self.rounds - 1} tallies, of the rounds before, not {at}"
            )
        means: list[Tensor] = []
        asked = 0
        for before, tally in zip(self.unasked, heard, strict=False):
            checks.instance("heard", tally, Tally).checked(before.layout, before.limits)
            means += [tally[name] / tally.n for name in before.layout if "vector" in name]
            asked += len(before.answers)
        following = self.unasked[at]
        if not following.answers:
            return following
        questions = self.questions(tuple(means))[asked : asked + len(following.answers)]
        return replace(following, questions=questions)

    @property
    def layout(self) -> Layout:
        """Name -> shape and dtype of each part of a tally of all rounds."""
        return {
            f"{at}.{name}": kind
            for at, each in enumerate(self.unasked)
            for name, kind in each.layout.items()
        }

    def limits(self, n: Users) -> dict[str, Limits]:
        rounds = enumerate(self.unasked)
        return {
            f"{at}.{name}": limit for at, each in rounds for name, limit in each.limits(n).items()
        }

    def _named(self, kind: str) -> list[str]:
        return [name for name in self.layout if kind in name]

    def means(self, tally: Tally) -> tuple[Tensor, ...]:
        """The mean vector messages."""
        return tuple(tally[name] / tally.n for name in self._named("vector"))

    def mean(self, tally: Tally, form: Form) -> Tensor:
        """The mean answers plus ``offset``; unbiased where nothing was clipped. form: the statistic's."""
        means = self.means(tally)
        value = self.offset(means, single(tally.n))
        for question, name in zip(self.questions(means), self._named("answer"), strict=True):
            value = value + question.mean(tally[name], single(tally.n))
        return value + form.constant

    def clipping_bias(self, tally: Tally) -> Tensor | float:
        if self.clip == math.inf:
            return 0.0
        questions = self.questions(self.means(tally))
        most = [each.clipping(self.statistic.points).abs().amax(-1) for each in questions]
        return torch.stack(torch.broadcast_tensors(*most)).sum(0)

    def answer_variance(self, questions: tuple[Question, ...], counts: Tensor) -> Tensor:
        """Variance of the estimate given the questions, exactly: (*batch,)."""
        n, points = counts.sum(), self.statistic.points
        value = torch.zeros((), dtype=torch.float64, device=points.device)
        for question, response in zip(questions, self.responses, strict=True):
            each = variance(response, question.shown(points)) @ counts.to(points)
            value = value + question.half_width.square() * each / n**2
        return value

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """The published part and that of the answers."""
        single(users_of(counts))
        return self.published_variance(counts, form) + self.expected_answers(counts, form)

    def expected_answers(self, counts: Tensor, form: Form) -> Tensor:
        """The answers' exact variance averaged over normal ``draws`` of the vectors' noise.

        Where questions clip it is a mean squared error: (missed + clipped)^2 - missed^2 is averaged over these draws,
        ``missed`` what unclipped answers without noise would leave of the error.
        """
        n, points = float(counts.sum()), self.statistic.points
        mean = counts.to(points) @ points / n
        generator = keyed_generator(b"interactive prediction", points.device)
        means = tuple(
            mean
            + (each.moments.variance / n) ** 0.5
            * torch.randn(
                draws(points),
                len(mean),
                dtype=torch.float64,
                device=points.device,
                generator=generator,
            )
            for each in self.randomizers
        )
        questions, offset = self.questions(means), self.offset(means, n)
        clipped = (
            torch.stack([each.clipping(points) for each in questions]).sum(0)
            @ counts.to(points)
            / n
        )
        missed = (
            sum((each.vector @ mean for each in questions), offset)
            - (form.weights * mean.square()).sum()
        )
        return (
            self.answer_variance(questions, counts).mean()
            + (clipped * (clipped + 2 * missed)).mean()
        )

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        """inf where questions clip: their bias depends on the data."""
        worst = (
            self.worst(float(n), extremes(self.statistic)) if self.clip == math.inf else torch.inf
        )
        return torch.tensor(worst, dtype=torch.float64)

    @abstractmethod
    def worst(self, n: float, most: "Extremes") -> float:
        """``worst_variance`` where nothing is clipped. most: the statistic's own."""

    def mean_point(self, tally: Tally) -> Tensor:
        return self.means(tally)[0]

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """From the messages alone; a little too large, because the users' values enter by their mean.

        A response's variance is concave in the value, so the mean value gives at least the mean variance. What
        clipping adds is not counted: ``clipping_bias`` bounds it.
        """
        means, n = self.means(tally), single(tally.n)
        value = self.plug_in_published_variance(means, n, form)
        for question, response, name in zip(
            self.questions(means), self.responses, self._named("answer"), strict=True
        ):
            value = (
                value
                + question.half_width.square()
                * variance(response, (tally[name] / n).clamp(-1, 1))
                / n
            )
        return value


def draws(points: Tensor) -> int:
    """How many draws of the first rounds' noise a prediction averages over: 256, for large statistics 64."""
    return 256 if points.numel() <= LARGE else 64


@dataclass(frozen=True)
class Extremes:
    """Constants of a statistic that bound the error of protocols in rounds, whatever the data.

    half: half of the largest range of a column of the kernel, how far a user's value can be from the middle. noise:
    root of E (half the range over types of <J u_x, g>)^2 for g ~ N(0, I), by ``draws``. largest: largest entry of the
    kernel without its constant; own: of its diagonal. longest: largest ||J u_x||. squares: sum of the squared weights.
    """

    half: float
    noise: float
    largest: float
    own: float
    longest: float
    squares: float


def extremes(statistic: PairwiseStatistic) -> Extremes:
    """The constants of this statistic. O(k^2 r). Raises TypeError."""
    one_kernel(statistic)
    points, weights = statistic.points, statistic.form.weights
    kernel = statistic.kernel(statistic.form) - statistic.form.constant
    generator = keyed_generator(b"interactive range", points.device)
    normals = torch.randn(
        draws(points),
        points.shape[1],
        dtype=torch.float64,
        device=points.device,
        generator=generator,
    )
    values = (normals * weights) @ points.mT
    half = ((values.amax(1) - values.amin(1)) / 2).square().mean().sqrt()
    column, noise, largest, own, squares = checks.read(
        (kernel.amax(1) - kernel.amin(1)).max(), half, kernel.abs().max(), kernel.diagonal().abs().max(),
        weights.square().sum(),
    )  # fmt: skip
    return Extremes(
        column / 2, noise, largest, own, float(statistic.longest(statistic.form)), squares
    )
