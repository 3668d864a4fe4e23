"""Strategies of least error, certified, beside others: one participation, fixed epochs, steps that
keep apart.

Paper: Denisov, McMahan, Rush, Smith, Thakurta (2022), one participation; Choquette-Choo, McMahan,
Rush, Thakurta
    (2023), fixed-epoch-order participation; Choquette-Choo, Ganesh, McKenna, McMahan, Rush,
    Thakurta, Xu (2023), (k, b)-participation: at most ``times`` steps, any two at least ``gap``
    apart. Error of the prefix sums in clipping bounds x sigma, the sensitivity of every row
    computed exactly for what the row's strategy is.
Command:  OMP_NUM_THREADS=1 python experiments/training/strategies.py
Expected: without amplification by sampling. One participation and epochs: torchdp's rows within a
certified gap of
    1e-5 of the least error of any strategy, nothing below the bound; strategies made for one epoch
    are 1.1 to 2.2 times above it. jax-privacy's dense optimizer reaches the least root mean square
    without knowing it, at many times the time; of the least maximum its 128-norm stays within 1 %.
    Apart: torchdp within 2 to 5 % of a bound that holds for every strategy (that of passes; 24 and
    27 % where users come less often than the gap permits), and below every other row: jax-privacy's
    best 2 to 9 % above it (root mean square), 3 to 33 % (largest error).
Output: results/training/strategies/{once,epochs,separated}.csv.
Artifact: Choquette-Choo et al. (2023) | multi-epoch factorization, (k, b)-participation
Status: agrees
Time: two minutes on one core; where jax-privacy and opake (with optree, torchopt) are installed 20
    more; --smoke in seconds.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchdp import factorization
from torchdp.factorization.constructive import normalised_square_root
from torchdp.simulate import Experiment
from torchdp.training import (
    ONCE,
    Epochs,
    Iterates,
    Participation,
    Separated,
    causal_strategy,
    sensitivity,
    standard_errors,
)

Makers = dict[str, Callable[[], Tensor]]
NORMS = {"largest": torch.inf, "rms": 2.0}


def for_once(W, tol, names: tuple[str, str]) -> Makers:
    largest, rms = names
    factors = {
        largest: lambda: factorization.factorize(W, tol=tol),
        rms: lambda: factorization.factorize(W, 2.0, tol=tol),
        "square root, normalised": lambda: normalised_square_root(len(W)),
    }
    return _causal(W, factors) | {"independent": lambda: torch.eye(len(W), dtype=torch.float64)}


def _causal(W, factors: dict[str, Callable]) -> Makers:
    return {name: lambda make=make: causal_strategy(W, make()) for name, make in factors.items()}


def jax_privacy(n, user: Participation, p=2.0) -> Makers:
    """Empty where it is not installed."""
    try:
        import jax
        import numpy as np
        from jax_privacy.matrix_factorization import banded, buffered_toeplitz, dense, toeplitz

        jax.config.update("jax_enable_x64", True)
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return {}

    def power(errors):  # scaled by a constant, so that no power overflows
        top = jax.lax.stop_gradient(errors.max())
        return top * ((errors / top) ** 128).sum() ** (1 / 128)

    def tensor(make):
        return torch.tensor(np.asarray(make()), dtype=torch.float64)

    worst = jax.numpy.max
    if isinstance(user, Epochs):
        best = partial(dense.optimize, n, epochs=n // user.period)
        made = {"mean": best, "128-norm": partial(best, reduction_fn=power)}
        if n <= 128:  # ten minutes at 512
            made["max"] = partial(best, reduction_fn=worst)
    elif user == ONCE:
        best = partial(dense.optimize, n)
        buffered = partial(buffered_toeplitz.optimize, n=n, error="max")
        made = {"dense, mean": best, "dense, max": partial(best, reduction_fn=worst)}
        made["dense, 128-norm"] = partial(best, reduction_fn=power)
        made["buffered Toeplitz"] = lambda: buffered().materialize(n)
    else:
        asked = {"bands": user.gap, "reduction_fn": jax.numpy.mean if p == 2 else worst}
        row = partial(toeplitz.optimize_banded_toeplitz, n, **asked)
        asked["max_optimizer_steps"] = 500
        columns = partial(banded.optimize, n, **asked)
        made = {"banded, column-normalised": lambda: columns().materialize()}
        made["banded Toeplitz"] = lambda: toeplitz.materialize_lower_triangular(row(), n)
        if n % user.gap == 0:
            best = partial(dense.optimize, n, epochs=n // user.gap, **asked)
            made["dense banded"] = partial(best, equal_norm=True)
    return {f"jax-privacy, {name}": partial(tensor, make) for name, make in made.items()}


def opake(n, user: Separated) -> Makers:
    """Both Toeplitz; it is told no norm. Empty where it is not installed."""
    try:
        from opake.dpftrl import band_mf_strategy, blt_strategy
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return {}

    def toeplitz(strategy):
        c = strategy.coefficients(n_steps=n, min_sep=user.gap, max_participations=user.times)
        c = torch.nn.functional.pad(c.double().cpu(), (0, n - len(c)))
        age = torch.arange(n)[:, None] - torch.arange(n)
        return c[age.clamp_min(0)].tril()

    return {
        "opake, banded Toeplitz": lambda: toeplitz(band_mf_strategy(bands=user.gap)),
        "opake, buffers": lambda: toeplitz(blt_strategy(max_buffers=6)),
    }


@dataclass(frozen=True)
class Config:
    once: tuple[int, ...] = (125,)  # steps
    epochs: tuple[str, ...] = ("128,2", "128,4", "128,16", "512,4")  # steps, epochs
    separated: tuple[str, ...] = tuple(
        "128,32,4 128,16,8 101,25,5 120,30,4 256,64,4 256,32,8 256,16,4".split()
    )  # steps, gap, times
    tol: float = 1e-5
    peers: bool = True


SMOKE = Config((16,), ("16,2", "24,3"), ("12,4,3", "8,2,2"), 1e-3, peers=False)


def judged(make: Callable[[], Tensor], W, user: Participation) -> tuple[dict[str, float], float]:
    """The largest error and the root mean square of a strategy, and the seconds that it took."""
    start = time.process_time()
    C = make().tril()
    seconds = time.process_time() - start
    errors = sensitivity(C, user).value * standard_errors(W, C)
    return {"largest": float(errors.max()), "rms": float(errors.square().mean().sqrt())}, seconds


def together(report, table, cell, W, user: Participation, bounds, made: Makers):
    """A row for each strategy, with both norms."""
    least = {name: float(found.certificate.lower) for name, found in bounds.items()}
    least["rms"] /= len(W) ** 0.5
    report.row(table, **cell, strategy="at least", **least, cpu_seconds=None)
    for name, make in made.items():
        errors, seconds = judged(make, W, user)
        report.row(table, **cell, strategy=name, **errors, cpu_seconds=seconds)


def separated(config, report, cell: dict[str, int]):
    """A row for each norm and strategy."""
    n, gap, times = cell.values()
    W = Iterates(n).dense()
    user = Separated(gap, times)
    for norm in ("rms", "largest"):
        p = NORMS[norm]
        unit = n**0.5 if norm == "rms" else 1.0
        start = time.process_time()
        found = factorization.factorize_separated(W, gap, times, p)
        own = time.process_time() - start
        least = found.certificate.lower / unit
        bound = {"error": least, "above": None, "cpu_seconds": None}
        report.row("separated", **cell, norm=norm, strategy="at least", **bound)
        factors = {
            "torchdp, fixed epochs": partial(factorization.factorize_epochs, W, gap, p),
            "torchdp, one participation": partial(factorization.factorize, W, p),
        }
        made = {"torchdp": found.strategy.dense, **_causal(W, factors)}
        made["independent"] = partial(torch.eye, n, dtype=torch.float64)
        if config.peers:
            made |= jax_privacy(n, user, p) | opake(n, user)
        for name, make in made.items():
            errors, seconds = judged(make, W, user)
            report.row(
                "separated",
                **cell,
                norm=norm,
                strategy=name,
                error=errors[norm],
                above=errors[norm] / float(least) - 1,
                cpu_seconds=own if name == "torchdp" else seconds,
            )


def measure(config, report):
    torch.set_num_threads(1)
    tol = config.tol
    for n in config.once:
        W = Iterates(n).dense()
        bounds = {name: factorization.factorize(W, p, tol=tol) for name, p in NORMS.items()}
        made = for_once(W, tol, ("torchdp, gamma_2", "torchdp, gamma_F"))
        made |= _causal(W, {"square root": partial(factorization.square_root, n)})
        if config.peers:
            made |= jax_privacy(n, ONCE)
        together(report, "once", {"steps": n}, W, ONCE, bounds, made)
    for cell in config.epochs:
        steps, epochs = map(int, cell.split(","))
        W = Iterates(steps).dense()
        user = Epochs(steps // epochs)
        factorize = partial(factorization.factorize_epochs, W, user.period, tol=tol)
        best = {name: partial(factorize, p=p) for name, p in NORMS.items()}
        ours = {"torchdp, largest error": best["largest"], "torchdp, root mean square": best["rms"]}
        names = "for one epoch, largest error", "for one epoch, root mean square"
        made = _causal(W, ours) | for_once(W, tol, names)
        if config.peers:
            made |= jax_privacy(steps, user)
        bounds = {name: make() for name, make in best.items()}
        together(report, "epochs", {"steps": steps, "epochs": epochs}, W, user, bounds, made)
    for cell in config.separated:
        n, gap, times = map(int, cell.split(","))
        separated(config, report, {"steps": n, "gap": gap, "times": times})


EXPERIMENT = Experiment(measure, Config(), SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
