"""The keyed secure sketch in Triton: noise, masks and shares live in registers, the servers' sums in memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.chacha.fused import words, words64
from torchdp.kernels.dispatch.launches import launched
from torchdp.kernels.normals.fused import circle
from torchdp.kernels.secure_sketch.reference import MASKS, NOISE

ENTRIES = 1024  # of one program of 128 threads, one block of noise for each
TURN = tl.constexpr(6.283185307179586)
ROUNDER = tl.constexpr(6755399441055744.0)  # 3/2 2^52: adding it leaves no bit below one
NOISE_STREAM, MASK_STREAM = tl.constexpr(NOISE), tl.constexpr(MASKS)


@triton.jit
def normals(key, first, COUNT: tl.constexpr):
    """Entries 8 first, ..., 8 (first + COUNT) - 1, as in reference.py: float64 of shape (8 COUNT,)."""
    numbers = words64(key, first, 0, NOISE_STREAM, COUNT)
    one, two = tl.split(tl.reshape(numbers, [4 * COUNT, 2]))
    high = (one >> 12).to(tl.int64).to(tl.float64) * (1.0 / 4503599627370496.0)  # 2^-52
    low = (((one & 4095) << 12) | (two & 4095)).to(tl.int64).to(tl.float64) + 0.5
    radius = tl.sqrt(-2.0 * tl.log(high + low * (1.0 / 75557863725914323419136.0)))  # 2^-76
    turn = (two >> 12).to(tl.int64)
    quarter = (turn + (1 << 49)) >> 50  # the nearest; what is left of the turn is exact
    left = (turn - (quarter << 50)).to(tl.float64) + 0.5
    cosine, sine = circle(left * (1.0 / 4503599627370496.0) * TURN, quarter.to(tl.int32))
    return tl.reshape(tl.join(radius * cosine, radius * sine), [8 * COUNT])


@launched("first", "clients", fusion=False)
def add_kernel(
    sums,
    values,
    rows,
    signs,
    units,
    key,
    first,
    clients,
    copies,
    columns,
    size,
    value_step,
    value_column,
    row_copy,
    row_step,
    sign_copy,
    sign_step,
    scale,
    SERVERS: tl.constexpr,
    BITS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    before = first.to(tl.int64) * copies * columns
    start = before // 16 * 16 + tl.program_id(0).to(tl.int64) * ENTRIES  # where a block of either ring starts
    # one long division for each program; what is left fits 32 bits
    pair = start // columns
    place = (start - pair * columns).to(tl.int32) + tl.arange(0, ENTRIES)
    client = pair // copies
    copy = (pair - client * copies).to(tl.int32) + place // columns
    column = place % columns
    client += copy // copies - first
    copy = (copy % copies).to(tl.int64)
    inside = (client >= 0) & (client < clients)

    row = tl.load(rows + copy * row_copy + client * row_step, mask=inside, other=0)
    sign = tl.load(signs + copy * sign_copy + client * sign_step, mask=inside, other=0).to(tl.int64)
    value = tl.load(values + client * value_step + column.to(tl.int64) * value_column, mask=inside, other=0)
    unit = tl.load(units + row, mask=inside, other=0)
    noise = unit * normals(key, start // 8, ENTRIES // 8)
    whole = (noise + ROUNDER) - ROUNDER  # to the nearest integer, halves to even ones
    word = ((value.to(tl.float64) * scale).to(tl.int64) + whole.to(tl.int64)) * sign
    target = sums + row * columns + column
    if BITS == 64:
        for k in tl.static_range(1, SERVERS):
            mask = words64(key, start // 8, k, MASK_STREAM, ENTRIES // 8).to(tl.int64, bitcast=True)
            tl.atomic_add(target, mask, mask=inside, sem="relaxed")
            word -= mask
            target += size
        tl.atomic_add(target, word, mask=inside, sem="relaxed")
    else:
        last = word.to(tl.int32)
        for k in tl.static_range(1, SERVERS):
            mask = words(key, start // 16, k, MASK_STREAM, ENTRIES // 16).to(tl.int32, bitcast=True)
            tl.atomic_add(target, mask, mask=inside, sem="relaxed")
            last -= mask
            target += size
        tl.atomic_add(target, last, mask=inside, sem="relaxed")


def add(
    sums: Tensor, values: Tensor, rows: Tensor, signs: Tensor, units: Tensor, key: Tensor, first: int, scale: float
) -> None:
    """As in reference.py, in one launch."""
    (servers, height, columns), (copies, clients) = sums.shape, rows.shape
    if not clients:
        return
    before = first * copies * columns
    programs = triton.cdiv(before % 16 + clients * copies * columns, ENTRIES)
    with torch.cuda.device_of(values):
        add_kernel[(programs,)](
            sums, values, rows, signs, units, key, first, clients, copies, columns, height * columns,
            *values.stride(), *rows.stride(), *signs.stride(), float(scale),
            SERVERS=servers, BITS=8 * sums.dtype.itemsize, ENTRIES=ENTRIES, num_warps=4,
        )  # fmt: skip
