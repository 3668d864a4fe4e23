"""This package's side of every row."""

import numpy as np
import side
import torch

from torchdp import privacy, regression, workloads
from torchdp.factorization import factorize
from torchdp.noise import Noise
from torchdp.randomizers import HadamardResponse, OptimizedUnaryEncoding, RandomizedResponse, SubsetSelection
from torchdp.rounded import RoundedNormal


def frequencies(kind):
    def row(n, k, epsilon):
        x, alike, oracle = torch.from_numpy(side.crowd(n, k)), torch.zeros(n, dtype=torch.long), kind(k, epsilon)

        def work():
            return {"raw": oracle.estimate(x, noise=Noise("cpu")).value}

        def heard():
            return oracle.collect(alike, noise=Noise("cpu"))["reports"]

        return (work,) if kind is HadamardResponse else (work, heard)

    return row


def calibration(epsilon, delta):
    return (lambda: privacy.gaussian_sigma(epsilon, delta),)


def release(n, epsilon, delta):
    def work():
        normal = RoundedNormal(privacy.gaussian_sigma(epsilon, delta) * (1 + 1e-9))
        return normal.draw((n,), Noise("cpu")).numpy()

    return (work,)


def prefix(p):
    return lambda n: (lambda: factorize(workloads.prefix(n), p=p, tol=1e-6).right.numpy(),)


def sampled(multiplier, chance, times, delta):
    return (lambda: privacy.sampled_guarantee(multiplier, chance, times, delta).epsilon,)


def ridge(n, d, epsilon, delta):
    X, y = side.table(n, d)
    x = torch.from_numpy(np.column_stack([X, y]))

    def work():
        gram = regression.GramRelease(n, d, 1.0, epsilon, delta, label_bound=1.0)
        return regression.adaptive_ridge(gram.estimate(x), ridge=0.0)

    return (work,)


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
        },
    )
