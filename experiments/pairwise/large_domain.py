"""A large domain and many users: what one message gains over two, and how long a billion users
take.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11, with kernel abs(x - y) on 1024
types.
Command:  python experiments/pairwise/large_domain.py
Expected: two-message MSE / one-message MSE at least 1.8 at epsilon = 1, n = 10^6
(both with PrivUnit), predicted
    and measured; one aggregate estimate for n = 10^9 users in under 5 s.
Output: results/pairwise/large_domain/*.csv.
Artifact: Ghazi et al. (2023) | Lemma 11
Status: agrees
Time: about 20 s on 2 CPU cores; --smoke in 2 s.
"""

import math
import time
from dataclasses import dataclass

import torch
from tables import counts_of

from torchdp import pairwise, simulate
from torchdp.queries import LocalFactorization, MessageRelease, Twice
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment


@dataclass(frozen=True)
class Config:
    types: int = 1024
    users: int = 10**6
    many: int = 10**9
    epsilon: float = 1.0
    trials: int = 10_000


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
            squared_error, config.trials, 0, config={"protocol": kind.__name__}, block_size=2_500
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
