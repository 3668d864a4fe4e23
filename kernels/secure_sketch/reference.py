"""The specification of the keyed secure sketch in plain torch: all noise and all masks from ChaCha20 under one key.

Entry e = (i s + c) d + l belongs to client i, copy c, column l. Its mask for server k = 1, 2, ... is the e-th integer
of the stream (group k, MASKS), its noise takes the e-th 64 bits of the stream (group 0, NOISE).
"""

import math

import torch
from torch import Tensor

from torchdp.kernels.chacha import keystream
from torchdp.kernels.secure_sketch.rows import add_rows

NOISE, MASKS = 0, 1  # streams: the last word of ChaCha20's nonce
LOW, MIDDLE = 2**12 - 1, 2**52 - 1


def integers(key: Tensor, first: int, count: int, dtype: torch.dtype, group: int, stream: int) -> Tensor:
    """Entries first, ..., first + count - 1 of the keystream read as integers, low bytes first: (count,)."""
    held = 64 // dtype.itemsize  # by one block
    start = first // held
    words = keystream(key, start, -(-(first + count) // held) - start, group, stream)
    return words.view(dtype)[first - start * held :][:count]


def normals(key: Tensor, first: int, count: int) -> Tensor:
    """Entries first, ..., first + count - 1 of N(0, 1) by Box and Muller (1958): (count,), float64, at most 10.34.

    Entries 2 j and 2 j + 1 share a radius, of 76 bits, and an angle, of 52: (b + 1/2)/2^bits, b of the pair's 128 bits.
    """
    start = first // 2 * 2
    pairs = integers(key, start, (first + count + 1) // 2 * 2 - start, torch.int64, 0, NOISE).view(-1, 2)
    one, two = pairs.unbind(-1)
    high = (one >> 12 & MIDDLE).double() * 2.0**-52
    low = (((one & LOW) << 12 | two & LOW).double() + 0.5) * 2.0**-76
    radius = high.add_(low).log_().mul_(-2).sqrt_()
    angle = (two >> 12 & MIDDLE).double().add_(0.5).mul_(2.0**-52).mul_(2 * math.pi)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1).view(-1)[first - start :][:count]


def words(
    values: Tensor,
    rows: Tensor,
    signs: Tensor,
    units: Tensor,
    key: Tensor,
    first: int,
    scale: float,
    dtype: torch.dtype,
) -> Tensor:
    """sign (trunc(value scale) + round(unit_j G)), j = rows[c, i], modulo 2^bits: (k, s, d), client by client."""
    shape = (len(values), len(rows), values.shape[1])
    noise = normals(key, first * math.prod(shape[1:]), math.prod(shape)).view(shape)
    whole = noise.mul_(units[rows.mT][..., None]).round_().long()
    whole += (values.double() * scale).long()[:, None]  # toward zero
    return whole.mul_(signs.mT[..., None]).to(dtype)


def add(
    sums: Tensor, values: Tensor, rows: Tensor, signs: Tensor, units: Tensor, key: Tensor, first: int, scale: float
) -> None:
    """Each server's share of each word into its row, in place."""
    (servers, _, columns), (copies, _) = sums.shape, rows.shape
    total = words(values, rows, signs, units, key, first, scale, sums.dtype).view(-1, columns)
    places, start = rows.mT.flatten(), first * copies * columns
    for k in range(1, servers):
        masks = integers(key, start, total.numel(), sums.dtype, k, MASKS).view_as(total)
        add_rows(sums[k - 1], places, masks)
        total -= masks
    add_rows(sums[-1], places, total)
