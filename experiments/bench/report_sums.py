"""Reports of all users, drawn and counted: users per second and memory, randomized response and unary encoding.

What:     each user's own report is drawn and the analyst's tally formed, epsilon = 1, k = 1024 and k = 16, one thread.
          collect: RandomizedResponse.collect and OptimizedUnaryEncoding.collect (fused on CUDA).
          compiled: torch.compile of the counter-based specification; for unary encoding the others' bits alone,
          without each user's own. plain: all reports at once, n x k uniform numbers for unary encoding. numpy: the
          same, in parts that fit the cache for unary encoding.
Command:  OMP_NUM_THREADS=1 python experiments/bench/report_sums.py [--device cuda]
Expected: on a CPU collect needs memory that does not grow with n. On CUDA: users per second at n = 1e9 and the fraction
          of the ceiling, which is the copy bandwidth for randomized response and the rate of a kernel that does nothing
          but Philox for unary encoding.
Output:   results/bench/report_sums/sums.csv, a row for each path and size: seconds (median), users per second, highest
    memory beside the users' values.
Artifact: - | speed and memory
Status: on a CPU; on a GPU not yet measured
Time:     about ten minutes on a busy machine; --smoke in seconds.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from clock import peak_bytes, seconds
from torch import Tensor

from torchdp.kernels import philox
from torchdp.kernels.response_counts import reference as response
from torchdp.kernels.unary_counts import reference as unary
from torchdp.noise import SeededNoise
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse
from torchdp.simulate import Experiment, Report

EPSILON = 1.0
OFF = 1 / (math.e + 1)
MOST_BITS = 2 * 10**8  # of n x k that the plain way may hold
MOST_WORK = 2 * 10**8  # users times values that the slower paths are timed on
SETUP = """
import sys
sys.path.insert(0, {folder!r})
import report_sums as bench
x = bench.values({n}, {k})
bench.{path}(x[:1000], {k})
"""


def values(n: int, k: int, device: str = "cpu", dtype: torch.dtype = torch.int64) -> Tensor:
    """Users' values, drawn where they are used."""
    return torch.empty(n, dtype=dtype, device=device).random_(k, generator=torch.Generator(device).manual_seed(1))


def response_collect(x: Tensor, k: int) -> Tensor:
    return RandomizedResponse(k, EPSILON).collect(x, noise=SeededNoise(2, x.device))


def unary_collect(x: Tensor, k: int) -> Tensor:
    return OptimizedUnaryEncoding(k, EPSILON).collect(x, noise=SeededNoise(2, x.device))


def response_plain(x: Tensor, k: int) -> Tensor:
    uniform = torch.rand(len(x), device=x.device) < k / (math.e + k - 1)
    return torch.bincount(torch.where(uniform, torch.randint_like(x, k), x), minlength=k)


def unary_plain(x: Tensor, k: int) -> Tensor:
    bits = torch.rand(len(x), k, device=x.device) < OFF
    bits[torch.arange(len(x), device=x.device), x] = torch.rand(len(x), device=x.device) < 0.5
    return bits.sum(0)


def response_numpy(x: Tensor, k: int) -> np.ndarray:
    rng, held = np.random.default_rng(0), x.numpy()
    uniform = rng.random(len(held)) < k / (math.e + k - 1)
    return np.bincount(np.where(uniform, rng.integers(k, size=len(held)), held), minlength=k)


