"""What the tests of pairwise statistics share."""

from functools import partial

import torch

from torchdp.pairwise import PairReports
from torchdp.randomizers import RandomizedResponse
from torchdp.randomness import keyed_generator

responses = partial(PairReports, client=RandomizedResponse)


def mse(protocol, h, n):
    """The predicted mean squared error of n users with these shares, a float."""
    h = h.double()
    return float(protocol.predicted_mse(h / h.sum() * n))


def sign(x):
    return (x > 0) - (x < 0)


def random_types(k, n, key):
    return torch.randint(k, (n,), generator=keyed_generator(key.encode()))


def counted(types, k):
    return torch.bincount(types, minlength=k)
