"""What ``torchdp estimate`` can be asked: a table of statistics, each with its columns, its types and its answers."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from torchdp import domains, mean, pairwise, queries, randomizers, workloads
from torchdp.cli.table import Axis, Bins
from torchdp.collection import Collection
from torchdp.pairwise import PairwiseStatistic
from torchdp.pairwise.choose import LARGEST_STRATEGY
from torchdp.protocol import Choice, Crowd, Estimate, MessageProtocol, Objective, Tally
from torchdp.protocol.choice import Candidate

Asked = MessageProtocol[Tensor, Any]
PROTOCOLS: dict[str, Callable[[PairwiseStatistic, float], Asked]] = {
    "one-message": pairwise.OneMessage,
    "randomized-response": partial(pairwise.PairReports, client=randomizers.RandomizedResponse),
    "two-message": pairwise.TwoMessage,
}


@dataclass(frozen=True)
class Answer:
    """One number: its name, the estimate, its standard error, the interval's ends; p_value: of a test, if there is one.

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
    """One statistic of users of finitely many types, with its title and words on what bins do to it.

    least: users it takes. unit: of a standard error; planned: of a plan's
    error, where that is another; assumes: what ``error`` assumes; named: whether a protocol can be
    asked for by name.
    """

    title: str
    words: str
    unit: str = field(default="", kw_only=True)
    planned: str = field(default="", kw_only=True)
    least: ClassVar[int] = 1
    assumes: ClassVar[str] = "on the worst data"
    named: ClassVar[bool] = False

    def choose(self, name: str, n: int, epsilon: float) -> tuple[str, Asked]:
        """The protocol of that name for n users, and its own name. Raises ValueError."""
        if name in PROTOCOLS and not self.named:
            raise ValueError(f"--protocol {name} is for means over pairs of users; leave out --protocol")
        choice = self.choice(name, n, epsilon)
        return choice.candidates[0].name, cast(Asked, choice.best)

    @abstractmethod
    def choice(self, name: str, n: int, epsilon: float) -> Choice:
        """The protocols for n users, that of the least predicted error first. name: "auto" or "best"."""

    @abstractmethod
    def answers(self, protocol: Asked, tally: Tally, level: float, population: bool = False) -> list[Answer]:
        """What is printed of what was heard: of these users, or of the population that they are a sample from."""

    @property
    def likely(self) -> Tensor:
        """Shares of types, (j, k), over which the error and its bound are the largest."""
        return torch.empty(0, 0)

    def error(self, protocol: Asked, n: float) -> float:
        """The largest standard error of an answer of n users: over all data, or the ``likely`` shares."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return math.sqrt(max(float(protocol.predicted_mse(each * n).max()) for each in self.likely))

    def bound(self, n: int, epsilon: float, shares: Tensor | None) -> float | None:
        """What no unbiased protocol's error is below, on users of these shares; None: where ``error`` is; no bound.

        Of several answers the root of their mean square.
        """
        family = self.likely if shares is None else shares[None]
        return max((self.bound_at(n, epsilon, each) for each in family), default=None)

    def bound_at(self, n: int, epsilon: float, shares: Tensor) -> float:
        """``bound`` for these shares; 0: nothing is known."""
        return 0.0

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        """Plausible shares of the types, (k,), by what was heard; None where ``bound`` has no use for them."""
        return None


@dataclass(frozen=True)
class OfPairs(Question):
    """A mean over pairs of users, or a ratio of two. tested: with Mann and Whitney's test."""

    statistic: PairwiseStatistic
    tested: bool = False
    least = 2
    assumes = "the largest over a few broad and narrow histograms"
    named = True

    def choice(self, name: str, n: int, epsilon: float) -> Choice:
        """That of ``pairwise.choose``, or the one of that name; "auto" searches where that takes a few seconds."""
        if name in PROTOCOLS:
            return Choice((Candidate(name, PROTOCOLS[name](self.statistic, epsilon), 0.0),))
        search = name == "best" or self.statistic.types <= LARGEST_STRATEGY
        return pairwise.choose(self.statistic, n, epsilon, search=search)

    def answers(self, protocol: Asked, tally: Tally, level: float, population: bool = False) -> list[Answer]:
        users = Collection.of(protocol).add("all", tally)
        found = _asked(users.estimate(), population)
        if not self.tested:
            return [_answer("estimate", found, level)]
        test = pairwise.mann_whitney(users)
        both = [_answer("AUC", found, level), *([] if population else [_answer("U", test.u, level)])]
        return [replace(each, p_value=float(test.p_value), words="of equal distributions") for each in both]

    @property
    def likely(self) -> Tensor:
        return pairwise.histograms(self.statistic)

    def bound_at(self, n: int, epsilon: float, shares: Tensor) -> float:
        return pairwise.lower_bound(self.statistic, n, epsilon, shares)

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        found = pairwise.consistent(cast(pairwise.PairwiseProtocol, protocol), tally)
        return None if bool(found.value.isnan().any()) else found.histogram


