"""Answers to a question through a channel, as protocols; linear questions, and several at once.

Notation: h, (k,), the shares of types; W, (m, k), linear queries; a, the number of answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.draws import Draws, Shape
from torchdp.privacy import Guarantee
from torchdp.protocol import CuratorProtocol, Estimate, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.expansion import Block, joint_covariance
from torchdp.protocol.frames import Held
from torchdp.protocol.protocol import MessageProtocol, Protocol, Same
from torchdp.queries.channel import Analyst, Bounded, Channel, Question
from torchdp.queries.protocol import dense

Q = TypeVar("Q", bound=Question)

# Relative: queries that vary less over types are constant.
CONSTANT = 1e-12

# Of the users of a histogram that several questions are judged by: spread evenly.
EVEN = 1 / 8


class Release(Protocol[Tensor], Generic[Q]):
    """A question's answers: the channel's messages and privacy, the question's analyst.

    question: what is asked; channel: of the question's ``queries``, or a wider one that tells them
    first. Made by :func:`through`, or by the channels' own ``of``.
    """

    question: Q
    channel: Channel

    @cached_property
    def analyst(self) -> Analyst:
        """Who reads the answers off a tally."""
        return self.question.analyst(self.channel)

    @property
    def subject(self) -> Q:
        """What is asked: answers to the same question may be compared."""
        return self.question

    def analyse(self, tally: Tally) -> Estimate:
        return self.analyst.analyse(tally)

    def exact(self, summary: Tensor) -> Tensor:
        return self.analyst.exact(summary)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self.analyst.predicted_mse(summary)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        return self.analyst.worst_mse(n, objective)


@dataclass(frozen=True, eq=False)
class MessageRelease(Release[Q], Same[Tensor, Any, Any]):
    """Through messages of the users: ``collect``, ``add`` and journals are those of the channel.

    Guarantees: the channel's own, for each user.
    """

    question: Q
    channel: Channel

    @property
    def client(self) -> Any:
        """Who speaks: the channel."""
        return self.channel

    @property
    def takes_groups(self) -> bool:  # type: ignore[override]
        """Whether the channel does."""
        return self.client.takes_groups


@dataclass(frozen=True, eq=False)
class CentralRelease(Release[Q], CuratorProtocol[Tensor]):
    """By a curator who is given the users' data.

    Guarantees: the channel's own.
    """

    question: Q
    channel: Channel

    @property
    def home(self) -> torch.device | None:
        return self.channel.home

    @property
    def held(self) -> Held:
        return self.channel.held

    @property
    def guarantee(self) -> Guarantee:
        return self.channel.guarantee

    @property
    def layout(self) -> Layout:
        return self.channel.layout

    def limits(self, n: Users) -> dict[str, Limits]:
        return self.channel.limits(n)

    def validate_summary(self, summary: Tensor) -> Tensor:
        return self.channel.validate_summary(summary)

    def release(self, summary: Tensor, draws: Draws, shape: Shape) -> Tally:
        return cast(CuratorProtocol[Tensor], self.channel).release(summary, draws, shape)


def through(question: Question, channel: Channel) -> Any:
    """The protocol that answers the question through the channel.

    A linear question's is the channel itself.

    Args:
        question: such as a ``PairwiseStatistic``, a ``ShareFunction``, :class:`Linear` or
            :class:`Several`.
        channel: of the question's queries.

    Raises TypeError, ValueError.
    Guarantees: the channel's own.
    """
    checks.instance("question", question, Question)
    checks.instance("channel", channel, Channel)
    if isinstance(question, Linear):
        return channel
    if not channel.known_noise:
        raise ValueError(
            "channel must have noise of one size, such as PrivUnit's, for a question that is not "
            "linear"
        )
    kind = MessageRelease if isinstance(channel, MessageProtocol) else CentralRelease
    release = kind(question, channel)
    # What the channel can not answer is refused at once.
    checks.validated(release, "analyst")
    return release


@dataclass(frozen=True, eq=False)
class Linear(Question, Brief):
    """W h of the users' shares h of types. workload: W, (m, k), or a ``Workload``."""

    workload: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", dense(self.workload).clone())

    @property
    def types(self) -> int:
        return self.workload.shape[1]

    def queries(self, distinct: bool) -> Tensor:
        return self.workload

    def analyst(self, channel: Channel) -> Analyst:
        return channel

    @property
    def bounded(self) -> Bounded:
        W = self.workload
        low = W.amin(1)
        high = W.amax(1)
        # Shares are rounded once, products once, and k of them are added.
        return Bounded(
            exact=lambda counts: (counts.double() / counts.sum(-1, keepdim=True)) @ W.mT,
            moved=high - low,
            size=W.abs().amax(1),
            terms=lambda n: torch.full_like(n, self.types + 8),
            limits=(low, high),
        )


