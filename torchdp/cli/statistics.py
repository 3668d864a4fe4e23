"""The table of statistics: what each asks of its columns, and the question made of them."""

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
    OfRows,
    OfTypes,
    Question,
    Together,
    each_answer,
)
from torchdp.cli.table import MOST_TYPES, Axis, Bins, bounded, parse_bounds, range_of
from torchdp.noise import Noise, source
from torchdp.pairwise import PairwiseStatistic
from torchdp.pairwise.rows import RowStatistic
from torchdp.protocol import Objective

if TYPE_CHECKING:
    import pandas as pd

# Of a discrepancy's kernel, in shares of the column's range: one fitted to the data would have to
# be paid for.
BANDWIDTH = 0.2
SHARE = "of users"
# Epsilon above which a mean takes finer steps: noise no longer hides what rounding adds.
SHARP = 2.0
# steps of a mean: the finer, the less rounding adds, the more noise
FINE = {"local": 8, "shuffle": 32, "curator": 64}
Make = Callable[[list[Axis], argparse.Namespace], Question]


@dataclass(frozen=True)
class Kind:
    """A statistic.

    roles: what its columns hold, "number", "label" (one of two) or "category"; bins: of a number.
    make: the question of the axes. rows: that of rows without bins, for a curator who asks nothing
    else. finer: times as many bins for such a one.
    rounded: a number becomes an edge beside it, at random. whole: numbers as they are, of as many
    columns as there are.
    """

    roles: tuple[str, ...]
    make: Make
    bins: int = 32
    rounded: bool = False
    whole: bool = False
    finer: int = 1
    rows: Make | None = None


