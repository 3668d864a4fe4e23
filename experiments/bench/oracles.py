"""Frequency oracles, k types, epsilon = 1: users' reports made and counted; the tally of 1e9 users
drawn at once.
"""

import importlib
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from floors import DEVICE, words
from harness import Case, Part, Work

from torchdp.noise import SeededNoise
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomness import keyed_generator

EPSILON = 1.0
UNARY = (OptimizedUnaryEncoding, SymmetricUnaryEncoding)
ORACLES = (RandomizedResponse, HadamardResponse, SubsetSelection, *UNARY)


def users(n, k):
    return torch.randint(k, (n,), device=DEVICE, generator=keyed_generator(b"oracles", DEVICE))


def numpy_response(x, k):
    rng = np.random.default_rng(0)
    uniform = rng.random(len(x)) < k / (math.e + k - 1)
    return np.bincount(np.where(uniform, rng.integers(k, size=len(x)), x), minlength=k)


def numpy_unary(x, k):
    """Optimised unary encoding in parts that fit the cache."""
    rng = np.random.default_rng(0)
    total = np.zeros(k, dtype=np.int64)
    for part in np.array_split(x, -(-len(x) * k // 2**18)):
        bits = rng.random((len(part), k), dtype=np.float32) < 1 / (math.e + 1)
        bits[np.arange(len(part)), part] = rng.random(len(part)) < 0.5
        total += bits.sum(0)
    return total


def one_by_one(run: Callable[[np.ndarray], object], x, n):
    """What a package does that takes one value at a time, for few users."""
    some = x[:n]
    return Part(lambda: run(some), len(some))


def pure_ldp(module, client, server, x, k, **settings) -> Part:
    there = importlib.import_module(f"pure_ldp.frequency_oracles.{module}")

    def run(some):
        options = {**settings, "index_mapper": lambda value: value}
        user = getattr(there, client)(EPSILON, k, **options)
        analyst = getattr(there, server)(EPSILON, k, **options)
        for value in some:
            analyst.aggregate(user.privatise(value))

    return one_by_one(run, x, 2000)


def multi_freq(name, x, k) -> Part:
    there = importlib.import_module(f"multi_freq_ldpy.pure_frequency_oracles.{name}")

    def run(some):
        if name == "UE":
            return sum(there.UE_Client(value, k, EPSILON, True) for value in some)
        reports = [there.GRR_Client(value, k, EPSILON) for value in some]
        return np.bincount(reports, minlength=k)

    return one_by_one(run, x, 2000)


def opendp(x, k) -> Part:
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    respond = dp.m.make_randomized_response(list(range(k)), math.e / (math.e + k - 1))

    def run(some):
        return np.bincount([respond(int(value)) for value in some], minlength=k)

    return one_by_one(run, x, 500)


def collect(kind, n, k):
    oracle = kind(k, EPSILON)
    x = users(n, k)
    noise = SeededNoise(2, DEVICE)
    held = x.cpu().numpy()
    floors = {"one word a user, and bincount": two(words(n), x, k)}
    if kind in UNARY:
        floors = {"four random bits a bit": words(max(1, n * k // 16))}
    peers = {}
    if kind is RandomizedResponse:
        names = ("direct_encoding", "DEClient", "DEServer")
        peers = {
            "numpy": lambda: partial(numpy_response, held, k),
            "pure-ldp": lambda: pure_ldp(*names, held, k),
            "multi-freq-ldpy": lambda: multi_freq("GRR", held, k),
            "opendp": lambda: opendp(held, k),
        }
    elif kind is OptimizedUnaryEncoding:
        names = ("unary_encoding", "UEClient", "UEServer")
        peers = {
            "numpy": lambda: partial(numpy_unary, held, k),
            "pure-ldp": lambda: pure_ldp(*names, held, k, use_oue=True),
            "multi-freq-ldpy": lambda: multi_freq("UE", held, k),
        }
    return Work(lambda: oracle.collect(x, noise=noise), n, floors, peers)


def two(draw: Callable[[], object], x, k) -> Callable[[], object]:
    return lambda: (draw(), torch.bincount(x, minlength=k))


def drawn(kind, k):
    """The tally of 1e9 users, beside one binomial number a type."""
    oracle = kind(k, EPSILON)
    generator = keyed_generator(b"oracles", DEVICE)
    counts = torch.full((k,), 10**9 // k, device=DEVICE)
    size = counts.double()
    chance = torch.full_like(size, 0.3)
    floor = {"a binomial number a type": lambda: torch.binomial(size, chance, generator=generator)}
    return Work(lambda: oracle.sample_tally(counts, generator=generator), 1, floor)


def cases(small):
    for k in (16, 64) if small else (16, 1024, 100_000):
        for kind in ORACLES:
            bits = 1  # of a report, about
            if kind in UNARY:
                bits = k
            elif kind is SubsetSelection:
                bits = min(1024, k)
            n = 200 if small else max(100, min(1_000_000, 2 * 10**7 // bits))
            yield Case(f"{kind.__name__}.collect, k = {k}", partial(collect, kind, n, k))
            if k <= 1024:
                yield Case(
                    f"{kind.__name__}.sample_tally, 1e9 users, k = {k}", partial(drawn, kind, k)
                )


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only oracles")
