"""Questions through every channel: predicted and measured errors, several questions at once, what a
choice takes.

Paper: none; Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023) ask pairwise statistics of local
messages alone.
Command:  python experiments/queries/channels.py
Expected: cells.csv, 8 questions through 11 channels: z of the mean squared error -2.8 to 2.8, of
the bias -1.6 to 2.8
    (3.5 of Gini's index by vectors, whose denominator is hardly known), coverage of 95 % intervals
    .942 to .966; three means over triples: -2.1 to 2.8, -1.3 to 2.8, .940 to .979
    (--users 50 1000: -2.4 to 2.4, -1.9 to 2.5, .941 to 1). several.csv, 2, 5 and 20 answers of one
    collection: all held at once .951 to .966 in 11 of 12 cells and .978 in one
    (20 answers by correlated sums, whose Laplace errors have Bonferroni's level), .68 to .94 where
    each has its own interval; splitting epsilon between the 2, 5 or 6 questions instead costs 1.9
    to 2.5, 4.5 to 9.4, 5.3 to 9.4 times the deviation. choices.csv: Gini's mean difference of 16
    types, worst histograms: local .254, shuffler .00805, servers .00772, curator .00764; Kendall's
    tau-a .0629, .00151, .00145, .00143; Gini's index .00999, .000318 ...; the third central moment
    .00269, 7.9e-5, 7.6e-5, 7.5e-5.
Output: results/queries/channels/: cells.csv, several.csv, choices.csv.
Artifact: own | any question through anyone who is trusted
Status: agrees
Time: half an hour of one busy core; --smoke in 10 CPU-seconds.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import torch

from torchdp import pairwise, queries, workloads
from torchdp.queries import Linear, LocalOracle, Several
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SubsetSelection
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BoundedSum, CorrelatedSum, PoissonSum
from torchdp.simulate import Experiment, Moments

TRUSTED = ("local", "shuffle", "servers", "curator")


@dataclass(frozen=True)
class Config:
    users: tuple[int, ...] = (10_000,)
    epsilon: float = 1.0
    delta: float = 1e-6
    trials: int = 4_000
    types: int = 16
    joint: tuple[int, ...] = (2, 5, 20)
    only: tuple[str, ...] = ()  # questions; all where it is empty
    search: bool = True


FULL = Config()
SMOKE = Config((2_000,), trials=20, types=4, joint=(2,), only=("unequal",), search=False)


def zipf(k, n):
    """Counts of n users of k types, like 1/(x + 1)."""
    shares = 1 / torch.arange(1, k + 1, dtype=torch.float64)
    counts = (n * shares / shares.sum()).floor().long()
    counts[0] += n - counts.sum()
    return counts


def questions(config):
    """Means over pairs and triples, a ratio, a smooth function, linear queries."""
    k = config.types
    side = math.isqrt(k)
    distances = torch.randn(2, k, k, dtype=torch.float64, generator=keyed_generator(b"distances"))
    cube = torch.randn(7, 7, 7, dtype=torch.float64, generator=keyed_generator(b"kernel"))
    draws = torch.randn(7, 7, dtype=torch.float64, generator=keyed_generator(b"kernel"))
    found = {
        "mean": Linear(torch.arange(k, dtype=torch.float64)[None]),
        "histogram": Linear(workloads.identity(k).dense()),
        "Gini's mean difference": pairwise.absolute_difference(k),
        "unequal": pairwise.unequal(k),
        "Kendall's tau-a": pairwise.kendall(side, side),
        "random kernel": pairwise.from_kernel(draws + draws.mT),
        "Gini's index": pairwise.gini(k),
        "Spearman's rho": queries.Spearman(side, side),
        "random kernel of triples": pairwise.statistic_of_degree(cube, 3),
        "third central moment": pairwise.third_central_moment(k, spacing=1 / (k - 1)),
        "triplets": pairwise.triplet_comparisons(*distances),
    }
    return {
        name: question for name, question in found.items() if not config.only or name in config.only
    }


def channels(question: queries.Question, n, config) -> dict[str, Callable[[], Any]]:
    k = question.types
    epsilon = config.epsilon
    delta = config.delta
    return {
        "randomized response": lambda: LocalOracle.of(question, RandomizedResponse(k, epsilon)),
        "subset selection": lambda: LocalOracle.of(question, SubsetSelection(k, epsilon)),
        "unary encoding": lambda: LocalOracle.of(question, OptimizedUnaryEncoding(k, epsilon)),
        "vectors": lambda: queries.LocalFactorization.of(question, epsilon),
        "two vectors": lambda: queries.Twice.of(question, epsilon),
        "sums, Poisson": lambda: queries.ShuffledQueries.of(
            question, PoissonSum, n, epsilon, delta
        ),
        "sums, bounded": lambda: queries.ShuffledQueries.of(
            question, BoundedSum, n, epsilon, delta
        ),
        "sums, correlated": lambda: queries.ShuffledQueries.of(
            question, CorrelatedSum, n, epsilon, delta
        ),
        "servers, Gaussian": lambda: queries.SecureQueries.of(question, n, epsilon, delta),
        "curator, Gaussian": lambda: queries.CentralFactorization.of(question, epsilon, delta),
        "curator, Laplace": lambda: queries.CentralLaplace.of(question, epsilon),
    }


def cell(protocol, summary, trials, key=b"cell", entry=-1):
    """Of one answer, the last: truth, predicted and measured errors, bias and coverage."""
    drawn = protocol.sample_estimate(
        summary, generator=keyed_generator(key), sample_shape=(trials,)
    )
    truth = protocol.exact(summary).flatten()[entry]
    predicted = float(protocol.predicted_mse(summary).flatten()[entry])
    low, high = (end.reshape(trials, -1)[:, entry] for end in drawn.interval())
    error = drawn.value.reshape(trials, -1)[:, entry] - truth
    told = drawn.standard_error.expand(drawn.value.shape).reshape(trials, -1)[:, entry]
    return {
        "truth": float(truth),
        "predicted_rmse": math.sqrt(predicted),
        "measured_rmse": math.sqrt(float(error.square().mean())),
        "mse_z": Moments.of(error.square()).z_score(predicted),
        "bias_z": Moments.of(error).z_score(0.0),
        "median_error_told": float(told.median()) / math.sqrt(predicted),
        "coverage": float(((low <= truth) & (truth <= high)).double().mean()),
    }


def cells(n, config, report):
    """Every question through every channel."""
    for name, question in questions(config).items():
        counts = zipf(question.types, n)
        for channel, made in channels(question, n, config).items():
            with warnings.catch_warnings():
                # of ratios whose denominator a noisy channel hardly knows, and of few users, whose
                # noise takes values beyond a kernel's range
                warnings.simplefilter("ignore")
                found = cell(made(), counts, config.trials)
            report.row("cells", question=name, n=n, channel=channel, **found)


def statistics(k, answers):
    """Two, five or twenty answers of ordered types."""
    mean = Linear(torch.arange(k, dtype=torch.float64)[None])
    difference = pairwise.absolute_difference(k)
    if answers == 2:
        return mean, difference
    squares = Linear(torch.arange(k, dtype=torch.float64).square()[None])
    five = (mean, squares, difference, pairwise.unequal(k), pairwise.gini(k))
    return five if answers == 5 else (*five, Linear(workloads.prefix(k).dense()[:-1]))


def several(n, config, report):
    """Answers of one collection, held at once, and what it would cost to split epsilon between the
    questions.
    """
    k = config.types
    counts = zipf(k, n)
    for answers in config.joint:
        asked = Several(statistics(k, answers))
        made = {
            "randomized response": lambda epsilon, q: LocalOracle.of(
                q, RandomizedResponse(k, epsilon)
            ),
            "subset selection": lambda epsilon, q: LocalOracle.of(q, SubsetSelection(k, epsilon)),
            "sums, correlated": lambda epsilon, q: queries.ShuffledQueries.of(
                q, CorrelatedSum, n, epsilon, config.delta
            ),
            "curator, Gaussian": lambda epsilon, q: queries.CentralFactorization.of(
                q, epsilon, config.delta, queries.FactoredQueries.identity(q.queries(False))
            ),
        }
        for channel, of in made.items():
            protocol = of(config.epsilon, asked)
            generator = keyed_generator(b"several")
            drawn = protocol.sample_estimate(
                counts, generator=generator, sample_shape=(config.trials,)
            )
            truth = protocol.exact(counts)
            held = []
            for low, high in (drawn.together(), drawn.interval()):
                held.append(float(((low <= truth) & (truth <= high)).all(-1).double().mean()))
            predicted = protocol.predicted_mse(counts)
            share = config.epsilon / len(asked.questions)
            split = torch.cat(
                [of(share, one).predicted_mse(counts).reshape(-1) for one in asked.questions]
            )
            costs = (split / predicted).sqrt().tolist()
            report.row(
                "several",
                answers=len(truth),
                questions=len(asked.questions),
                channel=channel,
                all_held=held[0],
                all_held_alone=held[1],
                split_costs=geometric_mean(costs),
                error_told=float((drawn.standard_error.square().mean(0) / predicted).sqrt().mean()),
            )


def choices(n, config, report):
    """What a choice takes for each trust, and its error."""
    for name, question in questions(config).items():
        for trust in TRUSTED:
            choice = queries.choose(
                question, n, config.epsilon, config.delta, trust=trust, search=config.search
            )
            best = choice.candidates[0]
            row = {"question": name, "n": n, "trust": trust}
            report.row("choices", **row, best=best.name, error=best.error)


def measure(config, report):
    for n in config.users:
        cells(n, config, report)
        several(2 * n, config, report)
        choices(n, config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
