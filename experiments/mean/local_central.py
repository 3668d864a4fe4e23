"""Local against central means on a skewed box: shaped and round noise, and their lower bounds.

Paper: Nikolov, Tang (2023), Theorems 15, 17, 4 and 55.
Command:  python experiments/mean/local_central.py
Expected: (E ||error||_2^2)^{1/2} at epsilon = 1. Local errors fall like n^{-1/2}, central ones like 1/n; shaped noise
    errs 1.64 times less than round noise in both. PrivUnitG is 2.6 times the local lower bound for every data set, and
    8 % below a point release of full budget, whose prediction is an upper bound. Measured / predicted is 1 within 0.03
    for the others.
Output: results/gaussian_mean/local_central.csv and local_central.png. Time: half a minute; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from torchdp.domains import Box, noise_shape, round_shape
from torchdp.mean import MeanMechanism, approximate_lower_bound, gaussian_mean, local_lower_bound, local_mean
from torchdp.randomizers import PointRelease, PrivUnitG
from torchdp.randomness import keyed_generator

EPSILON, DELTA, TRIALS = 1.0, 1e-6, 2000
FIELDS = ("method", "n", "predicted", "measured", "standard_error")


def measured(mechanism: MeanMechanism, points: Tensor, n: int, key: str, trials: int) -> tuple[float, float]:
    counts = torch.full((len(points),), n // len(points))
    generator = keyed_generator(f"{key} {n}".encode())
    drawn = mechanism.estimate_counts(points, counts, generator=generator, sample_shape=(trials,))
    squares = (drawn.value - points.mean(0)).square().sum(1)
    value = math.sqrt(float(squares.mean()))
    return value, float(squares.std()) / math.sqrt(trials) / (2 * value)


def draw(rows: list[dict[str, str | float]], target: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.8), layout="constrained")
    axes = figure.subplots()
    for i, method in enumerate(dict.fromkeys(str(row["method"]) for row in rows)):
        some = [row for row in rows if row["method"] == method]
        n = [float(row["n"]) for row in some]
        bound = "bound" in method
        axes.plot(
            n, [float(row["predicted"]) for row in some], "--" if bound else "-", color=f"C{i}", label=method
        )
        if not bound:
            values = [float(row["measured"]) for row in some]
            bars = [2 * float(row["standard_error"]) for row in some]
            axes.errorbar(n, values, bars, fmt="o", markersize=3, capsize=2, color=f"C{i}")
    axes.set(xscale="log", yscale="log", xlabel="users n", ylabel="root mean squared l_2 error")
    axes.set_title("box with sides 1, 2, ..., 128; epsilon = 1 (central: delta = 1e-6)")
    axes.grid(True, linewidth=0.3)
    axes.legend(fontsize="x-small")
    figure.savefig(target, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--out", type=Path, default=Path("results/gaussian_mean"))
    options = arguments.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    d = 8
    sides = 2.0 ** torch.arange(d, dtype=torch.float64)
    domain = Box(torch.zeros(d, dtype=torch.float64), sides)
    shaped, plain = noise_shape(domain, 2.0), round_shape(domain, 2.0)
    mechanisms: dict[str, MeanMechanism] = {
        "local, shaped, PrivUnitG": local_mean(domain, shaped, EPSILON, PrivUnitG),
        "local, round, PrivUnitG": local_mean(domain, plain, EPSILON, PrivUnitG),
        "local, shaped, point release": local_mean(domain, shaped, EPSILON, PointRelease),
        "central, shaped": gaussian_mean(domain, shaped, EPSILON, DELTA),
        "central, round": gaussian_mean(domain, plain, EPSILON, DELTA),
    }
    gamma = float(shaped.certificate.lower)
    points = torch.rand(16, d, dtype=torch.float64, generator=keyed_generator(b"local_central")) * sides
    rows: list[dict[str, str | float]] = []
    print(f"{'method':<36}{'n':>9}{'predicted':>12}{'measured':>12}{'+-':>9}{'ratio':>9}")
    for n in (160, 16_000) if options.smoke else (160, 1600, 16_000, 160_000, 1_600_000):
        for method, mechanism in mechanisms.items():
            value, error = measured(mechanism, points, n, method, TRIALS // 10 if options.smoke else TRIALS)
            predicted = mechanism.error(n).root_mean_square.value
            rows.append(dict(zip(FIELDS, (method, n, predicted, value, error), strict=True)))
            print(
                f"{method:<36}{n:>9}{predicted:>12.5g}{value:>12.5g}{error:>9.2g}{value / predicted:>9.4f}",
                flush=True,
            )
        bounds = {
            "local lower bound, every data set": local_lower_bound(gamma, n, EPSILON),
            "central lower bound, a neighbour": approximate_lower_bound(gamma, n, EPSILON, DELTA, d),
        }
        for method, bound in bounds.items():
            rows.append(dict(zip(FIELDS, (method, n, bound, math.nan, math.nan), strict=True)))
            print(f"{method:<36}{n:>9}{bound:>12.5g}", flush=True)
    with (options.out / "local_central.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, options.out / "local_central.png")
    print(options.out / "local_central.png")


if __name__ == "__main__":
    main()
