"""Users needed and users enough: proved lower bounds beside the factorization mechanisms, local and central.

Paper: Edmonds, Nikolov, Ullman (2020), Theorems 10, 22, 23 and 28, here with every constant.
Command:  python experiments/factorization/lower_bounds.py
Expected: local model, root mean squared error alpha of the worst query: needed <= enough everywhere. At alpha = 0.001
    the ratio is at most 1.7, 1.9 and 2.7 for epsilon = 0.5, 1 and 2, at alpha = 0.01 at most 1.9, 2.1 and 3.1; at
    alpha = 0.1 the bound weakens (thresholds: 4 to 12). Central model, additive noise: the Gaussian factorization
    mechanism within a factor of 3 to 4.6 of the bound.
Time: 5 seconds on one core; --smoke in 3 (small workloads, epsilon = 1).
"""

import argparse
import math

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import additive_noise_bound, factorize, hard_instance, sample_upper_bound
from torchdp.privacy import gaussian_sigma
from torchdp.randomizers import PrivUnitG

ALPHAS = (0.1, 0.05, 0.01, 0.001)
EPSILONS = (0.5, 1.0, 2.0)
DELTA = 1e-6


def problems(smoke: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (16,) if smoke else (16, 64, 256)
    d = 4 if smoke else 8
    signs = torch.randint(2, (sizes[-1] // 2,) * 2, generator=generator).double() * 2 - 1
    thresholds = {f"thresholds {k}": workloads.prefix(k).dense() for k in sizes}
    return thresholds | {
        f"parities {d} bits, <= 2": workloads.parities(d, 2).dense(),
        f"marginals {d} bits, <= 2": workloads.marginals(d, 2).dense(),
        f"random signs {len(signs)}": signs,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    found = {name: (W, factorize(W, shift=True), hard_instance(W)) for name, W in problems(smoke).items()}

    print("Local model: epsilon-LDP messages, not interactive; root mean squared error alpha of the worst query")
    print(f"{'workload':<24}{'queries':>8}{'types':>7}{'epsilon':>9}{'alpha':>8}", end="")
    print(f"{'needed':>13}{'enough':>13}{'ratio':>8}{'needed, absolute':>18}")
    for name, (W, factors, instance) in found.items():
        spread = float((W.amax(1) - W.amin(1)).max())
        for epsilon in EPSILONS[1:2] if smoke else EPSILONS:
            variance = PrivUnitG(factors.right.shape[0], epsilon).moments.variance
            for alpha in ALPHAS:
                needed, absolute = instance.samples(alpha, epsilon), instance.samples_absolute(alpha, epsilon)
                enough = sample_upper_bound(float(factors.certificate.upper), variance, alpha, spread=spread)
                ratio = enough / needed if needed else math.inf
                print(f"{name:<24}{W.shape[0]:>8}{W.shape[1]:>7}{epsilon:>9g}{alpha:>8g}", end="")
                print(f"{needed:>13.4g}{enough:>13.4g}{ratio:>8.2f}{absolute:>18.4g}")

    print(f"\nCentral model: additive noise, replace-one, delta = {DELTA:g}; root mean squared error of a count")
    print(f"{'workload':<24}{'error':>8}{'epsilon':>9}{'at least':>10}{'Gaussian':>10}{'ratio':>8}")
    for name, (W, worst, _) in found.items():
        for label, p, factors in (("worst", math.inf, worst), ("mean", 2.0, factorize(W, 2.0, shift=True))):
            for epsilon in EPSILONS[1:2] if smoke else EPSILONS:
                scale = len(W) ** (-1 / p)
                least = scale * additive_noise_bound(float(factors.certificate.lower), epsilon, DELTA)
                columns = factors.right.mT
                sigma = gaussian_sigma(epsilon, DELTA, float(torch.cdist(columns, columns).max()))
                error = scale * sigma * float(torch.linalg.vector_norm(factors.left.norm(dim=1), ord=p))
                print(f"{name:<24}{label:>8}{epsilon:>9g}{least:>10.3f}{error:>10.3f}{error / least:>8.2f}")


if __name__ == "__main__":
    main()
