"""The relaxation on a hundred matrices: certified gap against CPU seconds, beside the fixed point, SCS and Clarabel.

Papers: Edmonds, Nikolov, Ullman (2020); Nikolov, Tang (2023).
Command:  OMP_NUM_THREADS=1 python experiments/factorization/relaxation.py
Expected: train reaches a certified 1e-5 on each of the hundred instances within a CPU-second (median .07; the fixed
    point .01), 1e-6 within 2, and on prefix sums of 256 1e-5 in 2 CPU-s; its bounds and the semidefinite program's
    never contradict each other.
The instances: square, wide, tall, of rank 2, sparse, signs, one row, doubled lines, graded columns, one column;
of 3 to 26 rows and columns, at ten scales from 1e-12 to 1e12. Each time is that of one call on one thread.
Output: results/factorization/relaxation/relaxation.csv, large.csv and relaxation.png; rows already in the CSV are not
    computed again.
Artifact: Edmonds, Nikolov, Ullman (2020); peers | the relaxation against the reference
Status: agrees, on a CPU
Time: about 10 minutes on one core; --smoke in seconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from solvers import Run, available, by_cvxpy, fixed_point, judged, relaxation
from torch import Tensor

from torchdp import workloads
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report, subplots
from torchdp.threads import on_host

KINDS = ("square", "wide", "tall", "rank", "sparse", "signs", "row", "doubled", "graded", "column")
GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
LINES: dict[str, tuple[Callable[[float], Run], tuple[float, ...]]] = {
    "relaxation": (lambda gap: partial(relaxation, tol=gap), GAPS),
    "fixed point": (lambda gap: partial(fixed_point, tol=gap), GAPS),
    "cvxpy, SCS": (lambda eps: partial(by_cvxpy, solver="SCS", eps=eps, max_iters=20_000), (1e-3, 1e-5)),
    "cvxpy, Clarabel": (lambda _: partial(by_cvxpy, solver="CLARABEL"), (1e-8,)),
}


@on_host
def instance(number: int) -> Tensor:
    """Matrix ``number`` of the hundred, float64: KINDS[number % 10], of the size and the scale number // 10."""
    generator = keyed_generator(f"relaxation {number}".encode())
    kind, size = KINDS[number % 10], number // 10
    m, n = {"wide": (3 + size, 8 + 2 * size), "tall": (8 + 2 * size, 3 + size)}.get(kind, (3 + size, 3 + size))
    draw = partial(torch.randn, dtype=torch.float64, generator=generator)
    W = draw(m, n)
    match kind:
        case "rank":
            W = W[:, :2] @ draw(2, n)
        case "sparse":
            W = W * (draw(m, n) > 0.5)
        case "signs":
            W = W.sign()
        case "row":
            W = W[:1]
        case "doubled":
            W[1], W[:, 1], W[2] = W[0], -W[:, 0], 0.0
        case "graded":
            W = W * torch.logspace(0, -4, n, dtype=torch.float64)
        case "column":
            W = W[:, :1]
    return W * 10.0 ** (24 * size / 9 - 12)


@dataclass(frozen=True)
class Config:
    instances: int = 100
    settings: int = 6  # of each line, the coarsest ones
    prefix: int = 256
    batch: int = 1000


FULL = Config()
SMOKE = Config(instances=2, settings=5, prefix=8, batch=2)


def once(run: Run, W: Tensor) -> dict[str, object]:
    size = W.abs().max()  # cvxpy knows no scales
    seconds, certificate, steps = judged(W / size, run, (W[:, 0].abs() / size, W[0].abs() / size), math.inf)
    bounds = {"gap": certificate.gap, "lower": certificate.lower * size, "upper": certificate.upper * size}
    return {"seconds": seconds, "steps": steps, **bounds}


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for solver, (make, settings) in LINES.items():
        if missing := available(make(settings[-1])):
            report.say(f"{solver} missing: {missing.name}")
            continue
        for setting in settings[: config.settings]:
            for number in range(config.instances):
                key = {"solver": solver, "setting": setting, "instance": number, "kind": KINDS[number % 10]}
                report.once("relaxation", key, partial(once, make(setting), instance(number)))
    together = torch.randn(
        config.batch, 32, 32, dtype=torch.float64, generator=keyed_generator(b"relaxation, together")
    )
    large = {
        f"prefix {config.prefix}": workloads.prefix(config.prefix).dense(),
        f"{config.batch} of 32 x 32": together,
    }
    for name, W in large.items():
        for solver, run in (("relaxation", relaxation), ("fixed point", fixed_point)):
            for tol in (1e-4, 1e-5):
                key = {"problem": name, "solver": solver, "setting": tol}
                report.once("large", key, partial(largest, W, partial(run, tol=tol)))


def largest(W: Tensor, run: Run) -> dict[str, object]:
    """CPU seconds, and the largest gap of a batch."""
    ones = torch.ones_like(W[..., 0]), torch.ones_like(W[..., 0, :])
    seconds, certificate, steps = judged(W, run, ones, math.inf)
    return {"seconds": seconds, "steps": steps, "gap": certificate.gap.max()}


def draw(tables: dict) -> dict:
    figure, (axes,) = subplots(1, size=(7, 5))
    colours = dict(zip(LINES, ("#009E73", "#0072B2", "#D55E00", "#CC79A7"), strict=True))
    for solver, colour in colours.items():
        rows = [row for row in tables["relaxation"] if row["solver"] == solver]
        axes.plot(
            [row["seconds"] for row in rows],
            [max(row["gap"], 1e-12) for row in rows],
            ".", color=colour, markersize=4, label=f"{solver}: {len(rows)} runs",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="CPU seconds, one thread", ylabel="certified gap")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize="small")
    return {"relaxation.png": figure}


EXPERIMENT = Experiment(measure, FULL, SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
