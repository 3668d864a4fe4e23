"""How often 95 % intervals hold the truth: every aggregate protocol and kernel, histograms, users and epsilons.

Paper: the estimators of Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Bell et al. (2020); neither gives intervals.
Command:  python experiments/pairwise/coverage.py
Expected: one and two messages and randomized response 0.940 to 0.985 from 100 users on. Two rounds, whose error has one
    normal part, 0.890 to 0.996 with 100 and 1,000 users, 0.936 to 0.961 from 10,000. Marked cells, of estimates close
    to normal (n MSE within 10 % of its limit for large n, RMSE at most 5 % of the kernel's range): 0.926 to 0.965, 324
    of 330 in [0.94, 0.96].
Data: k = 16 types (5 and 8 for the kernels beyond the four that the package names): Zipf, flat, and two frequent types
    with rare ones; the error is the privacy noise alone.
Output: results/pairwise/coverage/coverage.csv, ranges.csv, marked.csv (inside: in [0.94, 0.96]).
Artifact: Ghazi et al. (2023); Bell et al. (2020) | intervals, not in the papers
Status: agrees; too wide for few users
Time: about 5 minutes on one thread; --smoke in seconds (fewer users and repetitions).
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.pairwise import Pairs, PairwiseProtocol, PairwiseStatistic, TwoRound
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report, columns
from torchdp.simulate.report import read_table

K = 16
SMALL = 5  # types of the square root


@dataclass(frozen=True)
class Config:
    users: tuple[int, ...] = (100, 1_000, 10_000, 1_000_000)
    epsilons: tuple[float, ...] = (1.0, 4.0)
    trials: int = 4_000
    excess: float = 1.1  # n MSE over its limit,
    error: float = 0.05  # and RMSE over the kernel's range: at or below both a cell is marked


FULL = Config()
SMOKE = Config(users=(1_000,), epsilons=(4.0,), trials=200)


def protocols(statistic: PairwiseStatistic, epsilon: float, n: int) -> list[PairwiseProtocol]:
    """One message, two, randomized response and, for means, two rounds."""
    one_round: list[PairwiseProtocol] = [
        pairwise.OneMessage(statistic, epsilon),
        pairwise.TwoMessage(statistic, epsilon),
    ]
    if statistic.pairs is Pairs.DISTINCT:  # the diagonal of the kernel of all pairs varies
        one_round.append(pairwise.RandomizedResponsePlugIn(statistic, epsilon))
    return one_round if statistic.denominator is not None else [*one_round, TwoRound.tuned(statistic, n, epsilon)]


def statistics() -> list[PairwiseStatistic]:
    """Four kernels on 16 types, and three that no interval was fitted to."""
    x, few = torch.arange(8, dtype=torch.float64), torch.arange(SMALL, dtype=torch.float64)
    grid = torch.meshgrid(x, x, indexing="ij")
    return [
        pairwise.absolute_difference(K),
        pairwise.unequal(K),
        pairwise.kendall(4, 4),
        pairwise.auc(K // 2),
        pairwise.from_kernel((few[:, None] - few).abs().sqrt(), name="square root"),
        pairwise.from_kernel(torch.exp(-(grid[0] - grid[1]).square() / 4), name="Gaussian"),
        pairwise.from_kernel(torch.maximum(*grid), pairs=Pairs.ALL, name="maximum"),
    ]


def histograms(k: int) -> dict[str, Tensor]:
    """Shares of the k types; for the AUC the first half are the scores of label 0."""
    few = torch.full((k,), 0.02, dtype=torch.float64)
    few[[1, k - 3]] = 1.0
    return {
        "zipf": 1 / torch.arange(1, k + 1, dtype=torch.float64),
        "flat": torch.ones(k, dtype=torch.float64),
        "two frequent": few,
    }


def coverage(protocol: PairwiseProtocol, counts: Tensor, trials: int) -> float:
    """Share of the repetitions whose interval holds the exact value."""
    generator = keyed_generator(f"coverage {protocol.statistic.name} {int(counts.sum())}".encode())
    drawn = protocol.sample_estimate(counts, generator=generator, sample_shape=(trials,))
    low, high = drawn.interval()
    truth = protocol.statistic.exact(counts)
    return float(((low <= truth) & (truth <= high)).double().mean())


def close_to_normal(protocol: PairwiseProtocol, weights: Tensor, n: int, config: Config) -> bool:
    """Whether the estimate's error is small, and nearly linear in the noise."""
    far, shares = 10**12, weights / weights.sum()
    mse = float(protocol.predicted_mse(shares * n))
    kernel = protocol.statistic.kernel(protocol.statistic.form)
    span = float(kernel.max() - kernel.min()) if protocol.statistic.denominator is None else 1.0
    excess = n * mse / (far * float(protocol.predicted_mse(shares * far)))
    return excess <= config.excess and mse**0.5 <= config.error * span


def cell(protocol: PairwiseProtocol, weights: Tensor, n: int, config: Config) -> tuple[float, bool]:
    """Coverage, and whether it is marked."""
    counts = (weights / weights.sum() * n).round().long()
    return coverage(protocol, counts, config.trials), close_to_normal(protocol, weights, n, config)


def measure(config: Config, report: Report) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the denominator")  # rare classes are among the cells
        for statistic in statistics():
            asked = {n: {e: protocols(statistic, e, n) for e in config.epsilons} for n in config.users}
            for name, weights in histograms(statistic.types).items():
                for index, kind in enumerate(type(each) for each in asked[config.users[0]][config.epsilons[0]]):
                    for epsilon in config.epsilons:
                        for n in config.users:
                            share, marked = cell(asked[n][epsilon][index], weights, n, config)
                            cells = {"statistic": statistic.name, "histogram": name, "protocol": kind.__name__}
                            report.row("coverage", **cells, epsilon=epsilon, n=n, coverage=share, marked=marked)
    rows = read_table(report.folder / "coverage.csv")
    report.say()
    for name in dict.fromkeys(row["protocol"] for row in rows):
        for n in config.users:
            (shares,) = columns(rows, "coverage", protocol=name, n=n)
            report.row("ranges", protocol=name, n=n, least=min(shares), largest=max(shares))
    (shares,) = columns(rows, "coverage", marked=True)
    inside = sum(0.94 <= share <= 0.96 for share in shares)
    report.say()
    report.row(
        "marked", cells=len(rows), marked=len(shares), least=min(shares), largest=max(shares), inside=inside
    )


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
