"""What ``torchdp estimate`` can be asked: questions, their protocols, answers and errors."""

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
from torchdp.cli.table import Axis
from torchdp.pairwise import PairwiseStatistic
from torchdp.pairwise.population import tested
from torchdp.pairwise.rows import RowStatistic
from torchdp.protocol import Crowd, Estimate, Objective, Protocol, Tally
from torchdp.queries.choose import LARGEST_STRATEGY
from torchdp.shuffle import Amplified

# Points at which the users of a covariance's plan stand: there all columns rise together.
DIAGONAL = 33
Asked = Protocol[Any]
Read = Callable[[Tensor, Tensor, Tensor, Tensor], "list[Answer]"]
"""Of values, errors and the ends of intervals, (answers,) each, what is printed."""


def _response(question: queries.Question, epsilon: float) -> Asked:
    randomizer = randomizers.RandomizedResponse(question.types, epsilon)
    return cast(Asked, queries.LocalOracle.of(question, randomizer))


PROTOCOLS: dict[str, Callable[[queries.Question, float], Asked]] = {
    "one-message": queries.LocalFactorization.of,
    "randomized-response": _response,
    "two-message": queries.Twice.of,
}


@dataclass(frozen=True)
class Terms:
    """Who is trusted with the users' data, at which (epsilon, delta).

    delta: None for the one that ``delta_of`` gives. protocol: "auto", "best" or its name.
    population: whether answers refer to one.
    """

    trust: str
    epsilon: float
    delta: float | None = None
    protocol: str = "auto"
    population: bool = False

    @property
    def local(self) -> bool:
        return self.trust == "local"

    def delta_of(self, n: int) -> float | None:
        """Of n users: the largest power of ten that is at most 1/(10 n); None for "local"."""
        if self.local or self.delta is not None:
            return self.delta
        # k digits of 10 n - 1 say 10 n <= 10^k. A logarithm could round to the wrong side of a
        # power.
        return float(f"1e-{len(str(10 * n - 1))}")

    def refuse_named(self) -> None:
        """Raises ValueError where a protocol is named, which is one of types."""
        if self.protocol in PROTOCOLS:
            raise ValueError(
                f"--protocol {self.protocol} is for statistics of types; leave out --protocol"
            )

    def choose(self, question: queries.Question, n: int, objective: Objective) -> tuple[str, Asked]:
        """The protocol of least predicted error for n users, or that of the name; its name."""
        if self.protocol in PROTOCOLS:
            return self.protocol, PROTOCOLS[self.protocol](question, self.epsilon)
        # A search takes seconds: always of few types in the local model, else where asked for.
        fast = self.local and question.types <= LARGEST_STRATEGY
        search = self.trust != "curator" and (fast or self.protocol == "best")
        choice = queries.choose(
            question.workload if isinstance(question, queries.Linear) else question,
            n,
            self.epsilon,
            self.delta_of(n),
            objective=objective,
            trust=self.trust,
            search=search,
        )
        candidates = list(choice.candidates)
        if self.population or isinstance(question, queries.Several):
            # Answers alone do not tell how much they vary from sample to sample, nor fits.
            alone = queries.CentralAnswers
            candidates = [one for one in candidates if not isinstance(one.protocol, alone)]
        return candidates[0].name, candidates[0].protocol


@dataclass(frozen=True)
class Answer:
    """One number: its name, the estimate, its standard error, the interval's ends.

    p_value: of a test, if there is one; words: what is tested.
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

    least: users it takes. unit: of a standard error; assumes: what ``errors`` assume.
    """

    title: str
    words: str
    unit: str = field(default="", kw_only=True)
    least: ClassVar[int] = 2
    assumes: ClassVar[str] = "the largest over a few histograms"

    @abstractmethod
    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        """The protocol for n users, and its name. Raises ValueError."""

    @abstractmethod
    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        """What is printed of a tally: of these users, or of the population they are a sample from.

        Intervals of several answers hold all of them at once.
        """

    @abstractmethod
    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        """The largest standard error of an answer of n users, of each statistic, with its title."""

    def error(self, protocol: Asked, n: float) -> float:
        return max(error for _, error in self.errors(protocol, n))

    def bound(self, n: int, epsilon: float, shares: Tensor | None) -> float | None:
        """What no unbiased local protocol's error is below; None: no bound is known.

        On users of these shares (None: where ``errors`` are); of several answers the root of their
        mean square.
        """
        return None

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        """Plausible shares of the types, (k,), by a tally; None where ``bound`` needs none."""
        return None


