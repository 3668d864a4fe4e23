"""``torchdp estimate``: one pairwise statistic of a table."""

import argparse
import json
import math
import sys
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from torchdp import checks, pairwise
from torchdp.cli.quick_table import quick_columns
from torchdp.cli.table import MOST_TYPES, Bins, numbers, parse_bounds, read_columns, to_bins, to_categories
from torchdp.noise import SeededNoise
from torchdp.pairwise import PairwiseStatistic
from torchdp.pairwise.protocol import LocalPairs
from torchdp.protocol import MessageProtocol

Asked = MessageProtocol[Tensor, Tensor]
PROTOCOLS: dict[str, type[LocalPairs]] = {
    "one-message": pairwise.OneMessage,
    "randomized-response": pairwise.RandomizedResponsePlugIn,
    "two-message": pairwise.TwoMessage,
}


@dataclass(frozen=True)
class Question:
    """What is asked of the table: the statistic, each user's type, and words about the discretisation."""

    title: str
    statistic: PairwiseStatistic
    types: Tensor
    discretisation: str


@dataclass(frozen=True)
class _Table:
    options: argparse.Namespace
    columns: list[str]
    labels: dict[str, list[str]]

    @cached_property
    def quick(self) -> dict[str, Tensor]:
        """The columns as tensors; empty where something in the table is unusual."""
        numeric = [name for name in self.columns if name not in self.labels]
        if len({*numeric, *self.labels}) < len(self.columns):
            return {}
        return quick_columns(self.options.csv, numeric, self.labels) or {}

    def numbers(self, name: str) -> Tensor:
        return self.quick[name] if self.quick else numbers(name, self.cells[name])

    def categories(self, name: str) -> Tensor:
        return self.quick[name] if self.quick else to_categories(name, self.cells[name], self.labels[name])

    @cached_property
    def cells(self) -> dict[str, list[str]]:
        return read_columns(self.options.csv, self.columns)

    @cached_property
    def bounds(self) -> dict[str, tuple[float, float]]:
        numeric = self.columns[:1] if self.options.statistic == "auc" else self.columns
        return parse_bounds(self.options.bounds, numeric)

    def binned(self, name: str) -> tuple[Tensor, Bins]:
        usual = 16 if self.options.statistic == "kendall" else 32  # kendall's types are pairs of bins
        count = usual if self.options.bins is None else checks.integer("--bins", self.options.bins, 2)
        most = {"kendall": math.isqrt(MOST_TYPES), "auc": MOST_TYPES // 2}.get(self.options.statistic, MOST_TYPES)
        if count > most:
            raise ValueError(f"--bins must be at most {most}, not {count}")
        if name not in self.bounds and not self.options.bounds_from_data:
            raise ValueError(
                f"column {name!r} needs public bounds, --bounds {name}=LOW:HIGH; bounds read from the data "
                "are not private (--bounds-from-data does it all the same)"
            )
        values = self.numbers(name)
        low, high = self.bounds.get(name) or (float(values.min()), float(values.max()))
        if not low < high:
            raise ValueError(f"column {name!r} is constant: it gives no bounds")
        bins = Bins(low, high, count)
        return to_bins(name, values, bins), bins


def estimate(options: argparse.Namespace) -> int:
    """Reads, randomizes every row, prints.

    The answer depends on the rows through the messages and their number alone (unless --bounds-from-data is
    given); an error about a cell names its row, never its value.
    """
    epsilon = checks.positive("--epsilon", options.epsilon)
    checks.fraction("--level", options.level)
    question = ask(options)
    name, protocol = choose(options.protocol, question.statistic, epsilon, len(question.types))
    noise = None if options.seed is None else SeededNoise(checks.integer("--seed", options.seed, 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = protocol.estimate(question.types, noise=noise)
    for each in caught:
        print(f"torchdp estimate: {each.message}", file=sys.stderr)
    if not (math.isfinite(answer.value) and math.isfinite(answer.standard_error)):
        raise ValueError("the messages give no finite estimate: one class looks empty, or --epsilon is too small")
    low, high = answer.interval(options.level)
    if options.bounds_from_data:
        print("torchdp estimate: the bounds were read from the data: this run is NOT PRIVATE", file=sys.stderr)
    if options.seed is not None:
        print("torchdp estimate: noise from a stated seed can be removed: for trying out only", file=sys.stderr)
    result = {
        "statistic": question.title,
        "users": answer.n,
        "estimate": float(answer.value),
        "predicted_rmse": float(answer.standard_error),
        "level": options.level,
        "interval": [float(low), float(high)],
        "protocol": name,
        "bits_per_user": protocol.bits_per_user,
        "epsilon": protocol.guarantee.epsilon,
        "guarantee": f"{protocol.guarantee} (neighbours: {protocol.guarantee.neighbours.value})",
        "source": protocol.guarantee.source,
        "discretisation": question.discretisation,
    }
    print(json.dumps(result) if options.json else _table(result))
    return 0


def ask(options: argparse.Namespace) -> Question:
    """The statistic and the users' types. Raises ValueError, OSError."""
    wanted = 2 if options.statistic in ("auc", "kendall") else 1
    if len(options.columns) != wanted:
        raise ValueError(f"--statistic {options.statistic} takes {wanted} --columns, not {len(options.columns)}")
    if (options.categories is not None) != (options.statistic == "gini-diversity"):
        need = "needs" if options.categories is None else "takes no"
        raise ValueError(f"--statistic {options.statistic} {need} --categories")
    if options.statistic == "gini-diversity" and (options.bounds or options.bounds_from_data or options.bins):
        raise ValueError("--statistic gini-diversity takes no --bounds and no --bins: its column is a category")
    if options.statistic == "auc" and options.positive == options.negative:
        raise ValueError(f"--positive and --negative must differ, not both be {options.positive!r}")
    first, labels = options.columns[0], {}
    if options.statistic == "auc":
        labels[options.columns[1]] = [options.negative, options.positive]
    if options.statistic == "gini-diversity":
        categories = [category.strip() for category in options.categories.split(",")]
        if len(set(categories)) != len(categories) or len(categories) < 2:
            raise ValueError("--categories must list at least two different values")
        types = _Table(options, options.columns, {first: categories}).categories(first)
        title = f"Gini's diversity index of {first}"
        return Question(title, pairwise.unequal(len(categories)), types, f"{len(categories)} stated categories")
    table = _Table(options, options.columns, labels)
    if options.statistic == "gini-mean-difference":
        types, bins = table.binned(first)
        title = f"Gini's mean difference of {first}"
        words = f"{bins.count} bins of width {bins.width:g}: each pair's difference is off by at most that width"
        return Question(title, pairwise.absolute_difference(bins.count, spacing=bins.width), types, words)
    second = options.columns[1]
    if options.statistic == "kendall":
        (y, rows), (z, columns) = table.binned(first), table.binned(second)
        title = f"Kendall's tau-a of {first} and {second}"
        words = f"{rows.count} x {columns.count} bins: a pair within one bin counts as a tie (0)"
        return Question(title, pairwise.kendall(rows.count, columns.count), y * columns.count + z, words)
    scores, bins = table.binned(first)
    classes = table.categories(second)
    title = f"AUC of {first} for {second} = {options.positive}"
    words = f"{bins.count} bins: a pair within one bin counts one half"
    return Question(title, pairwise.auc(bins.count), classes * bins.count + scores, words)


def choose(name: str, statistic: PairwiseStatistic, epsilon: float, n: int) -> tuple[str, Asked]:
    """The protocol of that name; for 'auto' and 'best' that of ``pairwise.choose`` at a flat histogram; its name."""
    if name in PROTOCOLS:
        return name, PROTOCOLS[name](statistic, epsilon)
    flat = torch.ones(statistic.types, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a rare class: the estimate warns of its own
        first = pairwise.choose(statistic, n, epsilon, prior=flat, search=name == "best").candidates[0]
    return first.name, cast(Asked, first.protocol)


def _table(result: dict) -> str:
    low, high = result["interval"]
    lines = {
        result["statistic"]: f"{result['users']} users, {result['discretisation']}",
        "estimate": f"{result['estimate']:.6g}",
        "predicted RMSE": f"{result['predicted_rmse']:.3g} (privacy noise, computed from the messages)",
        f"{100 * result['level']:g} % interval": f"[{low:.6g}, {high:.6g}]",
        "protocol": f"{result['protocol']}, {result['bits_per_user']} bits for each user",
        "guarantee": result["guarantee"],
        "source": result["source"],
    }
    width = max(len(name) for name in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())
