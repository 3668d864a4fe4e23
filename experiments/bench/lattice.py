"""Vectors of a ball as whole numbers: what exact bits cost in time and variance, and whether floats decide rightly.

``floats_us``: the same mechanism in float64, normals of the cipher and the formula, whose bits are not private;
``us``: ``randomize``, medians of interleaved runs, CPU time of one thread. ``of_variance``: what rounding adds to it.
``compared`` coordinates of messages at nasty points (the centre, axes, a breath from the sphere, small coordinates)
were decided by floats and by 448 bits: ``differ`` did not agree, ``error_over_bound`` is the largest error over the
bound that floats must keep. ``doubtful``: the share of messages that floats do not decide, ``exact_ms`` what one takes.

Command:  python experiments/bench/lattice.py | tee experiments/bench/lattice_cpu.txt
Expected: no coordinate differs, errors below a quarter of the bound, at most twice the time of floats from dim = 256
    on, bits_delta below 1e-60, 1e-5 of the variance (4e-5 beyond dim = 1000).
Output: results/bench/lattice/lattice.csv
Artifact: - | users' vectors private to the last bit
Status: agrees
Time: two minutes; --smoke for fewer messages takes seconds.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import privunit
from torchdp.noise import Noise, SeededNoise
from torchdp.randomizers import GaussianVector, PrivUnit
from torchdp.randomizers.ball.lattice import LatticeRandomizer, Words, on_lattice
from torchdp.simulate import Experiment, Report

Floats = Callable[[Tensor, Draws], Tensor]


@dataclass(frozen=True)
class Config:
    dims: tuple[int, ...] = (8, 256, 4096)
    numbers: int = 2**20  # of all messages that are timed
    runs: int = 7
    compared: int = 12_000  # coordinates


FULL, SMOKE = Config(), Config((8,), 2**12, 2, 200)


def kinds(dim: int) -> list[tuple[LatticeRandomizer, Floats]]:
    """A randomizer, and its messages in float64."""
    unit, gaussian = PrivUnit(dim, 1.0), GaussianVector(dim, 1.0, delta=1e-6)

    def spherical(x: Tensor, draws: Draws) -> Tensor:
        size = (len(x),)
        numbers = draws.normal((*size, dim)), draws.normal(size), *unit.cap.draw(size, draws)
        return privunit.message(x, *numbers, radius=1.0, mean=unit.cap.threshold)

    return [
        (unit, spherical),
        (gaussian, lambda x, draws: x + gaussian.sigma * draws.normal(x.shape)),
    ]


def in_parts(floats: Floats, x: Tensor) -> None:
    for some in x.split(max(1, 2**18 // x.shape[1])):
        floats(some, Noise())


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def nasty(dim: int, rows: int) -> Tensor:
    """The centre, axes, a breath from the sphere, small and dyadic coordinates, random points in and on the sphere."""
    x = SeededNoise(dim).normal((rows, dim))
    x /= x.norm(dim=1, keepdim=True)
    x[rows // 2 :] *= 0.9
    x[: min(6, rows)] = 0
    for row, (place, value) in enumerate(
        [(0, 1.0), (-1, -1.0), (0, 1 - 2**-52), (0, 2**-26), (0, 0.25)][: rows - 1]
    ):
        x[row + 1, place] = value
    return x


def compared(protocol: LatticeRandomizer, coordinates: int) -> dict[str, float | int]:
    """Floors by floats and by long numbers, every message forced to be decided by both."""
    dim, rows = protocol.dim, max(4, math.ceil(coordinates / protocol.dim))
    noise, (whole, squares) = SeededNoise(dim), on_lattice(nasty(dim, rows), 1.0)
    words, more = protocol.words(rows, noise), protocol.further(rows, noise)
    t, bound = protocol.shifted(whole, squares, words)
    start, differ, worst = time.process_time(), 0, 0.0
    for row, most, x, *mine, rest in zip(t.tolist(), bound.tolist(), whole.tolist(), *words, more, strict=True):
        long = protocol.exactly(x, Words(*mine), rest)
        differ += sum(round(one) != int(each.context.nint(each)) for one, each in zip(row, long, strict=True))
        worst = max(worst, max(float(abs(each - one)) for one, each in zip(row, long, strict=True)) / most)
    took = (time.process_time() - start) / rows
    doubtful = float((2 * bound * dim).mean())  # each coordinate lies as near a whole number with this chance
    return {
        "compared": rows * dim, "differ": differ, "error_over_bound": float(f"{worst:.2g}"),
        "doubtful": float(f"{doubtful:.1e}"), "exact_ms": float(f"{1e3 * took:.2g}"),
    }  # fmt: skip


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for dim in config.dims:
        n = max(2, config.numbers // dim)
        x = SeededNoise(0).normal((n, dim))
        x *= 0.9 / x.norm(dim=1, keepdim=True)
        for protocol, floats in kinds(dim):
            protocol.randomize(x[:2])  # makes the tables
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(config.runs):
                spent[0].append(timed(lambda: protocol.randomize(x)))  # noqa: B023
                spent[1].append(timed(lambda: in_parts(floats, x)))  # noqa: B023
            us, before = (1e6 * statistics.median(each) / n for each in spent)
            promise, extra = protocol.guarantee, protocol.step**2 / 6
            report.row(
                "lattice", mechanism=type(protocol).__name__, dim=dim, us=float(f"{us:.3g}"),
                floats_us=float(f"{before:.3g}"), ratio=float(f"{us / before:.2f}"),
                bits=protocol.bits_per_user, of_variance=float(f"{extra / (protocol.moments.variance - extra):.1e}"),
                bits_delta=float(f"{(1 + math.exp(promise.epsilon)) * promise.variation:.1e}"),
                **compared(protocol, config.compared),
            )  # fmt: skip


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