@dataclass(frozen=True)
class OfTypes(Question):
    """What users of finitely many types are asked, and what is read off the answers.

    spread: squared, what users add who round at random; ordered: whether neighbouring types are
    alike; tested: with Mann and Whitney's test.
    """

    asked: queries.Question
    read: Read | None = None
    objective: Objective = Objective.MEAN
    spread: float = 0.0
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
        estimate = own
        if self.spread and not population:
            # A population's sampling error holds that of the rounding already.
            rounding = torch.full_like(own.value, self.spread) / own.n
            estimate = own.with_sampling(rounding)
        low, high = estimate.together(level)
        answers = self.told(analyst, tally, estimate.value, _rmse(estimate), low, high)
        if self.tested and not population:
            u = tested(analyst, tally, own).u
            low, high = u.interval(level)
            answers.append(_answer("U", u.value, u.standard_error, low, high, answers[0].p_value))
        return answers

    def told(
        self, analyst: Any, tally: Tally, value: Tensor, error: Tensor, low: Tensor, high: Tensor
    ) -> list[Answer]:
        """The answers of values, errors and intervals' ends that ``analyst`` read off a tally."""
        if self.read is not None:
            return self.read(value.flatten(), error.flatten(), low.flatten(), high.flatten())
        if not self.tested:
            return [_answer("estimate", value, error, low, high)]
        p_value = float(tested(analyst, tally, analyst.analyse(tally)).p_value)
        return [_answer("AUC", value, error, low, high, p_value, "of equal distributions")]

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        analyst = _analyst(protocol)
        if self.linear:
            worst = analyst.worst_mse(max(1, math.floor(n)), self.objective)
            # Users round independently: a mean of n has 1/n of one rounding's variance.
            return [(self.title, math.sqrt(float(worst) + self.spread / n))]
        family = cast(Tensor, self.asked.histograms)
        with warnings.catch_warnings(action="ignore"):
            mse = [float(analyst.predicted_mse(shares * n).max()) for shares in family]
        return [(self.title, math.sqrt(max(mse)))]

    def bound(self, n: int, epsilon: float, shares: Tensor | None) -> float | None:
        if isinstance(self.asked, queries.Linear):
            objective = self.objective if shares is None else Objective.MEAN
            return queries.lower_bound(self.asked.workload, n, epsilon, objective, prior=shares)
        family = cast(Tensor, self.asked.histograms) if shares is None else shares[None]
        bounds = [self.asked.bound(n, epsilon, histogram) for histogram in family]
        return max((bound for bound in bounds if bound is not None), default=None)

    def shares(self, protocol: Asked, tally: Tally) -> Tensor | None:
        """None of quantiles, whose error is in another unit than the bound."""
        if isinstance(self.asked, PairwiseStatistic):
            fit = pairwise.consistent(protocol, tally)
            return None if fit.value.isnan().any() else fit.histogram
        channel = cast(queries.Channel, getattr(protocol, "channel", protocol))
        return queries.fitted(channel, tally, ordered=self.ordered and self.linear).histogram

    def lifted(self, place: Tensor) -> "queries.Question":
        """What is asked, of finer types of which each is of the type ``place``."""
        if isinstance(self.asked, PairwiseStatistic):
            return replace(self.asked, points=self.asked.points[place], likely=None)
        return Lifted(self.asked, place)


@dataclass(frozen=True, eq=False)
class Lifted(queries.Question):
    """A question of linear queries, asked of finer types, each of which is of the type ``place``."""

    asked: queries.Question
    place: Tensor

    @property
    def types(self) -> int:
        return len(self.place)

    @property
    def histograms(self) -> Tensor | None:
        coarse = self.asked.histograms
        return None if coarse is None else (coarse / torch.bincount(self.place))[:, self.place]

    def queries(self, distinct: bool) -> Tensor:
        return self.asked.queries(distinct)[:, self.place]

    def analyst(self, channel: Any) -> Any:
        return self.asked.analyst(channel)


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
        estimate = cast(queries.Answers, _asked(analyst.analyse(tally), population))
        sizes = [part.value.numel() for part in estimate.each]
        low, high = estimate.together(level)
        numbers = torch.stack([estimate.value, _rmse(estimate), low, high])  # (4, answers)
        whole = analyst.channel.whole(tally)
        answers = []
        for part, own, columns in zip(
            self.parts, analyst.parts, numbers.split(sizes, dim=1), strict=True
        ):
            for answer in part.told(own, whole, *columns):
                name = part.title
                if answer.name != "estimate":
                    name += f": {answer.name}"
                answers.append(replace(answer, name=name))
        return answers

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        errors = []
        for part, own in zip(self.parts, _analyst(protocol).parts, strict=True):
            errors += part.errors(own, n)
        return errors