@dataclass(frozen=True)
class OfShares(Question):
    """Linear queries of the shares of types, and what is read off their answers.

    read: from the estimate and the level, the answers; spread: squared, what users add who round at random; fits:
    whether the answers are read off a fitted histogram; ordered: whether neighbouring types are alike.
    """

    workload: Tensor
    read: Callable[[Estimate, float], list[Answer]]
    objective: Objective = Objective.MEAN
    spread: float = 0.0
    fits: bool = False
    ordered: bool = True

    def choice(self, name: str, n: int, epsilon: float) -> Choice:
        return queries.choose(self.workload, n, epsilon, self.objective)

    def answers(self, protocol: Asked, tally: Tally, level: float, population: bool = False) -> list[Answer]:
        estimate = self._fit(protocol, tally) if self.fits else protocol.analyse(tally)
        estimate = _asked(estimate, population)
        if self.spread and not population:  # of the population's the rounding is a part already
            estimate = estimate.with_sampling(torch.full_like(estimate.value, self.spread) / estimate.n)
        return self.read(estimate, level)

    def _fit(self, protocol: Asked, tally: Tally) -> queries.Fit:
        return queries.fitted(cast(queries.Channel, protocol), tally, ordered=self.ordered)

    def error(self, protocol: Asked, n: float) -> float:
        worst = protocol.worst_mse(max(1, math.floor(n)), self.objective)
        return math.sqrt(float(worst) + self.spread / n)

    def bound(self, n: int, epsilon: float, shares: Tensor | None) -> float | None:
        objective = self.objective if shares is None else Objective.MEAN
        return queries.lower_bound(self.workload, n, epsilon, objective, prior=shares)

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        """None of quantiles, whose error is in another unit than the bound."""
        return None if self.fits else self._fit(protocol, tally).histogram


@dataclass(frozen=True)
class OfFunction(Question):
    """A smooth function of the shares of types."""

    function: queries.ShareFunction
    assumes = "the largest over a few histograms"

    def choice(self, name: str, n: int, epsilon: float) -> Choice:
        return queries.choose_function(self.function, n, epsilon)

    def answers(self, protocol: Asked, tally: Tally, level: float, population: bool = False) -> list[Answer]:
        return [_answer("estimate", _asked(protocol.analyse(tally), population), level)]

    @property
    def likely(self) -> Tensor:
        return self.function.likely

    def bound_at(self, n: int, epsilon: float, shares: Tensor) -> float:
        return queries.function_lower_bound(self.function, n, epsilon, shares)

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        own = cast(queries.LocalFunction, protocol)
        shares = queries.LocalOracle(workloads.identity(own.client.k).dense(), own.client)
        return queries.fitted(shares, tally, ordered=False).histogram