def unary_numpy(x: Tensor, k: int) -> np.ndarray:
    rng, total = np.random.default_rng(0), np.zeros(k, dtype=np.int64)
    for part in np.array_split(x.numpy(), -(-len(x) * k // 2**18)):
        bits = rng.random((len(part), k), dtype=np.float32) < OFF
        bits[np.arange(len(part)), part] = rng.random(len(part)) < 0.5
        total += bits.sum(0)
    return total


def response_compiled(k: int) -> Callable[[Tensor], Tensor]:
    """Counts of a multiple of 50 000 users; Philox, the quotient and the choice in one loop."""
    step, size = RandomizedResponse(k, EPSILON)._step, 50_000

    def reports(pair: Tensor, x: Tensor) -> Tensor:
        a, b, c, d = philox.words(7, pair)
        return response.report(torch.stack([a << 31 | b >> 1, c << 31 | d >> 1], -1).flatten(), x, k, step)

    fused, pair = torch.compile(reports, dynamic=False), torch.arange(size // 2)

    def run(x: Tensor) -> Tensor:
        parts = (fused(pair + i * (size // 2), part) for i, part in enumerate(x.split(size)))
        return sum((torch.bincount(part, minlength=k) for part in parts), torch.zeros(k, dtype=torch.int64))

    return run


def unary_compiled(k: int) -> Callable[[Tensor], Tensor]:
    """The others' bits of a multiple of 800 users: twelve digits compiled, ties by the specification."""
    numerator, digits = unary.ratio(OFF)
    groups, column = torch.arange(25)[:, None], torch.arange(k)

    def decide(group: Tensor) -> tuple[Tensor, Tensor]:
        result, undecided = torch.zeros(len(group), k, dtype=torch.int64), torch.full((len(group), k), 2**32 - 1)
        for stream in range(3):
            for j, fresh in enumerate(philox.words(7, group, column, stream)):
                if numerator >> (digits - 1 - 4 * stream - j) & 1:
                    result, undecided = result | undecided & fresh, undecided & ~fresh
                else:
                    undecided = undecided & fresh
        return result, undecided

    def count(word: Tensor) -> Tensor:
        word = word - (word >> 1 & 0x55555555)
        word = (word & 0x33333333) + (word >> 2 & 0x33333333)
        return (((word + (word >> 4) & 0x0F0F0F0F) * 0x01010101 & 0xFFFFFFFF) >> 24).sum(0)

    decide, count = torch.compile(decide, dynamic=False), torch.compile(count, dynamic=False)

    def run(x: Tensor) -> Tensor:
        total = torch.zeros(k, dtype=torch.int64)
        for start in range(0, len(x) // 32, 25):
            result, undecided = decide(groups + start)
            row, at = undecided.nonzero(as_tuple=True)
            result[row, at] = unary.words(7, row + start, at, OFF)
            total += count(result)
        return total

    return run


if find_spec("triton"):
    import triton
    import triton.language as tl

    from torchdp.kernels.philox.fused import words

    @triton.jit
    def philox_kernel(out, key, rounds, BLOCK: tl.constexpr):
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        total = index.to(tl.uint32)
        for stream in range(rounds):
            a, b, c, d = words(key, index, index * 0, stream)
            total ^= a ^ b ^ c ^ d
        tl.store(out + index, total.to(tl.int64))


def philox_rate() -> float:
    """Words of 32 bits that a kernel draws in a second when it does nothing else."""
    programs, block, rounds = 2**14, 128, 256
    out = torch.empty(programs * block, dtype=torch.int64, device="cuda")
    spent = seconds(lambda: philox_kernel[(programs,)](out, 7, rounds, BLOCK=block))
    return 4.0 * programs * block * rounds / spent


def copy_rate() -> float:
    """Bytes that a copy reads and writes in a second."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * len(source) / seconds(lambda: target.copy_(source))


def counters(bits: int) -> float:
    """Expected Philox counters until so many bits are decided: kernels/unary_counts/README.md."""
    return sum(1 - (1 - 2.0 ** (-4 * j)) ** bits for j in range(14))


def line(report: Report, path: str, k: int, n: int, spent: float, memory: float | None, note: str = "") -> None:
    mebibytes = None if memory is None else memory / 2**20
    report.row("sums", path=path, k=k, n=n, seconds=spent, users_per_s=n / spent, MiB=mebibytes, note=note)


def on_cpu(config: "Config", report: Report) -> None:
    least, sizes = config.least, config.sizes
    for k in config.types if config.compiled else ():
        for make in (response_compiled, unary_compiled):
            start = time.perf_counter()
            run, x = make(k), values(10**6, k)
            run(x[:100_000])
            note = f"compiled in {time.perf_counter() - start:.1f} s"
            line(report, make.__name__, k, len(x), seconds(lambda run=run, x=x: run(x)), None, note)
    for k in config.types:
        for kind in ("response", "unary"):
            for path in (f"{kind}_collect", f"{kind}_plain", f"{kind}_numpy"):
                for n in sizes:
                    work = n * k if kind == "unary" else n
                    most = {"unary_plain": MOST_BITS, f"{kind}_collect": 10 * MOST_WORK}.get(path, MOST_WORK)
                    if work > most:
                        continue
                    x, run = values(n, k), globals()[path]
                    spent = seconds(lambda run=run, x=x, k=k: run(x, k), least)
                    setup = SETUP.format(folder=str(Path(__file__).parent), n=n, k=k, path=path)
                    line(report, path, k, n, spent, peak_bytes(setup, f"bench.{path}(x, {k})"))


def on_cuda(config: "Config", report: Report) -> None:
    sizes = (10**6,) if config.least < 1 else (10**6, 10**7, 10**9)
    copied, drawn = copy_rate(), philox_rate()
    report.say(f"copy {copied / 1e9:.0f} GB/s, Philox {drawn:.3g} words/s")
    for k in (1024, 16):
        for kind, run in (("response", response_collect), ("unary", unary_collect)):
            for dtype in (torch.int64, torch.int32, torch.int16):
                for n in sizes:
                    x = values(n, k, "cuda", dtype)
                    run(x, k)
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    spent = seconds(lambda run=run, x=x, k=k: run(x, k))
                    memory = torch.cuda.max_memory_allocated() - before
                    ceiling = copied / x.element_size() if kind == "response" else drawn / (k / 8 * counters(2048))
                    note = f"{dtype}, {n / spent / ceiling:.2f} of the ceiling"
                    line(report, f"{kind}_collect", k, n, spent, memory, note)
                    del x


@dataclass(frozen=True)
class Config:
    device: Literal["cpu", "cuda"] = "cpu"
    types: tuple[int, ...] = (1024, 16)
    sizes: tuple[int, ...] = (10**5, 10**6, 10**7)  # on a CPU
    least: float = 1.0  # seconds of runs
    compiled: bool = True


FULL = Config()
SMOKE = Config(types=(16,), sizes=(10_000,), least=0.01, compiled=False)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    load = f"{os.getloadavg()[0]:.1f} processes at work on {os.cpu_count()} cores"
    report.say(f"epsilon = {EPSILON:g}, {config.device}, {load}")
    (on_cuda if config.device == "cuda" else on_cpu)(config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
