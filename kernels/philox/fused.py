"""Philox inside Triton kernels; counters and conversions as in reference.py."""

import triton
import triton.language as tl


@triton.jit
def words(key, index, group, stream):
    """Four uint32 tensors of the shape of index.

    index: int64. group: int32 or uint32 of its shape. One product of 32 by 32 bits gives its high
    and its low half: tl.philox takes two.
    """
    index = index.to(tl.uint64)
    key = tl.cast(key, tl.uint64)
    c0 = index.to(tl.uint32)
    c1 = (index >> 32).to(tl.uint32)
    c2 = group.to(tl.uint32)
    c3 = (c2 * 0 + stream).to(tl.uint32)
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        one = c0.to(tl.uint64) * 0xD2511F53
        two = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (two >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = two.to(tl.uint32)
        c2 = (one >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = one.to(tl.uint32)
        # sums in 64 bits: a constant above 2^31 would not fit beside 32
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def side_by_side(a, b, c, d):
    """(..., n) each -> (..., 4 n): a0 b0 c0 d0 a1 ...

    What a thread holds lies together and is stored at once.
    """
    four = tl.join(tl.join(a, c), tl.join(b, d))
    if len(a.shape) == 1:
        return tl.reshape(four, [4 * a.shape[0]])
    else:
        return tl.reshape(four, [a.shape[0], 4 * a.shape[1]])


@triton.jit
def unit(word, other):
    """float64 in (0, 1) from two words."""
    bits = (word.to(tl.uint64) << 20) | (other.to(tl.uint64) >> 12)
    return (bits.to(tl.float64) + 0.5) * (1.0 / 4503599627370496.0)


@triton.jit
def word64(word, other):
    """int64 of 64 random bits: word 2^32 + other, modulo 2^64."""
    return ((word.to(tl.uint64) << 32) | other.to(tl.uint64)).to(tl.int64, bitcast=True)
