"""The constant in gamma_2(prefix sums of n) = ln n / pi + c: certified values of gamma_2 - ln n / pi.

Paper: Henzinger, Kalinin, Upadhyay (2025, arXiv 2509.14334) prove 0.701 <= c <= 0.846 as n grows.
Command:  python experiments/factorization/prefix_constant.py [--sizes 64 128 ...] [--device cuda]
Expected: certified brackets of width below 1e-4 that fall with n: 0.7876 at 64, 0.7676 at 256, 0.7551 at 1024.
Output: results/prefix_constant/prefix_constant.csv and .png; sizes already in the CSV are not computed again.
Time: sizes to 1024 in 20 s on 2 CPU cores, 2048 in about a minute, 4096 in about 10; --smoke in a second.
    On a GPU (not yet measured) sizes from 256 on run by matrix products alone, and hold at most about 20 n x n matrices
    of float64, 2.1 GB each at 16384:  ... prefix_constant.py --device cuda --sizes 4096 8192 16384 --tol 1e-4
"""

import argparse
import csv
import math
import time
from pathlib import Path

from torchdp import workloads
from torchdp.factorization import factorize

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
LITERATURE = (0.701, 0.846)
FIELDS = ("n", "lower", "upper", "constant_low", "constant_high", "iterations", "seconds")


def draw(rows: list[dict[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    sizes = [row["n"] for row in rows]
    middle = [(row["constant_low"] + row["constant_high"]) / 2 for row in rows]
    half = [(row["constant_high"] - row["constant_low"]) / 2 for row in rows]
    axes.errorbar(sizes, middle, yerr=half, fmt="o-", color="#0072B2", capsize=3, label="certified bracket")
    for value, word in zip(LITERATURE, ("proved lower", "proved upper"), strict=True):
        axes.axhline(value, color="#D55E00", linestyle="--", linewidth=1)
        place = {"ha": "right", "va": "bottom", "fontsize": "small"}
        axes.annotate(f"{word} bound on the limit, {value}", (sizes[-1], value), **place)
    axes.set(
        xscale="log", xlabel="n", ylabel="gamma_2 - ln n / pi", title="Prefix sums: the constant beside ln n / pi"
    )
    axes.grid(True, linewidth=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments.add_argument("--tol", type=float, default=1e-5)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--out", type=Path, default=Path("results/prefix_constant"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / "prefix_constant.csv"
    known: dict[int, dict[str, float]] = {}
    if table.exists():
        with table.open(newline="") as file:
            known = {int(row["n"]): {key: float(row[key]) for key in FIELDS} for row in csv.DictReader(file)}
    print("".join(f"{name:>15}" for name in FIELDS))
    for n in SIZES[:6] if options.smoke else options.sizes:
        if n not in known:
            start = time.perf_counter()
            found = factorize(workloads.prefix(n, device=options.device), tol=options.tol)
            lower, upper = float(found.certificate.lower), float(found.certificate.upper)
            shift, seconds = math.log(n) / math.pi, time.perf_counter() - start
            values = (n, lower, upper, lower - shift, upper - shift, found.iterations, seconds)
            known[n] = dict(zip(FIELDS, values, strict=True))
            with table.open("w", newline="") as file:  # after each size: a killed run loses nothing
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(known[size] for size in sorted(known))
        row = known[n]
        print("".join(f"{row[name]:>15.8g}" for name in FIELDS), flush=True)
    draw([known[size] for size in sorted(known)], options.out / "prefix_constant.png")
    print(table.resolve())


if __name__ == "__main__":
    main()