@dataclass(frozen=True, eq=False)
class Several(Question, Brief):
    """Questions that one collection answers together, under one guarantee.

    The channel is asked for the queries of all; each question reads its own, and their answers
    stand beside each other. ``Estimate.covariance`` is that of all answers, ``Estimate.together``
    holds all of them at once.

    questions: of the same types, none of them ``Several``. Raises TypeError, ValueError.
    """

    questions: tuple[Question, ...]
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not checks.instance("questions", self.questions, tuple):
            raise ValueError("questions must hold one question at least")
        for question in self.questions:
            if isinstance(checks.instance("questions", question, Question), Several):
                raise ValueError(
                    "questions must hold single questions, not several again: give all of them at "
                    "once"
                )
        types = sorted({question.types for question in self.questions})
        if len(types) > 1:
            raise ValueError(f"questions must be of the same types, not {types}")

    @property
    def types(self) -> int:
        return self.questions[0].types

    @property
    def fewest(self) -> int:
        return max(question.fewest for question in self.questions)

    def queries(self, distinct: bool) -> Tensor:
        return torch.cat([question.queries(distinct) for question in self.questions])

    def analyst(self, channel: Channel) -> Any:
        return SeveralAnalyst(self, channel)

    @property
    def histograms(self) -> Tensor:
        """Those of all questions, an eighth of the users spread evenly.

        Of linear ones the flat and single types.
        """
        k = self.types
        given = [question.histograms for question in self.questions]
        known = [histograms for histograms in given if histograms is not None]
        if not known:
            eye = torch.eye(k, dtype=torch.float64)
            return torch.cat([torch.full_like(eye[:1], 1 / k), eye])
        # Other questions are not defined where all users are of one type: a correlation, a class
        # that is empty.
        return (1 - EVEN) * torch.cat(known) + EVEN / k

    @property
    def bounded(self) -> Bounded | None:
        """Of all questions, their answers flattened; None where one of them has none."""
        parts = []
        for question in self.questions:
            part = question.bounded
            if part is None:
                return None
            parts.append(part)

        def exact(counts: Tensor) -> Tensor:
            batch = counts.shape[:-1]
            return torch.cat([part.exact(counts).reshape(*batch, -1) for part in parts], -1)

        return Bounded(
            exact=exact,
            moved=torch.cat([part.moved.flatten() for part in parts]),
            size=torch.cat([part.size.flatten() for part in parts]),
            terms=lambda n: torch.stack([part.terms(n) for part in parts]).amax(0),
            limits=(-math.inf, math.inf),
        )

    def aims(self, n: int, family: Tensor | None, covariance: Tensor) -> Tensor:
        """Each question's, so scaled that all count the same."""
        aims = []
        for question, rows in zip(self.questions, self._rows(True), strict=True):
            queries = question.aims(n, family, covariance[rows, rows])
            centred = queries - queries.mean(1, keepdim=True)
            size = centred.norm()
            if size > CONSTANT * queries.norm():
                aims.append(centred / size)
            else:
                # A question whose answer is known takes no part.
                aims.append(torch.zeros_like(centred))
        return torch.cat(aims)

    def _rows(self, distinct: bool) -> list[slice]:
        """Which of the channel's queries belong to each question."""
        slices = []
        start = 0
        for question in self.questions:
            stop = start + len(question.queries(distinct))
            slices.append(slice(start, stop))
            start = stop
        return slices


