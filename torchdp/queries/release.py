"""Answers to a question through a channel, as protocols; linear questions, and several at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.protocol import CuratorProtocol, Estimate, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.expansion import Block, joint_covariance
from torchdp.protocol.frames import Held
from torchdp.protocol.protocol import MessageProtocol, Protocol, Same
from torchdp.queries.channel import Analyst, Channel, Question

Q = TypeVar("Q", bound=Question)
CONSTANT = 1e-12  # relative: queries that vary less over types are constant
EVEN = 1 / 8  # of the users of a histogram that several questions are judged by


class Release(Protocol[Tensor], Generic[Q]):
    """A question's answers through a channel: the channel's messages and privacy, the question's
    analyst.

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

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
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

    def release(self, summary: Tensor, draws: Draws, shape: tuple[int, ...]) -> Tally:
        return cast(CuratorProtocol[Tensor], self.channel).release(summary, draws, shape)


def through(question: Question, channel: Channel) -> Any:
    """The protocol that answers the question through the channel; a linear question's is the
    channel itself.

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
            "channel must have noise of one size, such as PrivUnit's, for a question that is not linear"
        )
    kind = MessageRelease if isinstance(channel, MessageProtocol) else CentralRelease
    release = kind(question, channel)
    checks.validated(release, "analyst")  # what the channel can not answer is refused at once
    return release


@dataclass(frozen=True, eq=False)
class Linear(Question, Brief):
    """W h of the users' shares h of types. workload: W, (m, k)."""

    workload: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, workload=checks.one_matrix)

    @property
    def types(self) -> int:
        return self.workload.shape[1]

    def queries(self, distinct: bool) -> Tensor:
        return self.workload

    def analyst(self, channel: Channel) -> Analyst:
        return channel


@dataclass(frozen=True, eq=False)
class Several(Question, Brief):
    """Questions that one collection answers together, under one guarantee: their answers beside
    each other.

    The channel is asked for the queries of all; each question reads its own.
    ``Estimate.covariance`` is that of all answers, ``Estimate.together`` holds all of them at once.

    questions: of the same types, none of them ``Several``. Raises TypeError, ValueError.
    """

    questions: tuple[Question, ...]
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not checks.instance("questions", self.questions, tuple):
            raise ValueError("questions must hold one question at least")
        for each in self.questions:
            if isinstance(checks.instance("questions", each, Question), Several):
                raise ValueError(
                    "questions must hold single questions, not several again: give all of them at once"
                )
        if len({each.types for each in self.questions}) > 1:
            raise ValueError(
                f"questions must be of the same types, not {sorted({each.types for each in self.questions})}"
            )

    @property
    def types(self) -> int:
        return self.questions[0].types

    @property
    def fewest(self) -> int:
        return max(each.fewest for each in self.questions)

    def queries(self, distinct: bool) -> Tensor:
        return torch.cat([each.queries(distinct) for each in self.questions])

    def analyst(self, channel: Channel) -> Any:
        return SeveralAnalyst(self, channel)

    @property
    def histograms(self) -> Tensor:
        """Those of all questions, an eighth of the users spread evenly; of linear ones the flat and
        single types.
        """
        some = [each.histograms for each in self.questions]
        given = [each for each in some if each is not None]
        if given:
            # Other questions are not defined where all users are of one type: a correlation, a class that is empty.
            return (1 - EVEN) * torch.cat(given) + EVEN / self.types
        k = self.types
        return torch.cat(
            [torch.full((1, k), 1 / k, dtype=torch.float64), torch.eye(k, dtype=torch.float64)]
        )

    def aims(self, n: int, family: Tensor | None, covariance: Tensor) -> Tensor:
        """Each question's, so scaled that all count alike."""
        found = []
        for each, rows in zip(self.questions, self._rows(True), strict=True):
            queries = each.aims(n, family, covariance[rows, rows])
            centred = queries - queries.mean(1, keepdim=True)
            size = centred.norm()
            # A question whose answer is known asks for nothing.
            found.append(
                centred / size
                if bool(size > CONSTANT * queries.norm())
                else torch.zeros_like(centred)
            )
        return torch.cat(found)

    def _rows(self, distinct: bool) -> list[slice]:
        """Which of the channel's queries belong to each question."""
        found = []
        start = 0
        for each in self.questions:
            stop = start + len(each.queries(distinct))
            found.append(slice(start, stop))
            start = stop
        return found


