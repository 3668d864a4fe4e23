"""Speed of randomized response and OUE: every user's message randomised and tallied, and the sum of all at once.

Command:  python experiments/bench/frequency_oracles.py
Per user: 1e6 users, 1024 types, epsilon 1, beside plain numpy and, where they are installed, pure-ldp's clients and
    servers (one user at a time), these on 20,000 users. Aggregate: the tally of 1e9 users drawn at once.
Output: medians (torch.utils.benchmark, one thread), users per second. Compare ratios, not seconds.
Time: about a minute; --smoke in seconds.
"""

import argparse
import importlib

import numpy as np
import torch
from torch.utils.benchmark import Timer

from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse
from torchdp.randomness import keyed_generator

K, EPSILON = 1024, 1.0


def numpy_response(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    keep = random.random(len(x)) < np.expm1(EPSILON) / (np.exp(EPSILON) + K - 1)
    return np.bincount(np.where(keep, x, random.integers(0, K, len(x))), minlength=K)


def numpy_unary(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    total = np.zeros(K, dtype=np.int64)
    for part in np.array_split(x, max(1, len(x) // 2048)):
        bits = random.random((len(part), K), dtype=np.float32) < 1 / (np.exp(EPSILON) + 1)
        bits[np.arange(len(part)), part] = random.random(len(part)) < 0.5
        total += bits.sum(0)
    return total


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    torch.set_num_threads(1)
    n, few = (10_000, 100) if smoke else (1_000_000, 20_000)
    generator, random = keyed_generator(b"bench"), np.random.default_rng(0)
    x = torch.randint(K, (n,), generator=generator)
    counts = torch.full((K,), 10**9 // K)
    print(f"{'operation':<46}{'users/s':>12}{'seconds':>10}")

    def show(name: str, users: int, run: object) -> None:
        seconds = Timer("run()", globals={"run": run}).blocked_autorange(min_run_time=0.01 if smoke else 2).median
        print(f"{name:<46}{users / seconds:>12.3g}{seconds:>10.3g}", flush=True)

    for kind, plain in ((RandomizedResponse, numpy_response), (OptimizedUnaryEncoding, numpy_unary)):
        oracle, name = kind(K, EPSILON), kind.__name__
        show(f"{name}.collect", n, lambda oracle=oracle: oracle.collect(x, generator=generator))
        show(f"{name} in plain numpy", few, lambda plain=plain: plain(x[:few].numpy(), random))
        show(
            f"{name}.sample_reports",
            10**9,
            lambda oracle=oracle: oracle.sample_reports(counts, generator=generator),
        )
    try:
        direct = importlib.import_module("pure_ldp.frequency_oracles.direct_encoding")
        unary = importlib.import_module("pure_ldp.frequency_oracles.unary_encoding")
    except ImportError as error:
        print(f"pure-ldp missing: {error.name}")
        return
    index = {"index_mapper": lambda value: int(value)}
    pairs = {
        "pure-ldp DirectEncoding": (direct.DEClient(EPSILON, K, **index), direct.DEServer(EPSILON, K, **index)),
        "pure-ldp UnaryEncoding, OUE": (
            unary.UEClient(EPSILON, K, use_oue=True, **index),
            unary.UEServer(EPSILON, K, use_oue=True, **index),
        ),
    }
    values = x[:few].tolist()
    for name, (client, server) in pairs.items():

        def run(client: object = client, server: object = server) -> None:
            for value in values:
                server.aggregate(client.privatise(value))  # type: ignore[attr-defined]

        show(name, few, run)


if __name__ == "__main__":
    main()
