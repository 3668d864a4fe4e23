"""Certified gap against CPU time for each solver of gamma_2: what a user gets who stops it earlier or later.

Papers: Edmonds, Nikolov, Ullman (2020); peers as named.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/gap_against_time.py
Expected: the accelerated fixed point is first to every gap below 1e-2 on every problem; 1e-8 takes it at most 0.3 s, on
    all ranges of [64] 1.5 s, where the plain iteration takes ten times as long from 1e-6 on. The relaxation reaches the
    gaps too, ten to twenty times later (relaxation.py); SCS takes over 50 times as long to 1e-4; jax-privacy's
    strategies end between 5e-4 (p-norm, random signs) and 9e-2 (max, prefix sums of 256).
Each point is one run from the start with one setting (target gap, number of steps, accuracy), judged as in solvers.py;
a line ends with the first run of over 30 s. A peer that is missing has no line.
Output: results/factorization/gap_against_time/gap_against_time.csv and .png; points already in the CSV are not
    computed again. A peer installed later is added by calling again.
Artifact: Edmonds, Nikolov, Ullman (2020); peers | speed of solvers
Status: agrees, on a CPU
Time: about 6 minutes on one core without peers; --smoke in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from solvers import Run, available, by_cvxpy, by_jax_privacy, fixed_point, judged, random_signs, relaxation
from torch import Tensor

from torchdp import workloads
from torchdp.simulate import Experiment, Report, columns, subplots

LONGEST = 30.0  # seconds: a line ends with the first run that takes longer
GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
LINES: dict[str, tuple[Callable[[float], Run], tuple[float, ...]]] = {
    "fixed point": (lambda gap: partial(fixed_point, tol=gap), GAPS),
    "  without acceleration": (lambda gap: partial(fixed_point, tol=gap, memory=0), GAPS),
    "relaxation": (lambda gap: partial(relaxation, tol=gap), GAPS[:7]),
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


@dataclass(frozen=True)
class Config:
    problems: tuple[str, ...] = ("prefix 64", "random signs 64", "prefix 256", "all ranges 64")
    settings: int = 8  # of each line, the fastest ones


FULL = Config()
SMOKE = Config(("prefix 8",), 3)


def workload(name: str) -> Tensor:
    kind, _, k = name.rpartition(" ")
    if kind == "random signs":
        return torch.as_tensor(random_signs(int(k)))
    return {"prefix": workloads.prefix, "all ranges": workloads.all_ranges}[kind](int(k)).dense()


def point(run: Run, W: Tensor) -> dict[str, object]:
    c, P = fixed_point(W, 1e-8)[2:4]
    seconds, certificate, _ = judged(W, run, (c, P), float("inf"))
    return {"seconds": seconds, "gap": certificate.gap, "lower": certificate.lower, "upper": certificate.upper}


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for name, (make, settings) in LINES.items():
        if missing := available(make(settings[0])):
            report.say(f"{name} missing: {missing.name}")
            continue
        for problem in config.problems:
            W = workload(problem)
            for setting in settings[: config.settings] if sum(W.shape) <= LARGEST.get(name, 10_000) else ():
                key = {"problem": problem, "solver": name, "setting": setting}
                row = report.once("gap_against_time", key, partial(point, make(setting), W))
                if row["seconds"] > LONGEST:
                    break


def draw(tables: dict) -> dict:
    rows = tables["gap_against_time"]
    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure, panels = subplots(len(names), size=(6, 4))
    colours = dict(zip(LINES, ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00"), strict=True))
    for axes, problem in zip(panels, names, strict=True):
        for name, colour in colours.items():
            times, gaps = columns(rows, "seconds", "gap", problem=problem, solver=name)
            if times:
                gaps = [max(gap, 1e-12) for gap in gaps]
                axes.plot(times, gaps, "o-", color=colour, markersize=4, label=name.strip())
        axes.set(
            xscale="log", yscale="log", title=problem, xlabel="CPU seconds, one thread", ylabel="certified gap"
        )
        axes.grid(True, which="major", linewidth=0.3)
        axes.legend(fontsize="small")
    return {"gap_against_time.png": figure}


EXPERIMENT = Experiment(measure, FULL, SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
