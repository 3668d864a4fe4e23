"""What ``torchdp estimate`` can be asked: a table of statistics, each with its columns, its types
and its answers.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from torchdp import domains, mean, pairwise, queries, randomizers
from torchdp.cli.table import Axis, Bins
from torchdp.pairwise import PairwiseStatistic
from torchdp.pairwise.population import tested
from torchdp.protocol import Crowd, Estimate, Objective, Protocol, Tally
from torchdp.queries.choose import LARGEST_STRATEGY
from torchdp.shuffle import Amplified

Asked = Protocol[Any]
Read = Callable[[Tensor, Tensor, Tensor, Tensor], "list[Answer]"]
"""Of values, their errors and the ends of their intervals, (answers,) each, what is printed."""


def _response(question: queries.Question, epsilon: float) -> Asked:
    return cast(
        Asked,
        queries.LocalOracle.of(question, randomizers.RandomizedResponse(question.types, epsilon)),
    )


PROTOCOLS: dict[str, Callable[[queries.Question, float], Asked]] = {
    "one-message": queries.LocalFactorization.of,
    "randomized-response": _response,
    "two-message": queries.Twice.of,
}


@dataclass(frozen=True)
class Terms:
    """Who is trusted with the users' data, at which (epsilon, delta). protocol: "auto", "best" or
    its name.

    delta: None for the one that ``delta_of`` gives.
    """

    trust: str
    epsilon: float
    delta: float | None = None
    protocol: str = "auto"

    @property
    def local(self) -> bool:
        return self.trust == "local"

    def delta_of(self, n: int) -> float | None:
        """What is stated of n users: the largest power of ten that is at most 1/(10 n); None for
        "local".
        """
        if self.local or self.delta is not None:
            return self.delta
        return float(f"1e-{len(str(10 * n - 1))}")

    def choose(self, question: queries.Question, n: int, objective: Objective) -> tuple[str, Asked]:
        """The protocol of least predicted error for n users, or the one of that name, with its
        name.
        """
        if self.protocol in PROTOCOLS:
            return self.protocol, PROTOCOLS[self.protocol](question, self.epsilon)
        asked = question.workload if isinstance(question, queries.Linear) else question
        search = self.protocol == "best" or (self.local and question.types <= LARGEST_STRATEGY)
        choice = queries.choose(
            asked,
            n,
            self.epsilon,
            self.delta_of(n),
            objective=objective,
            trust=self.trust,
            search=search and self.trust != "curator",
        )
        return choice.candidates[0].name, choice.best


@dataclass(frozen=True)
class Answer:
    """One number: its name, the estimate, its standard error, the interval's ends; p_value: of a
    test, if there is one.

    words: what is tested.
    """

    name: str
    value: float
    error: float
    interval: tuple[float, float]
    p_value: float | None = None
    words: str = ""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.error)


@dataclass(frozen=True)
class Question(ABC):
    """One statistic of users, or several, with its title and words on what bins do to it.

    least: users it takes. unit: of a standard error; planned: of a plan's
    error, where that is another; assumes: what ``errors`` assume.
    """

    title: str
    words: str
    unit: str = field(default="", kw_only=True)
    planned: str = field(default="", kw_only=True)
    least: ClassVar[int] = 2
    assumes: ClassVar[str] = "the largest over a few histograms"

    @abstractmethod
    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        """The protocol for n users, and its name. Raises ValueError."""

    @abstractmethod
    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        """What is printed of what was heard: of these users, or of the population that they are a
        sample from.

        Intervals of several answers hold all of them at once.
        """

    @abstractmethod
    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        """The largest standard error of an answer of n users, of each statistic, with its title."""

    def error(self, protocol: Asked, n: float) -> float:
        return max(error for _, error in self.errors(protocol, n))

    def bound(self, n: int, epsilon: float, shares: Tensor | None) -> float | None:
        """What no unbiased local protocol's error is below, on users of these shares; None: where
        ``errors`` are.

        Of several answers the root of their mean square. None: no bound is known.
        """
        return None

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        """Plausible shares of the types, (k,), by what was heard; None where ``bound`` has no use
        for them.
        """
        return None


@dataclass(frozen=True)
class OfTypes(Question):
    """What users of finitely many types are asked, through any channel, and what is read off its
    answers.

    spread: squared, what users add who round at random; fits: answers that are read off a fitted
    histogram, 0: none; ordered: whether neighbouring types are alike; tested: with Mann and
    Whitney's test.
    """

    asked: queries.Question
    read: Read | None = None
    objective: Objective = Objective.MEAN
    spread: float = 0.0
    fits: int = 0
    ordered: bool = True
    tested: bool = False

    @property
    def least(self) -> int:  # type: ignore[override]
        return 2 if isinstance(self.asked, PairwiseStatistic) else 1

    @property
    def assumes(self) -> str:  # type: ignore[override]
        return "on the worst data" if self.linear else Question.assumes

    @property
    def linear(self) -> bool:
        return isinstance(self.asked, queries.Linear)

    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        return terms.choose(self.asked, n, self.objective)

    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        analyst = _analyst(protocol)
        own = _asked(analyst.analyse(tally), population)
        found = own
        if self.spread and not population:  # of the population's the rounding is a part already
            found = own.with_sampling(torch.full_like(own.value, self.spread) / own.n)
        ends = _together(found, level, self.fits)
        answers = self.told(analyst, tally, found.value, _rmse(found), *ends)
        if self.tested and not population:
            u = tested(analyst, tally, own).u
            answers.append(
                Answer(
                    "U",
                    *_numbers(u.value, u.standard_error, *u.interval(level)),
                    answers[0].p_value,
                )
            )
        return answers

    def told(self, analyst: Any, tally: Tally, *numbers: Tensor) -> list[Answer]:
        """The answers of values, errors and intervals' ends that ``analyst`` read off a tally."""
        value, *others = numbers
        if self.fits:
            value = queries.fitted(analyst, tally, ordered=self.ordered).value
        flat = [each.reshape(-1) for each in (value, *others)]
        if self.read is not None:
            return self.read(*flat)
        name, p_value, words = "estimate", None, ""
        if self.tested:
            p_value = float(tested(analyst, tally, analyst.analyse(tally)).p_value)
            name, words = "AUC", "of equal distributions"
        return [Answer(name, *_numbers(*flat), p_value, words)]

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        analyst = _analyst(protocol)
        if self.linear:
            worst = analyst.worst_mse(max(1, math.floor(n)), self.objective)
            return [(self.title, math.sqrt(float(worst) + self.spread / n))]
        family = cast(Tensor, self.asked.histograms)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mse = max(float(analyst.predicted_mse(each * n).max()) for each in family)
        return [(self.title, math.sqrt(mse))]

    def bound(self, n: int, epsilon: float, shares: Tensor | None) -> float | None:
        if isinstance(self.asked, queries.Linear):
            objective = self.objective if shares is None else Objective.MEAN
            return queries.lower_bound(self.asked.workload, n, epsilon, objective, prior=shares)
        family = cast(Tensor, self.asked.histograms) if shares is None else shares[None]
        return max((self.asked.bound(n, epsilon, each) or 0.0 for each in family), default=None)

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        """None of quantiles, whose error is in another unit than the bound."""
        if isinstance(self.asked, PairwiseStatistic):
            found = pairwise.consistent(protocol, tally)
            return None if bool(found.value.isnan().any()) else found.histogram
        channel = cast(queries.Channel, getattr(protocol, "channel", protocol))
        ordered = self.ordered and self.linear
        return None if self.fits else queries.fitted(channel, tally, ordered=ordered).histogram

    def lifted(self, place: Tensor) -> "queries.Question":
        """What is asked, of finer types of which each is of the type ``place``."""
        if isinstance(self.asked, queries.Linear):
            return queries.Linear(self.asked.workload[:, place])
        statistic = cast(PairwiseStatistic, self.asked)
        return replace(statistic, points=statistic.points[place], likely=None)


