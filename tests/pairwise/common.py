"""What the tests of pairwise statistics share."""

import torch

from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessagePairs
from torchdp.protocol import Tally
from torchdp.randomness import keyed_generator


def mse(protocol, h, n):
    """The predicted mean squared error of n users with these shares, a float."""
    h = h.double()
    return float(protocol.predicted_mse(h / h.sum() * n))


def sampled(protocol, counts, generator, trials):
    """``sample_estimate``; where the analyst sees each message, the messages of all trials are made at once."""
    if not isinstance(protocol, OneMessagePairs):
        return protocol.sample_estimate(counts, generator=generator, sample_shape=(trials,))
    users = protocol.statistic.points.repeat_interleave(counts, 0).expand(trials, -1, -1)
    messages = protocol.client.randomize_unchecked(users, SeededNoise.of(generator))
    parts = {"sum": messages.sum(1), "squares": messages.square().sum(1)}
    return protocol.analyse(Tally(int(counts.sum()), parts))


def sign(x):
    return (x > 0) - (x < 0)


def random_types(k, n, key):
    return torch.randint(k, (n,), generator=keyed_generator(key.encode()))


def counted(types, k):
    return torch.bincount(types, minlength=k)