@dataclass(frozen=True, eq=False)
class SeveralAnalyst:
    """Reads the answers to several questions off one tally, (*batch, answers), with their joint
    covariance.

    question: what is asked. channel: of all its queries.
    """

    question: Several
    channel: Channel

    def __post_init__(self) -> None:
        checks.validated(self, "parts")  # what the channel can not answer is refused at once

    @cached_property
    def parts(self) -> list[Analyst]:
        """The analyst of each question, with the channel of its own queries."""
        rows = self.question._rows(self.channel.distinct)
        each = zip(self.question.questions, rows, strict=True)
        return [question.analyst(self.channel.narrowed(some)) for question, some in each]

    def analyse(self, tally: Tally) -> "Answers":
        tally = self.channel.whole(tally)
        batch = self.channel.mean(tally).ndim - 1
        found = tuple(one.analyse(tally) for one in self.parts)
        return Answers.beside(found, batch, partial(self._covariance, tally.kept()))

    def _covariance(self, tally: Tally) -> Tensor:
        """By the expansion of all answers in the channel's mean, (*batch, a, a)."""
        batch = self.channel.mean(tally).shape[:-1]
        noise = self.channel.plausible(tally)
        blocks: list[Block] = []
        for one, rows in zip(self.parts, self.question._rows(self.channel.distinct), strict=True):
            slope, bend = one.expansion(tally)
            blocks.append((rows, slope.expand(*batch, *slope.shape[-2:]), bend))
        return joint_covariance(blocks, noise.expand(*batch, -1, -1), self.channel.squares)

    def exact(self, summary: Tensor) -> Tensor:
        return self._flat([one.exact(summary) for one in self.parts], summary)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self._flat([one.predicted_mse(summary) for one in self.parts], summary)

    def _flat(self, found: list[Tensor], summary: Tensor) -> Tensor:
        batch = summary.shape[:-1]
        return torch.cat([each.reshape(*batch, -1) for each in found], -1)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """That of the worst answer, or a bound of the mean over all: the questions' own, each by
        its answers.
        """
        checks.instance("objective", objective, Objective)
        each = torch.stack([one.worst_mse(n, objective) for one in self.parts])
        if objective is Objective.WORST:
            return each.amax(0)
        two = torch.full((self.question.types,), 2.0, dtype=torch.float64)  # users of each type
        answers = [one.predicted_mse(two).numel() for one in self.parts]
        return torch.einsum("q...,q->...", each, each.new_tensor(answers) / sum(answers))


@dataclass(frozen=True, eq=False)
class Answers(Estimate):
    """Answers to several questions beside each other, (*batch, answers), each with the interval of
    its own question.

    each: the questions' own estimates.
    """

    each: tuple[Estimate, ...] = ()

    @staticmethod
    def beside(
        found: tuple[Estimate, ...], batch: int, covariance: Callable[[], Tensor] | None = None
    ) -> "Answers":
        """Estimates (*batch, *answer) of one tally, each flattened behind so many dimensions of a
        batch.
        """

        def joined(parts: list[Tensor | float]) -> Tensor:
            wide = [
                torch.as_tensor(part, dtype=torch.float64, device=one.value.device).expand(
                    one.value.shape
                )
                for part, one in zip(parts, found, strict=True)
            ]
            return torch.cat([part[..., None].flatten(batch) for part in wide], -1)

        def stretch(level: float) -> Tensor:
            return joined([1.0 if one.stretch is None else one.stretch(level) for one in found])

        def population() -> "Answers":
            return Answers.beside(tuple(one.of_population() for one in found), batch)

        return Answers(
            joined([one.value for one in found]),
            joined([one.standard_error for one in found]),
            found[0].n,
            joined([one.bias for one in found]),
            stretch=None if all(one.stretch is None for one in found) else stretch,
            sampled=all(one.sampled for one in found),
            population=population,
            covariance=covariance,
            each=found,
        )

    def ends(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        lows = []
        highs = []
        sizes = [math.prod(one.value.shape[self.value.ndim - 1 :]) for one in self.each]
        z = torch.as_tensor(z, dtype=torch.float64, device=self.value.device).expand(
            self.value.shape
        )
        for one, part in zip(self.each, z.split(sizes, -1), strict=True):
            low, high = one.ends(part.reshape(one.value.shape))
            lows.append(low.reshape(part.shape))
            highs.append(high.reshape(part.shape))
        return torch.cat(lows, -1), torch.cat(highs, -1)
