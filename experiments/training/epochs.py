"""Training for several epochs: strategies of least error, certified, beside jax-privacy's.

Paper: Choquette-Choo, McMahan, Rush, Thakurta (2023), multi-epoch factorization, fixed-epoch-order participation:
    a user takes part in steps i, i + period, i + 2 period, ... for one i. Error of the prefix sums in clipping bounds x
    sigma, with the sensitivity of every row computed exactly for what the row's strategy is.
Command:  OMP_NUM_THREADS=1 python experiments/training/epochs.py
Expected: without amplification by sampling: torchdp's rows within a certified gap of 1e-5 of the least possible error
    of any strategy; nothing below the bound; strategies made for one epoch are 1.1 to 2.2 times above it. jax-privacy's
    dense optimizer reaches the least root mean square without knowing it, at many times the time; of the least maximum
    its 128-norm stays within 1 %.
Output: results/training/epochs/epochs.csv.
Artifact: Choquette-Choo et al. (2023) | multi-epoch factorization
Status: agrees
Time: 15 seconds on one core; where jax-privacy is installed five minutes more; --smoke in seconds.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import factorization
from torchdp.factorization.constructive import normalised_square_root
from torchdp.simulate import Experiment, Report
from torchdp.training import Epochs, Iterates, causal_strategy, sensitivity, standard_errors


def ours(W: Tensor, period: int, tol: float) -> dict[str, Callable[[], Tensor]]:
    def strategy(factors):
        return lambda: causal_strategy(W, factors())

    return {
        "torchdp, largest error": strategy(lambda: factorization.factorize_epochs(W, period, tol=tol)),
        "torchdp, root mean square": strategy(lambda: factorization.factorize_epochs(W, period, 2.0, tol)),
        "for one epoch, largest error": strategy(lambda: factorization.factorize(W, tol=tol)),
        "for one epoch, root mean square": strategy(lambda: factorization.factorize(W, 2.0, tol=tol)),
        "square root, normalised": strategy(lambda: normalised_square_root(len(W))),
        "independent": lambda: torch.eye(len(W), dtype=torch.float64),
    }


def peers(n: int, period: int) -> dict[str, Callable[[], Tensor]]:
    """jax-privacy's strategies; empty where it is not installed."""
    try:
        import jax
        import numpy as np
        from jax_privacy.matrix_factorization import dense

        jax.config.update("jax_enable_x64", True)
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return {}
    epochs = n // period

    def power(errors):  # scaled by a constant, so that no power overflows
        top = jax.lax.stop_gradient(errors.max())
        return top * ((errors / top) ** 128).sum() ** (1 / 128)

    def made(**options):
        return lambda: torch.tensor(np.asarray(dense.optimize(n, epochs=epochs, **options)), dtype=torch.float64)

    found = {
        "jax-privacy, mean": made(),
        "jax-privacy, mean, equal norms": made(equal_norm=True),
        "jax-privacy, mean, banded": made(bands=period),
        "jax-privacy, 128-norm": made(reduction_fn=power),
    }
    if n <= 128:  # ten minutes at 512
        found["jax-privacy, max"] = made(reduction_fn=jax.numpy.max)
    return found


@dataclass(frozen=True)
class Config:
    cells: tuple[str, ...] = ("128,2", "128,4", "128,16", "512,4")  # steps, epochs
    tol: float = 1e-5
    peers: bool = True


FULL = Config()
SMOKE = Config(("16,2", "24,3"), 1e-3, peers=False)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    if config.peers and not peers(4, 2):
        report.say("jax-privacy: missing")
    for steps, epochs in (map(int, cell.split(",")) for cell in config.cells):
        W, period, cell = Iterates(steps).dense(), steps // epochs, {"steps": steps, "epochs": epochs}
        bounds = [factorization.factorize_epochs(W, period, p, config.tol).certificate for p in (torch.inf, 2.0)]
        least, mean = float(bounds[0].lower), float(bounds[1].lower) / steps**0.5
        report.row("epochs", **cell, strategy="at least", largest=least, rms=mean, cpu_seconds=None)
        for name, make in (ours(W, period, config.tol) | (peers(steps, period) if config.peers else {})).items():
            start = time.process_time()
            C = make()
            seconds = time.process_time() - start
            errors = sensitivity(C, Epochs(period)).value * standard_errors(W, C.tril())
            rms = errors.square().mean().sqrt()
            report.row("epochs", **cell, strategy=name, largest=errors.max(), rms=rms, cpu_seconds=seconds)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
