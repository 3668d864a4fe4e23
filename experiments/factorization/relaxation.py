"""Certified gap against CPU time for each solver of gamma_2: on a hundred matrices, and on four
problems by name.

Papers: Edmonds, Nikolov, Ullman (2020); Nikolov, Tang (2023); peers as named.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/relaxation.py
Expected: train reaches a certified 1e-5 on each of the hundred instances within a CPU-second
(median .07; the fixed
    point .01), 1e-6 within 2, in float32 1e-4 within .7, and on prefix sums of 256 1e-5 in 2 CPU-s;
    1,000 random matrices of 32 x 32 take 54 CPU-s to 1e-4 (the fixed point 2.4). Its bounds and the
    semidefinite program's never contradict each other. Adam in an ordinary loop is at 2e-2 on
    prefix sums of 64 and 5e-4 on random signs after 3,000 steps, some 4 CPU-s, where L-BFGS is at
    1e-6 in .3. On the named problems the accelerated fixed point is first to every gap below 1e-2;
    SCS takes over 50 times as long to 1e-4; jax-privacy's strategies end between 5e-4
    (p-norm, random signs) and 9e-2 (max, prefix sums of 256).
The instances: square, wide, tall, of rank 2, sparse, signs, one row, doubled lines, graded columns,
one column; of 3 to 26 rows and columns, at ten scales from 1e-12 to 1e12. Each point is one run
from the start with one setting (target gap, number of steps, accuracy) on one thread, judged as in
solvers.py; a line ends with the first run of over 30 s. A peer that is missing has no line; one
installed later is added by calling again.
Output: results/factorization/relaxation/relaxation.csv, large.csv, named.csv and relaxation.png;
rows already in the
    CSV are not computed again.
Artifact: Edmonds, Nikolov, Ullman (2020); peers | speed of solvers, the relaxation against the
reference
Status: agrees, on a CPU
Time: about 15 minutes on one core without peers; --smoke in seconds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from solvers import (
    Run,
    available,
    by_adam,
    by_cvxpy,
    by_jax_privacy,
    fixed_point,
    judged,
    relaxation,
    workload,
)
from torch import Tensor

from torchdp import workloads
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots
from torchdp.threads import on_host

KINDS = ("square", "wide", "tall", "rank", "sparse", "signs", "row", "doubled", "graded", "column")
LONGEST = 30.0  # seconds: a line of a named problem ends with the first run that takes longer
GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
STEPS = (30, 300, 3000)
Line = tuple[Callable[[float], Run], tuple[float, ...]]
LINES = {
    "relaxation": (lambda gap: partial(relaxation, tol=gap), GAPS[:6]),
    "relaxation, float32": (lambda gap: lambda W: relaxation(W.float(), gap), (1e-4,)),
    "relaxation by Adam": (lambda steps: partial(by_adam, steps=int(steps)), STEPS),
    "fixed point": (lambda gap: partial(fixed_point, tol=gap), GAPS[:6]),
    "cvxpy, SCS": (
        lambda eps: partial(by_cvxpy, solver="SCS", eps=eps, max_iters=20_000),
        (1e-3, 1e-5),
    ),
    "cvxpy, Clarabel": (lambda _: partial(by_cvxpy, solver="CLARABEL"), (1e-8,)),
}
NAMED = {
    "fixed point": (LINES["fixed point"][0], GAPS),
    "  without acceleration": (lambda gap: partial(fixed_point, tol=gap, memory=0), GAPS),
    "relaxation": (LINES["relaxation"][0], GAPS[:7]),
    "relaxation by Adam": LINES["relaxation by Adam"],
    "cvxpy, SCS": (LINES["cvxpy, SCS"][0], GAPS[:4]),
} | {
    f"jax-privacy, {kind}": (
        lambda steps, kind=kind: partial(by_jax_privacy, reduction=kind, steps=int(steps)),
        STEPS,
    )
    for kind in ("max", "p-norm 128")
}
# rows + columns
LARGEST = {"cvxpy, SCS": 128, "jax-privacy, max": 512, "jax-privacy, p-norm 128": 512}


@on_host
def instance(number):
    """Matrix ``number`` of the hundred, float64: KINDS[number % 10], of the size and the scale
    number // 10.
    """
    generator = keyed_generator(f"relaxation {number}".encode())
    kind = KINDS[number % 10]
    size = number // 10
    short = 3 + size
    long = 8 + 2 * size
    m = long if kind == "tall" else short
    n = long if kind == "wide" else short
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
    problems: tuple[str, ...] = ("prefix 64", "random signs 64", "prefix 256", "all ranges 64")
    points: int = 8  # of each line of a named problem


def once(run, W, weights: tuple[Tensor, Tensor]):
    size = W.abs().max()  # cvxpy knows no scales
    seconds, certificate, steps = judged(W / size, run, weights, math.inf)
    bounds = {
        "gap": certificate.gap,
        "lower": certificate.lower * size,
        "upper": certificate.upper * size,
    }
    return {"seconds": seconds, "steps": steps, **bounds}


def there(
    lines: dict[str, Line], report
) -> Iterator[tuple[str, Callable[[float], Run], tuple[float, ...]]]:
    """Solvers that are installed."""
    for solver, (make, settings) in lines.items():
        missing = available(make(settings[-1]))
        if missing:
            report.say(f"{solver} missing: {missing.name}")
        else:
            yield solver, make, settings


def measure(config, report):
    torch.set_num_threads(1)
    for solver, make, settings in there(LINES, report):
        for setting, number in product(settings[: config.settings], range(config.instances)):
            W = instance(number)
            key = {
                "solver": solver,
                "setting": setting,
                "instance": number,
                "kind": KINDS[number % 10],
            }
            weights = (W[:, 0].abs(), W[0].abs())
            report.once("relaxation", key, partial(once, make(setting), W, weights))
    generator = keyed_generator(b"relaxation, together")
    large = {
        f"prefix {config.prefix}": workloads.prefix(config.prefix).dense(),
        f"{config.batch} of 32 x 32": torch.randn(
            config.batch, 32, 32, dtype=torch.float64, generator=generator
        ),
    }
    runs = {"relaxation": relaxation, "fixed point": fixed_point}
    for (name, W), (solver, run), tol in product(large.items(), runs.items(), (1e-4, 1e-5)):
        key = {"problem": name, "solver": solver, "setting": tol}
        report.once("large", key, partial(largest, W, partial(run, tol=tol)))
    for solver, make, settings in there(NAMED, report):
        for problem in config.problems:
            W = workload(problem)
            weights = fixed_point(W, 1e-8)[2:4]
            for setting in (
                settings[: config.points] if sum(W.shape) <= LARGEST.get(solver, 10_000) else ()
            ):
                key = {"problem": problem, "solver": solver, "setting": setting}
                if (
                    report.once("named", key, partial(once, make(setting), W, weights))["seconds"]
                    > LONGEST
                ):
                    break


def largest(W, run):
    """CPU seconds, and the largest gap of a batch."""
    ones = torch.ones_like(W[..., 0]), torch.ones_like(W[..., 0, :])
    seconds, certificate, steps = judged(W, run, ones, math.inf)
    return {"seconds": seconds, "steps": steps, "gap": certificate.gap.max()}


def draw(tables):
    names = list(dict.fromkeys(row["problem"] for row in tables["named"]))
    solvers = list(dict.fromkeys([*LINES, *NAMED]))
    hues = (
        "#009E73",
        "#F0E442",
        "#0072B2",
        "#D55E00",
        "#CC79A7",
        "#56B4E9",
        "#E69F00",
        "#000000",
        "#999999",
    )
    colours = dict(zip(solvers, hues, strict=True))
    figure, panels = subplots(1 + len(names), size=(6, 4))
    for axes, problem in zip(panels, [None, *names], strict=True):
        for solver, colour in colours.items():
            where = (
                {"solver": solver} if problem is None else {"solver": solver, "problem": problem}
            )
            times, gaps = columns(
                tables["named" if problem else "relaxation"], "seconds", "gap", **where
            )
            if times:
                gaps = [max(gap, 1e-12) for gap in gaps]
                style = {"linestyle": "-" if problem else "none", "markersize": 4 if problem else 3}
                axes.plot(times, gaps, "o", color=colour, label=solver.strip(), **style)
        title = problem or "a hundred matrices of 3 to 26 rows"
        axes.set(
            xscale="log",
            yscale="log",
            title=title,
            xlabel="CPU seconds, one thread",
            ylabel="certified gap",
        )
        axes.grid(True, which="major", linewidth=0.3)
        axes.xaxis.set_minor_formatter("")
        axes.legend(fontsize="x-small")
    return {"relaxation.png": figure}


SMOKE = Config(instances=2, settings=1, prefix=8, batch=2, problems=("prefix 8",), points=2)
EXPERIMENT = Experiment(measure, Config(), SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
