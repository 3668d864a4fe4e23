"""Error of local mechanisms for thresholds as the types grow: predicted curves, measured points.

Papers: Edmonds, Nikolov, Ullman (2020), Theorem 10 (factorization); McKenna, Maity, Mazumdar, Miklau (2020).
Command:  python experiments/queries/error_vs_types.py
Expected: error of the average query at n = 10,000 on the worst data. Factorization grows like log k, frequency oracles
    like a power of k except where e^epsilon is of order k; an optimised strategy (up to 64 types) is below both.
    Measured points lie on the curves.
Output: results/error_vs_types/error_vs_types.csv and .png. Time: a minute on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch

from torchdp import workloads
from torchdp.queries import Objective, choose
from torchdp.randomness import keyed_generator

EPSILONS, SIZES, N = (0.5, 1.0, 4.0), (4, 8, 16, 32, 64, 128, 256), 10_000
SHOWN = (
    "optimised strategy",
    "gamma_F, PrivUnitG",
    "SubsetSelection",
    "OptimizedUnaryEncoding",
    "HadamardResponse",
    "RandomizedResponse",
    "plain, PrivUnitG",
)
FIELDS = ("epsilon", "k", "mechanism", "predicted", "measured", "standard_error")


def draw(path: Path, target: Path) -> None:
    from matplotlib.figure import Figure

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    epsilons = sorted({float(row["epsilon"]) for row in rows})
    figure = Figure(figsize=(4.2 * len(epsilons), 4), layout="constrained")
    panels = figure.subplots(1, len(epsilons), squeeze=False)[0]
    for axes, epsilon in zip(panels, epsilons, strict=True):
        for i, name in enumerate(SHOWN):
            some = [row for row in rows if row["mechanism"] == name and float(row["epsilon"]) == epsilon]
            axes.plot(
                [int(row["k"]) for row in some],
                [float(row["predicted"]) for row in some],
                "-",
                color=f"C{i}",
                label=name,
            )
            axes.errorbar(
                [int(row["k"]) for row in some],
                [float(row["measured"]) for row in some],
                [2 * float(row["standard_error"]) for row in some],
                fmt="o",
                markersize=3,
                capsize=2,
                color=f"C{i}",
            )
        axes.set(xscale="log", yscale="log", xlabel="types k", title=f"epsilon = {epsilon:g}")
        axes.grid(True, linewidth=0.3, which="both")
    panels[0].set_ylabel("root mean squared error, n = 10,000")
    panels[0].legend(fontsize="x-small")
    figure.savefig(target, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/error_vs_types"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path, generator, trials = options.out / "error_vs_types.csv", keyed_generator(b"error vs types"), 200
    print(f"{'epsilon':>8}{'k':>6}  {'mechanism':<24}{'predicted':>11}{'measured':>11}{'+-':>9}")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for epsilon in EPSILONS[1:2] if options.smoke else EPSILONS:
            for k in SIZES[:2] if options.smoke else SIZES:
                choice = choose(workloads.prefix(k), N, epsilon, Objective.AVERAGE_QUERY)
                for candidate in choice.candidates:
                    if candidate.name not in SHOWN:
                        continue
                    mechanism = candidate.mechanism
                    worst = (mechanism.errors.bias.square() + mechanism.errors.variance / N).mean(0).argmax()
                    counts = N * torch.eye(k, dtype=torch.int64)[worst]
                    value = mechanism.answer_histogram(counts, generator=generator, sample_shape=(trials,)).value
                    squares = (value - mechanism.workload[:, worst]).square().mean(-1)
                    measured = math.sqrt(float(squares.mean()))
                    error = float(squares.std()) / math.sqrt(trials) / (2 * measured)
                    values = (epsilon, k, candidate.name, candidate.error, measured, error)
                    writer.writerow(dict(zip(FIELDS, values, strict=True)))
                    row = f"{epsilon:>8g}{k:>6}  {candidate.name:<24}"
                    print(row + f"{candidate.error:>11.5f}{measured:>11.5f}{error:>9.5f}", flush=True)
    draw(path, options.out / "error_vs_types.png")
    print(path.resolve())


if __name__ == "__main__":
    main()