@dataclass(frozen=True)
class OfCovariance(Question):
    """Covariances of several numbers: those of the users, divisor n."""

    axes: tuple[Axis, ...]
    assumes = "the largest of users evenly along the box's diagonal"

    def choice(self, name: str, n: int, epsilon: float) -> Choice:
        protocol = mean.LocalCovariance.calibrated(self.box, epsilon=epsilon)
        return Choice.of([("numbers and products", protocol)], [self.error(cast(Asked, protocol), n)])

    @property
    def box(self) -> domains.Box:
        ends = [(axis.bins.low, axis.bins.high) for axis in self.axes if axis.bins is not None]
        low, high = torch.tensor(ends, dtype=torch.float64).mT
        return domains.Box(low, high)

    def answers(self, protocol: Asked, tally: Tally, level: float, population: bool = False) -> list[Answer]:
        found = protocol.analyse(tally)
        low, high = found.interval(level)
        low.diagonal().clamp_(min=0)
        i, j = torch.triu_indices(len(self.axes), len(self.axes))
        numbers = torch.stack([found.value, found.standard_error, low, high], -1)[i, j].tolist()
        names = [f"{one.name}, {two.name}" for one, two in combinations_with_replacement(self.axes, 2)]
        return [Answer(name, v, e, (a, b)) for name, (v, e, a, b) in zip(names, numbers, strict=True)]

    def error(self, protocol: Asked, n: float) -> float:
        places = torch.linspace(0, 1, 33, dtype=torch.float64)[:, None].expand(-1, len(self.axes))
        evenly = self.box.low + places * (self.box.high - self.box.low)
        users = Crowd(evenly, torch.full((33,), max(1, round(n / 33)), dtype=torch.int64))
        return math.sqrt(float(cast(MessageProtocol[Crowd, Any], protocol).predicted_mse(users).max()))


def bounded_by(bound: float | None) -> str:
    """A lower bound in words."""
    return "none known" if bound is None else f"{bound:.3g}: no unbiased protocol can beat it"


def _asked(estimate: Estimate, population: bool) -> Estimate:
    """Of these users, or of the population that they are a sample from."""
    return estimate.of_population() if population else estimate


def _answer(name: str, estimate: Estimate, level: float) -> Answer:
    low, high = estimate.interval(level)
    return Answer(name, float(estimate.value), float(_rmse(estimate)), (float(low), float(high)))


def _rmse(estimate: Estimate) -> Tensor:
    """The standard error, and what an approximation may add."""
    return (estimate.standard_error.square() + torch.as_tensor(estimate.bias, dtype=torch.float64).square()).sqrt()


def each_answer(names: list[str], limits: tuple[float, float]) -> Callable[[Estimate, float], list[Answer]]:
    """One answer for each entry of the estimate, its interval inside ``limits``."""

    def read(estimate: Estimate, level: float) -> list[Answer]:
        lows, highs = (end.clamp(*limits).tolist() for end in estimate.interval(level))
        values, errors = estimate.value.tolist(), _rmse(estimate).tolist()
        return [Answer(*each[:3], each[3:]) for each in zip(names, values, errors, lows, highs, strict=True)]

    return read


def quantiles_of(bins: Bins, shares: list[float]) -> Callable[[Estimate, float], list[Answer]]:
    """Quantiles from the shares of users up to each bin's upper end.

    The interval holds every bin that the answers do not exclude: those whose upper end has at least the share, up to z
    errors, and whose lower end has at most it. It holds the quantile at least as often as ``level`` says, for both
    ends are of the bin in which it is. The value is read off the fitted distribution function, straight in each bin,
    moved to the interval where it is outside; its error, in the column's unit, is that of the unbiased share of users
    up to there over the fitted density.
    Source: Woodruff (1952).
    """

    def read(estimate: Estimate, level: float) -> list[Answer]:
        low, high = estimate.interval(level)
        zero, one = torch.zeros(1).double(), torch.ones(1).double()
        error = torch.cat([zero, _rmse(estimate), zero])
        before, high = torch.cat([zero, low]), torch.cat([high, one])  # of each bin's lower and upper end
        edges = torch.tensor(bins.edges, dtype=torch.float64)
        fit = torch.cat([zero, estimate.value, one]).cummax(0).values
        found = []
        for share in shares:
            held = ((high >= share) & (before <= share)).nonzero()[:, 0]
            place = int((fit[1:] >= share - 1e-12).nonzero()[0])
            first, last = (int(held[0]), int(held[-1])) if len(held) else (place, place)
            inside = (share - float(fit[place])) / max(float(fit[place + 1] - fit[place]), 1e-12)
            value = float(edges[place]) + min(1.0, max(0.0, inside)) * bins.width
            ends = float(edges[first]), float(edges[last + 1])
            value = min(max(value, ends[0]), ends[1])
            # the delta method: of a share, over the density there; where that is near 0, the interval says more
            density = max(float(fit[place + 1] - fit[place]), 1e-12) / bins.width
            own = float(error[place : place + 2].max()) / density
            found.append(Answer(f"quantile {share:g}", value, min(own, ends[1] - ends[0]), ends))
        return found

    return read
