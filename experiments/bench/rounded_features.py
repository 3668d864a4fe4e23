"""Counting the users who round a random wave to a one: time and memory beside plain torch, numpy and torch.compile.

What: n unit vectors, d = I = 768, float32: projection, cosine, rounding, counts, as ``Features.ones`` does them. In one
    run: numpy in blocks of 4000 users; torch with all n x I features at once; the same compiled; torchdp for Fourier
    features and for square waves; the matrix product alone, which none of them does without. On a CUDA device torchdp
    is the fused kernel, and the matrix product is that of torch in float32 as it is set up.
Command:  OMP_NUM_THREADS=1 python experiments/bench/rounded_features.py
Expected: memory of torchdp does not grow with n, that of features at once by 9 bytes for each number; on a CPU three
    quarters of torchdp's time and more are the matrix product, so that nothing is far ahead of it. Machines are noisy:
    compare ratios.
Output: results/bench/rounded_features/*.csv: seconds of one thread (a CPU's processor seconds, the least of rounds in
    which all take turns, so that a busy machine favours nobody), the same for 560,000 users at the rate of the largest
    n, torchdp on two threads by the clock, and the growth of memory of a fresh process (on CUDA of the allocator).
Artifact: Wagner (2025) | speed and memory
Status: on a CPU; on a GPU not yet measured
Time: two minutes; --smoke in seconds, without torch.compile, which takes half a minute to compile.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from clock import peak_bytes, seconds
from torch import Tensor
from torch.utils.benchmark import Timer

from torchdp.density import Features, GaussianFourier, GaussianSquareWave
from torchdp.draws import Simulated
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

Run = Callable[[], object]
D = I = 768
USERS = 560_000
PART = 1365  # rows of the parts in which torchdp takes its users at this size
SETUP = """
from torchdp.density import GaussianFourier
from torchdp.draws import Simulated
from torchdp.randomness import keyed_generator
generator = keyed_generator(b"bench")
draws = Simulated(generator)
features = GaussianFourier({d}).draw({d}, generator=generator)
w, b = features.frequencies.float(), features.phases.float()
x = torch.randn({n}, {d}, generator=generator)
x /= torch.linalg.vector_norm(x, dim=1, keepdim=True)  # in place: what is held here and given back would count
features.ones(x[:64], draws, ())
"""
ONES = "features.ones(x, draws, ())"
AT_ONCE = "((1 + torch.addmm(b, x, w).cos_()) / 2 > torch.rand(len(x), w.shape[1], generator=generator)).sum(0)"


def at_once(x: Tensor, w: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """All features in memory."""
    uniform = torch.rand(len(x), w.shape[1], device=x.device, generator=generator)
    return ((1 + torch.addmm(b, x, w).cos()) / 2 > uniform).sum(0)


def by_numpy(x: np.ndarray, w: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """In blocks of 4000 users."""
    total = np.zeros(w.shape[1], dtype=np.int64)
    for start in range(0, len(x), 4000):
        waves = np.cos(x[start : start + 4000] @ w + b)
        total += (rng.random(waves.shape, dtype=np.float32) < np.float32(0.5) * (1 + waves)).sum(0)
    return total


def compiled(x: Tensor, w: Tensor, b: Tensor, generator: torch.Generator, report: Report) -> Run | None:
    """``at_once`` through torch.compile in parts, or None where there is no compiler."""

    @torch.compile(dynamic=False)
    def part(x: Tensor, uniform: Tensor) -> Tensor:
        return ((1 + torch.addmm(b, x, w).cos()) / 2 > uniform).sum(0)

    def run() -> Tensor:
        total = torch.zeros(w.shape[1], dtype=torch.int64, device=x.device)
        for some in x.split(PART):
            uniform = torch.rand(len(some), w.shape[1], device=x.device, generator=generator)
            total += part(some, uniform)
        return total

    try:
        run()
    except Exception as error:  # torch raises many kinds where a compiler is missing or unfit
        report.say(f"torch.compile does not run here: {type(error).__name__}")
        return None
    return run


def taken(work: dict[str, Run], device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds of each: on CUDA the median, on a CPU the least processor time of rounds in which all take turns."""
    if device.type == "cuda":
        return {name: seconds(each) for name, each in work.items()}
    least = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, each in work.items():
            start = time.process_time()
            each()
            least[name] = min(least[name], time.process_time() - start)
    return least


def grown(n: int, d: int, statement: str, device: torch.device, work: Run) -> float:
    """MiB by which memory grows: of a fresh process, on CUDA of the allocator."""
    if device.type == "cpu":
        return peak_bytes(SETUP.format(n=n, d=d), statement) / 2**20
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = ()  # none: 5000, 20,000 and 80,000, on CUDA the last is 560,000
    dimension: int = D
    compiled: bool = True
    least: float = 1.0  # seconds of the runs on two threads


FULL = Config()
SMOKE = Config((2000, 8000), 64, False, 0.1)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    d, sizes = config.dimension, config.sizes or (5000, 20_000, 80_000 if device.type == "cpu" else USERS)
    generator, rng = keyed_generator(b"bench", device), np.random.default_rng(0)
    draws = Simulated(generator)
    fourier: Features = GaussianFourier(d).draw(d, generator=generator)
    wave: Features = GaussianSquareWave(d).draw(d, generator=generator)
    w, b = fourier.frequencies.float(), fourier.phases.float()

    def vectors(n: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(n, d, device=device, generator=generator), dim=1)

    report.say(f"d = I = {d}, {device.type}, one thread; growth of memory in MiB")
    for n in sizes:  # before anything large is held here
        x = vectors(n) if device.type == "cuda" else torch.zeros(0, d)
        once = grown(n, d, AT_ONCE, device, lambda x=x: at_once(x, w, b, generator))
        parts = grown(n, d, ONES, device, lambda x=x: fourier.ones(x, draws, ()))
        report.row("memory", n=n, at_once=once, torchdp=parts)
    report.say()
    for n, rounds in zip(sizes, (8, 6, 4), strict=False):
        x = vectors(n)
        work = {
            "matrix product alone": lambda x=x: [part @ w for part in x.split(PART)],
            "torch, n x I at once": lambda x=x: at_once(x, w, b, generator),
            "torchdp, Fourier": lambda x=x: fourier.ones(x, draws, ()),
            "torchdp, square waves": lambda x=x: wave.ones(x, draws, ()),
        }
        if device.type == "cpu":
            host = [each.numpy() for each in (x, w, b)]
            work["numpy"] = lambda host=host: by_numpy(*host, rng)
        if n == sizes[-1] and config.compiled and (run := compiled(x, w, b, generator, report)):
            work["torch.compile, parts"] = run
        found = taken(work, device, rounds)
        for name, least in found.items():
            share = found["matrix product alone"] / least
            report.row("times", n=n, path=name, seconds=least, share_of_product=share, at_560000=least / n * USERS)
    if device.type == "cpu":
        run = work["torchdp, Fourier"]
        two = Timer("run()", globals={"run": run}, num_threads=2).blocked_autorange(min_run_time=config.least)
        report.say(f"{USERS:,} users, torchdp, Fourier, two threads: {two.median / sizes[-1] * USERS:.3g} s")


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
