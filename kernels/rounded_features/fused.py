"""Counts of rounded waves in Triton: a tile of users by frequencies stays in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from torchdp.kernels.dispatch import launched
from torchdp.kernels.philox.fused import words

LAST = tl.constexpr(1 - 2.0**-24)  # the float32 below 1
# stands for the level 2^31 of a sure bit, which is no int32; others are below
SURE = tl.constexpr(2**31 - 1)
# three products of the parts of float32 numbers; AMD's matrix units multiply float32 numbers
# themselves
PRECISION = tl.constexpr("ieee" if torch.version.hip else "tf32x3")
# steps between users, so that offsets within a tile fit 32 bits
LONGEST = 2**23
BLOCK_N, BLOCK_I, BLOCK_D = 64, 128, 32
OPTIONS = {"num_warps": 8, "num_stages": 2}


@triton.jit
def nearest(t):
    """Turns from the nearest whole number, exact."""
    return t - tl.floor(t + 0.5)


@triton.jit
def cosine(t):
    """cos 2 pi t for |t| <= 1/2, to 2.5e-7."""
    # sin 2 pi (1/4 - |t|) by its best polynomial of degree 9
    s = 0.25 - tl.abs(t)
    y = s * s
    p = 39.53670606491548 * y - 76.54978229351272
    p = p * y + 81.60100407325757
    p = p * y - 41.34165503141601
    p = p * y + 6.2831851600894755
    return p * s


@triton.jit
def projection(
    x,
    frequencies,
    users,
    columns,
    d,
    x_row,
    wave_row,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """<w_i, x_u> in turns, reduced: (columns, users); 0 where it is no number.

    x, frequencies: of the tile's first user and column; users, columns: how many there are. Offsets
    within a tile are of 32 bits. A frequency's row has wave_row numbers, zeros after the d-th.
    """
    total = tl.zeros((BLOCK_I, BLOCK_N), tl.float32)
    row = tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_I)
    depth = tl.arange(0, BLOCK_D)
    for start in range(0, d, BLOCK_D):
        k = start + depth
        w = tl.load(
            frequencies + (column[:, None] * wave_row + k[None, :]),
            mask=(column < columns)[:, None],
            other=0.0,
        )
        here = (row < users)[None, :] & (k < d)[:, None]
        part = tl.load(x + (row[None, :] * x_row + k[:, None]), mask=here, other=0.0)
        total = tl.dot(w, part, total, input_precision=PRECISION)
    turns = nearest(total)
    # infinity less its floor is no number
    return tl.where(turns == turns, turns, 0.0)


@triton.jit
def uniform(key, user, block, stream, COLUMNS: tl.constexpr, USERS: tl.constexpr):
    """An int32 for each place of a block of columns: (columns, users)."""
    # four columns share a counter
    group = block * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    index = tl.broadcast_to(user[None, :], (COLUMNS // 4, USERS))
    groups = tl.broadcast_to(group[:, None], (COLUMNS // 4, USERS))
    a, b, c, d = words(key, index, groups, stream)
    # (groups, users, 2, 2): a, b, c, d in the order of the last two
    four = tl.join(tl.join(a, c), tl.join(b, d))
    columns = tl.reshape(tl.permute(four, (0, 2, 3, 1)), (COLUMNS, USERS))
    return (columns ^ 0x80000000).to(tl.int32, bitcast=True)


@triton.jit
def tally(out, bits, inside):
    """Adds the ones of each column: bits (columns, users) -> out, a place for each column."""
    count = tl.sum(bits.to(tl.int32), 1).to(tl.int64)
    tl.atomic_add(out, count, mask=inside & (count > 0), sem="relaxed")


@launched("key", "first", "features")
def count_kernel(
    out,
    x,
    frequencies,
    phases,
    key,
    first,
    repeats,
    waves,
    n,
    d,
    features: tl.int32,
    x_row,
    wave_row,
    ROUNDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Adds bits of rounded waves, or where not ROUNDED of waves above 0, of ``repeats`` = 1."""
    across = tl.cdiv(features, BLOCK_I)  # programs that share users follow one another
    block = tl.program_id(0) % across
    top = (tl.program_id(0) // across).to(tl.int64) * BLOCK_N
    left = block.to(tl.int64) * BLOCK_I
    users = tl.minimum(n - top, BLOCK_N).to(tl.int32)
    columns = features - block * BLOCK_I
    x += top * x_row
    frequencies += left * wave_row
    turns = projection(
        x, frequencies, users, columns, d, x_row, wave_row, BLOCK_N, BLOCK_I, BLOCK_D
    )
    user = top + tl.arange(0, BLOCK_N)
    column = left + tl.arange(0, BLOCK_I)
    present = (user < n)[None, :]
    inside = column < features
    width = features.to(tl.int64) * waves
    for wave in range(0, waves):
        phase = tl.load(phases + wave * features + column, mask=inside, other=0.0)
        turned = nearest(turns + phase[:, None])
        number = column * waves + wave
        if ROUNDED:
            share = cosine(turned)
            clamped = tl.minimum(tl.maximum(share, -1.0), LAST)
            level = (clamped * 2147483648.0).to(tl.int32)
            level = tl.where(share < 1.0, level, SURE)
            for repeat in range(0, repeats):
                random = uniform(key, first + user, block, repeat * waves + wave, BLOCK_I, BLOCK_N)
                bits = (random < level) | (level == SURE)
                tally(out + repeat * width + number, bits & present, inside)
        else:
            tally(out + number, (tl.abs(turned) < 0.25) & present, inside)


def rounded_counts(
    x: Tensor, frequencies: Tensor, phases: Tensor, key: int, first: int, repeats: int
) -> Tensor:
    """As in reference.py."""
    return _counts(x, frequencies, phases, key, first, repeats, ROUNDED=True)


def positive_counts(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """As in reference.py."""
    return _counts(x, frequencies, phases, 0, 0, 1, ROUNDED=False)[0]


def _counts(
    x: Tensor,
    frequencies: Tensor,
    phases: Tensor,
    key: int,
    first: int,
    repeats: int,
    **kind: bool,
) -> Tensor:
    n, d = x.shape
    waves, features = phases.shape
    out = torch.zeros(repeats, waves * features, dtype=torch.int64, device=x.device)
    if not out.numel() or not n:
        return out
    if d > LONGEST:
        raise ValueError(f"x must have at most {LONGEST} columns, not {d}")
    if x.stride(1) != 1 or x.stride(0) > LONGEST:
        x = x.contiguous()
    rows = pad(frequencies.mT, (0, -d % BLOCK_D)).contiguous()  # in rows, as tf32 wants them
    grid = (triton.cdiv(n, BLOCK_N) * triton.cdiv(features, BLOCK_I),)
    blocks = {"BLOCK_N": BLOCK_N, "BLOCK_I": BLOCK_I, "BLOCK_D": BLOCK_D}
    with torch.cuda.device_of(x):
        count_kernel[grid](
            out,
            x,
            rows,
            phases.contiguous(),
            key,
            first,
            repeats,
            waves,
            n,
            d,
            features,
            x.stride(0),
            rows.stride(0),
            **kind,
            **blocks,
            **OPTIONS,
        )
    return out
