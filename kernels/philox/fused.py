"""Philox inside Triton kernels; counters and conversions as in reference.py."""

import triton
import triton.language as tl


@triton.jit
def words(key, index, group, stream):
    """Four uint32 tensors of the shape of index, for int64 ``index`` and int32 or uint32 ``group`` of one shape."""
    index = index.to(tl.uint64)
    low, high = index.to(tl.uint32), (index >> 32).to(tl.uint32)
    group = group.to(tl.uint32)
    return tl.philox(key, low, high, group, (group * 0 + stream).to(tl.uint32))


@triton.jit
def unit(word, other):
    """float64 in (0, 1) from two words."""
    bits = (word.to(tl.uint64) << 20) | (other.to(tl.uint64) >> 12)
    return (bits.to(tl.float64) + 0.5) * (1.0 / 4503599627370496.0)


@triton.jit
def word64(word, other):
    """int64 of 64 random bits: word 2^32 + other, modulo 2^64."""
    return ((word.to(tl.uint64) << 32) | other.to(tl.uint64)).to(tl.int64, bitcast=True)
