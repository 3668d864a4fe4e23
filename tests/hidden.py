"""Modules of two layers whose hidden numbers a test changes, and batches for them."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trained import filled

from torchdp.randomness import keyed_generator
from torchdp.training.clipping import Clipper

WIDTH = 24
BOUND = 0.5


class Hidden(nn.Module):
    """Its hidden numbers are ``use(z, x)`` of what the first layer makes, z: (n, WIDTH)."""

    def __init__(self, use):
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.use = use
        filled(self, 0.4)

    def forward(self, x):
        z = self.use(self.first(x), x)
        return self.last(torch.tanh(z))


def unchanged(z, x):
    return z


def batch(n, key=b"batch"):
    g = keyed_generator(key)
    x = torch.randn(n, 6, generator=g)
    y = torch.randint(3, (n,), generator=g)
    return x, y


def fast(net):
    """One pass of the batch or none: what is not seen to be apart is refused."""
    return Clipper(net, cross_entropy, routes=("factors",))


def sloped(z, slope):
    """The numbers of z; gradients are times ``slope``, of which outputs show nothing."""
    stopped = z.detach()
    return stopped + (z - stopped) * slope


class Backward(torch.autograd.Function):
    """The numbers of z; gradients g become ``change(g)``."""

    @staticmethod
    def forward(ctx, z, change):
        ctx.change = change
        return z * 1.0

    @staticmethod
    def backward(ctx, g):
        return ctx.change(g), None


class OwnRule(torch.autograd.Function):
    """Each row by itself, but under vmap."""

    @staticmethod
    def forward(z):
        return z * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def vmap(info, dims, z):
        return z - z.roll(1, 0), 0
