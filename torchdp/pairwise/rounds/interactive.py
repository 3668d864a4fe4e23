"""Protocols in rounds: noisy vectors first, then answers about one's own vector."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.analyst import PairwiseAnalyst
from torchdp.pairwise.forms import Form, Pairs, one_kernel
from torchdp.pairwise.rounds.round import Question, Round, variance
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.privacy import Guarantee, compose
from torchdp.protocol import Estimate, InteractiveProtocol, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.records import single, users_of
from torchdp.protocol.types import of_rounds
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer
from torchdp.randomness import keyed_generator

# Draws of the first rounds' noise, over which a prediction averages.
DRAWS = 256
# Numbers in the points, from which it takes a fourth of them.
LARGE = 2**16

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class PairsInRounds(InteractiveProtocol[Tensor]):
    """Noisy vectors, then answers to questions about them: for means; a ratio (AUC) is refused.

    Every question is a function of the vectors before it. Part i of round r is r.vectori or
    r.answeri. A summary is counts (k,).

    Args:
        statistic: what is estimated; its kernel must have one value on the diagonal where it
            averages over distinct pairs.
        epsilon: the whole budget of one user.
        clip: the most that a question's half width may be; inf clips nothing.

    Raises TypeError, ValueError.
    """

    # Numbers of the vectors and of the answers that a user sends in each round; answers come after
    # all vectors.
    schedule: ClassVar[tuple[tuple[Numbers, Numbers], ...]]
    statistic: PairwiseStatistic
    epsilon: float
    clip: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        clip = checks.within("clip", self.clip, 1e-300, math.inf, remedy="; math.inf clips nothing")
        object.__setattr__(self, "clip", clip)
        checks.instance("statistic", self.statistic, PairwiseStatistic)
        if one_kernel(self.statistic).denominator is not None:
            raise ValueError(
                f"{self.statistic.name!r} is a ratio, whose question would change; take a channel "
                "for it"
            )
        # A statistic that is not known from all pairs; an epsilon out of the randomizer's range.
        checks.validated(self, "analyst", "guarantee")

    @property
    @abstractmethod
    def message_budgets(self) -> tuple[float, ...]:
        """Epsilon of each message: of the vectors, then of the answers."""

    @abstractmethod
    def questions(self, means: tuple[Tensor, ...]) -> tuple[Question, ...]:
        """Those that the first mean vector messages (*batch, r) determine, in order."""

    @abstractmethod
    def offset(self, means: tuple[Tensor, ...], n: float) -> Tensor:
        """What is added to the mean answers, (*batch,)."""

    @abstractmethod
    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance, over the vector messages, of the estimate of exact unclipped answers."""

    @abstractmethod
    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Estimate of that variance from the messages, or an upper bound of it."""

    @abstractmethod
    def worst(self, n: float, most: "Extremes") -> float:
        """A bound of the variance over all data, nothing clipped. most: the statistic's own."""

    @cached_property
    def analyst(self) -> "RoundsAnalyst":
        """Who reads the estimate off a tally."""
        return RoundsAnalyst(self.statistic, self)

    @property
    def subject(self) -> PairwiseStatistic:
        """What is asked: protocols of one statistic may be compared."""
        return self.statistic

    @cached_property
    def unasked(self) -> tuple[Round, ...]:
        """The rounds, with nothing in the place of the questions that are still to be made."""
        points = self.statistic.points
        zero = points.new_zeros(())
        nothing = Question(torch.zeros_like(points[0]), zero, zero)
        budgets = self.message_budgets
        rounds = []
        for vectors, answers in self.schedule:
            sent = tuple(budgets[number] for number in vectors)
            answered = tuple(budgets[number] for number in answers)
            rounds.append(Round(points, sent, (nothing,) * len(answers), answered))
        return tuple(rounds)

    @property
    def randomizers(self) -> tuple[PrivUnit, ...]:
        """What a user runs for each vector."""
        return tuple(chain.from_iterable(round.randomizers for round in self.unasked))

    @property
    def responses(self) -> tuple[BallRandomizer, ...]:
        """What a user runs for each answer."""
        return tuple(chain.from_iterable(round.responses for round in self.unasked))

    @cached_property
    def guarantee(self) -> Guarantee:
        return compose([round.guarantee for round in self.unasked])

    @property
    def rounds(self) -> int:
        return len(self.schedule)

    def round(self, heard: tuple[Tally, ...]) -> Round:
        index = len(checks.instance("heard", heard, tuple))
        if index >= self.rounds:
            raise ValueError(
                f"heard must hold at most {self.rounds - 1} tallies, of the rounds before, "
                f"not {index}"
            )
        # The next questions hang on them: a forged tally must not become a question.
        for before, tally in zip(self.unasked, heard, strict=False):
            checks.instance("heard", tally, Tally).checked(before.layout, before.limits)
        following = self.unasked[index]
        if not following.answers:
            return following
        questions = self.questions(self.means(self.joined(heard)))
        numbers = self.schedule[index][1]
        # Answers are numbered after all vectors.
        vectors = len(self.randomizers)
        asked = tuple(questions[number - vectors] for number in numbers)
        return replace(following, questions=asked)

    @property
    def layout(self) -> Layout:
        """Name -> shape and dtype of each part of a tally of all rounds."""
        return of_rounds([round.layout for round in self.unasked])

    def limits(self, n: Users) -> dict[str, Limits]:
        return of_rounds([round.limits(n) for round in self.unasked])

    def means(self, tally: Tally, kind: str = "vector") -> tuple[Tensor, ...]:
        """The mean messages of a kind, vector or answer, of the first rounds or of all."""
        names = [name for name in self.layout if kind in name and name in tally.parts]
        return tuple(tally[name] / single(tally.n) for name in names)

    @property
    def home(self) -> torch.device:
        return self.statistic.points.device

    def drawn_on(self, data: torch.device) -> torch.device:
        """Where the tables are: later rounds are made of what was heard."""
        return self.home

    @property
    def held(self) -> int:
        return self.statistic.types

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types in [0, k), n >= 1, on the statistic's device.

        Raises TypeError, ValueError.
        """
        return super().validate(x).to(self.home)

    def validate_summary(self, summary: Tensor) -> Tensor:
        counts = super().validate_summary(summary).to(self.home)
        single(users_of(counts))
        return counts

    def analyse(self, tally: Tally) -> Estimate:
        return self.analyst.analyse(tally)

    def exact(self, summary: Tensor) -> Tensor:
        return self.statistic.exact(summary)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self.analyst.predicted_mse(summary)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        return self.analyst.worst_mse(n, objective)


@dataclass(frozen=True, eq=False)
class RoundsAnalyst(PairwiseAnalyst):
    """The statistic from all rounds' tallies: the mean answers plus the protocol's ``offset``."""

    statistic: PairwiseStatistic
    protocol: PairsInRounds
    estimated_pairs = Pairs.ALL

    def __post_init__(self) -> None:
        self.refuse()

    def check(self, tally: Tally, least: int = 1) -> Tally:
        return self.protocol.check(tally, least)

    def mean(self, tally: Tally, form: Form) -> Tensor:
        """The mean answers plus ``offset``; unbiased where nothing was clipped.

        form: the statistic's.
        """
        means = self.protocol.means(tally)
        answers = self.protocol.means(tally, "answer")
        value = self.protocol.offset(means, single(tally.n)) + form.constant
        for question, answer in zip(self.protocol.questions(means), answers, strict=True):
            value = value + question.center + question.half_width * answer[..., 0]
        return value

    def mean_point(self, tally: Tally) -> Tensor:
        return self.protocol.means(tally)[0]

    def clipping_bias(self, tally: Tally) -> Tensor | float:
        if self.protocol.clip == math.inf:
            return 0.0
        most: Tensor | float = 0.0
        for question in self.protocol.questions(self.protocol.means(tally)):
            # By the worst type of each question: no users' data are clipped more on average.
            clipped = question.clipping(self.statistic.points).abs()
            most = most + clipped.amax(-1)
        return most

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """The published part and that of the answers."""
        single(users_of(counts))
        return self.protocol.published_variance(counts, form) + self.expected_answers(counts, form)

    def expected_answers(self, counts: Tensor, form: Form) -> Tensor:
        """The answers' exact variance averaged over normal draws of the vectors' noise.

        Where questions clip it is a mean squared error: (missed + clipped)^2 - missed^2 is averaged
        over these draws, ``missed`` what unclipped answers without noise would leave of the error.
        """
        n = float(counts.sum())
        points = self.statistic.points
        shares = counts.to(points) / n
        mean = shares @ points
        clients = self.protocol.randomizers
        noise = normals(points, b"interactive prediction", len(clients))
        deviations = noise.new_tensor([client.moments.variance / n for client in clients]).sqrt()
        means = tuple(mean + deviations[:, None, None] * noise)
        missed = self.protocol.offset(means, n) - (form.weights * mean.square()).sum()
        clipped = torch.zeros_like(missed)
        answered = torch.zeros_like(missed)
        questions = self.protocol.questions(means)
        for question, response in zip(questions, self.protocol.responses, strict=True):
            missed = missed + question.vector @ mean
            clipped = clipped + question.clipping(points) @ shares
            of_users = variance(response, question.shown(points)) @ shares
            answered = answered + question.half_width.square() * of_users / n
        # (missed + clipped)^2 - missed^2 without the difference of two squares.
        bias = clipped * (clipped + 2 * missed)
        return (answered + bias).mean()

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        """inf where questions clip: their bias depends on the data."""
        worst = math.inf
        if self.protocol.clip == math.inf:
            worst = self.protocol.worst(float(n), extremes(self.statistic))
        return torch.tensor(worst, dtype=torch.float64)

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """From the messages alone; a little too large, since users' values enter by their mean.

        A response's variance is concave in the value, so the mean value gives at least the mean
        variance. What clipping adds is not counted: ``clipping_bias`` bounds it.
        """
        n = float(single(tally.n))
        means = self.protocol.means(tally)
        answers = self.protocol.means(tally, "answer")
        total = self.protocol.plug_in_published_variance(means, n, form)
        questions = self.protocol.questions(means)
        responses = self.protocol.responses
        # A variance is concave in the value, so that of the mean value is no smaller.
        for question, response, answer in zip(questions, responses, answers, strict=True):
            most = variance(response, answer[..., 0].clamp(-1, 1))
            total = total + question.half_width.square() * most / n
        return total


def normals(points: Tensor, key: bytes, *batch: int) -> Tensor:
    """Standard normals in the place of vectors' noise, always the same ones: (*batch, draws, r)."""
    count = DRAWS if points.numel() <= LARGE else DRAWS // 4
    # Fixed by the key: two protocols' predictions do not differ by their draws.
    Z = points.new_empty(*batch, count, points.shape[1])
    return Z.normal_(generator=keyed_generator(key, points.device))


