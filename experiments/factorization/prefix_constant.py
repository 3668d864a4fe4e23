"""The constant in gamma_2(prefix sums of n) = ln n / pi + c: certified values of gamma_2 - ln n / pi.

Paper: Henzinger, Kalinin, Upadhyay (2025, arXiv 2509.14334) prove 0.701 <= c <= 0.846 as n grows.
Command:  python experiments/factorization/prefix_constant.py [--sizes 64 128 ...] [--device cuda]
    The matrix is never formed (``workloads.RunningSums``).
Expected: certified brackets of width below 1e-4 that fall with n: 0.7876 at 64, 0.7676 at 256, 0.7551 at 1024,
    0.7425 at 10,000, 0.7346 at 100,000.
Output: results/factorization/prefix_constant/prefix_constant.csv; sizes in the CSV are not computed again.
Artifact: Henzinger, Kalinin, Upadhyay (2025) | constant of prefix sums
Status: to n = 100,000; a million takes a minute more, --sizes 1000000
Time: 10 s of one core; --smoke in a second.
"""

import math
import time
from dataclasses import dataclass
from functools import partial

from torchdp.factorization import factorize
from torchdp.simulate import Experiment, Report
from torchdp.workloads import RunningSums


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000, 100_000)
    tol: float = 1e-5
    device: str = "cpu"


def certified(n: int, config: Config) -> dict[str, object]:
    start = time.perf_counter()
    found = factorize(RunningSums(n, device=config.device), tol=config.tol)
    lower, upper, shift = float(found.certificate.lower), float(found.certificate.upper), math.log(n) / math.pi
    return {
        "lower": lower,
        "upper": upper,
        "constant_low": lower - shift,
        "constant_high": upper - shift,
        "iterations": found.iterations,
        "seconds": time.perf_counter() - start,
    }


def measure(config: Config, report: Report) -> None:
    for n in config.sizes:
        report.once("prefix_constant", {"n": n}, partial(certified, n, config))


EXPERIMENT = Experiment(measure, Config(), Config((2, 4, 8, 16, 32, 64)))

if __name__ == "__main__":
    EXPERIMENT.main()
