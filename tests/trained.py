"""What tests of training share: one small problem, its plans by the way of sampling, and what runs of them leave."""

import functools

import pytest
import torch
from torch import nn

from torchdp.noise import SeededNoise
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
    choice = choose(Iterates(STEPS), 60, 15, epsilon=1.0, delta=1e-4)
    found = {one.name: one.protocol for one in choice.candidates}
    return {kind: found[name] for kind, name in NAMES.items()}


def squares(output, target):
    return nn.functional.mse_loss(output, target, reduction="none").mean(1)


def model():
    torch.manual_seed(0)
    return nn.Linear(1, 1)


def started(plan, **options):
    return plan.start(model(), squares, noise=SeededNoise(3), **options)


def gradient(run):
    return torch.cat([p.grad.flatten() for p in run.module.parameters()])
