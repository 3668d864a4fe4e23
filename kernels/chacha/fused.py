"""ChaCha20 inside Triton kernels: blocks side by side, the 16 words of each in 16 tensors."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch import launched

# of one program
BLOCKS = 256


@triton.jit
def rotate(word, bits: tl.constexpr):
    return (word << bits) | (word >> (32 - bits))


@triton.jit
def quarter(a, b, c, d):
    a += b
    d = rotate(d ^ a, 16)
    c += d
    b = rotate(b ^ c, 12)
    a += b
    d = rotate(d ^ a, 8)
    c += d
    b = rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def words(key, first, group, stream, COUNT: tl.constexpr):
    """Blocks first, ..., first + COUNT - 1, one after the other: uint32 of shape (16 COUNT,).

    key: pointer to 8 int32. first: int64. group, stream: integers in [0, 2^32).
    """
    index = (first + tl.arange(0, COUNT)).to(tl.uint64)
    zero = tl.zeros([COUNT], tl.uint32)
    # "expand 32-byte k"
    s0 = zero + 0x61707865
    s1 = zero + 0x3320646E
    s2 = zero + 0x79622D32
    s3 = zero + 0x6B206574
    s4 = zero + tl.load(key).to(tl.uint32)
    s5 = zero + tl.load(key + 1).to(tl.uint32)
    s6 = zero + tl.load(key + 2).to(tl.uint32)
    s7 = zero + tl.load(key + 3).to(tl.uint32)
    s8 = zero + tl.load(key + 4).to(tl.uint32)
    s9 = zero + tl.load(key + 5).to(tl.uint32)
    s10 = zero + tl.load(key + 6).to(tl.uint32)
    s11 = zero + tl.load(key + 7).to(tl.uint32)
    s12 = index.to(tl.uint32)
    s13 = (index >> 32).to(tl.uint32)
    s14 = (zero + group).to(tl.uint32)
    s15 = (zero + stream).to(tl.uint32)
    a0, a1, a2, a3 = s0, s1, s2, s3
    a4, a5, a6, a7 = s4, s5, s6, s7
    a8, a9, a10, a11 = s8, s9, s10, s11
    a12, a13, a14, a15 = s12, s13, s14, s15
    for _ in range(10):
        a0, a4, a8, a12 = quarter(a0, a4, a8, a12)
        a1, a5, a9, a13 = quarter(a1, a5, a9, a13)
        a2, a6, a10, a14 = quarter(a2, a6, a10, a14)
        a3, a7, a11, a15 = quarter(a3, a7, a11, a15)
        a0, a5, a10, a15 = quarter(a0, a5, a10, a15)
        a1, a6, a11, a12 = quarter(a1, a6, a11, a12)
        a2, a7, a8, a13 = quarter(a2, a7, a8, a13)
        a3, a4, a9, a14 = quarter(a3, a4, a9, a14)
    # join puts its two side by side in a new last dimension: the highest bit of a word's number
    # first
    b0 = tl.join(a0 + s0, a8 + s8)
    b1 = tl.join(a1 + s1, a9 + s9)
    b2 = tl.join(a2 + s2, a10 + s10)
    b3 = tl.join(a3 + s3, a11 + s11)
    b4 = tl.join(a4 + s4, a12 + s12)
    b5 = tl.join(a5 + s5, a13 + s13)
    b6 = tl.join(a6 + s6, a14 + s14)
    b7 = tl.join(a7 + s7, a15 + s15)
    c0 = tl.join(b0, b4)
    c1 = tl.join(b1, b5)
    c2 = tl.join(b2, b6)
    c3 = tl.join(b3, b7)
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), [16 * COUNT])


@triton.jit
def words64(key, first, group, stream, COUNT: tl.constexpr):
    """The same stream in uint64, the low word first: (8 COUNT,)."""
    pairs = tl.reshape(words(key, first, group, stream, COUNT), [8 * COUNT, 2])
    low, high = tl.split(pairs)
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@launched("first", "blocks", "group", "stream")
def keystream_kernel(out, key, first, blocks, group, stream, COUNT: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * COUNT
    place = 16 * start + tl.arange(0, 16 * COUNT)
    word = words(key, first + start, group, stream, COUNT)
    tl.store(out + place, word.to(tl.int32, bitcast=True), mask=place // 16 < blocks)


def keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> Tensor:
    """As in reference.py."""
    out = torch.empty(16 * blocks, dtype=torch.int32, device=key.device)
    if blocks:
        with torch.cuda.device_of(key):
            keystream_kernel[(triton.cdiv(blocks, BLOCKS),)](
                out, key, first, blocks, group, stream, COUNT=BLOCKS
            )
    return out
