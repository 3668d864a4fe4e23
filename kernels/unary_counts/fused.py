"""Unary encodings drawn and counted 32 users to a word; the same integers as reference.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch import launched
from torchdp.kernels.philox import fused as philox
from torchdp.kernels.unary_counts.reference import LANES, ratio

# in one step of a program of one warp: so few that the last tie is soon broken
WORDS = 64
# about; each takes many steps
PROGRAMS = 2**14
# in one step of a program that puts own bits right
USERS = 32
# counters in memory, so that users who hold the same value seldom meet
CELLS = 2**16


@triton.jit
def compare(result, undecided, fresh, numerator, place):
    """One binary digit more of the uniform numbers beside one of the probability.

    1 in fresh stands for the digit 0.
    """
    # all bits set where the digit is 1
    ones = (-((numerator >> tl.minimum(place, 63)) & 1)).to(tl.uint32)
    return result | (undecided & fresh & ones), undecided & (fresh ^ ones)


@triton.jit
def bits(key, group, column, wanted, numerator, digits):
    """The bits of reference.words in the lanes of ``wanted``, 0 in the others; all of one shape."""
    result = wanted * ((digits == 0) & (numerator != 0)).to(tl.uint32)
    undecided = wanted
    place = digits - 1
    stream = 0
    while (place >= 0) & (tl.max(undecided) > 0):
        a, b, c, d = philox.words(key, group, column, stream)
        result, undecided = compare(result, undecided, a, numerator, place)
        result, undecided = compare(result, undecided, b, numerator, place - 1)
        result, undecided = compare(result, undecided, c, numerator, place - 2)
        result, undecided = compare(result, undecided, d, numerator, place - 3)
        place -= 4
        stream += 1
    return result


@triton.jit
def popcount(word):
    """Number of bits set in each uint32, int32."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lanes_below(user, group):
    """uint32 whose lanes are the users of these groups with numbers below ``user``."""
    lanes = tl.minimum(tl.maximum(user - group * 32, 0), 32)
    return ((group * 0 + 1 << lanes) - 1).to(tl.uint32)


@launched("n", "k", "numerator", "digits", "key", "first")
def others_kernel(
    tally, n, k, numerator, digits, key, first, GROUPS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Adds, for every value, the bits that n users would set if it were not their own."""
    n = n.to(tl.int64)
    first = first.to(tl.int64)
    numerator = numerator.to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = first // 32
    end = (first + n + 31) // 32
    every = tl.zeros([GROUPS, COLUMNS], tl.int32)
    total = every
    for block in range(tl.program_id(1), tl.cdiv(end - begin, GROUPS), tl.num_programs(1)):
        group = begin + block * GROUPS + tl.arange(0, GROUPS)
        wanted = lanes_below(first + n, group) & ~lanes_below(first, group)
        wanted = tl.where(column[None, :] < k, wanted[:, None], 0)
        word = bits(key, group[:, None] + every, column[None, :] + every, wanted, numerator, digits)
        total += popcount(word)
    tl.atomic_add(tally + column, tl.sum(total, 0).to(tl.int64), mask=column < k, sem="relaxed")


@launched("n", "k", "lost", "lost_digits", "off", "off_digits", "key", "first", "copies")
def own_kernel(
    x,
    tally,
    n,
    stride,
    k,
    lost,
    lost_digits,
    off,
    off_digits,
    key,
    first,
    copies,
    USERS: tl.constexpr,
):
    """Puts each user's own bit in the place of the other one, and counts the users.

    In row program % copies of tally.
    """
    program = tl.program_id(0)
    tally += (program % copies).to(tl.int64) * (k + 1)
    n = n.to(tl.int64)
    first = first.to(tl.int64)
    lost = lost.to(tl.int64)
    off = off.to(tl.int64)
    users = tl.zeros([USERS], tl.int32)
    for block in range(program, tl.cdiv(n, USERS), tl.num_programs(0)):
        place = block * USERS + tl.arange(0, USERS)
        held = tl.load(x + place * stride, mask=place < n, other=0).to(tl.int64)
        counted = (place < n) & (held.to(tl.uint64, bitcast=True) < k.to(tl.uint64))
        group = (first + place) // 32
        lane = ((first + place) % 32).to(tl.uint32)
        wanted = counted.to(tl.uint32) << lane
        own_column = tl.zeros([USERS], tl.int64) + k
        own = wanted ^ bits(key, group, own_column, wanted, lost, lost_digits)
        other = bits(key, group, held, wanted, off, off_digits)
        change = (own >> lane).to(tl.int64) - (other >> lane).to(tl.int64)
        tl.atomic_add(tally + held, change, mask=change != 0, sem="relaxed")
        users += counted.to(tl.int32)
    tl.atomic_add(tally + k, tl.sum(users, 0).to(tl.int64), sem="relaxed")


def tally(x: Tensor, k: int, lost: float, off: float, key: int, first: int = 0) -> Tensor:
    """Arguments and result of reference.tally. x: integers of any width."""
    n = len(x)
    if n == 0:
        return torch.zeros(k + 1, dtype=torch.int64, device=x.device)
    columns = min(triton.next_power_of_2(k), 32)
    groups = WORDS // columns
    across = triton.cdiv(k, columns)
    steps = triton.cdiv((first + n - 1) // LANES - first // LANES + 1, groups)
    down = min(max(1, PROGRAMS // across), steps)
    programs = min(triton.cdiv(n, USERS), PROGRAMS)
    copies = min(programs, max(1, CELLS // (k + 1)))
    total = torch.zeros(copies, k + 1, dtype=torch.int64, device=x.device)
    with torch.cuda.device_of(x):
        others_kernel[(across, down)](
            total, n, k, *ratio(off), key, first, GROUPS=groups, COLUMNS=columns, num_warps=1
        )
        own_kernel[(programs,)](
            x,
            total,
            n,
            *x.stride(),
            k,
            *ratio(lost),
            *ratio(off),
            key,
            first,
            copies,
            USERS=USERS,
            num_warps=1,
        )
    return total.sum(0)