@dataclass(frozen=True)
class OfCovariance(Question):
    """Covariances of several numbers: those of the users, divisor n."""

    axes: tuple[Axis, ...]
    least = 1
    assumes = "the largest of users evenly along the box's diagonal"

    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        box = self.box
        terms.refuse_named()
        if terms.local:
            protocol = mean.LocalCovariance.calibrated(box, epsilon=terms.epsilon)
            return "numbers and products", cast(Asked, protocol)
        delta = cast(float, terms.delta_of(n))
        if terms.trust == "shuffle":
            # The local epsilon may be larger, up to what n shuffled messages amplify to the stated
            # one.
            mixed = Amplified.calibrated(
                lambda epsilon: mean.LocalCovariance.calibrated(box, epsilon=epsilon),
                n,
                terms.epsilon,
                delta,
            )
            return "numbers and products, shuffled", mixed
        noisy = mean.GaussianCovariance.tuned(box, delta=delta, epsilon=terms.epsilon)
        return "Gaussian noise", noisy

    @property
    def box(self) -> domains.Box:
        ends = [(axis.bins.low, axis.bins.high) for axis in self.axes if axis.bins is not None]
        low, high = torch.tensor(ends, dtype=torch.float64).mT
        return domains.Box(low, high)

    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        covariance = protocol.analyse(tally)
        i, j = torch.triu_indices(len(self.axes), len(self.axes))
        entries = Estimate(covariance.value[i, j], covariance.standard_error[i, j], covariance.n)
        low, high = entries.together(level)
        # On the diagonal stand variances, which are not negative.
        low = torch.where(i == j, low.clamp_min(0), low)
        pairs = combinations_with_replacement(self.axes, 2)
        read = each_answer([f"{x.name}, {y.name}" for x, y in pairs])
        return read(entries.value, entries.standard_error, low, high)

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        box = self.box
        places = torch.linspace(0, 1, DIAGONAL, dtype=torch.float64)[:, None]
        points = box.low + places * (box.high - box.low)
        users = torch.full((DIAGONAL,), max(1, round(n / DIAGONAL)), dtype=torch.int64)
        mse = protocol.predicted_mse(Crowd(points, users))
        return [(self.title, math.sqrt(float(mse.max())))]


@dataclass(frozen=True)
class OfRows(Question):
    """A statistic of pairs of rows as they are, by a curator."""

    asked: RowStatistic
    assumes = "the same whatever users hold"

    def choose(self, n: int, terms: Terms) -> tuple[str, Asked]:
        terms.refuse_named()
        return "the answers, discrete Laplace", queries.CentralAnswers(self.asked, terms.epsilon)

    def answers(
        self, protocol: Asked, tally: Tally, level: float, population: bool = False
    ) -> list[Answer]:
        estimate = _asked(protocol.analyse(tally), population)
        ends = estimate.interval(level)
        return [_answer("estimate", estimate.value, estimate.standard_error, *ends)]

    def errors(self, protocol: Asked, n: float) -> list[tuple[str, float]]:
        return [(self.title, math.sqrt(float(protocol.worst_mse(round(n)))))]


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


def _answer(
    name: str,
    value: Tensor,
    error: Tensor,
    low: Tensor,
    high: Tensor,
    p_value: float | None = None,
    words: str = "",
) -> Answer:
    interval = (float(low), float(high))
    return Answer(name, float(value), float(error), interval, p_value, words)


def _rmse(estimate: Estimate) -> Tensor:
    """The standard error, and what an approximation may add."""
    bias = torch.as_tensor(estimate.bias, dtype=torch.float64)
    mse = estimate.standard_error.square() + bias.square()
    return mse.sqrt()


def each_answer(names: list[str], limits: tuple[float, float] = (-math.inf, math.inf)) -> Read:
    """One answer for each number, its interval inside ``limits``."""

    def read(value: Tensor, error: Tensor, low: Tensor, high: Tensor) -> list[Answer]:
        rows = zip(names, value, error, low.clamp(*limits), high.clamp(*limits), strict=True)
        return [_answer(*row) for row in rows]

    return read
