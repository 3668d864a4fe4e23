"""RMSE of abs(i - j) and of AUC on 1024 values: one message, two messages, and the baselines.

Papers: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11 (two messages at epsilon/2); Bell, Bellet, Gascon,
    Kulkarni (2020), Algorithm 1 (randomized response) and the hierarchical AUC.
Command:  python experiments/pairwise/tables.py
Expected: predicted RMSE; where drawn, the ratio of measured to predicted MSE, 1 +- 0.05 up to three standard
    errors (2 % each, 5 % for AUC of messages; randomized response has heavy tails and gets eight times the trials).
    For AUC at n = 10^5, epsilon = 1, two messages have at least twice the RMSE of one. Randomized response on
    abs(i - j) at epsilon = 1 is far behind; at epsilon = 8 it is ahead on a flat histogram.
AUC is that of known class sizes, balanced classes; the hierarchical baseline has public *labels* besides.
Output: results/pairwise/tables/tables.csv.
Artifact: Ghazi et al. (2023); Bell et al. (2020) | Lemma 11; Algorithm 1, hierarchical AUC
Status: agrees
Time: about fifteen minutes on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from hierarchical import HierarchicalAUC
from torch import Tensor

from torchdp import pairwise, randomizers
from torchdp.pairwise import PairReports, PairwiseProtocol, PairwiseStatistic
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

BLOCK = 500


def counts_of(h: Tensor, n: int) -> Tensor:
    counts = (h / h.sum() * n).floor().long()
    counts[0] += n - counts.sum()
    return counts


def protocols(statistic: PairwiseStatistic, epsilon: float) -> dict[str, PairwiseProtocol]:
    return {
        "randomized response": PairReports(statistic, epsilon, randomizers.RandomizedResponse),
        "subset selection": PairReports(statistic, epsilon),
        "two messages": pairwise.TwoMessage(statistic, epsilon),
        "one message": pairwise.OneMessage(statistic, epsilon),
    }


def ratio(errors: Tensor, predicted: float) -> tuple[float, float]:
    squared = errors.square() / predicted
    return float(squared.mean()), float(squared.std()) / math.sqrt(len(squared))


def errors(protocol: PairwiseProtocol, counts: Tensor, trials: int, generator: torch.Generator) -> Tensor:
    parts = [
        protocol.sample_estimate(counts, generator=generator, sample_shape=(min(BLOCK, trials),)).value
        for _ in range(max(1, trials // BLOCK))
    ]
    return torch.cat(parts) - protocol.statistic.exact(counts)


def hierarchical(k: int, counts: Tensor, epsilon: float, trials: int, generator: torch.Generator) -> Tensor:
    """Estimated AUC less the true one."""
    negatives, positives = counts[:k], counts[k:]
    below = negatives.double().cumsum(0) - negatives / 2
    truth = float(below @ positives.double() / negatives.sum() / positives.sum())
    protocol, parts = HierarchicalAUC((k - 1).bit_length(), epsilon), []
    for _ in range(max(1, trials // BLOCK)):
        shape = (min(BLOCK, trials),)
        classes = [
            protocol.sample_tally(c, generator=generator, sample_shape=shape) for c in (negatives, positives)
        ]
        parts.append(protocol.analyse(*classes) - truth)
    return torch.cat(parts)


@dataclass(frozen=True)
class Config:
    k: int = 1024
    trials: int = 5_000
    auc_trials: int = 1_000
    users: tuple[int, ...] = (10**4, 10**6)
    epsilons: tuple[float, ...] = (0.5, 1.0, 4.0, 8.0)
    auc_users: tuple[int, ...] = (10**4, 10**5, 10**6)
    auc_epsilons: tuple[float, ...] = (1.0, 4.0, 8.0)
    auc_drawn: int = 10**5  # users at which the AUC of messages is measured


FULL = Config()
SMOKE = Config(16, 500, 500, (10**4,), (1.0,), (10**4,), (1.0,), 10**4)


def differences(config: Config, report: Report, generator: torch.Generator) -> None:
    k, x = config.k, torch.arange(config.k, dtype=torch.float64)
    gini = pairwise.absolute_difference(k, spacing=1 / (k - 1))
    for name, h in {"uniform": torch.ones(k, dtype=torch.float64), "Zipf": 1 / (x + 1)}.items():
        for n in config.users:
            for epsilon in config.epsilons:
                counts = counts_of(h, n)
                for each, protocol in protocols(gini, epsilon).items():
                    mse, drawn = float(protocol.predicted_mse(counts)), (None, None)
                    if each != "subset selection" and epsilon == 1:
                        heavy = 8 if each == "randomized response" else 1
                        drawn = ratio(errors(protocol, counts, heavy * config.trials, generator), mse)
                    line(report, "abs(i-j)", name, n, epsilon, each, mse, drawn)


def classes(config: Config, report: Report, generator: torch.Generator) -> None:
    k, x = config.k, torch.arange(config.k, dtype=torch.float64)
    normal = [torch.exp(-((x / k - middle) / 0.15).square() / 2) for middle in (0.45, 0.55)]
    for n in config.auc_users:
        counts = torch.cat([counts_of(each / each.sum(), n // 2) for each in normal])
        statistic = pairwise.auc_of_sizes(k, n // 2, n // 2)
        h = f"AUC {float(statistic.exact(counts)):.3f}"
        for epsilon in config.auc_epsilons:
            candidates = protocols(statistic, epsilon)
            for each in ("two messages", "one message"):
                mse, drawn = float(candidates[each].predicted_mse(counts)), (None, None)
                if n == config.auc_drawn and epsilon == 1:
                    drawn = ratio(errors(candidates[each], counts, config.auc_trials, generator), mse)
                line(report, "AUC", h, n, epsilon, each, mse, drawn)
            mse = HierarchicalAUC((k - 1).bit_length(), epsilon).predicted_mse(counts[:k], counts[k:])
            drawn = ratio(hierarchical(k, counts, epsilon, config.trials, generator), mse)
            line(report, "AUC", h, n, epsilon, "hierarchical", mse, drawn)


def line(report: Report, title: str, h: str, n: int, epsilon: float, name: str, mse: float, drawn: tuple) -> None:
    cells = {"protocol": name, "rmse": math.sqrt(mse), "ratio": drawn[0], "standard_error": drawn[1]}
    report.row("tables", statistic=title, histogram=h, n=n, epsilon=epsilon, **cells)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    generator = keyed_generator(b"pairwise tables")
    differences(config, report, generator)
    classes(config, report, generator)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
