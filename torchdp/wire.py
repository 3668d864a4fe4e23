"""Messages as bytes: each in as many bytes as its bits need.

A byte string of the right length is always a message: whose it is, and whether it is whole, is its
carrier's to say.
"""

import math
import sys

import torch
from torch import Tensor

from torchdp import checks


def pack(values: Tensor, bits: int) -> bytes:
    """(n,) numbers in [0, 2^bits), or (n, words) of 64 bits each -> n ceil(bits/8) bytes.

    The low byte comes first; the last of several words has the bits that are left.
    """
    size = _bytes(bits)
    words = values.to(torch.int64).cpu().contiguous()
    # all 8 bytes of every word, of which the last ones of a row are 0 and left out
    width = 8 * values.shape[1:].numel()
    rows = _little_endian(words.view(torch.uint8)).reshape(len(values), width)
    return rows[:, :size].contiguous().numpy().tobytes()


def unpack(data: bytes, bits: int, words: int = 0) -> Tensor:
    """What ``pack`` was given, (n,) or (n, words) int64.

    Raises ValueError for another length, or more bits.
    """
    size = _bytes(checks.integer("bits", bits, 0, 64 * words or 63))
    if len(checks.instance("data", data, bytes)) % size:
        raise ValueError(
            f"data must hold {size} bytes for each message, not {len(data)} bytes in all"
        )
    rows = torch.zeros(len(data) // size, 8 * max(1, words), dtype=torch.uint8, device="cpu")
    if data:
        received = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows[:, :size] = received.view(-1, size)
    values = _little_endian(rows).view(torch.int64)
    # a message of more bits could be told from others after it was opened
    last = bits - 64 * max(0, words - 1)
    if last < 64 and (values[:, -1] >> last).any():
        raise ValueError(f"data must hold messages of {bits} bits; one has more")
    return values if words else values[:, 0]


def _bytes(bits: int) -> int:
    """Of a message."""
    return max(1, math.ceil(bits / 8))


def _little_endian(rows: Tensor) -> Tensor:
    """The bytes of 64-bit words of this machine, the low byte first; and back."""
    if sys.byteorder == "little":
        return rows
    return rows.view(-1, 8).flip(1).view(rows.shape)


def pack_vectors(values: Tensor, *dim: int) -> bytes:
    """(n, *dim) real numbers -> 8 bytes each, float64. Raises TypeError, ValueError."""
    sizes = [checks.integer("dim", size, 1) for size in dim]
    values = checks.floating("messages", values).detach().double()
    checks.shaped("messages", values, "n", *sizes, empty=True)
    # The bits of each float as they are: nothing is rounded on the way.
    return pack(values.flatten().view(torch.int64), 64)


def unpack_vectors(data: bytes, dim: int) -> Tensor:
    """(n, dim) float64. Raises TypeError, and ValueError for another length or no numbers."""
    words = unpack(data, 64 * checks.integer("dim", dim, 1), dim)
    return checks.floating("data", words.view(torch.float64))