@dataclass(frozen=True)
class Extremes:
    """Constants of a statistic that bound the error of protocols in rounds, whatever the data.

    Args:
        half: of the largest range of a column of the kernel, how far a user's value can be from
            the middle.
        noise: root of E (half the range over types of <J u_x, g>)^2 for g ~ N(0, I), by draws.
        largest: entry of the kernel without its constant.
        own: largest entry of its diagonal.
        longest: largest ||J u_x||.
    """

    half: float
    noise: float
    largest: float
    own: float
    longest: float


def extremes(statistic: PairwiseStatistic) -> Extremes:
    """The constants of this statistic. O(k^2 r). Raises TypeError."""
    form = one_kernel(statistic).form
    points = statistic.points
    kernel = statistic.kernel(form) - form.constant
    noise = (normals(points, b"interactive range") * form.weights) @ points.mT
    half_ranges = (noise.amax(1) - noise.amin(1)) / 2
    ranges = kernel.amax(1) - kernel.amin(1)
    turned = points * form.weights
    return Extremes(
        half=float(ranges.max() / 2),
        noise=float(half_ranges.square().mean().sqrt()),
        largest=float(kernel.abs().max()),
        own=float(kernel.diagonal().abs().max()),
        longest=float(turned.norm(dim=1).max()),
    )
