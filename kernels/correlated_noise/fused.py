"""One step of correlated noise in Triton: the state is read and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.chacha.fused import words64
from torchdp.kernels.correlated_noise.reference import ANGLE, COARSE, FURTHER, MOST, RADIUS
from torchdp.kernels.correlated_noise.step import Step
from torchdp.kernels.dispatch import launched
from torchdp.kernels.normals.fused import circle

# of one program of 128 threads: half as many pairs, 64 blocks of either stream
NUMBERS = 1024
TICK = tl.constexpr(6.283185307179586 / 2**64)
LOG_SCALE = tl.constexpr(63 * 0.6931471805599453)
RADII = tl.constexpr(RADIUS)
ANGLES = tl.constexpr(ANGLE)
FINER = tl.constexpr(FURTHER)
MASK = tl.constexpr(MOST)
SMALL = tl.constexpr(COARSE)


@triton.jit
def normals(key, block, step, COUNT: tl.constexpr):
    """Numbers 16 block, ..., 16 (block + COUNT) - 1, as in reference.py: float64, (16 COUNT,)."""
    half = tl.arange(0, 2 * COUNT) // COUNT  # both streams at once: a thread for each block
    stream = RADII + half * (ANGLES - RADII)
    words = words64(key, block - half * COUNT, step, stream, 2 * COUNT)
    streams = tl.reshape(words.to(tl.int64, bitcast=True), [2, 8 * COUNT])
    whole, turn = tl.split(tl.permute(streams, [1, 0]))
    whole = whole & MASK
    logarithm = tl.log((whole.to(tl.float64) + 0.5) * (1.0 / 9223372036854775808.0))  # 2^-63
    small = whole < SMALL
    if tl.max(small.to(tl.int32), 0) > 0:  # one program in 2^22
        further = words64(key, block, step, FINER, COUNT).to(tl.int64, bitcast=True) & MASK
        fraction = (further.to(tl.float64) + 0.5) * (1.0 / 9223372036854775808.0)
        finer = fraction + whole.to(tl.float64)
        logarithm = tl.where(small, tl.log(finer) - LOG_SCALE, logarithm)
    radius = tl.sqrt(-2.0 * logarithm)
    quarter = (turn + 2305843009213693952) >> 62  # the nearest quarter turn; what is left is exact
    rest = (turn - (quarter << 62)).to(tl.float64) * TICK
    cosine, sine = circle(rest, quarter.to(tl.int32))
    return tl.reshape(tl.join(radius * cosine, radius * sine), [16 * COUNT])


@launched("of_w", "of_u", "step", "first", "draws", "size", "memory")
def add_kernel(
    out,
    state,
    total,
    gains,
    decays,
    numbers,
    lags,
    key,
    of_w,
    of_u,
    step,
    first,
    draws,
    size,
    memory,
    row: tl.int64,
    NUMBERS: tl.constexpr,
    RUNNING: tl.constexpr,
    RINGS: tl.constexpr,
    RECALLED: tl.constexpr,
):
    start = first.to(tl.int64) // 16 * 16 + tl.program_id(0).to(tl.int64) * NUMBERS
    place = start - first + tl.arange(0, NUMBERS)
    inside = (place >= 0) & (place < size)
    kind = state.dtype.element_ty
    drawn = normals(key, start // 16, step, NUMBERS // 16) * tl.load(numbers + 1)
    if RECALLED:
        for m in range(1, draws):
            earlier = normals(key, start // 16, step - tl.load(lags + m), NUMBERS // 16)
            drawn += earlier * tl.load(numbers + 1 + m)
    u = drawn.to(kind)
    recalled = tl.zeros([NUMBERS], kind)
    line = state + place
    for a in tl.static_range(RUNNING):
        held = tl.load(line, mask=inside, other=0)
        recalled += tl.load(gains + a) * held
        tl.store(line, held + (tl.load(decays + a) * held + u), mask=inside)
        line += row
    if RINGS:
        for a in range(RUNNING, memory):
            recalled += tl.load(gains + a) * tl.load(line, mask=inside, other=0)
            line += row
    w = ((recalled + u).to(tl.float64) / tl.load(numbers)).to(kind)
    if RINGS:
        if of_w >= 0:
            tl.store(state + of_w.to(tl.int64) * row + place, w, mask=inside)
        if of_u >= 0:
            tl.store(state + of_u.to(tl.int64) * row + place, u, mask=inside)
    tl.store(out + place, tl.load(total + place, mask=inside, other=0) + w, mask=inside)


def add(
    changed: tuple[Tensor, Tensor], total: Tensor, now: Step, key: Tensor, step: int, first: int
) -> None:
    """As in reference.py, in one launch."""
    out, state = changed
    if not len(total):
        return
    programs = triton.cdiv(first % 16 + len(total), NUMBERS)
    with torch.cuda.device_of(total):
        add_kernel[(programs,)](
            out, state, total, now.gains, now.decays, now.numbers, now.lags, key, *now.slots, step, first,
            len(now.lags), len(total), len(state), state.stride(0), NUMBERS=NUMBERS, RUNNING=len(now.decays),
            RINGS=len(state) > len(now.decays), RECALLED=len(now.lags) > 1, num_warps=NUMBERS // 256,
        )  # fmt: skip
