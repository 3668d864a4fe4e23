"""Iterates with momentum of up to a million steps: certified bounds without a matrix, and strategies of four buffers.

Paper: Denisov, McMahan, Rush, Smith, Thakurta (2022), section 4, momentum as a workload; Dvijotham, McMahan, Pillutla,
    Steinke, Thakurta (2024), buffered Toeplitz strategies.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/momentum.py
Expected: TODO
Output: results/factorization/momentum/momentum.csv.
Artifact: Denisov et al. (2022) | momentum as a workload
Status: agrees
Time: TODO of one core; --smoke in seconds.
"""

import math
import time
from dataclasses import dataclass

import torch

from torchdp.factorization import BandedStrategy, factorize, factorize_buffered
from torchdp.factorization.solvers.toeplitz_solver import banded_toeplitz
from torchdp.simulate import Experiment, Report
from torchdp.training import Iterates, standard_errors
from torchdp.workloads import RunningSums

NORMS = {"largest": math.inf, "root mean square": 2.0}


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (512, 10_000, 1_000_000)
    momentum: float = 0.9
    dense: int = 512  # the largest whose matrix is factored, too
    tol: float = 1e-3
    buffers: int = 4
    bands: int = 64


FULL = Config()
SMOKE = Config((60, 300), dense=60, buffers=2, bands=8)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for n in config.sizes:
        W = RunningSums(n, momentum=config.momentum)
        first = Iterates(n, config.momentum).first(min(n, 2**14)).numpy()
        for norm, p in NORMS.items():
            scale = math.sqrt(n) if p == 2 else 1.0

            def row(name: str, solve, norm=norm, n=n, scale=scale) -> None:
                start = time.process_time()
                lower, upper = solve()
                seconds = time.process_time() - start
                bounds = {"lower": lower / scale if lower else None, "upper": upper / scale}
                report.row("momentum", steps=n, norm=norm, strategy=name, **bounds, cpu_s=seconds)

            def certified(found) -> tuple[float, float]:
                return float(found.certificate.lower), float(found.certificate.upper)

            row("any", lambda W=W, p=p: certified(factorize(W, p, tol=config.tol)))
            if n <= config.dense:
                row("any, by the matrix", lambda W=W, p=p: certified(factorize(W.dense(), p, tol=config.tol)))
            buffers = lambda W=W, p=p: certified(factorize_buffered(W, config.buffers, p, tol=config.tol))  # noqa: E731
            row(f"{config.buffers} buffers", buffers)

            def banded(p=p, n=n, first=first) -> tuple[None, float]:
                c = banded_toeplitz(first, min(config.bands, n), p)
                C = BandedStrategy(torch.from_numpy(c)[None], n)
                errors = standard_errors(Iterates(n, config.momentum), C)
                return None, float(torch.linalg.vector_norm(errors, ord=p) * C.column_norms().max())

            row(f"{config.bands} bands", banded)
    report.say()


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
