"""Means over triples of users through every kind of channel: bias, predicted and measured error, coverage, choices.

Paper: none; Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023) ask statistics of degree 2.
Command:  python experiments/pairwise/degree.py
Expected: 63 cells, |z| of the bias at most 3.2. Measured over predicted RMSE .94 to 1.05 with 50 users, .98 to 1.03 of
    more; 95 % intervals cover .95 to 1 with 50 users, .94 to .99 with 1,000, .94 to .965 with 10,000. As a function
    of shares, corrected to second order, the third central moment of 50 users by randomized response is .0046 too high
    (2.5 standard errors of the trials), else .0006 (.3). choices.csv, 10,000 users, predicted RMSE of the third
    central moment: local .0025, shuffle 5.8e-5, servers 5.6e-5, curator 5.5e-5; of the volume under the surface, whose
    value is .34: .022, 8.2e-4, 7.9e-4, 7.8e-4.
Data: random types of a fixed histogram; the error is the privacy noise alone.
Output: results/pairwise/degree/: cells.csv, choices.csv.
Artifact: own | statistics of degree three
Status: agrees
Time: two minutes of one core; --smoke in ten CPU-seconds.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchdp import pairwise, queries
from torchdp.pairwise import DegreeStatistic
from torchdp.queries import LocalOracle
from torchdp.queries.function import FunctionAnalyst
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SubsetSelection
from torchdp.randomness import keyed_generator
from torchdp.shuffle import PoissonSum
from torchdp.simulate import Experiment, Moments

TRUSTED = ("local", "shuffle", "servers", "curator")


@dataclass(frozen=True)
class Config:
    users: tuple[int, ...] = (50, 1_000, 10_000)
    choosing: int = 10_000
    epsilon: float = 1.0
    delta: float = 1e-6
    trials: int = 10_000
    types: int = 8
    only: tuple[str, ...] = ()  # statistics; all where it is empty
    search: bool = True


FULL = Config()
SMOKE = Config(users=(50,), choosing=1_000, trials=100, types=4, only=("triplets",), search=False)


def statistics(config) -> dict[str, DegreeStatistic]:
    k = config.types
    draws = torch.randn(2, k, k, dtype=torch.float64, generator=keyed_generator(b"distances"))
    kernel = torch.randn(k, k, k, dtype=torch.float64, generator=keyed_generator(b"kernel"))
    found = {
        "random kernel": pairwise.statistic_of_degree(kernel, 3),
        "third central moment": pairwise.third_central_moment(k, spacing=1 / (k - 1)),
        "triplets": pairwise.triplet_comparisons(*draws),
    }
    return {name: each for name, each in found.items() if not config.only or name in config.only}


def channels(question: DegreeStatistic, n, config) -> dict[str, Callable[[], Any]]:
    k = question.types
    epsilon = config.epsilon
    delta = config.delta
    return {
        "randomized response": lambda: LocalOracle.of(question, RandomizedResponse(k, epsilon)),
        "subset selection": lambda: LocalOracle.of(question, SubsetSelection(k, epsilon)),
        "unary encoding": lambda: LocalOracle.of(question, OptimizedUnaryEncoding(k, epsilon)),
        "vectors": lambda: queries.LocalFactorization.of(question, epsilon),
        "sums, Poisson": lambda: queries.ShuffledQueries.of(
            question, PoissonSum, n, epsilon, delta
        ),
        "curator, Gaussian": lambda: queries.CentralFactorization.of(question, epsilon, delta),
        "curator, Laplace": lambda: queries.CentralLaplace.of(question, epsilon),
    }


def counted(shares, n):
    """Counts of n users, about these shares."""
    counts = (n * shares / shares.sum()).floor().long()
    counts[0] += n - counts.sum()
    return counts


def cell(protocol, counts, trials, second_order):
    """Bias in standard errors of the trials; second_order: also of the same polynomial as any function of shares."""
    tally = protocol.sample_tally(
        counts, generator=keyed_generator(b"degree"), sample_shape=(trials,)
    )
    found = protocol.analyse(tally)
    truth = protocol.exact(counts)
    error = found.value - truth
    predicted = float(protocol.predicted_mse(counts))
    low, high = found.interval()
    row = {
        "truth": float(truth),
        "predicted_rmse": math.sqrt(predicted),
        "measured_rmse": math.sqrt(float(error.square().mean())),
        "bias": float(error.mean()),
        "bias_z": Moments.of(error).z_score(0.0),
        "coverage": float(((low <= truth) & (truth <= high)).double().mean()),
    }
    if second_order:
        plain = FunctionAnalyst(protocol.question, protocol.channel).analyse(tally)
        row["second_order_bias"] = float((plain.value - truth).mean())
        row["second_order_bias_z"] = Moments.of(plain.value - truth).z_score(0.0)
    return row


def choices(config, report):
    """The best candidate of everyone who may be trusted."""
    asked = dict(statistics(config))
    if not config.only:
        asked["volume under the surface"] = pairwise.volume_under_surface(config.types)
    n = config.choosing
    for name, question in asked.items():
        counts = counted(question.histograms[1], n)
        for trust in TRUSTED:
            delta = None if trust == "local" else config.delta
            choice = queries.choose(
                question, n, config.epsilon, delta, trust=trust, search=config.search
            )
            best = choice.candidates[0]
            row = cell(best.protocol, counts, config.trials, False)
            report.row("choices", statistic=name, n=n, trust=trust, channel=best.name, **row)


def measure(config, report):
    with warnings.catch_warnings():
        # of few users, whose noise takes values beyond the kernel's range
        warnings.simplefilter("ignore")
        for name, statistic in statistics(config).items():
            shares = 1 / torch.arange(1, config.types + 1, dtype=torch.float64)
            for n in config.users:
                for channel, made in channels(statistic, n, config).items():
                    row = cell(made(), counted(shares, n), config.trials, True)
                    report.row("cells", statistic=name, n=n, channel=channel, **row)
        choices(config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
