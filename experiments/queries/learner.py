"""Agnostic learning of decision stumps under local differential privacy, on real data: loss against epsilon.

Paper: Edmonds, Nikolov, Ullman (2020), Theorem 24: one message of each user estimates the loss of every concept.
Data: scikit-learn's breast cancer table (569 women, 30 measurements), each measurement in 6 equal bins between its
    smallest and largest value (taken as public here: in a real collection the ranges must be stated beforehand).
    Larger n resamples the rows, so that the true losses stay the same.
Command:  python experiments/queries/learner.py
Expected: the true loss of the learned stump falls to the least of the class, 0.081, as n epsilon^2 grows: at n = 569
    it is 0.11 at epsilon = 8, at n = 100,000 0.087 at epsilon = 1. Estimates are within the half-width (95 %) of the
    truth; that of the learned stump is the least of 300 and too small on average.
Output: results/learner/learner.csv and learner.png. Time: 1.5 minutes on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch

from torchdp.noise import SeededNoise
from torchdp.queries import PrivateLearner, stumps

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SIZES = (569, 10_000, 100_000)
BINS = 6
FIELDS = ("n", "epsilon", "trials", "loss", "standard_error", "estimated", "half_width", "least")


def table() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x = torch.from_numpy(data.data)
    low, high = x.amin(0), x.amax(0)
    bins = ((x - low) / (high - low) * BINS).long().clamp_max(BINS - 1)
    return bins, 2 * torch.from_numpy(data.target).double() - 1, [str(name) for name in data.feature_names]


def draw(path: Path, target: Path) -> None:
    from matplotlib.figure import Figure

    with path.open(newline="") as file:
        rows = [{name: float(row[name]) for name in FIELDS} for row in csv.DictReader(file)]
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for n in sorted({row["n"] for row in rows}):
        some = [row for row in rows if row["n"] == n]
        errors = [2 * row["standard_error"] for row in some]
        axes.errorbar(
            [row["epsilon"] for row in some],
            [row["loss"] for row in some],
            errors,
            fmt="o-",
            capsize=3,
            label=f"n = {n:,.0f}",
        )
    axes.axhline(rows[0]["least"], color="black", linestyle="--", linewidth=1, label="best stump, not private")
    axes.set(
        xscale="log",
        xlabel="epsilon",
        ylabel="true loss of the learned stump",
        title="Decision stumps, breast cancer table",
    )
    axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axes.minorticks_off()
    axes.grid(True, linewidth=0.3)
    axes.legend()
    figure.savefig(target, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/learner"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    records, labels, names = table()
    concepts = stumps([BINS] * records.shape[1], names)
    noise = SeededNoise(1)
    path = options.out / "learner.csv"
    print(f"{len(concepts)} stumps, code of length {concepts.dim}, norm {concepts.norm:.4f}")
    print(
        f"{'n':>8}{'epsilon':>9}{'trials':>8}{'loss':>9}{'+-':>9}{'estimate':>10}{'half-width':>12}{'least':>8}  stump"
    )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for n in SIZES[:2] if options.smoke else SIZES:
            users = torch.arange(n) % len(records)
            x, y = records[users], labels[users]
            truth = concepts.losses(x, y)
            trials = 3 if options.smoke else max(20, 20_000 // n)
            for epsilon in EPSILONS[1::3] if options.smoke else EPSILONS:
                learner = PrivateLearner(concepts, epsilon)
                found = [learner.learn(x, y, noise=noise) for _ in range(trials)]
                loss = torch.stack([truth[f.concept] for f in found])
                error = float(loss.std()) / math.sqrt(trials)
                estimated = sum(f.loss for f in found) / trials
                values = (
                    n,
                    epsilon,
                    trials,
                    float(loss.mean()),
                    error,
                    estimated,
                    found[0].half_width(),
                    float(truth.min()),
                )
                writer.writerow(dict(zip(FIELDS, values, strict=True)))
                print(
                    f"{n:>8}{epsilon:>9g}{trials:>8}"
                    + "".join(f"{v:>9.4f}" for v in values[3:5])
                    + f"{values[5]:>10.4f}{values[6]:>12.4f}{values[7]:>8.4f}  {found[0].name}",
                    flush=True,
                )
    draw(path, options.out / "learner.png")
    print(path.resolve())


if __name__ == "__main__":
    main()
