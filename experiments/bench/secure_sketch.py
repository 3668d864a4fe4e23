"""Speed and memory of a whole secure sketch whose noise and masks come from one key, beside other ways to the sums.

What: n clients, d = 10, m = 100 rows, s = 1, S = 3 servers; from A to the (S, m, d) sums that the servers publish.
Command:  OMP_NUM_THREADS=1 python experiments/bench/secure_sketch.py [--device cuda]
First, by how much memory grows beside A, at three sizes. Second, gigabytes of words a second, of each source on this
    machine. Third, nanoseconds for one number (n d of them): the servers' sums from one key (nothing stored), by parts
    (the clients' messages and every share, part by part), the reference on all clients at once (every word and share
    stored), numpy (PCG64 and its own normals: no cipher, every word and share stored). On a GPU also one key beside
    the measured ceilings: its key stream alone (nothing but ChaCha20) and one copy of A.
Expected: on a CPU one key takes no longer than parts or numpy, give or take a tenth, and its memory does
    not grow with n. Without the package cryptography key streams come from torch, twenty times as slow, and
    sums take about twice as long. Machines are noisy: compare ratios, not seconds.
Output: results/bench/secure_sketch/*.csv: medians; on a CPU in the thread's own time.
Artifact: Burkhardt et al. (2025) | speed and memory
Status: on a CPU; on a GPU not yet measured
Time: two minutes on a CPU; --smoke in seconds.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from clock import peak_bytes, seconds
from torch.utils.benchmark import Timer

from torchdp.kernels import chacha, secure_sketch
from torchdp.kernels.chacha import reference as plain
from torchdp.noise import Noise
from torchdp.randomness import keyed_generator
from torchdp.secure import SecureSketch, share
from torchdp.secure.protocol import one_key
from torchdp.secure.shares import masks
from torchdp.simulate import Experiment, Report
from torchdp.sketching import balanced_osnap
from torchdp.sketching.transform import add_rows

COLUMNS, HEIGHT, SERVERS = 10, 100, 3
SETUP = """
import sys
sys.path.insert(0, {folder!r})
from secure_sketch import by_parts, numpy_sums, one_pass, problem
from torchdp.kernels import chacha, secure_sketch
from torchdp.noise import Noise
A, protocol = problem({clients}, {bits}, torch.device({device!r}))
noise = Noise({device!r})
protocol.sigma
small, protocol_small = problem(1000, {bits}, torch.device({device!r}))
one_pass(small, protocol_small, noise)
"""
STATEMENTS = {
    "one key": "one_pass(A, protocol, noise)",
    "by parts": "by_parts(A, protocol, noise)",
    "reference at once": "secure_sketch.WORDS_AT_ONCE = 10**18; one_pass(A, protocol, noise)",
    "numpy at once": "numpy_sums(A, protocol)",
}


def problem(clients: int, bits: int, device: torch.device) -> tuple[torch.Tensor, SecureSketch]:
    """Rows in [0, 1]^d and a protocol for them."""
    generator = keyed_generator(b"secure sketch", device)
    A = torch.rand(clients, COLUMNS, dtype=torch.float64, generator=generator, device=device)
    sketch = balanced_osnap(clients, HEIGHT, 1, generator=generator)
    return A, SecureSketch(sketch, COLUMNS, COLUMNS**0.5, 0.5, 1e-6, servers=SERVERS, bits=bits, entry=1.0)


def one_pass(A: torch.Tensor, protocol: SecureSketch, noise: Noise) -> torch.Tensor:
    """Every server's sums, noise and masks from one key, made where they are needed."""
    sketch, ring = protocol.sketch, protocol.ring
    sums = torch.zeros(SERVERS, HEIGHT, COLUMNS, dtype=ring.dtype, device=A.device)
    at = sketch.rows, sketch.signs, protocol.sigma * ring.scale, one_key(noise)
    return secure_sketch.add(sums, protocol.admit(A), *at, scale=ring.scale)


def by_parts(A: torch.Tensor, protocol: SecureSketch, noise: Noise) -> torch.Tensor:
    """Every server's sums from the clients' messages, shared out and added part by part."""
    A, key = protocol.admit(A), one_key(noise)
    sums = torch.zeros(protocol.servers, HEIGHT, COLUMNS, dtype=protocol.ring.dtype, device=A.device)
    for part in protocol.parts():
        words = protocol.keyed(A[part], part.start, key).values
        add_rows(sums, protocol.sketch.rows[:, part], share(words, protocol.servers, noise=noise))
    return sums


def numpy_sums(A: torch.Tensor, protocol: SecureSketch) -> np.ndarray:
    """The same work in numpy, all at once, from a generator that is no cipher."""
    rng, ring = np.random.default_rng(), protocol.ring
    kind = np.dtype(f"u{ring.bits // 8}")
    rows, signs = protocol.sketch.rows[0].numpy(), protocol.sketch.signs[0].numpy()
    noise = rng.standard_normal(A.shape) * (protocol.sigma.numpy() * ring.scale)[rows, None]
    words = (np.rint(noise).astype(np.int64) + (A.numpy() * ring.scale).astype(np.int64)) * signs[:, None]
    shares = np.empty((SERVERS, *A.shape), kind)
    shares[:-1] = rng.integers(2**ring.bits, size=(SERVERS - 1, *A.shape), dtype=kind)
    shares[-1] = words.astype(kind) - shares[:-1].sum(0, dtype=kind)
    sums = np.zeros((SERVERS, HEIGHT, COLUMNS), kind)
    for table, part in zip(sums, shares, strict=True):
        np.add.at(table, rows, part)
    return sums


