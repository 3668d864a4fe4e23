"""Frequency moments and histograms: error against n, one noisy sum against local reports.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4.1 and Table 1 (frequencies: O(1/epsilon) here, sqrt
    n in the local model), with the moments' noise corrected.
Command:  python experiments/regression/moments.py
Expected: measured errors within three percent of the predicted ones, the same at every n; those of the best local
    oracle grow like sqrt n. The paper's variance of F_k, 2 D^k ln(1.25/delta)/epsilon^2, spends 1.66 where epsilon = .5
    at D = 4, k = 2.
Time: seconds; --smoke in seconds.
"""

import argparse
import math

import torch

from torchdp import workloads
from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.queries import LocalOracle
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SubsetSelection
from torchdp.randomness import keyed_generator
from torchdp.regression import FrequencyMoments, SecureHistogram, paper_moment_variance

EPSILON, DELTA, TYPES, BOUND, ORDERS = 0.5, 1e-6, 64, 4.0, (1.0, 2.0, 3.0)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    generator, runs = keyed_generator(b"moments"), 200 if smoke else 5000
    sizes = (1000, 100_000) if smoke else (1000, 10_000, 100_000, 1_000_000)
    print(f"histogram of {TYPES} types, epsilon = {EPSILON:g}: root mean squared error of a count ({runs} runs)")
    print(f"{'n':>9}{'predicted':>11}{'Gaussian':>10}{'predicted':>11}{'Laplace':>9}{'best local':>12}")
    W = workloads.identity(TYPES).dense()
    for n in sizes:
        counts = torch.bincount(torch.randint(TYPES, (n,), generator=generator), minlength=TYPES)
        cells = []
        for delta in (DELTA, 0.0):
            histogram = SecureHistogram(n, TYPES, EPSILON, delta)
            found = histogram.estimate(counts, noise=SeededNoise.of(generator), sample_shape=(runs,))
            cells += [histogram.standard_error, float((found - counts).square().mean().sqrt())]
        oracles = [kind(TYPES, EPSILON) for kind in (RandomizedResponse, SubsetSelection, OptimizedUnaryEncoding)]
        local = min(n * float(LocalOracle(W, oracle).errors.mse(counts, n).mean().sqrt()) for oracle in oracles)
        print(
            f"{n:>9}{cells[0]:>11.4f}{cells[1]:>10.4f}{cells[2]:>11.4f}{cells[3]:>9.4f}{local:>12.1f}", flush=True
        )
    print(
        f"\nmoments of orders {ORDERS} of values in [-{BOUND:g}, {BOUND:g}]: root mean squared error / predicted"
    )
    for n in sizes:
        x = (2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1) * BOUND
        truth = torch.stack([x.abs().pow(k).sum() for k in ORDERS])
        for delta in (DELTA, 0.0):
            release = FrequencyMoments(n, BOUND, ORDERS, EPSILON, delta)
            found = release.estimate(x, noise=SeededNoise.of(generator), sample_shape=(runs,))
            ratios = (found - truth).square().mean(0).sqrt() / release.standard_error
            relative = release.standard_error / truth
            print(
                f"{n:>9}  delta = {delta:<7g}"
                + "".join(f"{float(r):>8.3f}" for r in ratios)
                + "   predicted relative error"
                + "".join(f"{float(r):>10.2g}" for r in relative),
                flush=True,
            )
    print(f"\nthe paper's variance at epsilon = {EPSILON:g}, k = 2: true epsilon by the bound D")
    for bound in (0.5, 1.0, 2.0, 4.0):
        sigma = math.sqrt(paper_moment_variance(bound, 2, EPSILON, DELTA))
        spent = gaussian_guarantee(sigma, DELTA, bound**2, Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE).epsilon
        exact = float(FrequencyMoments(10, bound, (2.0,), EPSILON, DELTA).standard_error)
        print(
            f"D = {bound:<5g} paper's deviation {sigma:<9.4g} true epsilon {spent:<9.4g} exact deviation {exact:.4g}"
        )


if __name__ == "__main__":
    main()