@dataclass(frozen=True, eq=False)
class SeveralAnalyst:
    """Reads the answers to several questions off one tally, with their joint covariance.

    question: what is asked. channel: of all its queries.
    """

    question: Several
    channel: Channel

    def __post_init__(self) -> None:
        # What the channel can not answer is refused at once.
        checks.validated(self, "parts")

    @cached_property
    def _rows(self) -> list[slice]:
        return self.question._rows(self.channel.distinct)

    @cached_property
    def parts(self) -> list[Analyst]:
        """The analyst of each question, with the channel of its own queries."""
        pairs = zip(self.question.questions, self._rows, strict=True)
        return [question.analyst(self.channel.narrowed(rows)) for question, rows in pairs]

    def analyse(self, tally: Tally) -> "Answers":
        tally = self.channel.whole(tally)
        batch = self.channel.mean(tally).ndim - 1
        estimates = tuple(analyst.analyse(tally) for analyst in self.parts)
        return Answers.beside(estimates, batch, partial(self._covariance, tally.kept()))

    def _covariance(self, tally: Tally) -> Tensor:
        """By the expansion of all answers in the channel's mean, (*batch, a, a)."""
        batch = self.channel.mean(tally).shape[:-1]
        noise = self.channel.plausible(tally)
        blocks: list[Block] = []
        for analyst, rows in zip(self.parts, self._rows, strict=True):
            slope, bend = analyst.expansion(tally)
            blocks.append((rows, slope.expand(*batch, *slope.shape[-2:]), bend))
        return joint_covariance(blocks, noise.expand(*batch, -1, -1), self.channel.squares)

    def exact(self, summary: Tensor) -> Tensor:
        return self._flat([analyst.exact(summary) for analyst in self.parts], summary)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self._flat([analyst.predicted_mse(summary) for analyst in self.parts], summary)

    def _flat(self, answers: list[Tensor], summary: Tensor) -> Tensor:
        batch = summary.shape[:-1]
        return torch.cat([answer.reshape(*batch, -1) for answer in answers], -1)

    def worst_mse(self, n: Users, objective: Objective) -> Tensor:
        """That of the worst answer, or a bound of the mean over all.

        Of the questions' own, each by the number of its answers.
        """
        worst = torch.stack([analyst.worst_mse(n, objective) for analyst in self.parts])
        if objective is Objective.WORST:
            return worst.amax(0)
        # How many answers a question has is seen at any data, such as two users of each type.
        counts = torch.full((self.question.types,), 2.0, dtype=torch.float64)
        sizes = [analyst.predicted_mse(counts).numel() for analyst in self.parts]
        return torch.einsum("q...,q->...", worst, worst.new_tensor(sizes) / sum(sizes))


@dataclass(frozen=True, eq=False)
class Answers(Estimate):
    """Answers to several questions beside each other, (*batch, a), each with its own interval.

    each: the questions' own estimates.
    """

    each: tuple[Estimate, ...] = ()

    @staticmethod
    def beside(
        found: tuple[Estimate, ...], batch: int, covariance: Callable[[], Tensor] | None = None
    ) -> "Answers":
        """Estimates (*batch, *answer) of one tally, each flattened behind so many dimensions."""

        def joined(parts: list[Tensor | float]) -> Tensor:
            flat = []
            for part, estimate in zip(parts, found, strict=True):
                value = estimate.value
                wide = torch.as_tensor(part, dtype=torch.float64, device=value.device)
                flat.append(wide.expand(value.shape)[..., None].flatten(batch))
            return torch.cat(flat, -1)

        def stretch(level: float) -> Tensor:
            return joined([1.0 if one.stretch is None else one.stretch(level) for one in found])

        def population() -> "Answers":
            return Answers.beside(tuple(one.of_population() for one in found), batch)

        stretched = any(one.stretch is not None for one in found)
        return Answers(
            joined([one.value for one in found]),
            joined([one.standard_error for one in found]),
            found[0].n,
            joined([one.bias for one in found]),
            stretch=stretch if stretched else None,
            sampled=all(one.sampled for one in found),
            population=population,
            covariance=covariance,
            each=found,
        )

    def ends(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        lows = []
        highs = []
        batch = self.value.ndim - 1
        sizes = [math.prod(one.value.shape[batch:]) for one in self.each]
        z = torch.as_tensor(z, dtype=torch.float64, device=self.value.device)
        parts = z.expand(self.value.shape).split(sizes, -1)
        for one, part in zip(self.each, parts, strict=True):
            low, high = one.ends(part.reshape(one.value.shape))
            lows.append(low.reshape(part.shape))
            highs.append(high.reshape(part.shape))
        return torch.cat(lows, -1), torch.cat(highs, -1)
