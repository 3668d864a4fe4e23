"""The constant in gamma_2(prefix sums of n) = ln n / pi + c: certified values of gamma_2 - ln n / pi.

Paper: Henzinger, Kalinin, Upadhyay (2025, arXiv 2509.14334) prove 0.701 <= c <= 0.846 as n grows.
Command:  python experiments/factorization/prefix_constant.py [--sizes 64 128 ...] [--device cuda]
    The matrix is never formed (``workloads.RunningSums``).
Expected: certified brackets of width below 1e-4 that fall with n: 0.7876 at 64, 0.7676 at 256, 0.7551 at 1024,
    0.7425 at 10,000, 0.7346 at 100,000.
Output: results/factorization/prefix_constant/prefix_constant.csv and .png; sizes in the CSV are not computed again.
Artifact: Henzinger, Kalinin, Upadhyay (2025) | constant of prefix sums
Status: to n = 100,000; a million takes a minute more, --sizes 1000000
Time: 10 s of one core; --smoke in a second.
"""

import math
import time
from dataclasses import dataclass
from functools import partial

from torchdp.factorization import factorize
from torchdp.simulate import Experiment, Report, columns, subplots
from torchdp.workloads import RunningSums

LITERATURE = (0.701, 0.846)


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000, 100_000)
    tol: float = 1e-5
    device: str = "cpu"


FULL = Config()
SMOKE = Config((2, 4, 8, 16, 32, 64))


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


def draw(tables: dict) -> dict:
    rows = sorted(tables["prefix_constant"], key=lambda row: row["n"])
    sizes, low, high = columns(rows, "n", "constant_low", "constant_high")
    figure, (axes,) = subplots()
    middle, half = zip(*(((a + b) / 2, (b - a) / 2) for a, b in zip(low, high, strict=True)), strict=True)
    axes.errorbar(sizes, middle, yerr=half, fmt="o-", color="#0072B2", capsize=3, label="certified bracket")
    for value, word in zip(LITERATURE, ("proved lower", "proved upper"), strict=True):
        axes.axhline(value, color="#D55E00", linestyle="--", linewidth=1)
        place = {"ha": "right", "va": "bottom", "fontsize": "small"}
        axes.annotate(f"{word} bound on the limit, {value}", (sizes[-1], value), **place)
    axes.set(
        xscale="log", xlabel="n", ylabel="gamma_2 - ln n / pi", title="Prefix sums: the constant beside ln n / pi"
    )
    axes.grid(True, linewidth=0.3)
    axes.legend()
    return {"prefix_constant.png": figure}


EXPERIMENT = Experiment(measure, FULL, SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
