"""The table of statistics: what each asks of its columns, and the question that it makes of
them.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, cast

import torch

from torchdp import checks, pairwise, queries, workloads
from torchdp.cli.questions import (
    OfCovariance,
    OfTypes,
    Question,
    Together,
    each_answer,
    quantiles_of,
)
from torchdp.cli.table import MOST_TYPES, Axis, Bins, bounded, parse_bounds, range_of
from torchdp.noise import Noise, source
from torchdp.pairwise import PairwiseStatistic
from torchdp.protocol import Objective

if TYPE_CHECKING:
    import pandas as pd

BANDWIDTH = 0.2  # of a discrepancy's kernel, in shares of the column's range
SHARE = "of users"
SHARP = 2.0  # epsilon above which a mean takes finer steps
FINE = {
    "local": 8,
    "shuffle": 32,
    "curator": 64,
}  # steps of a mean: the finer, the less rounding adds, the more noise
Make = Callable[[list[Axis], argparse.Namespace], Question]


@dataclass(frozen=True)
class Kind:
    """A statistic. roles: what its columns hold, "number", "label" (one of two) or "category";
    bins: of a number.

    make: the question of the axes. finer: times as many bins for a curator who asks nothing else.
    rounded: a number becomes an edge beside it, at random. whole: numbers as they are,
    of as many columns as there are.
    """

    roles: tuple[str, ...]
    make: Make
    bins: int = 32
    rounded: bool = False
    whole: bool = False
    finer: int = 1


def _mean(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
    bins = _bins(axes[0])
    read = each_answer(["mean"], (bins.low, bins.high))
    edges = torch.tensor([bins.edges], dtype=torch.float64)
    title = f"mean of {axes[0].name}"
    if len(options.statistic) > 1:
        words = _words(BINS + ": each number counts as its bin's middle", axes)
        middles = (edges[:, 1:] + edges[:, :-1]) / 2
        return OfTypes(title, words, queries.Linear(middles), read, Objective.WORST)
    words = f"each user rounds at random to one of {bins.count + 1} numbers {bins.width:g} apart: this adds no bias"
    return OfTypes(title, words, queries.Linear(edges), read, Objective.WORST, bins.width**2 / 4)


def _histogram(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
    axis = axes[0]
    words = _words("{0.count} stated categories" if axis.bins is None else BINS, axes)
    read = each_answer(axis.cells, (0.0, 1.0))
    W = queries.Linear(workloads.identity(axis.count).dense())
    return OfTypes(
        f"shares of {axis.name}", words, W, read, unit=SHARE, ordered=axis.bins is not None
    )


def _quantiles(name: str) -> Make:
    def make(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
        bins = _bins(axes[0])
        given = options.quantiles if name == "quantiles" else None
        shares = [checks.fraction("--quantiles", share) for share in given or [0.5]]
        words = _words(BINS + ": an interval ends where bins do", axes)
        W = queries.Linear(workloads.prefix(bins.count).dense()[:-1])
        read = quantiles_of(bins, shares)
        return OfTypes(f"{name} of {axes[0].name}", words, W, read, planned=SHARE, fits=len(shares))

    return make


def _gini(axis: Axis) -> PairwiseStatistic:
    bins = _bins(axis)
    if bins.low < 0:
        raise ValueError(
            f"--statistic gini needs --bounds {axis.name}=LOW:HIGH of at least 0, not {bins.low:g}"
        )
    return pairwise.gini(bins.count, low=bins.low + bins.width / 2, high=bins.high - bins.width / 2)


def _covariance(axes: list[Axis], options: argparse.Namespace) -> Question:
    names = ", ".join(axis.name for axis in axes)
    return OfCovariance(
        f"covariances of {names}", "no bins: numbers and products without bias", tuple(axes)
    )


def _asks(
    title: str, words: str, asked: Callable[..., queries.Question], tested: bool = False
) -> Make:
    """A function of the shares of types, or of pairs; {0} in words is the first axis."""
    return lambda axes, options: OfTypes(
        _words(title, axes), _words(words, axes), asked(*axes), tested=tested
    )


def _words(words: str, axes: list[Axis]) -> str:
    return words.format(*axes)


def _ranks(title: str, function: Callable[[int, int], queries.Question]) -> Make:
    words = "{0.count} x {1.count} bins: users of one bin are tied"
    return _asks(
        title + " of {0.name} and {1.name}", words, lambda y, z: function(y.count, z.count)
    )


LABELLED, TWO = ("number", "label"), ("number", "number")
SCORED = "{0.count} bins: a pair within one bin counts one half"
APART = "of {0.name} between {1.name} = {1.labels[1]} and {1.labels[0]}"
BINS = "{0.count} bins of width {0.bins.width:g}"
KINDS = {
    "auc": Kind(LABELLED, _asks(
        "AUC of {0.name} for {1.name} = {1.labels[1]}", SCORED, lambda score, label: pairwise.auc(score.count))),
    "concordance": Kind(("number", "label", "number"), _asks(
        "concordance index of {2.name} for {0.name}, seen where {1.name} = {1.labels[1]}",
        "{0.count} x {2.count} bins: scores within one bin count one half, events within one are left out",
        lambda time, event, score: pairwise.concordance(time.count, score.count)), bins=5),
    "correlation": Kind(TWO, _ranks("correlation", queries.Correlation), bins=8),
    "covariance": Kind(TWO, _covariance, bins=1, whole=True),
    "energy-distance": Kind(LABELLED, _asks(
        "squared energy distance " + APART, BINS,
        lambda number, label: queries.EnergyDistance(number.count, spacing=_bins(number).width))),
    "gamma": Kind(TWO, _asks(
        "Goodman and Kruskal's gamma of {0.name} and {1.name}",
        "{0.count} x {1.count} bins: a pair within one bin is left out as a tie",
        lambda y, z: pairwise.gamma(y.count, z.count)), bins=8),
    "gini": Kind(("number",), _asks(
        "Gini coefficient of {0.name}", BINS + ": each number counts as its bin's middle", _gini)),
    "gini-diversity": Kind(("category",), _asks(
        "Gini's diversity index of {0.name}", "{0.count} stated categories",
        lambda axis: pairwise.unequal(axis.count))),
    "gini-mean-difference": Kind(("number",), _asks(
        "Gini's mean difference of {0.name}", BINS + ": each pair's difference has an error of at most that width",
        lambda axis: pairwise.absolute_difference(axis.count, spacing=_bins(axis).width))),
    "histogram": Kind(("number",), _histogram),
    "kendall": Kind(TWO, _asks(
        "Kendall's tau-a of {0.name} and {1.name}",
        "{0.count} x {1.count} bins: a pair within one bin counts as a tie (0)",
        lambda y, z: pairwise.kendall(y.count, z.count)), bins=16),
    "kendall-b": Kind(TWO, _ranks("Kendall's tau-b", queries.KendallB), bins=8),
    "mann-whitney": Kind(LABELLED, _asks(
        "Mann-Whitney U of {0.name}: {1.name} = {1.labels[1]} against {1.labels[0]}", SCORED,
        lambda score, label: pairwise.auc(score.count), tested=True)),
    "mean": Kind(("number",), _mean, bins=8, rounded=True),
    "median": Kind(("number",), _quantiles("median"), finer=4),
    "mmd": Kind(LABELLED, _asks(
        "squared maximum mean discrepancy " + APART,
        f"{BINS}, a Gaussian kernel whose standard deviation is {BANDWIDTH:g} of their range",
        lambda number, label: queries.MeanDiscrepancy(number.count, width=number.count * BANDWIDTH))),
    "quantiles": Kind(("number",), _quantiles("quantiles"), finer=4),
    "spearman": Kind(TWO, _ranks("Spearman's rho", queries.Spearman), bins=8),
}  # fmt: skip


@dataclass(frozen=True)
class Asking:
    """What the options ask, before any user is seen: the kinds, the stated labels and bounds of the
    columns.

    since: the first day of each column of dates, which is counted in days.
    """

    options: argparse.Namespace
    kinds: tuple[Kind, ...]
    labels: dict[str, tuple[str, ...]]
    bounds: dict[str, tuple[float, float]]
    since: dict[str, date]

    @property
    def rounded(self) -> bool:
        """Whether numbers are rounded at random: for a mean alone."""
        return len(self.kinds) == 1 and self.kinds[0].rounded

    def axes(self, users: "pd.DataFrame | None" = None) -> list[Axis]:
        """The columns' axes; bounds that are not stated are read from the users, where that is
        asked for.
        """
        return [
            Axis(name, None, self.labels[name])
            if name in self.labels
            else Axis(name, self._bins(name, users))
            for name in self.options.columns
        ]

    def _bins(self, name: str, users: "pd.DataFrame | None") -> Bins:
        if name in self.bounds:
            return Bins(*self.bounds[name], self.bins)
        if users is None or not self.options.bounds_from_data:
            raise ValueError(
                f"column {name!r} needs public bounds, --bounds {name}=LOW:HIGH (a histogram of words: --categories "
                "A,B,...); bounds read from the data are not private (--bounds-from-data does it all the same)"
            )
        return Bins(*range_of(users, name), self.bins)

    @property
    def bins(self) -> int:
        """Of each number. Raises ValueError."""
        usual = min(
            (kind.bins for kind in self.kinds if not kind.rounded), default=FINE[self.options.trust]
        )
        if self.rounded and self.options.trust == "local" and self.options.epsilon > SHARP:
            usual *= 2
        if self.options.trust == "curator" and len(self.kinds) == 1:
            usual *= self.kinds[0].finer
        labels = math.prod(len(each) for each in self.labels.values())
        numbers = len(self.options.columns) - len(self.labels)
        most = int((MOST_TYPES // labels + 0.5) ** (1 / numbers)) - self.rounded
        if self.options.bins is None:
            return min(usual, most)
        count = checks.integer("--bins", self.options.bins, 2)
        if count > most:
            raise ValueError(f"--bins must be at most {most}, not {count}")
        return count

    def question(self, axes: list[Axis]) -> Question:
        """Of these axes; of several statistics all, those of one number for each column of
        numbers.
        """
        dates = [f"{name} in days since {first}" for name, first in self.since.items()]
        if len(self.kinds) == 1:
            (kind,) = self.kinds
            made = kind.make(axes, self.options)
            return replace(made, words="; ".join([made.words, *dates]))
        order = sorted(axes, key=lambda axis: axis.bins is not None)  # as ``coded``
        digits = torch.cartesian_prod(*[torch.arange(axis.count) for axis in order]).view(
            -1, len(axes)
        )
        place = dict(zip((axis.name for axis in order), digits.mT, strict=True))
        parts: list[OfTypes] = []
        for kind in self.kinds:
            if len(axes) == len(kind.roles):
                parts.append(cast(OfTypes, kind.make(axes, self.options)))
                continue
            for axis in axes:
                if axis.bins is not None:
                    part = cast(OfTypes, kind.make([axis], self.options))
                    parts.append(replace(part, asked=part.lifted(place[axis.name])))
        words = dict.fromkeys(part.words for part in parts)
        return Together(f"{len(parts)} statistics", "; ".join([*words, *dates]), tuple(parts))

    def coded(
        self, users: "pd.DataFrame", axes: list[Axis], noise: Noise | None, notes: list[str]
    ) -> tuple["pd.DataFrame", torch.Tensor]:
        """The users who take part, and the type of each: labels count most, then the columns in
        their order.

        For a kind of whole numbers these themselves, (n, d). notes: as of ``read_users``.
        """
        for axis in axes:
            if axis.bins is not None:
                users = bounded(users, axis.name, axis.bins, self.options.out_of_bounds, notes)
        values = users[self.options.columns].to_numpy(float, copy=True)
        columns = torch.as_tensor(values, dtype=torch.float64)  # (n, d)
        if self.kinds[0].whole:
            return users, columns
        types = torch.zeros(len(users), dtype=torch.int64)
        for axis, column in sorted(
            zip(axes, columns.mT, strict=True), key=lambda each: each[0].bins is not None
        ):
            if axis.bins is None:
                types = types * axis.count + column.long()
            elif self.rounded:
                uniform = source(noise, column.device).uniform((len(users),))
                types = types * (axis.count + 1) + axis.bins.rounded(column, uniform)
            else:
                types = types * axis.count + axis.bins.place(column)
        return users, types


def asking(options: argparse.Namespace) -> Asking:
    """What the options ask. Raises ValueError that names an option which is missing, or has no
    meaning here.
    """
    names, columns = options.statistic, options.columns
    name = " ".join(names)
    kinds = tuple(KINDS[each] for each in names)
    roles = list(max(kinds, key=lambda kind: len(kind.roles)).roles)
    if options.categories is not None and set(names) <= {"histogram", "gini-diversity"}:
        roles = ["category"]
    if len(set(names)) < len(names):
        raise ValueError("--statistic names a statistic twice")
    if any(kind.whole for kind in kinds):
        if len(kinds) > 1:
            raise ValueError("--statistic covariance uses numbers as they are: ask for it alone")
        roles = ["number"] * max(len(roles), len(columns))
        if options.bins is not None:
            raise ValueError(
                f"--statistic {name} takes no --bins: its numbers are used as they are"
            )
        if options.population:
            raise ValueError(
                f"--population is not for --statistic {name}, whose sampling error is not known"
            )
    if len(columns) != len(roles):
        raise ValueError(f"--statistic {name} takes {len(roles)} --columns, not {len(columns)}")
    if len(set(columns)) < len(columns):
        raise ValueError("--columns names a column twice")
    for each, kind in zip(names, kinds, strict=True):
        if (
            roles != ["category"]
            and len(kinds) > 1
            and kind.roles not in (tuple(roles), ("number",))
        ):
            raise ValueError(
                f"--statistic {each} is of other columns than {name.replace(each, '').strip()}: ask for it alone"
            )
    for option, wanted in (
        ("categories", "category" in roles),
        ("quantiles", "quantiles" in names),
    ):
        given = getattr(options, option) is not None
        if given != wanted:
            raise ValueError(f"--statistic {name} {'takes no' if given else 'needs'} --{option}")
    if "number" not in roles and (
        options.bounds or options.bounds_from_data or options.bins is not None
    ):
        raise ValueError(
            f"--statistic {name} takes no --bounds and no --bins: its column is a category"
        )
    labels = {
        column: _labels(role, options)
        for column, role in zip(columns, roles, strict=True)
        if role != "number"
    }
    numbers = [column for column in columns if column not in labels]
    return Asking(options, kinds, labels, *parse_bounds(options.bounds, numbers))


def _labels(role: str, options: argparse.Namespace) -> tuple[str, ...]:
    if role == "label":
        if options.positive == options.negative:
            raise ValueError(
                f"--positive and --negative must differ, not both be {options.positive!r}"
            )
        return options.negative, options.positive
    categories = tuple(category.strip() for category in options.categories.split(","))
    if len(set(categories)) != len(categories) or len(categories) < 2:
        raise ValueError("--categories must list at least two different values")
    return categories


def _bins(axis: Axis) -> Bins:
    if axis.bins is None:
        raise ValueError(f"{axis.name} must be a column of numbers")
    return axis.bins
