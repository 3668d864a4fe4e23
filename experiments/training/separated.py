"""Training where a user's steps keep apart: strategies of least error, certified, beside what others make.

Paper: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), (k, b)-participation: a user takes part
    in at most ``times`` steps, any two at least ``gap`` apart. Error of the prefix sums in clipping bounds x sigma; the
    sensitivity of every row is computed for what the row's strategy is, exactly.
Command:  OMP_NUM_THREADS=1 python experiments/training/separated.py
Expected: torchdp within 0.2 to 2 % of a bound that holds for every strategy, and below every other row: jax-privacy's
    banded strategies of equal column norms are 2 to 13 % above (root mean square), 5 to 100 % (largest error).
Output: results/training/separated/separated.csv.
Artifact: Choquette-Choo et al. (2023) | banded matrices, (k, b)-participation
Status: agrees
Time: 2 minutes on one core; where jax-privacy and opake (with optree, torchopt) are installed 12
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
from torchdp.simulate import Experiment, Report
from torchdp.training import Iterates, Separated, causal_strategy, sensitivity, standard_errors

CELLS = "128,32,4 128,16,8 101,25,5 120,30,4 256,64,4 256,32,8 256,16,4"


def others(W: Tensor, gap: int, times: int, p: float) -> dict[str, Callable[[], Tensor]]:
    """What was there before: strategies made for another participation."""
    return {
        "torchdp, fixed epochs": lambda: causal_strategy(W, factorization.factorize_epochs(W, gap, p)),
        "torchdp, one participation": lambda: causal_strategy(W, factorization.factorize(W, p)),
        "independent": lambda: torch.eye(len(W), dtype=torch.float64),
    }


def peers(n: int, gap: int, times: int, p: float) -> dict[str, Callable[[], Tensor]]:
    """jax-privacy's strategies and opake's; empty where they are not installed."""
    return jax_privacy(n, gap, p) | opake(n, gap, times)


def jax_privacy(n: int, gap: int, p: float) -> dict[str, Callable[[], Tensor]]:
    try:
        import jax
        import numpy as np
        from jax_privacy.matrix_factorization import banded, dense, toeplitz

        jax.config.update("jax_enable_x64", True)
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return {}
    error = jax.numpy.mean if p == 2 else jax.numpy.max

    def strategy(make):
        return lambda: torch.tensor(np.asarray(make()), dtype=torch.float64)

    found = {
        "jax-privacy, banded, column-normalised": strategy(
            lambda: banded.optimize(n, bands=gap, reduction_fn=error, max_optimizer_steps=500).materialize()
        ),
        "jax-privacy, banded Toeplitz": strategy(
            lambda: toeplitz.materialize_lower_triangular(
                toeplitz.optimize_banded_toeplitz(n, bands=gap, reduction_fn=error), n
            )
        ),
    }
    if n % gap == 0:
        dense_banded = partial(dense.optimize, n, epochs=n // gap, bands=gap, max_optimizer_steps=500)
        found["jax-privacy, dense banded"] = strategy(partial(dense_banded, equal_norm=True, reduction_fn=error))
    return found


def opake(n: int, gap: int, times: int) -> dict[str, Callable[[], Tensor]]:
    """Both Toeplitz; it is told no norm."""
    try:
        from opake.dpftrl import band_mf_strategy, blt_strategy
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return {}

    def toeplitz(strategy):
        c = strategy.coefficients(n_steps=n, min_sep=gap, max_participations=times).double().cpu()
        c = torch.nn.functional.pad(c, (0, n - len(c)))
        age = torch.arange(n)[:, None] - torch.arange(n)
        return c[age.clamp_min(0)].tril()

    return {
        "opake, banded Toeplitz": lambda: toeplitz(band_mf_strategy(bands=gap)),
        "opake, buffers": lambda: toeplitz(blt_strategy(max_buffers=6)),
    }


@dataclass(frozen=True)
class Config:
    cells: tuple[str, ...] = tuple(CELLS.split())  # steps, gap, times
    momentum: float = 0.0
    peers: bool = True


FULL = Config()
SMOKE = Config(("12,4,3", "8,2,2"), peers=False)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for name, found in (
        (("jax-privacy", jax_privacy(4, 2, 2.0)), ("opake", opake(4, 2, 2))) if config.peers else ()
    ):
        if not found:
            report.say(f"{name}: missing")
    for n, gap, times in (map(int, cell.split(",")) for cell in config.cells):
        W, user = Iterates(n, momentum=config.momentum).dense(), Separated(gap, times)
        for p, norm in ((2.0, "rms"), (torch.inf, "largest")):
            unit, cell = n**0.5 if p == 2 else 1.0, {"steps": n, "gap": gap, "times": times, "norm": norm}
            start = time.process_time()
            found = factorization.factorize_separated(W, gap, times, p)
            seconds = time.process_time() - start
            least = found.certificate.lower / unit
            report.row("separated", **cell, strategy="at least", error=least, above=None, cpu_seconds=None)
            rest = others(W, gap, times, p) | (peers(n, gap, times, p) if config.peers else {})
            for name, make in {"torchdp": lambda: found.strategy.dense(), **rest}.items():  # noqa: B023
                start = time.process_time()
                C = make().tril()
                spent = seconds if name == "torchdp" else time.process_time() - start
                errors = sensitivity(C, user).value * standard_errors(W, C)
                error = torch.linalg.vector_norm(errors, ord=p) / unit
                above = float(error / least) - 1
                report.row("separated", **cell, strategy=name, error=error, above=above, cpu_seconds=spent)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