def _mean(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
    bins = _bins(axes[0])
    read = each_answer(["mean"], (bins.low, bins.high))
    edges = torch.tensor([bins.edges], dtype=torch.float64)
    title = f"mean of {axes[0].name}"
    if len(options.statistic) > 1:
        words = _words(BINS + ": each number counts as its bin's middle", axes)
        # All share one coding of the users, into bins: a number's own place in its bin is lost.
        middles = (edges[:, 1:] + edges[:, :-1]) / 2
        return OfTypes(title, words, queries.Linear(middles), read, Objective.WORST)
    words = (
        f"each user rounds at random to one of {bins.count + 1} numbers {bins.width:g} apart: "
        "this adds no bias"
    )
    # Rounding to two numbers w apart has variance p (1 - p) w^2, which is at most w^2/4.
    spread = bins.width**2 / 4
    return OfTypes(title, words, queries.Linear(edges), read, Objective.WORST, spread)


def _histogram(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
    axis = axes[0]
    words = _words("{0.count} stated categories" if axis.bins is None else BINS, axes)
    read = each_answer(axis.cells, (0.0, 1.0))
    W = queries.Linear(workloads.identity(axis.count).dense())
    title = f"shares of {axis.name}"
    return OfTypes(title, words, W, read, unit=SHARE, ordered=axis.bins is not None)


def _quantiles(name: str) -> Make:
    def make(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
        bins = _bins(axes[0])
        given = options.quantiles if name == "quantiles" else [0.5]
        shares = [checks.fraction("--quantiles", share) for share in given]
        words = _words(BINS + ": an interval ends where bins do", axes)
        asked = queries.Quantiles(torch.tensor(bins.edges, dtype=torch.float64), shares)
        read = each_answer([f"quantile {share:g}" for share in shares])
        return OfTypes(f"{name} of {axes[0].name}", words, asked, read)

    return make


def _gini(axis: Axis) -> PairwiseStatistic:
    bins = _bins(axis)
    # The coefficient divides by the mean, which bins from 0 on keep above 0.
    if bins.low < 0:
        raise ValueError(
            f"--statistic gini needs --bounds {axis.name}=LOW:HIGH of at least 0, not {bins.low:g}"
        )
    half = bins.width / 2  # from a bin's end to its middle
    return pairwise.gini(bins.count, low=bins.low + half, high=bins.high - half)


def _covariance(axes: list[Axis], options: argparse.Namespace) -> Question:
    names = ", ".join(axis.name for axis in axes)
    return OfCovariance(
        f"covariances of {names}", "no bins: numbers and products without bias", tuple(axes)
    )


def _asks(
    title: str, words: str, asked: Callable[..., queries.Question], tested: bool = False
) -> Make:
    """A function of the shares of types, or of pairs; {0} in words is the first axis."""

    def make(axes: list[Axis], options: argparse.Namespace) -> OfTypes:
        return OfTypes(_words(title, axes), _words(words, axes), asked(*axes), tested=tested)

    return make


def _of_rows(title: str, asked: Callable[..., RowStatistic]) -> Make:
    """A statistic of pairs of rows as they are."""

    def make(axes: list[Axis], options: argparse.Namespace) -> OfRows:
        return OfRows(_words(title, axes), "no bins: numbers as they are", asked(*axes))

    return make


def _words(words: str, axes: list[Axis]) -> str:
    return words.format(*axes)


def _of_two(
    title: str,
    function: Callable[[int, int], queries.Question],
    words: str = "users of one bin are tied",
) -> Make:
    """Of two numbers, from their counts of bins."""
    return _asks(
        title + " of {0.name} and {1.name}",
        "{0.count} x {1.count} bins: " + words,
        lambda y, z: function(y.count, z.count),
    )


LABELLED = ("number", "label")
TWO = ("number", "number")
SCORED = "{0.count} bins: a pair within one bin counts one half"
APART = "of {0.name} between {1.name} = {1.labels[1]} and {1.labels[0]}"
BINS = "{0.count} bins of width {0.bins.width:g}"

KINDS: dict[str, Kind] = {}
KINDS["auc"] = Kind(
    LABELLED,
    _asks(
        "AUC of {0.name} for {1.name} = {1.labels[1]}",
        SCORED,
        lambda score, label: pairwise.auc(score.count),
    ),
)
KINDS["concordance"] = Kind(
    ("number", "label", "number"),
    _asks(
        "concordance index of {2.name} for {0.name}, seen where {1.name} = {1.labels[1]}",
        "{0.count} x {2.count} bins: scores within one bin count one half, "
        "events within one are left out",
        lambda time, event, score: pairwise.concordance(time.count, score.count),
    ),
    bins=5,
)
# 8 x 8 bins are 64 types, the most for which ``queries.choose`` optimises a strategy where a
# question is not linear.
KINDS["correlation"] = Kind(TWO, _of_two("correlation", queries.Correlation), bins=8)
KINDS["covariance"] = Kind(TWO, _covariance, bins=1, whole=True)
KINDS["energy-distance"] = Kind(
    LABELLED,
    _asks(
        "squared energy distance " + APART,
        BINS,
        lambda number, label: queries.EnergyDistance(number.count, spacing=_bins(number).width),
    ),
)
KINDS["gamma"] = Kind(
    TWO,
    _of_two(
        "Goodman and Kruskal's gamma", pairwise.gamma, "a pair within one bin is left out as a tie"
    ),
    bins=8,
)
KINDS["gini"] = Kind(
    ("number",),
    _asks("Gini coefficient of {0.name}", BINS + ": each number counts as its bin's middle", _gini),
)
KINDS["gini-diversity"] = Kind(
    ("category",),
    _asks(
        "Gini's diversity index of {0.name}",
        "{0.count} stated categories",
        lambda axis: pairwise.unequal(axis.count),
    ),
)
KINDS["gini-mean-difference"] = Kind(
    ("number",),
    _asks(
        "Gini's mean difference of {0.name}",
        BINS + ": each pair's difference has an error of at most that width",
        lambda axis: pairwise.absolute_difference(axis.count, spacing=_bins(axis).width),
    ),
    rows=_of_rows(
        "Gini's mean difference of {0.name}",
        lambda axis: pairwise.RowDifference(_bins(axis).low, _bins(axis).high),
    ),
)
KINDS["histogram"] = Kind(("number",), _histogram)
KINDS["kendall"] = Kind(
    TWO,
    _of_two("Kendall's tau-a", pairwise.kendall, "a pair within one bin counts as a tie (0)"),
    bins=16,
    rows=_of_rows("Kendall's tau-a of {0.name} and {1.name}", lambda *_: pairwise.RowKendall()),
)
KINDS["kendall-b"] = Kind(TWO, _of_two("Kendall's tau-b", queries.KendallB), bins=8)
KINDS["mann-whitney"] = Kind(
    LABELLED,
    _asks(
        "Mann-Whitney U of {0.name}: {1.name} = {1.labels[1]} against {1.labels[0]}",
        SCORED,
        lambda score, label: pairwise.auc(score.count),
        tested=True,
    ),
)
KINDS["mean"] = Kind(("number",), _mean, bins=8, rounded=True)
KINDS["median"] = Kind(("number",), _quantiles("median"), finer=4)
KINDS["mmd"] = Kind(
    LABELLED,
    _asks(
        "squared maximum mean discrepancy " + APART,
        f"{BINS}, a Gaussian kernel whose standard deviation is {BANDWIDTH:g} of their range",
        lambda number, label: queries.MeanDiscrepancy(number.count, width=number.count * BANDWIDTH),
    ),
)
KINDS["quantiles"] = Kind(("number",), _quantiles("quantiles"), finer=4)
KINDS["spearman"] = Kind(TWO, _of_two("Spearman's rho", queries.Spearman), bins=8)


@dataclass(frozen=True)
class Asking:
    """What the options ask, before any user is seen, with the stated labels and bounds.

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
        """The columns' axes; of the users' bounds where none are stated, if that is asked for."""
        axes = []
        for name in self.options.columns:
            if name in self.labels:
                axes.append(Axis(name, None, self.labels[name]))
            else:
                axes.append(Axis(name, self._bins(name, users)))
        return axes

    def _bins(self, name: str, users: "pd.DataFrame | None") -> Bins:
        if name in self.bounds:
            return Bins(*self.bounds[name], self.bins)
        if users is None or not self.options.bounds_from_data:
            raise ValueError(
                f"column {name!r} needs public bounds, --bounds {name}=LOW:HIGH "
                "(a histogram of words: --categories A,B,...); bounds read from the data are not "
                "private (--bounds-from-data does it all the same)"
            )
        return Bins(*range_of(users, name), self.bins)

    @property
    def bins(self) -> int:
        """Of each number. Raises ValueError."""
        stated = [kind.bins for kind in self.kinds if not kind.rounded]
        # Several share one coding, that of the coarsest.
        usual = min(stated, default=FINE[self.options.trust])
        if self.rounded and self.options.trust == "local" and self.options.epsilon > SHARP:
            usual *= 2
        if self.options.trust == "curator" and len(self.kinds) == 1:
            usual *= self.kinds[0].finer
        labels = math.prod(map(len, self.labels.values()))
        numbers = len(self.options.columns) - len(self.labels)
        # labels * most^numbers <= MOST_TYPES, a root that .5 keeps from falling below a whole one
        # Numbers that are rounded to edges have one type more than bins.
        most = int((MOST_TYPES // labels + 0.5) ** (1 / numbers)) - self.rounded
        if self.options.bins is None:
            return min(usual, most)
        count = checks.integer("--bins", self.options.bins, 2)
        if count > most:
            raise ValueError(f"--bins must be at most {most}, not {count}")
        return count

    def question(self, axes: list[Axis]) -> Question:
        """Of these axes; of several statistics all, those of one number for each such column."""
        dates = [f"{name} in days since {first}" for name, first in self.since.items()]
        if len(self.kinds) == 1:
            question = self.kinds[0].make(axes, self.options)
            return replace(question, words="; ".join([question.words, *dates]))
        # As ``coded``, labels first: False sorts before True.
        order = sorted(axes, key=_is_number)
        counts = [torch.arange(axis.count) for axis in order]
        digits = torch.cartesian_prod(*counts).view(-1, len(axes))  # of each type
        place = {axis.name: digits[:, i] for i, axis in enumerate(order)}
        parts: list[OfTypes] = []
        for kind in self.kinds:
            if len(axes) == len(kind.roles):
                parts.append(cast(OfTypes, kind.make(axes, self.options)))
                continue
            for axis in filter(_is_number, axes):
                part = cast(OfTypes, kind.make([axis], self.options))
                parts.append(replace(part, asked=part.lifted(place[axis.name])))
        words = dict.fromkeys(part.words for part in parts)
        return Together(f"{len(parts)} statistics", "; ".join([*words, *dates]), tuple(parts))

    def coded(
        self, users: "pd.DataFrame", axes: list[Axis], noise: Noise | None, notes: list[str]
    ) -> tuple["pd.DataFrame", torch.Tensor]:
        """The users who take part, and the type of each.

        A type's digits are the labels, then the columns in their order. For a kind of whole numbers
        these themselves, (n, d). notes: as of ``read_users``.
        """
        for axis in axes:
            if axis.bins is not None:
                users = bounded(users, axis.name, axis.bins, self.options.out_of_bounds, notes)
        values = users[self.options.columns].to_numpy(float, copy=True)
        columns = torch.as_tensor(values, dtype=torch.float64)  # (n, d)
        if self.kinds[0].whole:
            return users, columns
        types = torch.zeros(len(users), dtype=torch.int64)
        for axis in sorted(axes, key=_is_number):
            column = columns[:, axes.index(axis)]
            if axis.bins is None:
                types = types * axis.count + column.long()
            elif self.rounded:
                # A part of what a user does, and so drawn as noise is.
                uniform = source(noise, column.device).uniform((len(users),))
                types = types * (axis.count + 1) + axis.bins.rounded(column, uniform)
            else:
                types = types * axis.count + axis.bins.place(column)
        return users, types


def asking(options: argparse.Namespace) -> Asking:
    """What the options ask. Raises ValueError naming one that is missing or has no meaning."""
    names = options.statistic
    columns = options.columns
    kinds = tuple(KINDS[name] for name in names)
    roles = _roles(options, kinds)
    asked = f"--statistic {' '.join(names)}"
    if len(columns) != len(roles):
        raise ValueError(f"{asked} takes {len(roles)} --columns, not {len(columns)}")
    if len(set(columns)) < len(columns):
        raise ValueError("--columns names a column twice")
    if len(kinds) > 1 and roles != ["category"]:
        for name, kind in zip(names, kinds, strict=True):
            # A kind of one number is asked of each column of numbers.
            if kind.roles not in (tuple(roles), ("number",)):
                others = " ".join(names).replace(name, "").strip()
                raise ValueError(
                    f"--statistic {name} is of other columns than {others}: ask for it alone"
                )
    needed = {"categories": "category" in roles, "quantiles": "quantiles" in names}
    for option, needs in needed.items():
        given = getattr(options, option) is not None
        if given and not needs:
            raise ValueError(f"{asked} takes no --{option}")
        if needs and not given:
            raise ValueError(f"{asked} needs --{option}")
    if options.other is not None and "category" not in roles:
        raise ValueError(f"{asked} takes no --other: it is of --categories")
    stated = options.bounds or options.bounds_from_data or options.bins is not None
    if stated and "number" not in roles:
        raise ValueError(f"{asked} takes no --bounds and no --bins: its column is a category")
    labels = {}
    for column, role in zip(columns, roles, strict=True):
        if role != "number":
            labels[column] = _labels(role, options)
    rows = kinds[0].rows
    # The sampling error of a population is read off bins.
    binned = options.bins is not None or vars(options).get("population")
    if rows is not None and len(kinds) == 1 and options.trust == "curator" and not binned:
        kinds = (replace(kinds[0], make=rows, whole=True),)
    bounds, since = parse_bounds(options.bounds, [name for name in columns if name not in labels])
    return Asking(options, kinds, labels, bounds, since)


def _roles(options: argparse.Namespace, kinds: tuple[Kind, ...]) -> list[str]:
    """What each column holds. Raises ValueError."""
    names = options.statistic
    if len(set(names)) < len(names):
        raise ValueError("--statistic names a statistic twice")
    if options.categories is not None and set(names) <= {"histogram", "gini-diversity"}:
        return ["category"]
    roles = list(max(kinds, key=lambda kind: len(kind.roles)).roles)
    if not any(kind.whole for kind in kinds):
        return roles
    if len(kinds) > 1:
        raise ValueError("--statistic covariance uses numbers as they are: ask for it alone")
    if options.bins is not None:
        raise ValueError("--statistic covariance takes no --bins: its numbers are used as they are")
    if options.population:
        raise ValueError(
            "--population is not for --statistic covariance, whose sampling error is not known"
        )
    return ["number"] * max(len(roles), len(options.columns))


def _labels(role: str, options: argparse.Namespace) -> tuple[str, ...]:
    if role == "label":
        if options.positive == options.negative:
            raise ValueError(
                f"--positive and --negative must differ, not both be {options.positive!r}"
            )
        # The positive label is the second, number 1.
        return options.negative, options.positive
    categories = tuple(category.strip() for category in options.categories.split(","))
    if len(set(categories)) != len(categories) or len(categories) < 2:
        raise ValueError("--categories must list at least two different values")
    other = options.other
    return categories if other is None or other in categories else (*categories, other)


def _is_number(axis: Axis) -> bool:
    return axis.bins is not None


def _bins(axis: Axis) -> Bins:
    if axis.bins is None:
        raise ValueError(f"{axis.name} must be a column of numbers")
    return axis.bins
