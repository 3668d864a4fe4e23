"""Buffers and noise that is drawn again: what few numbers of memory lack where users come back.

Paper: Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), buffered strategies. Root mean square
error of the
    prefix sums where a user is in steps i, i + period, ... (one fixed order). The best strategies
    have columns that are orthogonal a pass apart, which C = D1 T D2 with T of four buffers cannot
    have, and C = A^{-1} D1 T D2 of ``RecalledStrategy`` can: its noise needs the buffers and the z
    of ``passes`` earlier passes, which a keyed generator draws again: no memory, at most as many
    normals more a number.
Command:  OMP_NUM_THREADS=1 python experiments/training/recalled.py
Expected: four buffers and all earlier passes within 0.5 % of a bound for every strategy at 128 and
512 steps, where
    four buffers alone are 6 to 10 % above it; one earlier pass takes half of that. At 10,000 the
    bound counts every 14th step alone and lies 24 % below them. ``apart``: what users move who only
    keep apart: such a strategy is for a fixed order. ``ns``: a number's noise, the mean over all
    steps. jax-privacy's and opake's buffers, where they are installed, are Toeplitz matrices for
    users who keep apart, as far moved by a fixed order: 12 to 22 % above the bound at 128 and 512
    steps.
Output: results/training/recalled/recalled.csv; printed: ``experiments/bench/recalled_cpu.txt``.
Artifact: Dvijotham et al. (2024) | few buffers, many passes
Status: extends
Time: 3 minutes on one core, and as many with peers; --smoke in seconds.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp.factorization import BandedStrategy
from torchdp.factorization.streams.search import buffered_passes, passes_bound, recalled_passes
from torchdp.noise import SeededNoise
from torchdp.simulate import Experiment
from torchdp.training import (
    CorrelatedNoise,
    Epochs,
    Iterates,
    Separated,
    sensitivity,
    standard_errors,
)
from torchdp.workloads import RunningSums


@dataclass(frozen=True)
class Config:
    cells: tuple[str, ...] = ("128,32", "512,64", "10000,1000")  # steps, steps of a pass
    buffers: int = 4
    passes: tuple[int, ...] = (1, 2, 16)  # earlier ones, at most
    searched: int = 128  # steps up to which users who only keep apart are searched for
    timed: int = 512  # steps up to which the noise is timed
    size: int = 2**16  # numbers of a gradient whose noise is timed
    peers: bool = True


def peers(n, period, buffers) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """The first columns of others' Toeplitz matrices."""
    user = {"min_sep": period, "max_participations": -(-n // period)}
    try:
        import jax
        from jax_privacy.matrix_factorization import buffered_toeplitz

        def by_jax_privacy():
            jax.config.update("jax_enable_x64", True)
            strategy = buffered_toeplitz.optimize(n=n, error="mean", max_buffers=buffers, **user)
            return torch.tensor(strategy.toeplitz_coefs(n).tolist()).double()

        yield "jax-privacy, buffers", by_jax_privacy
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
    try:
        from opake.dpftrl import blt_strategy

        def by_opake():
            strategy = blt_strategy(max_buffers=buffers)
            return strategy.coefficients(n_steps=n, **user).double().cpu()

        yield "opake, buffers", by_opake
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)


def toeplitz_error(c, n, period):
    """Root mean square; of coefficients that do not rise, which one's first steps move furthest."""
    from scipy.signal import lfilter

    if not ((c.diff() <= 0).all() and (c >= 0).all()):
        return math.nan
    participation = (np.arange(n) % period == 0).astype(float)
    moved = lfilter(c.cpu().numpy(), [1.0], participation)
    rows = standard_errors(Iterates(n), BandedStrategy(c[None], n))
    return float(np.linalg.norm(moved) * rows.norm()) / math.sqrt(n)


def time_of_noise(C, n, size):
    """Nanoseconds a number."""
    zero = torch.zeros(size, dtype=torch.float64)
    noise = CorrelatedNoise(C.to(zero.device), size, 1.0, noise=SeededNoise(0), dtype=zero.dtype)
    start = time.process_time()
    for _ in range(n):
        noise(zero)
    return 1e9 * (time.process_time() - start) / (n * size)


def measure(config, report):
    torch.set_num_threads(1)
    for cell in config.cells:
        n, period = map(int, cell.split(","))
        one_cell(config, report, n, period)


def one_cell(config, report, n, period):
    W = RunningSums(n)
    unit = math.sqrt(n)
    lower, slack = passes_bound(W, period, -(-n // period), 2.0, 3e-4)
    least = float(lower - slack) / unit

    def row(strategy, error, above=None, apart=None, cpu_s=None, ns=None):
        report.row(
            "recalled",
            steps=n,
            period=period,
            strategy=strategy,
            error=error,
            above=above,
            apart=apart,
            cpu_s=cpu_s,
            ns=ns,
        )

    row("at least", least)
    for passes in (0, *config.passes):
        name = f"{config.buffers} buffers"
        start = time.process_time()
        if passes:
            name += f", {passes} earlier {'pass' if passes == 1 else 'passes'} at most"
            C, rows = recalled_passes(n, period, config.buffers, 2.0, passes)
        else:
            C, rows = buffered_passes(W, period, config.buffers, 2.0)
        seconds = time.process_time() - start
        error = sensitivity(C, Epochs(period)).value * float(rows.norm()) / unit
        apart = sensitivity(C, Separated(period, n)).value if n <= config.searched else math.nan
        ns = time_of_noise(C, n, config.size) if n <= config.timed else math.nan
        row(name, error, error / least - 1, apart, seconds, ns)
    for name, make in peers(n, period, config.buffers) if config.peers else ():
        start = time.process_time()
        error = toeplitz_error(make(), n, period)
        row(name, error, error / least - 1, cpu_s=time.process_time() - start)


EXPERIMENT = Experiment(measure, Config(), Config(("24,8",), 2, (1,), size=64, peers=False))

if __name__ == "__main__":
    EXPERIMENT.main()
