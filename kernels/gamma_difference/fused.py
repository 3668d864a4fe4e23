"""Gamma differences in Triton: the variables of reference.py, up to the rounding of logarithms and exponentials."""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.gamma_difference.reference import constants
from torchdp.kernels.philox.fused import words
from torchdp.kernels.truncated_normal.fused import lower_quantile

SLOTS: tl.constexpr = tl.constexpr(32)
CELLS = 256  # that a program draws at once, as users times columns
PROGRAMS = 2**13  # of the sums, about so many at most: their number bounds the partial sums


def draws(
    shape: float, key: int, users: int, columns: int, *, first: int, stream: int, device: torch.device
) -> Tensor:
    """reference.draws."""
    out = torch.empty((users, columns), dtype=torch.float64, device=device)
    height, width = _block(columns)
    across = triton.cdiv(columns, width)
    if out.numel():
        with _on(device):
            draws_kernel[(triton.cdiv(users, height) * across,)](
                *(out, _numbers(shape, device), key, first, stream, users, columns, across),
                **{"SMALL": shape < 1, "HEIGHT": height, "WIDTH": width},
            )
    return out


def column_sums(
    shape: float, key: int, users: int, columns: int, *, first: int, stream: int, device: torch.device
) -> Tensor:
    """reference.column_sums. Partial sums, then theirs in a fixed order: the same every time on a device."""
    height, width = _block(columns)
    across = triton.cdiv(columns, width)
    rounds = max(1, triton.cdiv(users, height * max(1, PROGRAMS // max(1, across))))
    out = torch.empty((triton.cdiv(users, height * rounds), columns), dtype=torch.float64, device=device)
    if out.numel():
        with _on(device):
            sums_kernel[(len(out) * across,)](
                *(out, _numbers(shape, device), key, first, stream, users, columns, across, rounds),
                **{"SMALL": shape < 1, "HEIGHT": height, "WIDTH": width},
            )
    return out.sum(0)


def _numbers(shape: float, device: torch.device) -> Tensor:
    d, c = constants(shape + 1 if shape < 1 else shape)
    return torch.tensor([shape, d, c], dtype=torch.float64, device=device)


def _block(columns: int) -> tuple[int, int]:
    width = min(64, triton.next_power_of_2(max(1, columns)))
    return CELLS // width, width


def _on(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@triton.jit(do_not_specialize=["key", "first", "stream"])
def draws_kernel(
    out,
    numbers,
    key,
    first,
    stream,
    users,
    columns,
    across,
    SMALL: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One block of the draws; across: how many blocks of columns there are; numbers: the shape, d and c."""
    program = tl.program_id(0)
    column = (program % across) * WIDTH + tl.arange(0, WIDTH)
    row = (program // across).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    cells = _cells(numbers, key, first + row, column, stream, SMALL)
    inside = (row < users)[:, None] & (column < columns)[None, :]
    tl.store(out + row[:, None] * columns + column[None, :], cells, mask=inside)


@triton.jit(do_not_specialize=["key", "first", "stream"])
def sums_kernel(
    out,
    numbers,
    key,
    first,
    stream,
    users,
    columns,
    across,
    rounds,
    SMALL: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """``rounds`` blocks, one below the other, added up: a row of partial sums for each program."""
    program = tl.program_id(0)
    column = (program % across) * WIDTH + tl.arange(0, WIDTH)
    part = (program // across).to(tl.int64)
    top = part * HEIGHT * rounds
    end = tl.minimum((part + 1) * HEIGHT * rounds, users)
    total = tl.zeros((HEIGHT, WIDTH), tl.float64)
    for block in range(top, end, HEIGHT):
        row = block + tl.arange(0, HEIGHT)
        cells = _cells(numbers, key, first + row, column, stream, SMALL)
        total += tl.where((row < end)[:, None], cells, 0.0)
    tl.store(out + part * columns + column, tl.sum(total, axis=0), mask=column < columns)


@triton.jit
def _cells(numbers, key, index, column, stream, SMALL: tl.constexpr):
    """G - G' for each user and column."""
    shape, d, c = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    index = index[:, None] + tl.zeros((1, column.shape[0]), tl.int64)
    group = column[None, :] * SLOTS + tl.zeros((index.shape[0], 1), tl.int32)
    if SMALL:
        e, f, g, h = words(key, index, group, stream)
        scale, other = tl.exp(-_exponential(e, f) / shape), tl.exp(-_exponential(g, h) / shape)
    else:
        scale = tl.full(index.shape, 1.0, tl.float64)
        other = scale
    return _gamma(scale, d, c, key, index, group, stream) - _gamma(other, d, c, key, index, group, stream + 1)


@triton.jit
def _gamma(scale, d, c, key, index, group, stream):
    """scale times a gamma variable, by rejection; where scale is 0 there is no round."""
    out = scale * 0.0 + 1.0
    pending = scale > 0.0
    slot = 1
    while (slot < SLOTS) & (tl.max(pending.to(tl.int32), axis=None) > 0):
        e, f, g, h = words(key, index, group + slot, stream)
        low, high = _halves(e, f)
        least = tl.minimum(low, high)
        x = lower_quantile(least, tl.log(least))
        z = tl.where(low < high, x, -x)
        u, _ = _halves(g, h)
        root = 1.0 + c * z
        cube = root * root * root
        bound = 0.5 * z * z + d * (1.0 - cube + 3.0 * tl.log(tl.maximum(root, 1e-300)))
        taken = pending & (root > 0.0) & (tl.log(u) < bound)
        out = tl.where(taken, d * cube, out)
        pending = pending & (taken == 0)
        slot += 1
    return scale * out


@triton.jit
def _exponential(word, other):
    low, high = _halves(word, other)
    return tl.where(low < 0.5, -_log1p(-low), -tl.log(high))


@triton.jit
def _log1p(x):
    """log(1 + x) for x in [-1/2, 0]: the logarithm of the rounded sum, corrected by what rounding took."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def _halves(word, other):
    """w and 1 - w, each to all its digits."""
    return _fraction(word, other), _fraction(~word, ~other)


@triton.jit
def _fraction(word, other):
    return word.to(tl.float64) * (1.0 / 4294967296.0) + (other.to(tl.float64) + 0.5) * (
        1.0 / 18446744073709551616.0
    )
