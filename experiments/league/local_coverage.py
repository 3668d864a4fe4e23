"""How often 95 % intervals hold the truth: what ``choose`` returns, of statistics over pairs and of queries.

Paper: intervals of Wilson (1927), Fieller (1954) and Zou, Donner (2008), as ``torchdp.protocol.interval`` joins them.
Command:  python experiments/league/local_coverage.py
Expected: a statistic or workload of 16 types, users, epsilon, data, the chosen protocol (the first whose estimates are
    drawn without messages), and the share of the trials whose interval holds the truth; of a workload the mean and the
    least over its queries. 138 cells in all, .941 to .979; the seven above .965 are too wide: four of Gini's diversity
    of uniform data, a stationary point of the form, and three of the AUC where one user in twenty is positive.
    ``experiments/pairwise/random_kernels.py`` has random kernels, and cells at stationary points.
Output: results/league/local_coverage/coverage.csv (kept: experiments/league/local_coverage.csv), ranges.csv (inside:
    cells from .935 to .965).
Artifact: own | intervals
Status: agrees; too wide in seven cells
Time: five minutes of one core; --smoke in seconds.
"""

from dataclasses import dataclass
from functools import partial

import torch
from contest import Cell
from pairwise_methods import STATISTICS, quietly
from query_methods import WORKLOADS

from torchdp import queries
from torchdp.protocol import Objective
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns
from torchdp.simulate.report import read_table

LEAST, LARGEST = 0.935, 0.965


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


SMOKE = Config(("Gini difference",), ("random queries",), 4, (1_000,), (4.0,), 400)


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


def measure(config, report):
    torch.set_num_threads(1)
    asked = ()
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
