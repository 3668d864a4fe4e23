"""Six mechanisms of four papers at 10^3 to 10^9 users, until every error is known to 1 %: how long a large sweep takes.

Command:  torchdp sweep experiments/bench/six_mechanisms.py --target-relative-ci 0.01 --devices cpu,cpu
Expected: measured over predicted squared error 1 +- 0.02 everywhere; the same digest by every road.
Artifact: our own | speed of sweeps
Status: predictions hold; times on a CPU
Time: under 5 minutes on 2 CPU cores, through a cluster (--cluster local:2) too; --smoke in 10 to 20 CPU-seconds.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchdp import cli, domains, factorization, mean, pairwise, queries, workloads
from torchdp.protocol import Crowd
from torchdp.shuffle import BitSums, PoissonSum
from torchdp.simulate import Sweep, Trial

TYPES, EPSILON, DELTA = 32, 1.0, 1e-6


def histogram(n: int) -> Tensor:
    """Counts of n users, Zipf."""
    weights = 1 / torch.arange(1, TYPES + 1, dtype=torch.float64)
    counts = (weights / weights.sum() * n).floor().long()
    counts[0] += n - counts.sum()
    return counts


def crowd(n: int) -> Crowd:
    """n points of the unit square, on four of its spots."""
    spots = torch.tensor([[0.1, 0.2], [0.9, 0.1], [0.5, 0.5], [0.3, 1.0]], dtype=torch.float64)
    return Crowd(spots, torch.tensor([n - 3 * (n // 5), n // 5, n // 5, n // 5]))


def gini(kind: type) -> Callable[[int], tuple[Any, Any]]:
    return lambda n: (kind(pairwise.unequal(TYPES), EPSILON), histogram(n))


def prefix(n: int) -> tuple[Any, Any]:
    W = workloads.prefix(TYPES)
    asked = queries.FactoredQueries.of(W, factorization.factorize(W))
    return queries.LocalFactorization.calibrated(asked, epsilon=EPSILON), histogram(n)


def square(n: int) -> tuple[Any, Any]:
    box = domains.Box(torch.zeros(2), torch.ones(2))
    shape = domains.noise_shape(box, 2.0)
    return mean.GaussianMean.calibrated(box, shape, epsilon=EPSILON, delta=DELTA), crowd(n)


def bits(n: int) -> tuple[Any, Any]:
    sums = BitSums.calibrated(PoissonSum, users=n, epsilon=EPSILON, delta=DELTA, instances=8)
    return sums, torch.arange(1, 9) * n // 10


MECHANISMS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "Gini, one message": gini(pairwise.OneMessage),
    "Gini, randomized response": gini(pairwise.RandomizedResponsePlugIn),
    "prefix sums, factorization": prefix,
    "prefix sums, unary": lambda n: (queries.choose(workloads.prefix(TYPES), n, EPSILON).best, histogram(n)),
    "mean of a square, curator": square,
    "sums of bits, shuffled": bits,
}


def make_trial(config: dict[str, Any]) -> Trial:
    """Mean squared error of one private answer, over its coordinates."""
    protocol, summary = MECHANISMS[config["mechanism"]](config["n"])
    truth = protocol.exact(summary)

    def sample(generator: torch.Generator, size: int) -> Tensor:
        drawn = protocol.sample_estimate(summary, generator=generator, sample_shape=(size,)).value
        return (drawn - truth).double().square().reshape(size, -1).mean(1)

    return Trial(sample, {"predicted_mse": float(protocol.predicted_mse(summary).double().mean())})


def experiment(smoke: bool) -> Sweep:
    """The grid."""
    users = (10**3, 10**6) if smoke else tuple(10**power for power in range(3, 10))
    grid = [{"mechanism": name, "n": n} for name in MECHANISMS for n in users]
    return Sweep(
        "six_mechanisms", grid, make_trial, trials=400 if smoke else 200_000, block_size=200 if smoke else 4_000
    )


if __name__ == "__main__":
    sys.exit(cli.main(["sweep", *sys.argv]))
