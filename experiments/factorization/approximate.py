"""gamma_2(W; alpha) as a curve, and what an alpha that is best for the mean squared error is worth.

Papers: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 1 (gamma_2(W; alpha) and zeta); Edmonds, Nikolov,
    Ullman (2020), Lemma 12 (the dual).
Command:  python experiments/factorization/approximate.py
Expected: every point certified to a gap of 1e-3; the curves are convex and reach 0 at alpha = max abs(W) = 1. Signs
    cost (1 - alpha) gamma_2; beyond alpha = 1/2 a workload of 0 and 1 costs 1 - alpha. The best alpha buys nothing
    while the noise is small, and keeps the error below max abs(W) where it is large.
Output: results/approximate/curves.csv, curves.png; a table of least_error for prefix sums on standard output.
Time: about a minute on one core; --smoke in seconds.
"""

import argparse
import csv
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import approximate, least_error

POINTS = 23
FIELDS = ("workload", "alpha", "lower", "upper")


def problems(k: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"prefix sums {k}": workloads.prefix(k).dense(),
        f"all ranges {k // 4}": workloads.all_ranges(k // 4).dense(),
        f"sgn(i - j) {k}": workloads.sign(k).dense(),
        f"abs(i - j) / (k - 1) {k}": workloads.absolute_difference(k, spacing=1 / (k - 1)).dense(),
        f"random signs {k}": (2 * torch.randint(2, (k, k), generator=generator) - 1).double(),
    }


def draw(table: Path, path: Path) -> None:
    from matplotlib.figure import Figure

    curves: dict[str, list[tuple[float, float, float]]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            values = tuple(float(row[name]) for name in FIELDS[1:])
            curves.setdefault(row["workload"], []).append(values)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        alpha, lower, upper = zip(*points, strict=True)
        (line,) = axes.plot(alpha, upper, "o-", markersize=3, linewidth=1, label=name)
        axes.fill_between(alpha, lower, upper, color=line.get_color(), alpha=0.3)
    axes.set(
        xlabel="alpha, allowed error of an entry",
        ylabel="gamma_2(W; alpha)",
        title="Approximate factorization norms",
    )
    axes.grid(True, linewidth=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/approximate"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    k, points = (8, 5) if options.smoke else (64, POINTS)
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / "curves.csv"
    alpha = torch.linspace(0, 1, points, dtype=torch.float64)
    print(
        f"{'workload':<28}{'gamma_2':>9}{'at 0.1':>9}{'at 0.25':>9}{'gap':>10}{'iterations':>12}{'CPU time':>11}"
    )
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for name, W in problems(k).items():
            start = time.process_time()
            found = approximate(W, alpha)
            seconds = time.process_time() - start
            lower, upper = found.certificate.lower, found.certificate.upper
            for a, low, high in zip(alpha.tolist(), lower.tolist(), upper.tolist(), strict=True):
                writer.writerow((name, a, low, high))
            at = [float(upper[int((alpha - x).abs().argmin())]) for x in (0, 0.1, 0.25)]
            gap, count = float(found.certificate.gap.max()), found.iterations
            print(f"{name:<28}" + "".join(f"{x:>9.4f}" for x in at) + f"{gap:>10.1e}{count:>12}{seconds:>9.2f} s")
    draw(table, options.out / "curves.png")
    print(table.resolve())
    k = 8 if options.smoke else 64
    print(f"\nprefix sums {k}: worst root mean squared error, exact factorization against the best alpha")
    print(f"{'variance v / n':>15}{'exact':>9}{'best':>9}{'at least':>9}{'alpha':>9}")
    W = workloads.prefix(k)
    exact = float(approximate(W, 0.0).norm)
    for variance in (1e-3,) if options.smoke else (1e-4, 1e-3, 1e-2, 0.1, 1.0):
        found = least_error(W, variance)
        error = float(found.factorization.certificate.residual)
        values = math.sqrt(variance) * exact, math.sqrt(found.upper), math.sqrt(found.lower), error
        print(f"{variance:>15g}" + "".join(f"{x:>9.4f}" for x in values))


if __name__ == "__main__":
    main()
