"""The specification of gamma differences: Marsaglia and Tsang's rejection from a counter, in plain torch, float64."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchdp.kernels import philox
from torchdp.kernels.truncated_normal.reference import lower_quantile

CELLS_AT_ONCE = 1 << 13  # so many fit in a processor's cache
SLOTS = 32  # counters of a cell, groups 32 column + slot: 0 for exponentials, the others for rounds of rejection
FAILED = 1.0  # what a gamma variable is that all rounds refused, which has probability below 0.05^31


def draws(
    shape: float, key: int, users: int, columns: int, *, first: int, stream: int, device: torch.device
) -> Tensor:
    """G - G' for each user and column, independent Gamma(shape) of unit scale: (users, columns), float64."""
    out = torch.empty((users, columns), dtype=torch.float64, device=device)
    for rows, where, cells in _blocks(shape, key, users, columns, first, stream, device):
        out[rows, where] = cells
    return out


def column_sums(
    shape: float, key: int, users: int, columns: int, *, first: int, stream: int, device: torch.device
) -> Tensor:
    """``draws(...).sum(0)``, part by part: (columns,), float64."""
    out = torch.zeros(columns, dtype=torch.float64, device=device)
    for _, where, cells in _blocks(shape, key, users, columns, first, stream, device):
        out[where] += cells.sum(0)
    return out


def _blocks(
    shape: float, key: int, users: int, columns: int, first: int, stream: int, device: torch.device
) -> Iterator[tuple[slice, slice, Tensor]]:
    width = max(1, min(columns, CELLS_AT_ONCE))
    height = CELLS_AT_ONCE // width
    for left in range(0, columns, width):
        column = torch.arange(left, min(left + width, columns), device=device)
        for top in range(0, users, height):
            index = first + torch.arange(top, min(top + height, users), device=device)[:, None]
            user, place = torch.broadcast_tensors(index, column)
            cells = difference(shape, key, user, place, stream)
            yield slice(top, top + len(index)), slice(left, left + len(column)), cells


def difference(shape: float, key: int, index: Tensor, column: Tensor, stream: int) -> Tensor:
    """G - G' for users and columns of one shape: Gamma(shape) = exp(-E/shape) Gamma(shape + 1), E exponential.

    Where exp(-E/shape) is 0 in float64, as nearly everywhere for a tiny shape, nothing else is drawn.
    """
    scale = other = torch.ones_like(index, dtype=torch.float64)
    if shape < 1:
        a, b, c, d = philox.words(key, index, SLOTS * column, stream)
        scale, other = (torch.exp(-exponential(*halves(*pair)) / shape) for pair in ((a, b), (c, d)))
        shape += 1
    return gamma(shape, scale, key, index, column, stream) - gamma(shape, other, key, index, column, stream + 1)


def gamma(shape: float, scale: Tensor, key: int, index: Tensor, column: Tensor, stream: int) -> Tensor:
    """scale times Gamma(shape), shape >= 1: with Z normal, d (1 + c Z)^3 where log U < log_acceptance(Z).

    Source: Marsaglia, Tsang (2000).
    """
    d, c = constants(shape)
    index, column, out = index.flatten(), column.flatten(), torch.full_like(scale, FAILED).flatten()
    left = scale.flatten().nonzero()[:, 0]
    for slot in range(1, SLOTS):
        if not len(left):
            break
        words = philox.words(key, index[left], SLOTS * column[left] + slot, stream)
        z, u = normal(*halves(*words[:2])), halves(*words[2:])[0]
        taken = u.log() < log_acceptance(z, d, c)
        out[left[taken]] = d * (1 + c * z[taken]) ** 3
        left = left[~taken]
    return scale * out.view_as(scale)


def constants(shape: float) -> tuple[float, float]:
    """d = shape - 1/3 and c = 1/sqrt(9 d)."""
    d = shape - 1 / 3
    return d, 1 / math.sqrt(9 * d)


def log_acceptance(z: Tensor, d: float, c: float) -> Tensor:
    """z^2/2 + d (1 - v + log v), v = (1 + c z)^3; -infinity where v <= 0. At most 0, up to rounding."""
    root = 1 + c * z
    inside = 0.5 * z * z + d * (1 - root * root * root + 3 * root.clamp_min(1e-300).log())
    return torch.where(root > 0, inside, -math.inf)


def halves(word: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """w = (word 2^32 + other + 1/2)/2^64 and 1 - w, each to all its digits: float64 in (0, 1]."""
    mask = philox.reference.MASK
    low, high = (
        first.double() * 2.0**-32 + (second.double() + 0.5) * 2.0**-64
        for first, second in ((word, other), (word ^ mask, other ^ mask))
    )
    return low, high


def normal(low: Tensor, high: Tensor) -> Tensor:
    """The standard normal quantile of low = 1 - high."""
    least = torch.minimum(low, high)
    x = lower_quantile(least, least.log())
    return torch.where(low < high, x, -x)


def exponential(low: Tensor, high: Tensor) -> Tensor:
    """-log(high), high = 1 - low."""
    return torch.where(low < 0.5, -torch.log1p(-low), -high.log())
