"""Twenty-odd public calls beside a fixed loop of the same kind of work: what ``run.py --quick``
holds each commit to.

The loops never change: floats of Python, small calls of torch, normals. Busy processes slow a call
and the loop of its kind alike (a matrix product they do not: it waits for nothing).
"""

import itertools
import math
from collections.abc import Callable

import torch
from harness import Case, Run, Work

from torchdp import (
    pairwise,
    privacy,
    queries,
    randomizers,
    regression,
    secure,
    shuffle,
    sketching,
    training,
    workloads,
)
from torchdp.factorization import factorize, factorize_epochs
from torchdp.noise import Noise
from torchdp.rounded import RoundedNormal

COUNT = itertools.count()
CPU = torch.device("cpu")


def new():
    """An epsilon about 1 that no cache knows."""
    return 1 + 1e-6 * next(COUNT)


def floats():
    total = 0.0
    for i in range(1, 1000):
        total += math.exp(-i) * math.log(i)


def small_calls():
    x = torch.ones(8, dtype=torch.float64)
    for _ in range(100):
        x = (x * 0.5 + 0.5).clamp_min(0.1)


def normals():
    torch.randn(100_000, dtype=torch.float64)


def steps():
    """Each call and its loop."""
    noise = Noise(CPU)
    generator = torch.Generator().manual_seed(1)
    few = torch.arange(10_000) % 16
    many = torch.arange(100_000) % 128
    vectors = torch.nn.functional.normalize(
        torch.randn(1_000, 64, dtype=torch.float64, generator=generator)
    )
    counts = torch.full((64,), 10**7)
    rows = torch.rand(2_000, 11, dtype=torch.float64, generator=generator) / 4
    gram = regression.GramRelease(2_000, 10, 1.0, 1.0, 1e-6, label_bound=1.0)
    sketch = sketching.count_sketch(1_000, 16, generator=generator)
    sums = secure.SecureSketch(sketch, 4, 1.0, 1.0, 1e-5)
    held = torch.full((1_000, 4), 0.25, dtype=torch.float64)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    x = torch.randn(64, 64, generator=generator)
    y = torch.arange(64) % 10
    entropy = torch.nn.functional.cross_entropy
    epsilons = torch.linspace(0.1, 5, 1_000, dtype=torch.float64)
    response = randomizers.RandomizedResponse(128, 1.0)
    unary = randomizers.OptimizedUnaryEncoding(16, 1.0)
    subsets = randomizers.SubsetSelection(16, 1.0)
    hadamard = randomizers.HadamardResponse(16, 1.0)
    directions = randomizers.PrivUnit(64, 4.0)
    pairs = queries.LocalFactorization.of(pairwise.absolute_difference(16), 1.0)
    gini = pairwise.absolute_difference(32)
    rounded = RoundedNormal(64.0)
    crowd = randomizers.RandomizedResponse(64, 1.0)
    prefix = workloads.prefix(32)
    C = torch.eye(8, dtype=torch.float64)
    C += 0.5 * torch.eye(8, dtype=torch.float64).roll(1, 0).tril(-1)
    total = torch.zeros(10_000)

    def noisy_steps():
        correlated = training.CorrelatedNoise(C, len(total), 1.0, noise=noise)
        for _ in range(len(C)):
            correlated(total)

    return {
        "gaussian_sigma": (lambda: privacy.gaussian_sigma(new(), 1e-6), floats),
        "gaussian_epsilon": (lambda: privacy.gaussian_epsilon(new(), 1e-6), floats),
        "gaussian_sigma of 1,000": (lambda: privacy.gaussian_sigma(epsilons * new(), 1e-6), normals),
        "GramRelease, made": (
            lambda: regression.GramRelease(2_000, 10, 1.0, new(), 1e-6, label_bound=1.0), small_calls),
        "SecureSketch, made": (lambda: secure.SecureSketch(sketch, 4, 1.0, new(), 1e-5), small_calls),
        "SubsetSelection, made": (lambda: randomizers.SubsetSelection(64, new()), floats),
        "PrivUnit, made": (lambda: randomizers.PrivUnit(64, new()), floats),
        "sampled_guarantee": (lambda: privacy.sampled_guarantee(new(), 0.01, 100, 1e-5), normals),
        "least_flip": (lambda: shuffle.least_flip(1_000, new(), 1e-6), floats),
        "PoissonSum.calibrated": (lambda: shuffle.PoissonSum.calibrated(1_000, new(), 1e-6, 16), floats),
        "GramRelease.estimate": (lambda: gram.estimate(rows, noise=noise), normals),
        "SecureSketch.collect": (lambda: sums.collect(held, noise=noise), normals),
        "RoundedNormal.draw": (lambda: rounded.draw((100_000,), noise), normals),
        "RandomizedResponse.collect": (lambda: response.collect(many, noise=noise), normals),
        "OptimizedUnaryEncoding.collect": (lambda: unary.collect(few, noise=noise), normals),
        "SubsetSelection.estimate": (lambda: subsets.estimate(few, noise=noise), normals),
        "HadamardResponse.estimate": (lambda: hadamard.estimate(few, noise=noise), normals),
        "PrivUnit.estimate": (lambda: directions.estimate(vectors, noise=noise), normals),
        "LocalFactorization of pairs": (lambda: pairs.estimate(few, noise=noise), normals),
        "sample_estimate of 6e8": (lambda: crowd.sample_estimate(counts, generator=generator), small_calls),
        "factorize, mean": (lambda: factorize(prefix, p=2, tol=1e-6), small_calls),
        "factorize, max": (lambda: factorize(prefix, p=torch.inf, tol=1e-6), small_calls),
        "factorize_epochs": (lambda: factorize_epochs(prefix, 16, 2.0, 1e-6), small_calls),
        "choose of pairs": (lambda: queries.choose(gini, 10_000, new()), small_calls),
        "choose of prefix sums": (lambda: queries.choose(prefix, 10_000, new()), small_calls),
        "clip_and_sum": (lambda: training.clip_and_sum(layers, entropy, x, y, 1.0), small_calls),
        "CorrelatedNoise, 8 steps": (noisy_steps, normals),
    }  # fmt: skip


def work(made: Callable[[], dict[str, tuple[Run, Run]]], name):
    ours, loop = made()[name]
    return Work(ours, floors={loop.__name__: loop})


def cases(small):
    every = steps()
    for name in list(every)[:2] if small else every:
        yield Case(name, lambda name=name: work(lambda: every, name))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --quick")
