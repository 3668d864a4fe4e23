"""Certified gap against CPU time for each solver of gamma_2: what a user gets who stops it earlier or later.

Papers: Edmonds, Nikolov, Ullman (2020); peers as named.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/gap_against_time.py
Expected: the accelerated fixed point is first to every gap below 1e-2 on every problem; 1e-8 takes it at most 0.3 s, on
    all ranges of [64] 1.5 s, where the plain iteration takes ten times as long from 1e-6 on. 3000 steps of the gradient
    relaxation end between 3e-5 and 5e-4; SCS takes over 50 times as long to 1e-4; jax-privacy's strategies end between
    5e-4 (p-norm, random signs) and 9e-2 (max, prefix sums of 256).
Each point is one run from the start with one setting (target gap, number of steps, accuracy), judged as in solvers.py;
a line ends with the first run of over 30 s. A peer that is missing has no line.
Output: results/gap_against_time/gap_against_time.csv and .png; lines already in the CSV are not computed again, drawing
    only reads it. A peer installed later is added by calling again.
Time: about 6 minutes on one core without peers; --smoke in seconds.
"""

import argparse
import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from solvers import Run, available, by_cvxpy, by_gradient, by_jax_privacy, fixed_point, judged
from torch import Tensor

from torchdp import workloads
from torchdp.randomness import keyed_generator

FIELDS = ("problem", "solver", "setting", "seconds", "gap", "lower", "upper")
LONGEST = 30.0  # seconds: a line ends with the first run that takes longer
GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
LINES: dict[str, tuple[Callable[[float], Run], tuple[float, ...]]] = {
    "fixed point": (lambda gap: partial(fixed_point, tol=gap), GAPS),
    "  without acceleration": (lambda gap: partial(fixed_point, tol=gap, memory=0), GAPS),
    "gradient relaxation": (lambda steps: partial(by_gradient, steps=int(steps)), (10, 30, 100, 300, 1000, 3000)),
    "cvxpy, SCS": (
        lambda eps: partial(by_cvxpy, solver="SCS", eps=eps, max_iters=20_000),
        (1e-1, 1e-2, 1e-3, 1e-4),
    ),
    "jax-privacy, max": (
        lambda steps: partial(by_jax_privacy, reduction="max", steps=int(steps)),
        (30, 300, 3000),
    ),
    "jax-privacy, p-norm 128": (
        lambda steps: partial(by_jax_privacy, reduction="p-norm 128", steps=int(steps)),
        (30, 300, 3000),
    ),
}
LARGEST = {"cvxpy, SCS": 128, "jax-privacy, max": 512, "jax-privacy, p-norm 128": 512}  # rows + columns


def problems(smoke: bool) -> dict[str, Tensor]:
    if smoke:
        return {"prefix 8": workloads.prefix(8).dense()}
    signs = torch.randint(0, 2, (64, 64), generator=keyed_generator(b"signs")).double() * 2 - 1
    return {
        "prefix 64": workloads.prefix(64).dense(),
        "random signs 64": signs,
        "prefix 256": workloads.prefix(256).dense(),
        "all ranges 64": workloads.all_ranges(64).dense(),
    }


def line(problem: str, name: str, W: Tensor, settings: tuple[float, ...]) -> list[dict[str, object]]:
    """The points of one solver on one problem, from the fastest setting on."""
    rows: list[dict[str, object]] = []
    c, P = fixed_point(W, 1e-8)[2:4]
    make = LINES[name][0]
    for setting in settings:
        seconds, certificate, _ = judged(W, make(setting), (c, P), float("inf"))
        bounds = {"lower": float(certificate.lower), "upper": float(certificate.upper)}
        rows.append(
            {"problem": problem, "solver": name, "setting": setting, "seconds": seconds}
            | {"gap": float(certificate.gap)}
            | bounds
        )
        print(
            f"{problem:<18}{name:<26}{setting:>10g}{seconds:>10.3f} s{float(certificate.gap):>10.1e}", flush=True
        )
        if seconds > LONGEST:
            break
    return rows


def draw(rows: list[dict[str, str]], path: Path) -> None:
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["problem"] for row in rows))
    wide = min(2, len(names))
    high = -(-len(names) // wide)
    figure = Figure(figsize=(6 * wide, 4 * high), layout="constrained")
    colours = dict(zip(LINES, ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00"), strict=True))
    for axes, problem in zip(figure.subplots(high, wide, squeeze=False).flat, names, strict=False):
        for name, colour in colours.items():
            points = [row for row in rows if (row["problem"], row["solver"]) == (problem, name)]
            if points:
                times, gaps = ([float(row[key]) for row in points] for key in ("seconds", "gap"))
                axes.plot(
                    times, [max(gap, 1e-12) for gap in gaps], "o-", color=colour, markersize=4, label=name.strip()
                )
        axes.set(
            xscale="log", yscale="log", title=problem, xlabel="CPU seconds, one thread", ylabel="certified gap"
        )
        axes.grid(True, which="major", linewidth=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/gap_against_time"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "gap_against_time.csv"
    rows: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    known = {(row["problem"], row["solver"]) for row in rows}
    for name, (make, settings) in LINES.items():
        settings = settings[:3] if options.smoke else settings
        if missing := available(make(settings[0])):
            print(f"{name} missing: {missing.name}", flush=True)
            continue
        for problem, W in problems(options.smoke).items():
            if (problem, name) not in known and sum(W.shape) <= LARGEST.get(name, 10_000):
                rows += line(problem, name, W, settings)
                with path.open("w", newline="") as file:  # after each line: a killed run loses nothing
                    writer = csv.DictWriter(file, FIELDS)
                    writer.writeheader()
                    writer.writerows(rows)
    with path.open(newline="") as file:
        draw(list(csv.DictReader(file)), options.out / "gap_against_time.png")
    print(path.resolve())


if __name__ == "__main__":
    main()
