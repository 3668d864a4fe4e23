"""Certified factorization of large prefix sums and of many small matrices: CPU time and gap, before and after.

Papers: Edmonds, Nikolov, Ullman (2020), section 2.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/sizes.py
    PYTHONPATH=<another checkout> measures that checkout's solver by the same call.
Expected: gaps of at most 1e-3 and brackets that overlap those of any other version: gamma_2 of prefix sums of 1024 lies
    in [2.961465, 2.961758]. One call for many small matrices costs several times less than a call for each.
Output: results/factorization/sizes/sizes.csv.
Artifact: - | speed
Status: on a CPU
Time: 2 minutes on one core; --smoke in seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import Factorization, factorize
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report


@dataclass(frozen=True)
class Config:
    prefix: tuple[int, ...] = (1024, 2048, 4096)
    batch: tuple[int, int] = (1000, 32)  # how many, of which side
    alone: int = 100  # of them, one call each
    tol: float = 1e-3


FULL = Config()
SMOKE = Config((64,), (20, 8), 5)


def row(report: Report, problem: str, matrices: int, run: Callable[[], list[Factorization]]) -> None:
    start = time.process_time()
    found = run()
    seconds = time.process_time() - start
    report.row(
        "sizes",
        problem=problem,
        iterations=max(each.iterations for each in found),
        seconds=seconds,
        milliseconds_each=1e3 * seconds / matrices,
        gap=max(float(each.certificate.gap.max()) for each in found),
        lower=float(found[0].certificate.lower.flatten()[0]),
        upper=float(found[0].certificate.upper.flatten()[0]),
    )


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    factorize(workloads.prefix(8))  # what the first call loads
    count, n = config.batch
    generator = keyed_generator(b"sizes", "cpu")
    W = torch.as_tensor(torch.randn(count, n, n, dtype=torch.float64, device="cpu", generator=generator))
    several: list[Tensor] = list(W[: config.alone])
    name = f"{n} x {n} normal"
    row(report, f"{count} of {name}, one call", count, lambda: [factorize(W, tol=config.tol)])
    row(
        report,
        f"{len(several)} of {name}, a call each",
        len(several),
        lambda: [factorize(each, tol=config.tol) for each in several],
    )
    for size in config.prefix:
        row(report, f"prefix {size}", 1, lambda size=size: [factorize(workloads.prefix(size), tol=config.tol)])


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
