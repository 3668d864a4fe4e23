"""Iterates with momentum of up to a million steps: certified bounds without a matrix, and strategies of four buffers.

Paper: Denisov, McMahan, Rush, Smith, Thakurta (2022), section 4, momentum as a workload; Dvijotham, McMahan, Pillutla,
    Steinke, Thakurta (2024), buffered Toeplitz strategies.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/momentum.py
Expected: brackets that overlap with those of the dense matrix. Momentum 0.9, errors for noise of one sensitivity:
    10,000 steps, root mean square at least 27.46, four buffers 27.48, 64 bands 90.7; largest 27.54, 27.72, 127. A
    million steps: 41.94, 42.25, 889; largest 41.97, 42.77, 1,255. Learning rates that fall along a cosine, 10,000
    steps: 19.77, 19.81, 68.7; largest 22.94, 23.12, 77.2.
Output: results/factorization/momentum/momentum.csv.
Artifact: Denisov et al. (2022) | momentum as a workload
Status: agrees
Time: 5 minutes of one core; --smoke in 10 to 20 CPU-seconds.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchdp.factorization import BandedStrategy, factorize, factorize_buffered
from torchdp.factorization.solvers.banded_solver import banded_toeplitz
from torchdp.simulate import Experiment, Report
from torchdp.training import Iterates, standard_errors

NORMS = {"largest": math.inf, "root mean square": 2.0}


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (512, 10_000, 1_000_000)
    momentum: float = 0.9
    dense: int = 512  # the largest whose matrix is factored, too
    cosine: int = 10_000  # the largest with learning rates (1 + cos(pi t / n)) / 2, too
    tol: float = 1e-3
    buffers: int = 4
    bands: int = 64


FULL = Config()
SMOKE = Config((60, 300), dense=60, cosine=60, buffers=2, bands=8)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for n in config.sizes:
        falling = (1 + torch.cos(math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n)) / 2
        for name, rates in (("constant", None), ("cosine", falling))[: 1 + (n <= config.cosine)]:
            for norm, p in NORMS.items():
                cell = {"steps": n, "rates": name, "norm": norm}
                measure_one(config, report, cell, Iterates(n, config.momentum, 0.0, rates), p)
    report.say()


def measure_one(config: Config, report: Report, cell: dict[str, object], W: Iterates, p: float) -> None:
    (_, sums), scale = W.sums(), math.sqrt(W.steps) if p == 2 else 1.0

    def row(name: str, solve: Callable[[], tuple[float, float]]) -> None:
        start = time.process_time()
        lower, upper = solve()
        seconds = time.process_time() - start
        report.row("momentum", **cell, strategy=name, lower=lower / scale, upper=upper / scale, cpu_s=seconds)

    def bounds(found: object) -> tuple[float, float]:
        return float(found.certificate.lower), float(found.certificate.upper)

    def banded() -> tuple[float, float]:
        first = W.first(min(W.steps, 2**14)).numpy()
        C = BandedStrategy(torch.from_numpy(banded_toeplitz(first, min(config.bands, W.steps), p))[None], W.steps)
        norm = float(torch.linalg.vector_norm(standard_errors(W, C), ord=p) * C.column_norms()[0].max())
        return norm, norm

    row("any", lambda: bounds(factorize(sums, p, tol=config.tol)))
    if W.steps <= config.dense:
        row("any, by the matrix", lambda: bounds(factorize(sums.dense(), p, tol=config.tol)))
    row(f"{config.buffers} buffers", lambda: bounds(factorize_buffered(sums, config.buffers, p, tol=config.tol)))
    row(f"{config.bands} bands", banded)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
