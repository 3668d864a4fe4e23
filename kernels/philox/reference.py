"""The specification of Philox 4x32-10 in plain torch: 32-bit words held in int64."""

import torch
from torch import Tensor

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF


def words(
    key: int, index: Tensor, group: Tensor | int = 0, stream: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words in [0, 2^32) for each counter, int64.

    The counter's words are (index mod 2^32, index / 2^32, group, stream), the key's its low and
    high half.

    Args:
        key: any Python int in [-2^63, 2^64).
        index: int64 >= 0, such as a user's number.
        group: in [0, 2^32), such as a block of coordinates; broadcasts with index.
        stream: in [0, 2^32), one for each use of a key.

    Source: Salmon, Moraes, Dror, Shaw (2011), Philox 4x32-10.
    """
    blocks = torch.as_tensor(group, dtype=torch.int64, device=index.device)
    index, blocks = torch.broadcast_tensors(index, blocks)
    c0 = index & MASK
    c1 = (index >> 32) & MASK
    c2 = blocks & MASK
    c3 = torch.full_like(index, stream & MASK)
    k0 = key & MASK
    k1 = (key >> 32) & MASK
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = (k0 + WEYL[0]) & MASK
        k1 = (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def unit(word: Tensor, other: Tensor) -> Tensor:
    """(b + 1/2) / 2^52, b the first 52 bits of two words: float64 in (0, 1), exact.

    Symmetric about 1/2.
    """
    bits = word << 20 | other >> 12
    return (bits.double() + 0.5) * 2.0**-52


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low words of the product."""
    # int64 wraps around: its bits are those of the product modulo 2^64
    product = word * multiplier
    return (product >> 32) & MASK, product & MASK
