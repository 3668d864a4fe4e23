"""gamma_2(W; alpha) as a curve, and what an alpha that is best for the mean squared error is worth.

Papers: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 1 (gamma_2(W; alpha) and zeta);
Edmonds, Nikolov,
    Ullman (2020), Lemma 12 (the dual).
Command:  python experiments/factorization/approximate.py
Expected: every point certified to a gap of 1e-3; the curves are convex and reach 0 at alpha = max
abs(W) = 1. Signs
    cost (1 - alpha) gamma_2; beyond alpha = 1/2 a workload of 0 and 1 costs 1 - alpha. The best
    alpha buys nothing while the noise is small, and keeps the error below max abs(W) where it is
    large.
Output: results/factorization/approximate/norms.csv, curves.csv, curves.png, least_error.csv
(prefix sums).
Artifact: Ghazi et al. (2023); Edmonds, Nikolov, Ullman (2020) | gamma_2(W; alpha), Lemma 12
Status: agrees
Time: about a minute on one core; --smoke in seconds.
"""

import math
import time
from dataclasses import dataclass

import torch

from torchdp import workloads
from torchdp.factorization import approximate, least_error
from torchdp.simulate import Experiment, columns, subplots


def problems(k):
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(2, (k, k), device="cpu", generator=generator)
    signs = 2 * torch.as_tensor(bits) - 1
    spacing = 1 / (k - 1)
    return {
        f"prefix sums {k}": workloads.prefix(k).dense(),
        f"all ranges {k // 4}": workloads.all_ranges(k // 4).dense(),
        f"sgn(i - j) {k}": workloads.sign(k).dense(),
        f"abs(i - j) / (k - 1) {k}": workloads.absolute_difference(k, spacing=spacing).dense(),
        f"random signs {k}": signs.double(),
    }


@dataclass(frozen=True)
class Config:
    k: int = 64
    points: int = 23
    variances: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0)


def measure(config, report):
    alpha = torch.linspace(0, 1, config.points, dtype=torch.float64)
    points = []
    for name, W in problems(config.k).items():
        start = time.process_time()
        curve = approximate(W, alpha)
        seconds = time.process_time() - start
        bounds = curve.certificate
        nearest = {x: (alpha - x).abs().argmin() for x in (0, 0.1, 0.25)}
        report.row(
            "norms",
            workload=name,
            **{f"at_{x:g}": bounds.upper[place] for x, place in nearest.items()},
            gap=bounds.gap.max(),
            iterations=curve.iterations,
            cpu_seconds=seconds,
        )
        for a, low, high in zip(alpha, bounds.lower, bounds.upper, strict=True):
            points.append({"workload": name, "alpha": a, "lower": low, "upper": high})
    report.write("curves", points)
    # worst root mean squared error of prefix sums: exact factorization against the best alpha
    W = workloads.prefix(config.k).dense()
    exact = float(approximate(W, 0.0).norm)
    for variance in config.variances:
        least = least_error(W, variance)
        report.row(
            "least_error",
            variance_over_n=variance,
            exact=math.sqrt(variance) * exact,
            best=math.sqrt(least.certificate.upper),
            at_least=math.sqrt(least.certificate.lower),
            alpha=least.certificate.residual,
        )


def draw(tables):
    rows = tables["curves"]
    figure, (axes,) = subplots(size=(7, 4.5))
    for name in dict.fromkeys(row["workload"] for row in rows):
        alpha, lower, upper = columns(rows, "alpha", "lower", "upper", workload=name)
        (line,) = axes.plot(alpha, upper, "o-", markersize=3, linewidth=1, label=name)
        axes.fill_between(alpha, lower, upper, color=line.get_color(), alpha=0.3)
    axes.set(
        xlabel="alpha, allowed error of an entry",
        ylabel="gamma_2(W; alpha)",
        title="Approximate factorization norms",
    )
    axes.grid(True, linewidth=0.3)
    axes.legend()
    return {"curves.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config(8, 5, (1e-3,)), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
