"""How often 95 % intervals hold the truth: what ``choose`` returns, of statistics over pairs and of
queries.

Paper: intervals of Wilson (1927), Fieller (1954) and Zou, Donner (2008), as
``torchdp.protocol.interval`` joins them.
Command:  python experiments/league/local_coverage.py
Expected: a statistic or workload of 16 types, users, epsilon, data, the chosen protocol
(the first whose estimates are
    drawn without messages), and the share of the trials whose interval holds the truth; of a
    workload the mean and the least over its queries. 138 cells in all, .942 to .975; the seven
    above .965 are too wide: four of Gini's diversity of uniform data, a stationary point of the
    form, two of the AUC of 1,000 users at epsilon 1, and a histogram (.966 in the mean of its
    types).
    ``experiments/pairwise/random_kernels.py`` has random kernels, and cells at stationary points.
    Linear answers (linear_coverage.csv): every share of 1 to 200 users of two types, enumerated:
    .938 or more (epsilon 8, 194 users, half of them), .947 up to epsilon 4. Of 2 to 1,024 types and
    30 to 100,000 users the least of six shares and three queries, of 4,000 trials
    (1,000 of 1,024 types): 266 of 268 cells .930 or more, two of 16 types, 30 users and epsilon 8
    .926 and .928 (a ramp; most users send what they hold). Widths over the 3.92 true deviations, in
    geometric mean over shares and queries: .005 (few users, where intervals end at what shares can
    be) to 2.5 (30 users, epsilon 8: half a report is more than a deviation).
Output: results/league/local_coverage/coverage.csv (kept: experiments/league/local_coverage.csv),
ranges.csv (inside:
    cells from .935 to .965), linear.csv (kept: experiments/league/linear_coverage.csv),
    linear_ranges.csv.
Artifact: own | intervals
Status: agrees; too wide in seven cells; two linear cells at .926 and .928
Time: half an hour of one core; --smoke in seconds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from contest import Cell
from pairwise_methods import STATISTICS, quietly
from query_methods import WORKLOADS
from scipy.stats import binom
from torch import Tensor

from torchdp import queries
from torchdp.protocol import Objective, Protocol, Tally
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
)
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BoundedSum
from torchdp.simulate import Experiment, columns
from torchdp.simulate.report import read_table

LEAST = 0.935
LARGEST = 0.965
NORMAL = 2 * 1.959964  # standard deviations: the width of an interval
DELTA = 1e-6  # of shuffled sums
ORACLES = {
    "randomized response": RandomizedResponse,
    "unary encoding": OptimizedUnaryEncoding,
    "subsets": SubsetSelection,
    "Hadamard response": HadamardResponse,
}
TRUSTED = ("curator, Laplace", "shuffled sums")


def normals(m, k, seed):
    """(m, k), the same on every device."""
    generator = keyed_generator(seed, "cpu")
    return torch.as_tensor(
        torch.randn(m, k, dtype=torch.float64, device="cpu", generator=generator)
    )


ASKED = ("histogram", "prefix", "parities", "random queries")


def workload(task, k):
    return normals(6, k, b"queries") if task == "random queries" else WORKLOADS[task](k).dense()


@dataclass(frozen=True)
class Config:
    statistics: tuple[str, ...] = tuple(STATISTICS)
    workloads: tuple[str, ...] = ASKED
    types: int = 16
    users: tuple[int, ...] = (1_000, 30_000, 1_000_000)
    epsilons: tuple[float, ...] = (1.0, 4.0)
    trials: int = 4_000
    linear_types: tuple[int, ...] = (2, 16, 64, 1_024)
    linear_users: tuple[int, ...] = (30, 300, 10_000, 100_000)
    linear_epsilons: tuple[float, ...] = (0.5, 2.0, 4.0, 8.0)
    shares: tuple[float, ...] = (0.0, 0.01, 0.05, 0.3, 0.7, 1.0)
    linear_trials: int = 4_000
    enumerated: int = 200  # users of two types, all tallies of which are listed


SMOKE = Config(
    ("Gini difference",),
    ("random queries",),
    4,
    (1_000,),
    (4.0,),
    400,
    (2, 16),
    (30,),
    (4.0,),
    (0.3,),
    400,
    5,
)


def shapes(task) -> tuple[str, ...]:
    if task == "AUC":
        return "30 % positive", "5 % positive"
    if task == "Kendall":
        return "independent", "related", "one frequent"
    return "uniform", "skewed", "one frequent"


def cells(config):
    for task in (*config.statistics, *config.workloads):
        for n in config.users:
            for epsilon in config.epsilons:
                for data in shapes(task):
                    yield Cell(task, config.types, n, epsilon, data)


def chosen(task, k, n, epsilon):
    """The first candidate."""
    question = workload(task, k) if task in ASKED else STATISTICS[task](k)
    choice = queries.choose(question, n, epsilon, objective=Objective.MEAN)
    first = choice.candidates[0]
    return first.name, first.protocol


def covered(found, truth):
    """Share of the trials, for each query that is not known beforehand."""
    low, high = found.interval()
    holds = ((low <= truth) & (truth <= high)).double()
    unknown = (found.standard_error > 1e-9).any(0)
    return holds.mean(0)[unknown] if truth.ndim else holds.mean()[None]


def crowd(k, n, share):
    """Counts of n users, a share of the first type, the others spread evenly."""
    first = round(n * share)
    others = n - first
    counts = torch.full((k,), others // (k - 1), dtype=torch.int64)
    counts[0] = first
    counts[1 : 1 + others % (k - 1)] += 1
    return counts


def asked_linear(k):
    """The first type, half of the types, and a ramp."""
    types = torch.arange(k)
    rows = [(types == 0).double(), (types < k // 2).double(), types.double() / (k - 1)]
    return torch.stack(rows)


def linear_protocols(k, n, epsilon) -> Iterator[tuple[str, Protocol[Tensor]]]:
    W = asked_linear(k)
    for name, kind in ORACLES.items():
        # A draw of subsets takes k log k binomials.
        if name != "subsets" or k * n <= 2_000:
            yield name, queries.LocalOracle(W, kind(k, epsilon))
    if k > 64:
        return
    yield TRUSTED[0], queries.CentralLaplace(queries.FactoredQueries.spanned(W), epsilon)
    if n >= 1_000 and epsilon <= 2:
        yield TRUSTED[1], queries.ShuffledQueries.calibrated(W, BoundedSum, n, epsilon, DELTA)


def within(ends: tuple[Tensor, Tensor], truth):
    rounding = 1e-9 * (1 + truth.abs())
    low, high = ends
    return ((low <= truth + rounding) & (truth - rounding <= high)).double().mean(0)


def sampled_linear(config, report):
    """The least coverage over shares and queries, and mean widths over ``NORMAL`` true
    deviations.
    """
    for k in config.linear_types:
        for n in config.linear_users:
            for epsilon in config.linear_epsilons:
                for name, protocol in linear_protocols(k, n, epsilon):
                    one_cell(config, report, (k, n, epsilon, name), protocol)


def one_cell(config, report, key: tuple[int, int, float, str], protocol):
    k, n, epsilon, name = key
    trials = config.linear_trials // (4 if k > 64 else 1)
    least = 1.0
    worst = 0.0
    widths = []
    for share in config.shares:
        counts = crowd(k, n, share)
        generator = keyed_generator(f"{name} {k} {n} {epsilon} {share}".encode(), counts.device)
        found = protocol.sample_estimate(counts, generator=generator, sample_shape=(trials,))
        ends = found.interval()
        coverage = float(within(ends, protocol.exact(counts)).amin())
        if coverage < least:
            least = coverage
            worst = share
        deviation = protocol.predicted_mse(counts).sqrt()
        widths.append((ends[1] - ends[0]).mean(0) / (NORMAL * deviation))
    every = torch.cat(widths).log()
    report.row(
        "linear",
        reports=name,
        k=k,
        n=n,
        epsilon=epsilon,
        coverage=least,
        share=worst,
        width=every.mean().exp(),
        widest=every.max().exp(),
    )


def enumerated(config, report):
    """Two types: the least coverage over all shares of 1 to so many users, exactly; widths are
    means over these.
    """
    for epsilon in config.linear_epsilons:
        found = [exactly(epsilon, n) for n in range(1, config.enumerated + 1)]
        worst = min(found, key=lambda row: row["coverage"])
        widths = [row["width"] for row in found]
        width = sum(widths) / len(widths)
        key = {"reports": "enumerated", "k": 2, "n": worst["n"], "epsilon": epsilon}
        report.row(
            "linear",
            **key,
            coverage=worst["coverage"],
            share=worst["share"],
            width=width,
            widest=max(widths),
        )


def exactly(epsilon, n) -> dict[str, float]:
    """The least coverage over the shares of n users, where, and the mean width over ``NORMAL``
    deviations.
    """
    protocol = RandomizedResponse(2, epsilon)
    kept = 1 / (1 + math.exp(-epsilon))
    ones = torch.arange(n + 1)
    reports = torch.stack([ones, n - ones], -1)
    found = protocol.analyse(Tally(torch.full((n + 1,), n), {"reports": reports}))
    low, high = (end[:, 0].cpu().numpy() for end in found.interval())
    deviation = float(protocol.predicted_mse(torch.tensor([n, 0]))[0].sqrt())
    coverages = []
    widths = []
    for own in range(n + 1):
        first = binom.pmf(np.arange(own + 1), own, kept)
        others = binom.pmf(np.arange(n - own + 1), n - own, 1 - kept)
        chances = np.convolve(first, others)
        holds = (low <= own / n + 1e-9) & (own / n - 1e-9 <= high)
        coverages.append(float(chances[holds].sum()))
        widths.append(float(chances @ (high - low)) / (NORMAL * deviation))
    least = min(coverages)
    share = coverages.index(least) / n
    return {"n": n, "coverage": least, "share": share, "width": sum(widths) / len(widths)}


def linear_ranges(report):
    rows = read_table(report.folder / "linear.csv")
    report.say()
    for name in dict.fromkeys(row["reports"] for row in rows):
        own = [row for row in rows if row["reports"] == name]
        worst = min(own, key=lambda row: row["coverage"])
        widths = sorted(row["width"] for row in own)
        below = sum(row["coverage"] < 0.93 for row in own)
        where = {name: worst[name] for name in ("k", "n", "epsilon", "share")}
        report.row(
            "linear_ranges",
            reports=name,
            cells=len(own),
            least=worst["coverage"],
            **where,
            below=below,
            width=widths[len(widths) // 2],
        )


def measure(config, report):
    torch.set_num_threads(1)
    enumerated(config, report)
    sampled_linear(config, report)
    linear_ranges(report)
    asked: tuple[object, ...] = ()
    for cell in cells(config):
        question = (cell.task, cell.k, cell.n, cell.epsilon)
        if question != asked:
            asked = question
            name, protocol = quietly(chosen)(*asked)
        generator = keyed_generator(cell.seed)
        trials = {"generator": generator, "sample_shape": (config.trials,)}
        found = quietly(partial(protocol.sample_estimate, **trials))(cell.counts)
        shares = covered(found, protocol.exact(cell.counts))
        report.row("coverage", **cell.key, chosen=name, coverage=shares.mean(), least=shares.min())
    rows = read_table(report.folder / "coverage.csv")
    for task in dict.fromkeys(row["task"] for row in rows):
        (shares,) = columns(rows, "coverage", task=task)
        inside = sum(LEAST <= share <= LARGEST for share in shares)
        report.row(
            "ranges",
            task=task,
            cells=len(shares),
            least=min(shares),
            largest=max(shares),
            inside=inside,
        )


EXPERIMENT = Experiment(measure, Config(), SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
