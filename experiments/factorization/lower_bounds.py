"""Users needed and users enough: proved lower bounds beside the factorization mechanisms, local and
central.

Paper: Edmonds, Nikolov, Ullman (2020), Theorems 10, 22, 23 and 28, here with every constant.
Command:  python experiments/factorization/lower_bounds.py
Expected: local model, root mean squared error alpha of the worst query: needed <= enough
everywhere. At alpha = 0.001
    the ratio is at most 1.7, 1.9 and 2.7 for epsilon = 0.5, 1 and 2, at alpha = 0.01 at most 1.9,
    2.1 and 3.1; at alpha = 0.1 the bound weakens (thresholds: 4 to 12). In the paper's own error,
    the mean of the largest error of all queries (ratio_max, of many users), the ratio is 11 to 26
    at alpha = 0.001 and epsilon <= 1: there the bound is that of the worst single query, and the
    mechanism pays the maximum. Central model, additive noise: the Gaussian factorization mechanism
    within a factor of 3 to 4.6 of the bound.
Output: results/factorization/lower_bounds/local.csv and central.csv.
Artifact: Edmonds, Nikolov, Ullman (2020) | Theorems 10, 22, 23, 28
Status: agrees, in the worst query's root mean squared error; 11 to 26 in the paper's mean largest
error
Time: 5 seconds on one core; --smoke in 3 (small workloads, epsilon = 1).
"""

import math
from dataclasses import dataclass

import torch

from torchdp import workloads
from torchdp.factorization import additive_noise_bound, factorize, hard_instance
from torchdp.factorization.hard import sample_upper_bound
from torchdp.privacy import gaussian_sigma
from torchdp.randomizers import PrivUnit
from torchdp.simulate import Experiment

ALPHAS = (0.1, 0.05, 0.01, 0.001)


@dataclass(frozen=True)
class Config:
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0)
    sizes: tuple[int, ...] = (16, 64, 256)
    bits: int = 8


DELTA = 1e-6
DRAWS = 4_000  # of the noise, for the mean of its largest entry


def problems(config):
    generator = torch.Generator().manual_seed(0)
    d = config.bits
    k = config.sizes[-1] // 2
    # drawn on the CPU: the same matrix on every device
    bits = torch.randint(2, (k, k), device="cpu", generator=generator)
    signs = torch.as_tensor(bits).double() * 2 - 1
    thresholds = {f"thresholds {k}": workloads.prefix(k).dense() for k in config.sizes}
    return thresholds | {
        f"parities {d} bits, <= 2": workloads.parities(d, 2).dense(),
        f"marginals {d} bits, <= 2": workloads.marginals(d, 2).dense(),
        f"random signs {k}": signs,
    }


def mean_largest(left):
    """E max abs(L Z), Z standard normal: what the noise of many users' messages is, up to a
    scale.
    """
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(DRAWS, left.shape[1], device="cpu", generator=generator, dtype=torch.float64)
    noise = z.to(left) @ left.mT
    return float(noise.abs().amax(1).mean())


def local(found, config, report):
    """epsilon-LDP messages, not interactive; root mean squared error alpha of the worst query."""
    for name, (W, factors, instance) in found.items():
        spreads = W.amax(1) - W.amin(1)
        norm = float(factors.certificate.upper)
        largest = mean_largest(factors.left) * float(factors.sensitivity)
        for epsilon in config.epsilons:
            rank, _ = factors.right.shape
            variance = PrivUnit(rank, epsilon).moments.variance
            for alpha in ALPHAS:
                needed = instance.samples(alpha, epsilon)
                absolute = instance.samples_absolute(alpha, epsilon)
                enough = sample_upper_bound(norm, variance, alpha, spread=float(spreads.max()))
                enough_max = largest**2 * variance / alpha**2
                report.row(
                    "local",
                    workload=name,
                    queries=W.shape[0],
                    types=W.shape[1],
                    epsilon=epsilon,
                    alpha=alpha,
                    needed=needed,
                    enough=enough,
                    ratio=enough / needed if needed else math.inf,
                    needed_absolute=absolute,
                    enough_max=enough_max,
                    ratio_max=enough_max / absolute if absolute else math.inf,
                )


def central(found, config, report):
    """Additive noise, replace-one; root mean squared error of a count."""
    for name, (W, worst, _) in found.items():
        mean = factorize(W, 2.0, shift=True)
        for label, p, factors in (("worst", math.inf, worst), ("mean", 2.0, mean)):
            columns = factors.right.mT
            # of replacing one user
            diameter = float(torch.cdist(columns, columns).max())
            scale = len(W) ** (-1 / p)
            norm = scale * float(torch.linalg.vector_norm(factors.left.norm(dim=1), ord=p))
            lower = float(factors.certificate.lower)
            for epsilon in config.epsilons:
                least = scale * additive_noise_bound(lower, epsilon, DELTA)
                error = gaussian_sigma(epsilon, DELTA, diameter) * norm
                cells = {"at_least": least, "Gaussian": error, "ratio": error / least}
                report.row("central", workload=name, error=label, epsilon=epsilon, **cells)


def measure(config, report):
    found = {
        name: (W, factorize(W, shift=True), hard_instance(W))
        for name, W in problems(config).items()
    }
    local(found, config, report)
    central(found, config, report)


EXPERIMENT = Experiment(measure, Config(), Config((1.0,), (16,), 4))

if __name__ == "__main__":
    EXPERIMENT.main()
