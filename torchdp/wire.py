"""Messages as bytes: each in as many bytes as its bits need.

A byte string of the right length is always a message: whose it is, and whether it is whole, is its
carrier's to say.
"""

import sys

import torch
from torch import Tensor

from torchdp import checks


def pack(values: Tensor, bits: int) -> bytes:
    """(n,) whole numbers in [0, 2^bits), or (n, words) of 64 bits each but the last -> n
    ceil(bits/8) bytes.

    The low byte comes first.
    """
    size = max(1, -(-bits // 8))
    wide = values.to(torch.int64).cpu().contiguous().view(torch.uint8).view(-1, 8)
    wide = wide if sys.byteorder == "little" else wide.flip(1)
    rows = wide.reshape(len(values), 8 * values.shape[1:].numel())
    return rows[:, :size].contiguous().numpy().tobytes()


def unpack(data: bytes, bits: int, words: int = 0) -> Tensor:
    """What ``pack`` was given, (n,) or (n, words) int64. Raises ValueError for another length, or
    more bits.
    """
    size = max(1, -(-checks.integer("bits", bits, 0, 64 * words or 63) // 8))
    if len(checks.instance("data", data, bytes)) % size:
        raise ValueError(
            f"data must hold {size} bytes for each message, not {len(data)} bytes in all"
        )
    wide = torch.zeros(len(data) // size, 8 * max(1, words), dtype=torch.uint8, device="cpu")
    if data:
        wide[:, :size] = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size)
    wide = wide if sys.byteorder == "little" else wide.view(-1, 8).flip(1).reshape(wide.shape)
    values = wide.view(torch.int64)
    last = bits - 64 * max(0, words - 1)
    if last < 64 and (values[:, -1] >> last).any():
        raise ValueError(f"data must hold messages of {bits} bits; one has more")
    return values if words else values[:, 0]


def pack_vectors(values: Tensor, *dim: int) -> bytes:
    """(n, *dim) real numbers -> 8 bytes each, float64, the low byte first. Raises TypeError,
    ValueError.
    """
    values = checks.floating("messages", values)
    dim = tuple(checks.integer("dim", size, 1) for size in dim)
    checks.shaped("messages", values, "n", *dim, empty=True)
    return values.detach().double().cpu().contiguous().numpy().astype("<f8").tobytes()


def unpack_vectors(data: bytes, dim: int) -> Tensor:
    """(n, dim) float64. Raises TypeError, and ValueError for another length or what is no
    number.
    """
    words = unpack(data, 64 * checks.integer("dim", dim, 1), dim)
    return checks.floating("data", words.view(torch.float64))
