"""RMSE of abs(i - j) and of AUC on 1024 values: one message, two messages, and the baselines.

Papers: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11 (two messages at epsilon/2);
Bell, Bellet, Gascon,
    Kulkarni (2020), Algorithm 1 (randomized response) and the hierarchical AUC.
Command:  python experiments/pairwise/tables.py
Expected: predicted RMSE (measured, of the hierarchical baseline); where drawn, the ratio of
measured to predicted MSE,
    1 +- 0.05 up to three standard errors (2 % each, 5 % for AUC of messages; randomized response
    has heavy tails and gets eight times the trials).
    For AUC at n = 10^5, epsilon = 1, two messages have at least twice the RMSE of one. Randomized
    response on abs(i - j) at epsilon = 1 is far behind; at epsilon = 8 it is ahead on a flat
    histogram.
AUC is that of known class sizes, balanced classes; the hierarchical baseline has public *labels*
besides.
Output: results/pairwise/tables/tables.csv.
Artifact: Ghazi et al. (2023); Bell et al. (2020) | Lemma 11; Algorithm 1, hierarchical AUC
Status: agrees
Time: about fifteen minutes on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch

from torchdp import pairwise, randomizers
from torchdp.draws import Simulated
from torchdp.pairwise import PairwiseStatistic
from torchdp.protocol import Tally
from torchdp.queries import LocalFactorization, LocalOracle, MessageRelease, Twice
from torchdp.randomizers import OptimizedUnaryEncoding
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment

BLOCK = 500


def counts_of(h, n):
    counts = (h / h.sum() * n).floor().long()
    counts[0] += n - counts.sum()
    return counts


def protocols(statistic: PairwiseStatistic, epsilon) -> dict[str, MessageRelease]:
    k = statistic.types
    return {
        "randomized response": LocalOracle.of(
            statistic, randomizers.RandomizedResponse(k, epsilon)
        ),
        "subset selection": LocalOracle.of(statistic, randomizers.SubsetSelection(k, epsilon)),
        "two messages": Twice.of(statistic, epsilon),
        "one message": LocalFactorization.of(statistic, epsilon),
    }


def ratio(errors, predicted) -> tuple[float, float]:
    squared = errors.square() / predicted
    return float(squared.mean()), float(squared.std()) / math.sqrt(len(squared))


def errors(protocol: MessageRelease, counts, trials, generator):
    parts = [
        protocol.sample_estimate(
            counts, generator=generator, sample_shape=(min(BLOCK, trials),)
        ).value
        for _ in range(max(1, trials // BLOCK))
    ]
    return torch.cat(parts) - protocol.exact(counts)


def shares_by_level(counts, epsilon, shape, generator):
    """Estimated shares of the nodes of each level of a binary tree, of one class:
    (*shape, 2^level).

    Each user takes a level l = 1, ..., levels at random and sends the node of its score there,
    among 2^l, by optimised unary encoding. counts: users with each of the 2^levels scores.
    """
    draws = Simulated(generator)
    levels = (len(counts) - 1).bit_length()
    left = counts.expand(*shape, -1)
    for level in range(1, levels + 1):
        oracle = OptimizedUnaryEncoding(2**level, epsilon)
        here = draws.binomial(left, 1 / (levels - level + 1))
        left = left - here
        held = here.unflatten(-1, (2**level, -1)).sum(-1)
        users = held.sum(-1, keepdim=True)
        reports = draws.binomial(held, oracle.on) + draws.binomial(users - held, oracle.off)
        yield oracle.totals(Tally(users[..., 0], {"reports": reports})) / users.double()


def hierarchical(k, counts, epsilon, trials, generator):
    """AUC of scores 0, ..., k - 1, of users whose *labels are public*: estimates less the true one.

    The analyst adds, for every node, h-(left child) h+(right child) of the estimated shares, and at
    the leaves h- h+ /2, since ties count one half; that is unbiased. k: a power of two.

    Source: Bell, Bellet, Gascon, Kulkarni (2020), the AUC protocol, without pruning.
    """
    negatives, positives = counts[:k], counts[k:]
    below = negatives.double().cumsum(0) - negatives / 2
    truth = float(below @ positives.double() / negatives.sum() / positives.sum())
    found = []
    for _ in range(max(1, trials // BLOCK)):
        shape = (min(BLOCK, trials),)
        classes = [
            list(shares_by_level(c, epsilon, shape, generator)) for c in (negatives, positives)
        ]
        total = torch.zeros(shape, dtype=torch.float64)
        for minus, plus in zip(*classes, strict=True):
            total = total + (minus[..., 0::2] * plus[..., 1::2]).sum(-1)
        found.append(total + (minus * plus).sum(-1) / 2 - truth)
    return torch.cat(found)


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


def differences(config, report, generator):
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
                        drawn = ratio(
                            errors(protocol, counts, heavy * config.trials, generator), mse
                        )
                    line(report, "abs(i-j)", name, n, epsilon, each, mse, drawn)


def classes(config, report, generator):
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
                    drawn = ratio(
                        errors(candidates[each], counts, config.auc_trials, generator), mse
                    )
                line(report, "AUC", h, n, epsilon, each, mse, drawn)
            off = hierarchical(k, counts, epsilon, config.trials, generator)
            line(report, "AUC", h, n, epsilon, "hierarchical", off.square().mean(), (None, None))


def line(report, title, h, n, epsilon, name, mse, drawn):
    cells = {
        "protocol": name,
        "rmse": math.sqrt(mse),
        "ratio": drawn[0],
        "standard_error": drawn[1],
    }
    report.row("tables", statistic=title, histogram=h, n=n, epsilon=epsilon, **cells)


def measure(config, report):
    torch.set_num_threads(1)
    generator = keyed_generator(b"pairwise tables")
    differences(config, report, generator)
    classes(config, report, generator)


EXPERIMENT = Experiment(
    measure, Config(), Config(16, 500, 500, (10**4,), (1.0,), (10**4,), (1.0,), 10**4)
)

if __name__ == "__main__":
    EXPERIMENT.main()
