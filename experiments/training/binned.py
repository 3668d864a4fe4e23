"""Balls in bins without sampling: noise beside Monte Carlo's, error of bands, buffers and redrawn noise.

Paper: Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2025), near exact amplification, whose bound is sampled; here
    it is by comparison with chains (``torchdp.privacy.mixtures``). delta = 1e-5, prefix sums, bound 1; sigma by
    comparison, by Monte Carlo where there are samples (its search alone, which promises nothing), and without a
    secret; root mean square errors, of as many bands under cyclic Poisson sampling too. Redrawn: C^{-1} holds the first
    coefficients of (1 - x)^power, whose noise is drawn again and needs no memory: banded inverse fractional roots
    (gamma-BIFR, arXiv 2605.18379), of two draws DP-lambda-CGD's (arXiv 2601.22334), here under balls in bins.
Command:  OMP_NUM_THREADS=1 python experiments/training/binned.py
          OMP_NUM_THREADS=1 python experiments/training/binned.py --samples 0  (without Monte Carlo)
Expected: at 120 steps sigma is 0.99 to 1.14 times Monte Carlo's. At 1e5 steps of 1,000 bins balls in bins lose to
    cyclic Poisson sampling: an error of 506 with 8 bands and of 393 with one buffer of 2 steps, against 153 with 8
    bands. Printed without Monte Carlo: experiments/bench/binned_cpu.txt.
Output: results/training/binned/noise.csv.
Artifact: Choquette-Choo et al. (2025) | balls in bins without sampling
Status: extends
Time: not yet measured to its end, more than ten minutes on one core; without Monte Carlo a strategy takes .2 to 17
    CPU-seconds; --smoke in seconds.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.factorization import BandedStrategy, BufferedStrategy, StreamStrategy
from torchdp.factorization.solvers.banded_solver import banded_toeplitz
from torchdp.factorization.streams.recurrence import Recurrence
from torchdp.factorization.streams.search import buffered_once
from torchdp.factorization.streams.series import squares
from torchdp.privacy import gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import BallsInBins, CyclicPoisson, Iterates, standard_errors
from torchdp.workloads import RunningSums

DELTA, MOST = 1e-5, 4096


@dataclass(frozen=True)
class Redrawn(StreamStrategy):
    """w_t = z_t - sum_m a_m z_{t-m}, (1 - x)^power = 1 - a_1 x - a_2 x^2 - ..., so many draws. Nothing is kept."""

    power: float
    draws: int
    steps: int  # type: ignore[misc]

    def tabulated(self) -> Recurrence:
        feeds = torch.ones(self.draws, dtype=torch.float64)
        for m in range(1, self.draws):
            feeds[m] = feeds[m - 1] * (m - 1 - self.power) / m
        one = torch.ones(1, dtype=torch.float64)
        return Recurrence(self.steps, one, feeds[None], lags=tuple(range(self.draws)))


@dataclass(frozen=True)
class Config:
    cells: tuple[tuple[int, int, tuple[float, ...]], ...] = (  # steps, bins, epsilons
        (120, 30, (0.5, 2.0, 8.0)),
        (100_000, 1_000, (2.0,)),
    )
    samples: int = 2_000_000  # of Monte Carlo, up to MOST steps; 0 for none
    bands: tuple[int, ...] = (1, 2, 4, 8)
    short: tuple[int, ...] = (2, 3, 5)  # steps that buffers are best for
    powers: tuple[float, ...] = (0.3, 0.5, 0.7)
    draws: tuple[int, ...] = (2, 4)


FULL = Config()
SMOKE = Config(((12, 4, (2.0,)),), 20_000, (2,), (3,), (0.5,), (2,))


def strategies(config: Config, steps: int) -> Iterator[tuple[str, StreamStrategy, Tensor]]:
    """Name, C and the row norms of W C^{-1}."""
    W, ones = Iterates(steps), torch.ones(steps, dtype=torch.float64)
    for bands in config.bands:
        c = torch.from_numpy(banded_toeplitz(W.first(min(steps, 2**14)).numpy(), bands, 2.0)).clamp_min(0)
        C = BandedStrategy(c[None], steps)
        yield f"{bands} bands", C, standard_errors(W, C)
    for buffers, short in ((b, s) for b in (1, 2) for s in config.short if s > b):
        made = buffered_once(RunningSums(short), buffers, 2.0)
        C = BufferedStrategy(made.poles, made.zeros, ones, ones)
        yield f"{buffers} buffers, of {short} steps", C, squares(*C.tensors, RunningSums(steps)).sqrt()
    for power, draws in ((power, draws) for power in config.powers for draws in config.draws):
        C = Redrawn(power, draws, steps)
        yield f"redrawn, {draws} draws, power {power}", C, standard_errors(W, C)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for steps, bins, epsilons in config.cells:
        for epsilon in epsilons:
            for name, C, norms in strategies(config, steps):
                sampling, started = BallsInBins(bins), time.process_time()
                sigma = sampling.sigma(C, 1.0, epsilon, DELTA)
                seconds, mean = time.process_time() - started, float(norms.square().mean().sqrt())
                sampled = cyclic = None
                if config.samples and steps <= MOST and name.endswith("bands"):
                    draws = {
                        "doubt": DELTA / 1000,
                        "samples": config.samples,
                        "generator": keyed_generator(b"bins"),
                    }
                    sampled = sampling.likely_sigma(C, 1.0, epsilon, DELTA, **draws)
                if C.bands <= bins:
                    groups = CyclicPoisson(C.bands, C.bands / bins)
                    cyclic = mean * groups.sigma(C, 1.0, epsilon, DELTA)
                report.row(
                    "noise", steps=steps, bins=bins, epsilon=epsilon, strategy=name, sigma=sigma,
                    over_monte_carlo=sampled and sigma / sampled,
                    over_no_secret=sigma / gaussian_sigma(epsilon, DELTA, math.sqrt(float(sampling.met(C)[0]))),
                    error=mean * sigma, cyclic_poisson=cyclic, seconds=seconds,
                )  # fmt: skip


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
