"""This package's side of every row."""

import numpy as np
import side
import torch
from network import module

from torchdp import privacy, queries, regression, shuffle, workloads
from torchdp.factorization import factorize, factorize_epochs
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.noise import Noise
from torchdp.protocol import Objective
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    SubsetSelection,
)
from torchdp.rounded import RoundedNormal
from torchdp.training.clipping import Clipper


def frequencies(kind):
    def row(n, k, epsilon):
        x = torch.from_numpy(side.crowd(n, k))
        oracle = kind(k, epsilon)

        def work():
            return {"raw": oracle.estimate(x, noise=Noise("cpu")).value}

        def reports():
            return oracle.collect(torch.zeros_like(x), noise=Noise("cpu"))["reports"]

        return work if kind is HadamardResponse else (work, reports)

    return row


def calibration(epsilon, delta):
    return lambda: privacy.gaussian_sigma(epsilon, delta)


def release(n, epsilon, delta):
    def work():
        normal = RoundedNormal(privacy.gaussian_sigma(epsilon, delta) * (1 + 1e-9))
        return normal.draw((n,), Noise("cpu")).numpy()

    return work


def prefix(p):
    return lambda n: lambda: factorize(workloads.prefix(n), p=p, tol=1e-6).right.numpy()


def sampled(multiplier, chance, times, delta):
    return lambda: privacy.sampled_guarantee(multiplier, chance, times, delta).epsilon


def ridge(n, d, epsilon, delta):
    X, y = side.table(n, d)
    x = torch.from_numpy(np.column_stack([X, y]))

    def work():
        gram = regression.GramRelease(n, d, 1.0, epsilon, delta, label_bound=1.0)
        return regression.adaptive_ridge(gram.estimate(x), ridge=0.0)

    return work


def response(n, k, epsilon):
    oracle = RandomizedResponse(k, epsilon)
    counts = torch.from_numpy(side.counts(n, k))
    generator = torch.Generator()
    generator.seed()
    return lambda: oracle.sample_estimate(counts, generator=generator, sample_shape=()).value


def thresholds(n, k, epsilon):
    x = torch.from_numpy(side.crowd(n, k))
    W = workloads.prefix(k)

    def work():
        best = queries.choose(W, n, epsilon, objective=Objective.MEAN).best
        return torch.stack([best.estimate(x, noise=Noise("cpu")).value for _ in range(10)])

    return work


def vectors(n, d, epsilon):
    x = torch.from_numpy(side.spheres(n, d))
    randomizer = PrivUnit(d, epsilon)
    return lambda: randomizer.estimate(x, noise=Noise("cpu")).value


def epochs(n, epochs):
    W = workloads.prefix(n)
    return lambda: factorize_epochs(W, n // epochs, 2.0, 1e-6).right.numpy()


def bits(users, epsilon, delta, instances):
    return lambda: shuffle.PoissonSum.calibrated(users, epsilon, delta, instances).rmse


def step(n, d, hidden, classes, bound):
    layers, x, y = module(n, d, hidden, classes)
    clipper = Clipper(layers, torch.nn.functional.cross_entropy)

    def total(x, y):
        return clipper(x, y, bound)[0].numpy()

    total(x, y)  # The first batch of a training is looked at more closely than the others.

    return lambda: total(x, y), side.longest(total, x, y)


def consistent(n, size, sigma):
    _, noisy = side.marginals(n, size, sigma)
    cells = np.eye(size**3).reshape(size, size, size, -1)
    sums = [cells.sum(axis).reshape(size**2, -1) for axis in side.SUMMED]
    W = torch.from_numpy(np.concatenate(sums))
    answers = torch.from_numpy(noisy / n).flatten()

    def work():
        h, _ = nearest_histogram(W.mT @ W, answers @ W, 1e-9 * len(W))
        return n * (W @ h).reshape(3, -1).numpy()

    return work


if __name__ == "__main__":
    torch.set_num_threads(1)
    side.main(
        "",
        {
            "randomized response": frequencies(RandomizedResponse),
            "unary encoding": frequencies(OptimizedUnaryEncoding),
            "subset selection": frequencies(SubsetSelection),
            "Hadamard response": frequencies(HadamardResponse),
            "Gaussian calibration": calibration,
            "noisy integers": release,
            "prefix sums, mean": prefix(2),
            "prefix sums, max": prefix(torch.inf),
            "semidefinite program": prefix(torch.inf),
            "sampled sums": sampled,
            "ridge": ridge,
            "1e9 users at once": response,
            "thresholds": thresholds,
            "PrivUnit": vectors,
            "four epochs": epochs,
            "768 shuffled bits": bits,
            "one clipped step": step,
            "consistent marginals": consistent,
        },
    )