@dataclass(frozen=True)
class Together(Question):
    """Several statistics of the same users, read off one collection under one epsilon.

    parts: each of the same types. least: users.
    """

    parts: tuple[OfTypes, ...]

    @cached_property
    def asked(self) -> queries.Several:
        return queries.Several(tuple(part.asked for part in self.parts))

    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        return terms.choose(self.asked, n, Objective.MEAN)

    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        analyst = _analyst(protocol)
        found = cast(queries.Answers, _asked(analyst.analyse(tally), population))
        sizes = [one.value.numel() for one in found.each]
        printed = sum(part.fits or size for part, size in zip(self.parts, sizes, strict=True))
        ends = _together(found, level, printed if any(part.fits for part in self.parts) else 0)
        numbers = [found.value, _rmse(found), *ends]
        each = zip(*(row.split(sizes) for row in numbers), strict=True)
        answers = []
        for part, own, some in zip(self.parts, analyst.parts, each, strict=True):
            for one in part.told(own, analyst.channel.whole(tally), *some):
                name = part.title if one.name == "estimate" else f"{part.title}: {one.name}"
                answers.append(replace(one, name=name))
        return answers

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        parts = zip(self.parts, _analyst(protocol).parts, strict=True)
        return [error for part, own in parts for error in part.errors(own, n)]


