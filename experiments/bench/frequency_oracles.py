"""Speed of the frequency oracles beside plain numpy and published packages, one thread, one run.

Command:  OMP_NUM_THREADS=1 python experiments/bench/frequency_oracles.py
Per user: every user's own message and the analyst's tally of all, n = 1e6, k = 1024, epsilon = 1. Aggregate: the tally
    alone, exactly in law, for n = 1e9. Packages that privatise one value at a time run on as many users as fit in two
    seconds; rates are what to compare. Peers: pure-ldp, multi-freq-ldpy, opendp, each named as missing where it is not
    installed (pure-ldp needs scikit-learn and statsmodels beside what it declares).
Expected: randomized response and unary encoding each at least 10 times the rate of every package; aggregate randomized
    response and unary encoding under 0.1 s. Machines are noisy: compare ratios, not seconds.
Output: results/bench/frequency_oracles/*.csv: medians of five runs (of three for the slow).
Artifact: peers | speed
Status: on a CPU
Time: about two minutes; --smoke in seconds.
"""

import importlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from torchdp.noise import SeededNoise
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

K, EPSILON = 1024, 1.0
ORACLES = (RandomizedResponse, OptimizedUnaryEncoding, SymmetricUnaryEncoding, HadamardResponse, SubsetSelection)
Run = Callable[[np.ndarray], object]


def median(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of one call, after one that is not counted."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def numpy_response(x: np.ndarray) -> np.ndarray:
    """Randomized response, vectorised."""
    rng = np.random.default_rng(0)
    uniform = rng.random(len(x)) < K / (math.exp(EPSILON) + K - 1)
    return np.bincount(np.where(uniform, rng.integers(K, size=len(x)), x), minlength=K)


def numpy_unary(x: np.ndarray) -> np.ndarray:
    """Optimised unary encoding, vectorised in parts that fit the cache."""
    rng, total = np.random.default_rng(0), np.zeros(K, dtype=np.int64)
    for part in np.array_split(x, -(-len(x) // 256)):
        bits = rng.random((len(part), K), dtype=np.float32) < 1 / (math.exp(EPSILON) + 1)
        bits[np.arange(len(part)), part] = rng.random(len(part)) < 0.5
        total += bits.sum(0)
    return total


def pure_ldp(module: str, client: str, server: str, **settings: bool) -> Run:
    """A client and a server of pure-ldp, user by user."""
    there = importlib.import_module(f"pure_ldp.frequency_oracles.{module}")
    settings["index_mapper"] = lambda value: value

    def run(x: np.ndarray) -> None:
        user, analyst = (
            getattr(there, client)(EPSILON, K, **settings),
            getattr(there, server)(EPSILON, K, **settings),
        )
        for value in x:
            analyst.aggregate(user.privatise(value))

    return run


def multi_freq(name: str) -> Run:
    """A client of multi-freq-ldpy, user by user, and the sum of its reports."""
    there = importlib.import_module(f"multi_freq_ldpy.pure_frequency_oracles.{name}")

    def response(x: np.ndarray) -> object:
        return np.bincount([there.GRR_Client(value, K, EPSILON) for value in x], minlength=K)

    def unary(x: np.ndarray) -> object:
        return sum(there.UE_Client(value, K, EPSILON, True) for value in x)

    return response if name == "GRR" else unary


def opendp_response() -> Run:
    """opendp's randomized response, user by user."""
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    measurement = dp.m.make_randomized_response(list(range(K)), math.exp(EPSILON) / (math.exp(EPSILON) + K - 1))
    return lambda x: np.bincount([measurement(int(value)) for value in x], minlength=K)


PEERS: dict[str, Callable[[], Run]] = {
    "numpy, randomized response": lambda: numpy_response,
    "numpy, OUE": lambda: numpy_unary,
    "pure-ldp, randomized response": lambda: pure_ldp("direct_encoding", "DEClient", "DEServer"),
    "pure-ldp, OUE": lambda: pure_ldp("unary_encoding", "UEClient", "UEServer", use_oue=True),
    "multi-freq-ldpy, randomized response": lambda: multi_freq("GRR"),
    "multi-freq-ldpy, OUE": lambda: multi_freq("UE"),
    "opendp, randomized response": opendp_response,
}


def peer(name: str, make: Callable[[], Run], x: np.ndarray, most: float, report: Report) -> None:
    """One row; on as many users as take ``most`` seconds."""
    try:
        run = make()
    except ImportError as error:
        report.say(f"{name}: missing: {error.name}")
        return
    run(x[:100])  # compilation, imports
    users = 200
    while True:
        start = time.perf_counter()
        run(x[:users])
        seconds = time.perf_counter() - start
        if seconds > most / 10 or users >= len(x):
            break
        users *= 4
    users = min(len(x), max(users, int(users * most / seconds)))
    seconds = median(lambda: run(x[:users]), 3)
    report.row("per_user", library=name, users=users, seconds=seconds, users_per_s=users / seconds)


@dataclass(frozen=True)
class Config:
    device: str = "cpu"
    users: int = 1_000_000
    repeats: int = 5
    most: float = 2.0  # seconds of a peer's run


FULL = Config()
SMOKE = Config("cpu", 20_000, 1, 0.02)


def measure(config: Config, report: Report) -> None:
    device, users = torch.device(config.device), config.users
    torch.set_num_threads(1)
    generator, noise = keyed_generator(b"oracles", device), SeededNoise(1, device)
    x = torch.randint(K, (users,), device=device, generator=generator)
    report.say(f"k = {K}, epsilon = {EPSILON:g}, one thread")
    for kind in ORACLES:
        oracle = kind(K, EPSILON)
        spent = median(lambda o=oracle: o.collect(x, noise=noise), config.repeats)
        cells = {"users": users, "seconds": spent, "users_per_s": users / spent}
        report.row("per_user", library=f"torchdp, {kind.__name__}", **cells)
    for name, make in PEERS.items():
        peer(name, make, x.cpu().numpy(), config.most, report)
    counts = torch.full((K,), 10**9 // K, device=device)
    total = int(counts.sum())
    report.say("\naggregate")
    for kind in ORACLES:
        oracle = kind(K, EPSILON)
        spent = median(lambda o=oracle: o.sample_tally(counts, generator=generator), config.repeats)
        cells = {"users": total, "seconds": spent, "users_per_s": total / spent}
        report.row("aggregate", library=f"torchdp, {kind.__name__}", **cells)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
