"""Prefix sums of up to a million steps: certified bounds without a matrix, and strategies of a few
buffers.

Paper: Denisov, McMahan, Rush, Smith, Thakurta (2022), matrix mechanisms; Dvijotham, McMahan,
Pillutla, Steinke,
    Thakurta (2024), buffered Toeplitz strategies; Henzinger, Kalinin, Upadhyay
    (2025, arXiv 2509.14334), who prove 0.701 <= c <= 0.846 for gamma_2 = ln n / pi + c as n grows.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/running_sums.py
Expected: brackets that overlap with those of the dense matrix; gamma_2 of a million prefix sums
within [5.1269, 5.1271]
    in less than a minute of one core, gamma_F within [5.1251, 5.1257]. Four buffers at 10,000
    steps: 0.14 % (mean) and 0.6 % (largest) above the bound that holds for every strategy.
    Apart: users whose steps only keep apart.
Output: results/factorization/running_sums/*.csv.
Artifact: Dvijotham et al. (2024); Henzinger, Kalinin, Upadhyay (2025) | buffered strategies,
constant of prefix sums
Status: agrees
Time: 7 minutes of one core; --smoke in seconds. bounds alone: --strategies none
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from torchdp.factorization import factorize, factorize_buffered
from torchdp.simulate import Experiment
from torchdp.training import Separated, sensitivity
from torchdp.workloads import RunningSums

NORMS = {"gamma_2": math.inf, "gamma_F": 2.0}


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (1024, 2048, 4096, 100_000, 1_000_000)
    dense: int = 2048  # the largest whose matrix is factored, too
    tol: float = 2e-5
    strategies: tuple[str, ...] = ("1024,4", "10000,4", "1000000,5")  # steps, buffers
    # steps, gap, times
    apart: tuple[str, ...] = ("128,32,4", "512,64,8", "2000,60,34", "10000,1000,10")


def row(report, table, n, norm, solve: Callable[[], Any], **more):
    start = time.process_time()
    found = solve()
    seconds = time.process_time() - start
    certificate = found.certificate
    mean = norm == "gamma_F"
    scale = math.sqrt(n) if mean else 1.0
    lower = certificate.lower / scale
    # gamma_2 is ln(n) / pi and a constant
    constant = None if mean else lower - math.log(n) / math.pi
    report.row(
        table,
        steps=n,
        norm=norm,
        cpu_s=seconds,
        lower=lower,
        upper=certificate.upper / scale,
        gap=certificate.gap,
        rounding=certificate.rounding / scale,
        constant=constant,
        iterations=getattr(found, "iterations", None),
        **more,
    )


def measure(config, report):
    torch.set_num_threads(1)
    for n, (norm, p) in product(config.sizes, NORMS.items()):
        forms = {"never formed": RunningSums(n)}
        forms |= {"dense": RunningSums(n).dense()} if n <= config.dense else {}
        for name, W in forms.items():
            row(report, "bounds", n, norm, partial(factorize, W, p, tol=config.tol), matrix=name)
    for each, (norm, p) in product(config.strategies, NORMS.items()):
        if each != "none":
            n, buffers = map(int, each.split(","))
            solve = partial(factorize_buffered, RunningSums(n), buffers, p, tol=2e-4)
            row(report, "strategies", n, norm, solve, buffers=buffers)
    for each in config.apart if config.strategies != ("none",) else ():
        n, gap, times = map(int, each.split(","))
        start = time.process_time()
        found = factorize_buffered(RunningSums(n), 4, 2.0, gap=gap, times=times)
        moved = sensitivity(found.strategy, Separated(gap, times))
        seconds = time.process_time() - start
        report.row(
            "apart",
            steps=n,
            gap=gap,
            times=times,
            cpu_s=seconds,
            at_least=found.certificate.lower / math.sqrt(n),
            four_buffers=found.certificate.upper / math.sqrt(n),
            sensitivity=moved.value,
        )


EXPERIMENT = Experiment(measure, Config(), Config((256, 1024), 256, 1e-4, ("128,2",), ()))

if __name__ == "__main__":
    EXPERIMENT.main()