def median(work: Callable[[], object], device: torch.device, least: float) -> float:
    """Seconds of ``work()``: on a CPU those of this thread alone, wall time where nobody else computes."""
    if device.type == "cuda":
        return seconds(work, least)
    timer = Timer("work()", globals={"work": work}, num_threads=1, timer=time.process_time)
    return timer.blocked_autorange(min_run_time=least).median


def sources(device: torch.device, blocks: int, least: float, report: Report) -> float:
    """Gigabytes a second of each source of words; returns the best of ChaCha20 on this device."""
    key, count = chacha.system_key(device), 16 * blocks
    noise = Noise(device)
    runs = {
        "operating system": lambda: os.urandom(64 * blocks),
        "masks of shares, here": lambda: masks((count,), torch.int32, noise),
        "ChaCha20, torch": lambda: plain.keystream(key, 0, blocks),
        "ChaCha20, this device's path": lambda: chacha.keystream(key, 0, blocks),
        "torch generator, here": lambda: torch.empty(count, dtype=torch.int32, device=device).random_(),
    }
    if device.type == "cuda":
        runs["masks of the CPU, copied"] = lambda: masks((count,), torch.int32, Noise()).to(device)
    report.say(f"\nGB of words a second, {64 * blocks / 2**20:.0f} MiB at once")
    rates = {}
    for name, work in runs.items():
        rates[name] = 64 * blocks / median(work, device, least) / 1e9
        report.row("sources", source=name, GB_per_s=rates[name])
    return rates["ChaCha20, this device's path"]


def times(config: "Config", bits: int, device: torch.device, ceiling: float, report: Report) -> None:
    """Nanoseconds for one number, by each way."""
    clients, least = config.clients, config.least
    A, protocol = problem(clients, bits, device)
    noise, key = Noise(device), chacha.system_key(device)
    sketch, scale = protocol.sketch, protocol.ring.scale
    at_once = sketch.rows, sketch.signs, protocol.sigma * scale, key, 0, scale

    def stored() -> None:
        sums = torch.zeros(SERVERS, HEIGHT, COLUMNS, dtype=protocol.ring.dtype, device=device)
        secure_sketch.reference.add(sums, A, *at_once)

    runs = {
        "one key": lambda: one_pass(A, protocol, noise),
        "by parts": lambda: by_parts(A, protocol, noise),
        "reference at once": stored,
    }
    if device.type == "cpu":
        runs["numpy at once"] = lambda: numpy_sums(A, protocol)

    def row(name: str, work: Callable[[], object]) -> None:
        took = 1e9 * median(work, device, least) / A.numel()
        report.row("times", path=name, n=clients, bits=bits, ns_per_number=took)

    report.say()
    for name, work in runs.items():
        row(name, work)
    if device.type == "cpu" and chacha.LIBRARY:
        chacha.LIBRARY = False  # what happens where the package is not installed
        for name in ("one key", "by parts"):
            row(f"{name}, key streams by torch", runs[name])
        chacha.LIBRARY = True
    if device.type == "cuda":
        took, other = median(runs["one key"], device, least), torch.empty_like(A)
        stream = A.numel() * (8 + (SERVERS - 1) * bits / 8) / ceiling / 1e9
        copy = median(lambda: other.copy_(A), device, least)
        report.row("ceilings", bits=bits, over_key_stream=took / stream, over_copy=took / copy)


def memory(sizes: tuple[int, ...], bits: int, device: torch.device, report: Report) -> None:
    """By how much memory grows beside A, in MiB."""
    for name, statement in STATEMENTS.items():
        if device.type == "cuda" and name.endswith("at once"):
            continue
        for clients in sizes:
            if device.type == "cuda":
                A, protocol = problem(clients, bits, device)
                local = {"A": A, "protocol": protocol, "noise": Noise(device)}
                _ = protocol.sigma
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                exec(statement, local)
                grown = torch.cuda.max_memory_allocated() - before
            else:
                folder = os.path.dirname(os.path.abspath(__file__))
                setup = SETUP.format(folder=folder, clients=clients, bits=bits, device=str(device))
                grown = peak_bytes(setup, statement)
            report.row("memory", path=name, n=clients, bits=bits, MiB_beside_A=grown / 2**20)


@dataclass(frozen=True)
class Config:
    device: str = "cpu"
    sizes: tuple[int, ...] = (100_000, 300_000, 1_000_000)  # of the memory; on a GPU 1000000 10000000 100000000
    clients: int = 200_000  # of the times; on a GPU 100000000
    blocks: int = 2**16  # of key stream; on a GPU 2^24
    least: float = 1.0  # seconds of runs


FULL = Config()
SMOKE = Config("cpu", (30_000,), 2_000, 2**10, 0.05)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    device = torch.device(config.device)
    memory(config.sizes, 64, device, report)  # first: a child's highest counts what this process held at its start
    ceiling = sources(device, config.blocks, config.least, report)
    for bits in (64, 32):
        times(config, bits, device, ceiling, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
