"""Blocks of coordinates, each in an l_q ball of its own: z = (z_1, ..., z_k), ||z_g||_{q_g} <= 1."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import power_norm

TINY = 1e-300
Groups = tuple[tuple[int, float], ...]  # size and order q of each block


def longest(size: Tensor, groups: Groups) -> Tensor:
    """The z >= 0 with the largest <z, size>, size >= 0 of shape (..., N): z_j ~ size_j^{1/(q-1)} in a block."""
    return _blockwise(size, groups, _longest)


def moved_inside(z: Tensor, groups: Groups) -> Tensor:
    """z with every block of norm above 1 divided by it."""
    return _blockwise(z, groups, lambda block, q: block / power_norm(block.abs(), q)[..., None].clamp_min(1.0))


def total(values: Tensor, groups: Groups, order: Callable[[float], float]) -> Tensor:
    """The sum over blocks of the blocks' l_{order(q)} norms; values >= 0 of shape (..., N)."""
    blocks = values.split([size for size, _ in groups], dim=-1)
    return torch.stack([power_norm(b, order(q)) for b, (_, q) in zip(blocks, groups, strict=True)]).sum(0)


def dual_order(q: float) -> float:
    """q/(q-2): of y where sum_j y_j z_j^2 <= ||y|| for ||z||_q <= 1; inf for q <= 2."""
    return 1.0 if q == math.inf else math.inf if q <= 2 else q / (q - 2)


def corners(groups: Groups, most: int) -> Tensor | None:
    """The corners (k, N) of the product of the balls, k <= most, where all are of order 1 or inf; None elsewhere."""
    z = torch.zeros(1, 0, dtype=torch.float64)
    for size, q in groups:
        if size > 1 and (1 < q < math.inf or size > most):
            return None
        signs = q == math.inf and size > 1
        if len(z) * (2**size if signs else 2 * size) > most:
            return None
        basis = torch.eye(size, dtype=torch.float64)
        both = torch.tensor([[1.0, -1.0]] * size, dtype=torch.float64)
        z = paired(z, torch.cartesian_prod(*both) if signs else torch.cat([basis, -basis]))
    return z


def paired(x: Tensor, y: Tensor) -> Tensor:
    """Every row of x beside every row of y."""
    return torch.cat([x.repeat_interleave(len(y), 0), y.repeat(len(x), 1)], 1)


def _longest(size: Tensor, q: float) -> Tensor:
    if q == math.inf:
        return torch.ones_like(size)
    if q == 1:
        return torch.zeros_like(size).scatter(-1, size.argmax(-1, keepdim=True), 1.0)
    z = (size / size.amax(-1, keepdim=True).clamp_min(TINY)) ** (1 / (q - 1))
    return z / power_norm(z, q)[..., None].clamp_min(TINY)


def _blockwise(values: Tensor, groups: Groups, function: Callable[[Tensor, float], Tensor]) -> Tensor:
    blocks = values.split([size for size, _ in groups], dim=-1)
    return torch.cat([function(block, q) for block, (_, q) in zip(blocks, groups, strict=True)], -1)
