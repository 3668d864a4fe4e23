"""Anderson acceleration of multiplicative updates, problem by problem of a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.simplex import onto_simplex

TINY = torch.finfo(torch.float64).tiny
RIDGE = 1e-16  # of the least squares' normal equations, whose columns have length about 1 / d


class History:
    """The last updates of weights -> weights e^update, in place: the oldest gives way to the newest."""

    def __init__(self, memory: int) -> None:
        self.memory, self.count = memory, 0
        self.last: Tensor | None = None  # point and update, (*batch, 2 d)
        self.changes = torch.empty(0)  # differences of both, (*batch, memory, 2 d), scaled
        self.extrapolated: Tensor | bool = False  # the last move of which problems

    def mix(self, x: Tensor, update: Tensor, measure: Tensor, back: Tensor | None) -> Tensor:
        """The next point after x, whose plain successor is x + update; ``measure`` weighs the coordinates' squares.

        Problems marked ``back`` return to the last point's plain update, and forget. x, update, measure: (*batch, d).
        """
        if self.memory == 0:
            return x + update
        both, d = torch.cat([x, update], -1), x.shape[-1]
        if self.last is None:
            self.last, self.changes = both, both.new_zeros(*both.shape[:-1], self.memory, 2 * d)
            return x + update
        if back is not None:
            both = pick(back, self.last, both)
            self.changes = pick(back, torch.zeros_like(self.changes), self.changes)
        self.extrapolated = True if back is None else ~back
        change = both - self.last
        length = torch.linalg.vector_norm(change[..., d:], dim=-1, keepdim=True).clamp_min(TINY)
        self.changes[..., self.count % self.memory, :] = change / length
        self.count, self.last = self.count + 1, both
        changes = self.changes[..., d:]
        weighed = measure[..., None, :] * changes  # (*batch, memory, d)
        gram = weighed @ changes.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
        mixture = torch.linalg.solve_ex(gram, weighed @ both[..., d:, None])[0].nan_to_num(0.0, 0.0, 0.0)
        return (both - (mixture.mT @ self.changes)[..., 0, :]).unflatten(-1, (2, d)).sum(-2)


def simplex(weights: Tensor, floor: float) -> Tensor:
    """Weights >= 0 scaled to sum 1, those below ``floor`` raised to it."""
    weights = (weights / weights.sum(-1, keepdim=True)).clamp_min(floor)
    return weights / weights.sum(-1, keepdim=True)


def pick(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """``new`` for the problems of the batch in ``mask``, ``old`` for the others."""
    return torch.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


def descended(slope: Callable[[Tensor], Tensor], weights: Tensor, rate: Tensor | float, steps: int) -> Tensor:
    """Accelerated projected gradients on the simplex from ``weights``, (n, k), for a gradient that ``rate`` bounds.

    Each row starts anew where momentum would lead uphill.
    """
    ahead, momentum = weights, torch.ones_like(weights[:, :1])
    for _ in range(steps):
        new = onto_simplex(ahead - slope(ahead) / rate)
        uphill = ((ahead - new) * (new - weights)).sum(1, keepdim=True) > 0
        faster = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum.square()).sqrt()) / 2)
        ahead = new + torch.where(uphill, 0.0, (momentum - 1) / faster) * (new - weights)
        weights, momentum = new, faster
    return weights
