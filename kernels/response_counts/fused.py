"""Randomized response drawn and counted in one pass; the same integers as reference.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch import launched
from torchdp.kernels.philox.fused import word64, words

# of users in one step of a program
PAIRS = 512
# at most; each takes many steps
PROGRAMS = 2048
# up to here a program counts by itself, beyond it adds to memory
MOST_BINS = 1024
# counters in memory, so that users who report the same value seldom meet
CELLS = 2**16


@triton.jit
def report(number, x, k, step, magic):
    """The report, int64, for number in [0, 2^63); magic = floor((2^64 - 1) / step): README.md."""
    divisor = step.to(tl.uint64)
    value = tl.umulhi(number, magic.to(tl.uint64) + number * 0)
    # the quotient may be one too small
    missing = (number - value * divisor >= divisor).to(tl.uint64)
    value = (value + missing).to(tl.int64, bitcast=True)
    return tl.where(value < k, value, x)


@launched("n", "k", "step", "magic", "key", "first", "copies")
def count_kernel(
    x,
    counts,
    n,
    stride,
    k,
    step,
    magic,
    key,
    first,
    copies,
    PAIRS: tl.constexpr,
    BINS: tl.constexpr,
):
    """Counts of the reports of n users, added to row program % copies of counts."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    counts += (program % copies).to(tl.int64) * k
    n = n.to(tl.int64)
    first = first.to(tl.int64)
    odd = first % 2  # a first user of an odd number is the second of its pair
    local = tl.arange(0, 2 * PAIRS)
    if BINS:
        total = tl.zeros([BINS], tl.int32)
    for block in range(program, tl.cdiv(n + odd, 2 * PAIRS), programs):
        pair = first // 2 + block * PAIRS + tl.arange(0, PAIRS)
        a, b, c, d = words(key, pair, pair * 0, 0)
        number = tl.interleave(word64(a, b), word64(c, d)).to(tl.uint64, bitcast=True) >> 1
        begin = 2 * block * PAIRS - odd
        end = tl.minimum(n - begin, 2 * PAIRS).to(tl.int32)
        inside = (local < end) & (local >= tl.maximum(-begin, 0))
        users = x + begin * stride + local.to(tl.int64) * stride
        held = tl.load(users, mask=inside, other=0).to(tl.int64)
        counted = inside & (held.to(tl.uint64, bitcast=True) < k.to(tl.uint64))
        reported = report(number, held, k, step, magic)
        if BINS:
            total += tl.histogram(tl.where(counted, reported, 0).to(tl.int32), BINS, mask=counted)
        else:
            one = tl.full([2 * PAIRS], 1, tl.int64)
            tl.atomic_add(counts + reported, one, mask=counted, sem="relaxed")
    if BINS:
        value = tl.arange(0, BINS)
        tl.atomic_add(counts + value, total.to(tl.int64), mask=value < k, sem="relaxed")


def counts(x: Tensor, k: int, step: int, key: int, first: int = 0) -> Tensor:
    """Arguments and result of reference.counts. x: integers of any width."""
    n = len(x)
    if n == 0:
        return torch.zeros(k, dtype=torch.int64, device=x.device)
    programs = min(triton.cdiv(n + first % 2, 2 * PAIRS), PROGRAMS)
    bins = max(32, triton.next_power_of_2(k)) if k <= MOST_BINS else 0
    copies = 1 if bins else min(programs, max(1, CELLS // k))
    total = torch.zeros(copies, k, dtype=torch.int64, device=x.device)
    with torch.cuda.device_of(x):
        count_kernel[(programs,)](
            x,
            total,
            n,
            *x.stride(),
            k,
            step,
            (2**64 - 1) // step,
            key,
            first,
            copies,
            PAIRS=PAIRS,
            BINS=bins,
        )
    return total.sum(0)
