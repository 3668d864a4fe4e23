"""How many users: one number, or one for each of a batch; and sums over what they hold."""

import math

import torch
from torch import Tensor

Users = int | Tensor
"""How many: n of one tally; of a batch of tallies (*batch), int64."""


def beside(n: float | Tensor, answer: int = 0) -> float | Tensor:
    """n beside numbers that have ``answer`` dimensions behind the batch: a float, or float64 (*batch, 1, ...)."""
    return n.double().view(*n.shape, *[1] * answer) if isinstance(n, Tensor) else float(n)


def users_of(counts: Tensor) -> Users:
    """n of counts (*batch, k)."""
    return counts.sum(-1) if counts.ndim > 1 else int(counts.sum())


def combined(weights: Tensor, rows: Tensor) -> Tensor:
    """sum_x weights_x rows_x: (..., m), (m, r) -> (..., r); rows (*batch, m, r): the batch's own, (..., *batch, r)."""
    batch = rows.shape[:-2]
    if not batch:
        return weights @ rows
    lead, size = weights.shape[: weights.ndim - 1 - len(batch)], math.prod(batch)
    each = weights.reshape(math.prod(lead), size, weights.shape[-1]).transpose(0, 1)
    sums = (each @ rows.reshape(size, *rows.shape[-2:])).transpose(0, 1)
    return sums.reshape(*lead, *batch, rows.shape[-1])


def tensor_of(n: Users) -> Tensor:
    """n as int64: () of one tally, on the CPU."""
    return n.to(torch.int64) if isinstance(n, Tensor) else torch.tensor(n, dtype=torch.int64, device="cpu")


def alike(n: Users) -> int:
    """n where a batch has one number of users, for calls that are made for it. Raises ValueError."""
    least, most = (int(end) for end in tensor_of(n).aminmax())
    if least != most:
        raise ValueError(f"n must be the same in all of a batch, not {least} to {most}: this call is made for one")
    return most


def single(n: Users) -> int:
    """n of one tally or crowd: what calls that have no batch ask for (docs/batches.md). Raises ValueError."""
    if isinstance(n, Tensor):
        raise ValueError(
            f"n must be of one tally, not of a batch {tuple(n.shape)}: this call takes one after the other"
        )
    return n