@dataclass(frozen=True)
class OfCovariance(Question):
    """Covariances of several numbers: those of the users, divisor n."""

    axes: tuple[Axis, ...]
    least = 1
    assumes = "the largest of users evenly along the box's diagonal"

    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        box = self.box
        if terms.protocol in PROTOCOLS:
            raise ValueError(
                f"--protocol {terms.protocol} is for statistics of types; leave out --protocol"
            )
        if terms.local:
            protocol = mean.LocalCovariance.calibrated(box, epsilon=terms.epsilon)
            return "numbers and products", cast(Asked, protocol)
        delta = cast(float, terms.delta_of(n))
        if terms.trust == "shuffle":
            mixed = Amplified.calibrated(
                lambda epsilon: mean.LocalCovariance.calibrated(box, epsilon=epsilon),
                n,
                terms.epsilon,
                delta,
            )
            return "numbers and products, shuffled", mixed
        # noise in proportion to each column's width, whatever its unit
        half = (box.high - box.low) / 2
        middle = box.low + half
        one = torch.ones_like(half)
        even = domains.round_shape(domains.Box(-one, one), 2.0)
        root = half[:, None] * even.root
        shape = replace(even, root=root, centre=middle, support=middle + half * even.support)
        noisy = mean.GaussianCovariance.calibrated(box, shape, delta=delta, epsilon=terms.epsilon)
        return "Gaussian noise", noisy

    @property
    def box(self) -> domains.Box:
        ends = [(axis.bins.low, axis.bins.high) for axis in self.axes if axis.bins is not None]
        low, high = torch.tensor(ends, dtype=torch.float64).mT
        return domains.Box(low, high)

    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        found = protocol.analyse(tally)
        i, j = torch.triu_indices(len(self.axes), len(self.axes))
        alone = Estimate(found.value[i, j], found.standard_error[i, j], found.n)
        low, high = alone.together(level)
        low = torch.where(i == j, low.clamp_min(0), low)
        pairs = combinations_with_replacement(self.axes, 2)
        read = each_answer([f"{one.name}, {two.name}" for one, two in pairs])
        return read(alone.value, alone.standard_error, low, high)

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        places = torch.linspace(0, 1, 33, dtype=torch.float64)[:, None].expand(-1, len(self.axes))
        evenly = self.box.low + places * (self.box.high - self.box.low)
        users = Crowd(evenly, torch.full((33,), max(1, round(n / 33)), dtype=torch.int64))
        return [(self.title, math.sqrt(float(protocol.predicted_mse(users).max())))]


