"""What tests of training share: one small problem, its plans by the way of sampling, and what runs
of them leave.
"""

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training import Iterates, choose

STEPS = 8
X = torch.linspace(-1, 1, 60)[:, None]
NAMES = {
    "ordered": "fixed order",
    "independent": "Poisson, independent noise",
    "banded": "cyclic Poisson, 4 bands",
}
KINDS = pytest.mark.parametrize("kind", NAMES)


@functools.cache
def plans():
    found = named(choose(Iterates(STEPS), 60, 15, epsilon=1.0, delta=1e-4))
    return {kind: found[name] for kind, name in NAMES.items()}


def named(choice):
    """Each candidate's plan."""
    return {one.name: one.protocol for one in choice.candidates}


def rebuilt(plan, **changes):
    """The plan with other parts, and the guarantee that its noise then gives."""
    other = replace(plan, **changes)
    return replace(other, guarantee=other.computed(other.strategy.steps))


def squares(output, target):
    return nn.functional.mse_loss(output, target, reduction="none").mean(1)


def model():
    torch.manual_seed(0)
    return nn.Linear(1, 1)


def filled(net, scale=1.0):
    """With normals of this size for parameters, the same each time."""
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            normals = torch.randn(p.shape, generator=keyed_generator(bytes([i])))
            p.copy_(scale * normals)
    return net


def started(plan, **options):
    return plan.start(model(), squares, noise=SeededNoise(3), **options)


def use(run, users, **options):
    """Uses a batch, of its users' rows of X and targets 2 X."""
    return run.backward(X[users], 2 * X[users], **options)


def gradient(run):
    return torch.cat([p.grad.flatten() for p in run.module.parameters()])


def brute(net, loss, x, y, bound, groups=None):
    """The clipped sum by plain autograd on one example after another. groups: bounds, and what is
    clipped together.
    """
    own = {name: p for name, p in net.named_parameters() if p.requires_grad}
    total = {name: torch.zeros(p.numel(), dtype=torch.float64) for name, p in own.items()}
    for i in range(len(y)):
        one = slice(i, i + 1)
        given = x if isinstance(x, dict) else {"": x}
        rows = {name: value[one] for name, value in given.items()}
        output = net(**rows) if isinstance(x, dict) else net(rows[""])
        lost = loss(output, y[one]).sum()
        found = torch.autograd.grad(lost, list(own.values()), materialize_grads=True)
        g = {name: part.double().flatten() for name, part in zip(own, found, strict=True)}
        for most, names in groups or [(bound, list(own))]:
            clipped = torch.cat([g[name] for name in names])
            norm = float(clipped.norm())
            for name in names if 0 < norm < math.inf else ():
                total[name] += g[name] * min(1.0, most / norm)
    return torch.cat(list(total.values()))
