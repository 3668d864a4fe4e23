"""Draws by inversion in Triton: words, thresholds and sums stay in registers; the integers of reference.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch.launches import launched
from torchdp.kernels.inversion.tables import Table
from torchdp.kernels.normals.pieces import on
from torchdp.kernels.philox.fused import side_by_side, words

SECOND: tl.constexpr = tl.constexpr(1 << 30)  # added to the stream: where the other 96 bits of words come from
CELLS = 128  # groups of four columns that a program draws at once, as users times groups
ROUNDS = 64  # at most so often a program of the sums does so before it adds to memory


def draws(table: Table, key: int, users: int, columns: int, *, first: int, stream: int) -> Tensor:
    """reference.draws."""
    out = torch.empty((users, columns), dtype=torch.int64, device=table.device)
    sizes = _sizes(table, columns)
    across = triton.cdiv(columns, 4 * sizes["WIDTH"])
    if out.numel():
        with on(out.device):
            draws_kernel[(triton.cdiv(users, sizes["HEIGHT"]) * across,)](
                *(out, table.words.to(torch.int32), table.first, key, first, stream, users, columns, across),
                **sizes,
            )
    return out


def column_sums(table: Table, key: int, users: int, columns: int, *, first: int, stream: int) -> Tensor:
    """reference.column_sums. Sums of integers: the order of the atomic additions does not matter."""
    out = torch.full((columns,), table.first * users, dtype=torch.int64, device=table.device)
    sizes = _sizes(table, columns)
    across, rounds = triton.cdiv(columns, 4 * sizes["WIDTH"]), min(ROUNDS, triton.cdiv(users, sizes["HEIGHT"]))
    if users and columns:
        with on(out.device):
            sums_kernel[(triton.cdiv(users, sizes["HEIGHT"] * rounds) * across,)](
                *(out, table.words.to(torch.int32), key, first, stream, users, columns, across, rounds), **sizes
            )
    return out


def _sizes(table: Table, columns: int) -> dict[str, int]:
    width = min(64, triton.next_power_of_2(max(1, (columns + 3) // 4)))
    return {"STEPS": table.words.shape[1].bit_length() - 1, "HEIGHT": CELLS // width, "WIDTH": width}


@launched("base", "key", "first", "stream", "users", "across")
def draws_kernel(
    out,
    table,
    base,
    key,
    first,
    stream: tl.int32,
    users,
    columns,
    across: tl.int32,
    STEPS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One block of the draws; across: how many blocks of columns there are; table: (4, 2^STEPS) int32."""
    program = tl.program_id(0)
    group = (program % across) * WIDTH + tl.arange(0, WIDTH)
    row = (program // across).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    a, b, c, d, tied = _cells(table, key, first + row, group, stream, STEPS, False)
    if tl.max(tied, axis=None) > 0:
        a, b, c, d, tied = _cells(table, key, first + row, group, stream, STEPS, True)
    column = (4 * WIDTH * (program % across) + tl.arange(0, 4 * WIDTH))[None, :]
    inside = (row < users)[:, None] & (column < columns)
    tl.store(out + row[:, None] * columns + column, side_by_side(a, b, c, d).to(tl.int64) + base, mask=inside)


@launched("key", "first", "stream", "users", "columns", "across", "rounds")
def sums_kernel(
    out,
    table,
    key,
    first,
    stream: tl.int32,
    users,
    columns: tl.int32,
    across: tl.int32,
    rounds: tl.int32,
    STEPS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """``rounds`` blocks, one below the other, added to the sums of their columns."""
    program = tl.program_id(0)
    group = (program % across) * WIDTH + tl.arange(0, WIDTH)
    top = (program // across).to(tl.int64) * (HEIGHT * rounds)
    end = tl.minimum(top + HEIGHT * rounds, users)
    a, b, c, d, tied = _sums(table, key, first, top, end, group, stream, STEPS, HEIGHT, False)
    if tied > 0:
        a, b, c, d, tied = _sums(table, key, first, top, end, group, stream, STEPS, HEIGHT, True)
    column = 4 * WIDTH * (program % across) + tl.arange(0, 4 * WIDTH)
    tl.atomic_add(out + column, side_by_side(a, b, c, d), mask=column < columns, sem="relaxed")


@triton.jit
def _sums(
    table, key, first, top, end, group, stream, STEPS: tl.constexpr, HEIGHT: tl.constexpr, RESOLVE: tl.constexpr
):
    """Sums over users of the four columns of each group, int64, and whether a word was a threshold's own."""
    start = tl.zeros((HEIGHT, group.shape[0]), tl.int32)
    p, q, r, s, tied = start, start, start, start, start
    for block in range(top, end, HEIGHT):
        row = block + tl.arange(0, HEIGHT)
        a, b, c, d, tie = _cells(table, key, first + row, group, stream, STEPS, RESOLVE)
        inside = (row < end)[:, None]
        p += tl.where(inside, a, 0)
        q += tl.where(inside, b, 0)
        r += tl.where(inside, c, 0)
        s += tl.where(inside, d, 0)
        tied |= tie
    return _total(p), _total(q), _total(r), _total(s), tl.max(tied, axis=None)


@triton.jit
def _total(x):
    return tl.sum(x.to(tl.int64), axis=0)


@triton.jit
def _cells(table, key, index, group, stream, STEPS: tl.constexpr, RESOLVE: tl.constexpr):
    """Thresholds passed in the four columns of each user and group, int32, and whether a word was a threshold's own."""
    index = index[:, None] + tl.zeros((1, group.shape[0]), tl.int64)
    group = group[None, :] + tl.zeros((index.shape[0], 1), tl.int32)
    a, b, c, d = words(key, index, group, stream)
    a, tie_a = _passed(table, a, key, index, 4 * group, stream, STEPS, RESOLVE)
    b, tie_b = _passed(table, b, key, index, 4 * group + 1, stream, STEPS, RESOLVE)
    c, tie_c = _passed(table, c, key, index, 4 * group + 2, stream, STEPS, RESOLVE)
    d, tie_d = _passed(table, d, key, index, 4 * group + 3, stream, STEPS, RESOLVE)
    return a, b, c, d, tie_a | tie_b | tie_c | tie_d


@triton.jit
def _passed(table, word, key, index, column, stream, STEPS: tl.constexpr, RESOLVE: tl.constexpr):
    """How many of the 2^STEPS falling thresholds exceed the word, by halving, and whether the next equals it."""
    passed = column * 0
    if RESOLVE:
        e, f, g, _ = words(key, index, column, stream + SECOND)
    for step in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - step)
        at = table + passed + (half - 1)
        threshold = _word(at)
        exceeds = threshold > word
        if RESOLVE:
            one, two, three = _word(at + (1 << STEPS)), _word(at + (2 << STEPS)), _word(at + (3 << STEPS))
            more = (one > e) | ((one == e) & ((two > f) | ((two == f) & (three > g))))
            exceeds |= (threshold == word) & more
        passed += tl.where(exceeds, half, 0)
    return passed, (_word(table + passed) == word).to(tl.int32)


@triton.jit
def _word(at):
    return tl.load(at).to(tl.uint32, bitcast=True)