def bounded_by(bound: float | None) -> str:
    """A lower bound in words."""
    return "none known" if bound is None else f"{bound:.3g}: no unbiased protocol can beat it"


def _asked(estimate: Estimate, population: bool) -> Estimate:
    """Of these users, or of the population that they are a sample from."""
    return estimate.of_population() if population else estimate


def _analyst(protocol: Any) -> Any:
    """Who reads the answers of a protocol, behind a shuffler or not: of linear ones the channel."""
    alone = protocol.client if isinstance(protocol, Amplified) else protocol
    return getattr(alone, "analyst", alone)


def _numbers(
    value: Tensor, error: Tensor, low: Tensor, high: Tensor
) -> tuple[float, float, tuple[float, float]]:
    """Value, error and interval of one answer."""
    return float(value), float(error), (float(low), float(high))


def _together(estimate: Estimate, level: float, printed: int) -> tuple[Tensor, Tensor]:
    """Ends that hold all at once. printed: so many of the answers alone, which are not known
    beforehand; 0: all.
    """
    return estimate.interval(1 - (1 - level) / printed) if printed else estimate.together(level)


def _rmse(estimate: Estimate) -> Tensor:
    """The standard error, and what an approximation may add."""
    return (
        estimate.standard_error.square()
        + torch.as_tensor(estimate.bias, dtype=torch.float64).square()
    ).sqrt()


def each_answer(names: list[str], limits: tuple[float, float] = (-math.inf, math.inf)) -> Read:
    """One answer for each number, its interval inside ``limits``."""

    def read(value: Tensor, error: Tensor, low: Tensor, high: Tensor) -> list[Answer]:
        rows = zip(names, value, error, low.clamp(*limits), high.clamp(*limits), strict=True)
        return [Answer(name, *_numbers(*row)) for name, *row in rows]

    return read


def quantiles_of(bins: Bins, shares: list[float]) -> Read:
    """Quantiles from the shares of users up to each bin's upper end.

    The interval holds every bin that the answers do not exclude: those whose upper end has at least
    the share, up to z errors, and whose lower end has at most it. It holds the quantile at least as
    often as ``level`` says, for both ends are of the bin in which it is. The value is read off the
    fitted distribution function, straight in each bin, moved to the interval where it is outside;
    its error, in the column's unit, is that of the unbiased share of users up to there over the
    fitted density.
    Source: Woodruff (1952).
    """

    def read(value: Tensor, error: Tensor, low: Tensor, high: Tensor) -> list[Answer]:
        zero, one = torch.zeros(1).double(), torch.ones(1).double()
        error = torch.cat([zero, error, zero])
        # of each bin's lower and upper end
        before, high = torch.cat([zero, low]), torch.cat([high, one])
        fit = torch.cat([zero, value, one]).cummax(0).values
        found = []
        for share in shares:
            held = ((high >= share) & (before <= share)).nonzero()[:, 0]
            place = int((fit[1:] >= share - 1e-12).nonzero()[0])
            first, last = (int(held[0]), int(held[-1])) if len(held) else (place, place)
            mass = max(float(fit[place + 1] - fit[place]), 1e-12)
            inside = min(1.0, max(0.0, (share - float(fit[place])) / mass))
            ends = bins.edges[first], bins.edges[last + 1]
            quantile = min(max(bins.edges[place] + inside * bins.width, ends[0]), ends[1])
            # the delta method: of a share, over the density there; where that is near 0, the
            # interval says more
            density = mass / bins.width
            own = float(error[place : place + 2].max()) / density
            found.append(Answer(f"quantile {share:g}", quantile, min(own, ends[1] - ends[0]), ends))
        return found

    return read
