"""What the tests of pairwise statistics share."""

import torch

from torchdp.queries import LocalFactorization, LocalOracle, Twice
from torchdp.randomizers import RandomizedResponse, SubsetSelection
from torchdp.randomness import keyed_generator

vectors = LocalFactorization.of
twice = Twice.of


def responses(question, epsilon):
    return LocalOracle.of(question, RandomizedResponse(question.types, epsilon))


def subsets(question, epsilon):
    return LocalOracle.of(question, SubsetSelection(question.types, epsilon))


def mse(protocol, h, n):
    """The predicted mean squared error of n users with these shares, a float."""
    h = h.double()
    counts = h / h.sum() * n
    return float(protocol.predicted_mse(counts))


def sign(x):
    return (x > 0) - (x < 0)


def random_types(k, n, key):
    return torch.randint(k, (n,), generator=keyed_generator(key.encode()))


def counted(types, k):
    return torch.bincount(types, minlength=k)
