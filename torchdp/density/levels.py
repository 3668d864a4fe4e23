"""Features rounded to whole steps of 2 R / levels, on any device: less variance than one bit of each."""

import torch
from torch import Tensor

from torchdp.density.family import Features
from torchdp.density.rounding import rounded
from torchdp.draws import Draws, Simulated
from torchdp.protocol import Crowd


def steps(features: Features, x: Tensor, levels: int, draws: Draws) -> Tensor:
    """What users round to: floor u + Bernoulli(u - floor u), u = levels (1 + f/R)/2: (n, instances) int64."""
    whole, rest = _parts(features, x, levels)
    return whole + rounded(2 * rest - 1, (), draws)


def crowd_steps(features: Features, crowd: Crowd, levels: int, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
    """Sums of all users' steps, unchecked: -> (*shape, instances) int64. O(distinct values)."""
    total = torch.zeros(*shape, features.instances, dtype=torch.int64, device=crowd.values.device)
    times = torch.Size(shape).numel()
    for x, counts in zip(features.parts(crowd.values, times), features.parts(crowd.counts, times), strict=True):
        whole, rest = _parts(features, x, levels)
        total += (counts[:, None] * whole).sum(0)  # no product of integer matrices on a GPU
        if bool((counts == 1).all()):
            total += rounded(2 * rest - 1, shape, draws).sum(-2)
        else:
            total += draws.binomial(counts[:, None].expand(*shape, *rest.shape), rest).sum(-2)
    return total


def class_steps(
    features: Features,
    x: Tensor,
    labels: Tensor,
    classes: int,
    levels: int,
    draws: Simulated,
    shape: tuple[int, ...],
) -> Tensor:
    """The same for each class, unchecked: (n, d), (n,) -> (*shape, classes, instances) int64."""
    crowds = (Crowd(x[labels == c], torch.ones_like(labels[labels == c])) for c in range(classes))
    return torch.stack([crowd_steps(features, crowd, levels, draws, shape) for crowd in crowds], -2)


def rounding_variances(features: Features, crowd: Crowd, levels: int) -> Tensor:
    """Of the sums of f that rounding leaves: sum_u 4 R^2 theta (1 - theta)/levels^2, (instances,) float64."""
    total = torch.zeros(features.instances, dtype=torch.float64, device=crowd.values.device)
    for x, counts in zip(features.parts(crowd.values), features.parts(crowd.counts), strict=True):
        rest = _parts(features, x, levels)[1]
        total += counts.double() @ (rest * (1 - rest))
    return total * (2 * features.bound / levels) ** 2


def _parts(features: Features, x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """floor u, int64, and u - floor u, float64."""
    u = ((1 + features.share(x).double()) * (levels / 2)).clamp_(0, levels)
    whole = u.floor()
    return whole.to(torch.int64), u - whole
