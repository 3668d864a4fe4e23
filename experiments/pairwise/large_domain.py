"""A large domain and many users: what one message gains over two, how long a billion users take,
and what a shuffler or a curator gains over no trusted party.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11, with kernel abs(x - y) on 1024
types; the Remark after Corollary 7 (a shuffler lowers the mean squared error by a factor n), on the
statistics of error_vs_n.py at epsilon = 1, delta = 1e-6.
Command:  python experiments/pairwise/large_domain.py
Expected: two-message MSE / one-message MSE at least 1.8 at epsilon = 1, n = 10^6
(both with PrivUnit), predicted
    and measured; one aggregate estimate for n = 10^9 users in under 5 s. "models": local over
    shuffled error, "factor" times n, where factor is free of n up to a hundredth. A curator who adds
    discrete Laplace noise to the statistic itself (CentralAnswers, "curator") has the error of
    Laplace noise at its sensitivity 2 range/n ("laplace"), 1.2 to 18 times less (mean squared) than
    one who adds noise to factors (CentralFactorization, "factors"), and needs no delta. Not for the AUC, a ratio.
Notes: that Laplace noise is what central U-statistics start from; the reweighting by local Hajek
    projections of Chaudhuri, Loh, Pandey, Sarkar (2024), of which the abstract alone was at hand,
    is not run.
Output: results/pairwise/large_domain/*.csv.
Artifact: Ghazi et al. (2023) | Lemma 11, the Remark after Corollary 7
Status: agrees
Time: about a minute of one core, nearly all of it draws of vectors; --smoke in 2 s.
"""

import math
import time
from dataclasses import dataclass

import error_vs_n
import torch
from tables import counts_of

from torchdp import pairwise, simulate
from torchdp.queries import (
    CentralAnswers,
    CentralFactorization,
    LocalFactorization,
    MessageRelease,
    ShuffledQueries,
    Twice,
)
from torchdp.randomness import keyed_generator
from torchdp.shuffle import CorrelatedSum
from torchdp.simulate import Experiment

DELTA = 1e-6


def models(config, report):
    """Mean squared errors with no trusted party, behind a shuffler, and of two curators' noise."""
    epsilon = config.epsilon
    for name in error_vs_n.FULL.statistics:
        types = 6 if name == "kendall" else 32
        question = error_vs_n.statistic(name, types)
        kernel = question.kernel(question.form)
        for n in (10**6, 10**8):
            shuffled = ShuffledQueries.of(question, CorrelatedSum, n, epsilon=epsilon, delta=DELTA)
            releases = {
                "local": LocalFactorization.of(question, epsilon),
                "shuffled": shuffled,
                "factors": CentralFactorization.of(question, epsilon, DELTA),
            }
            # an AUC divides two means
            if question.bounded is not None:
                releases["curator"] = CentralAnswers(question, epsilon)
            counts = error_vs_n.users(name, types, n)
            errors = {each: one.predicted_mse(counts) for each, one in releases.items()}
            span = kernel.max() - kernel.min()
            if "curator" in errors:
                errors["laplace"] = 2 * (2 * span / n / epsilon) ** 2
            else:
                errors |= {"curator": math.nan, "laplace": math.nan}
            factor = errors["local"] / errors["shuffled"] / n
            report.row("models", statistic=name, n=n, factor=factor, **errors)


@dataclass(frozen=True)
class Config:
    types: int = 1024
    users: int = 10**6
    many: int = 10**9
    epsilon: float = 1.0
    trials: int = 1_000


def measure(config, report):
    k = config.types
    statistic = pairwise.absolute_difference(k, spacing=1 / (k - 1))
    weights = 1 / torch.arange(1, k + 1, dtype=torch.float64)
    counts = counts_of(weights, config.users)
    truth = statistic.exact(counts)

    predicted, measured = {}, {}
    report.say(
        f"Gini's mean difference on {k} types, epsilon = {config.epsilon:g}, n = {config.users}, "
        "Zipf histogram"
    )
    for kind in (Twice, LocalFactorization):
        protocol = kind.of(statistic, config.epsilon)

        def squared_error(generator, size, protocol: MessageRelease = protocol):
            estimate = protocol.sample_estimate(counts, generator=generator, sample_shape=(size,))
            return (estimate.value - truth).square()

        result = simulate.run(
            squared_error, config.trials, 0, config={"protocol": kind.__name__}, block_size=250
        )
        mse = float(protocol.predicted_mse(counts))
        predicted[kind] = mse
        measured[kind] = result.moments
        low, high = result.moments.interval()
        report.row(
            "mse",
            protocol=kind.__name__,
            predicted=mse,
            measured=result.moments.mean,
            low=low,
            high=high,
            ratio=result.moments.mean / mse,
        )
    two = measured[Twice]
    one = measured[LocalFactorization]
    ratio = two.mean / one.mean
    # by the delta method, of independent runs
    relative = math.hypot(two.standard_error / two.mean, one.standard_error / one.mean)
    # MSE of two messages over that of one
    gain = predicted[Twice] / predicted[LocalFactorization]
    report.row("gain", predicted=gain, measured=ratio, half_width=1.96 * ratio * relative)

    models(config, report)

    many = counts * (config.many // config.users)
    start = time.perf_counter()
    protocol = LocalFactorization.of(statistic, config.epsilon)
    answer = protocol.sample_estimate(many, generator=keyed_generator(b"large domain"))
    seconds = time.perf_counter() - start
    report.row(
        "many",
        n=many.sum(),
        estimate=answer.value,
        standard_error=answer.standard_error,
        truth=statistic.exact(many),
        seconds=seconds,
    )


EXPERIMENT = Experiment(measure, Config(), Config(types=64, trials=500))

if __name__ == "__main__":
    EXPERIMENT.main()
