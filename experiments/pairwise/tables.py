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
from itertools import product

import torch

from torchdp import pairwise
from torchdp.draws import Simulated
from torchdp.pairwise import PairwiseStatistic
from torchdp.protocol import Tally
from torchdp.queries import LocalFactorization, LocalOracle, MessageRelease, Twice
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SubsetSelection
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment

BLOCK = 500  # trials at once
NOT_DRAWN = (None, None)


def counts_of(h, n):
    shares = h / h.sum()
    counts = (shares * n).floor().long()
    counts[0] += n - counts.sum()
    return counts


def protocols(statistic: PairwiseStatistic, epsilon) -> dict[str, MessageRelease]:
    response = RandomizedResponse(statistic.types, epsilon)
    subsets = SubsetSelection(statistic.types, epsilon)
    return {
        "randomized response": LocalOracle.of(statistic, response),
        "subset selection": LocalOracle.of(statistic, subsets),
        "two messages": Twice.of(statistic, epsilon),
        "one message": LocalFactorization.of(statistic, epsilon),
    }


def ratio(protocol: MessageRelease, counts, mse, trials, generator):
    """Measured over predicted mean squared error, and its standard error."""
    shape = (min(BLOCK, trials),)
    parts = []
    for _ in range(max(1, trials // BLOCK)):
        drawn = protocol.sample_estimate(counts, generator=generator, sample_shape=shape)
        parts.append(drawn.value)
    squared = (torch.cat(parts) - protocol.exact(counts)).square() / mse
    return squared.mean(), squared.std() / math.sqrt(len(squared))


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
    negatives = counts[:k]
    positives = counts[k:]
    below = negatives.double().cumsum(0) - negatives / 2
    pairs = below @ positives.double()
    truth = float(pairs / negatives.sum() / positives.sum())
    shape = (min(BLOCK, trials),)
    errors = []
    for _ in range(max(1, trials // BLOCK)):
        of_minus = list(shares_by_level(negatives, epsilon, shape, generator))
        of_plus = list(shares_by_level(positives, epsilon, shape, generator))
        total = torch.zeros(shape, dtype=torch.float64)
        for minus, plus in zip(of_minus, of_plus, strict=True):
            left = minus[..., 0::2]
            right = plus[..., 1::2]
            total = total + (left * right).sum(-1)
        ties = (minus * plus).sum(-1) / 2
        errors.append(total + ties - truth)
    return torch.cat(errors)


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
    k = config.k
    gini = pairwise.absolute_difference(k, spacing=1 / (k - 1))
    uniform = torch.ones(k, dtype=torch.float64)
    histograms = {"uniform": uniform, "Zipf": uniform / torch.arange(1, k + 1)}
    for (name, h), n, epsilon in product(histograms.items(), config.users, config.epsilons):
        counts = counts_of(h, n)
        cells = {"statistic": "abs(i-j)", "histogram": name, "n": n, "epsilon": epsilon}
        for each, protocol in protocols(gini, epsilon).items():
            mse = float(protocol.predicted_mse(counts))
            drawn = NOT_DRAWN
            if each != "subset selection" and epsilon == 1:
                # randomized response's squared errors have heavy tails
                heavy = 8 if each == "randomized response" else 1
                drawn = ratio(protocol, counts, mse, heavy * config.trials, generator)
            line(report, cells, each, mse, drawn)


def classes(config, report, generator):
    k = config.k
    x = torch.arange(k, dtype=torch.float64) / k
    negatives = torch.exp(-((x - 0.45) / 0.15).square() / 2)
    positives = torch.exp(-((x - 0.55) / 0.15).square() / 2)
    for n, epsilon in product(config.auc_users, config.auc_epsilons):
        half = n // 2
        counts = torch.cat([counts_of(negatives, half), counts_of(positives, half)])
        statistic = pairwise.auc_of_sizes(k, half, half)
        title = f"AUC {float(statistic.exact(counts)):.3f}"
        cells = {"statistic": "AUC", "histogram": title, "n": n, "epsilon": epsilon}
        candidates = protocols(statistic, epsilon)
        for each in ("two messages", "one message"):
            mse = float(candidates[each].predicted_mse(counts))
            drawn = NOT_DRAWN
            if n == config.auc_drawn and epsilon == 1:
                drawn = ratio(candidates[each], counts, mse, config.auc_trials, generator)
            line(report, cells, each, mse, drawn)
        off = hierarchical(k, counts, epsilon, config.trials, generator)
        line(report, cells, "hierarchical", off.square().mean(), NOT_DRAWN)


def line(report, cells, name, mse, drawn):
    measured, error = drawn
    report.row(
        "tables", **cells, protocol=name, rmse=math.sqrt(mse), ratio=measured, standard_error=error
    )


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
