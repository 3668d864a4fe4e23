"""Messages as bytes: each in as many bytes as its bits need, and a frame around a batch that travels.

A byte string of the right length is always a message, so what it belongs to and whether it is whole is the frame's to
say: its version, whose messages these are, how many bytes, and their checksum. A checksum finds damage, not forgery.
"""

import hashlib
import sys

import torch
from torch import Tensor

from torchdp import checks

MAGIC, VERSION = b"tdp", 1
CHECKSUM = 8


def pack(values: Tensor, bits: int) -> bytes:
    """(n,) whole numbers in [0, 2^bits), or (n, words) of 64 bits each but the last -> n ceil(bits/8) bytes.

    The low byte comes first.
    """
    size = max(1, -(-bits // 8))
    wide = values.to(torch.int64).cpu().contiguous().view(torch.uint8).view(-1, 8)
    wide = wide if sys.byteorder == "little" else wide.flip(1)
    rows = wide.reshape(len(values), 8 * values.shape[1:].numel())
    return rows[:, :size].contiguous().numpy().tobytes()


def unpack(data: bytes, bits: int, words: int = 0) -> Tensor:
    """What ``pack`` was given, (n,) or (n, words) int64. Raises ValueError for another length, or more bits."""
    size = max(1, -(-checks.integer("bits", bits, 0, 64 * words or 63) // 8))
    if len(checks.instance("data", data, bytes)) % size:
        raise ValueError(f"data must hold {size} bytes for each message, not {len(data)} bytes in all")
    wide = torch.zeros(len(data) // size, max(1, words), 8, dtype=torch.int64, device="cpu")
    if data:
        wide.flatten(1)[:, :size] = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size)
    values = (wide << (8 * torch.arange(8, device="cpu"))).sum(-1)
    last = bits - 64 * max(0, words - 1)
    if last < 64 and (values[:, -1] >> last).any():
        raise ValueError(f"data must hold messages of {bits} bits; one has more")
    return values if words else values[:, 0]


def pack_vectors(values: Tensor, *dim: int) -> bytes:
    """(n, *dim) real numbers -> 8 bytes each, float64, the low byte first. Raises TypeError, ValueError."""
    values, dim = checks.floating("messages", values), tuple(checks.integer("dim", size, 1) for size in dim)
    if values.ndim != 1 + len(dim) or values.shape[1:] != dim:
        raise ValueError(f"messages must have shape (n, {', '.join(map(str, dim))}), not {tuple(values.shape)}")
    return values.detach().double().cpu().contiguous().numpy().astype("<f8").tobytes()


def unpack_vectors(data: bytes, dim: int) -> Tensor:
    """(n, dim) float64. Raises TypeError, and ValueError for another length or what is no number."""
    if len(checks.instance("data", data, bytes)) % (8 * checks.integer("dim", dim, 1)):
        raise ValueError(f"data must hold {8 * dim} bytes for each message, not {len(data)} bytes in all")
    words = unpack_words(data)
    return checks.floating("data", words.view(torch.float64).view(-1, dim))


def unpack_words(data: bytes) -> Tensor:
    """(len/8,) int64, the low byte first."""
    none = torch.zeros(0, dtype=torch.int64, device="cpu")
    words = torch.frombuffer(bytearray(data), dtype=torch.int64) if data else none
    return (
        words
        if sys.byteorder == "little"
        else words.view(torch.uint8).view(-1, 8).flip(1).contiguous().view(torch.int64)[:, 0]
    )


def frame(payload: bytes, fingerprint: bytes) -> bytes:
    """A batch as it travels. fingerprint: at most 255 bytes that name the protocol and its parameters."""
    checks.instance("payload", payload, bytes)
    if len(checks.instance("fingerprint", fingerprint, bytes)) > 255:
        raise ValueError(f"fingerprint must have at most 255 bytes, not {len(fingerprint)}")
    head = MAGIC + bytes([VERSION, len(fingerprint)]) + fingerprint + len(payload).to_bytes(8, "little")
    return head + payload + _checksum(head + payload)


def unframe(data: bytes, fingerprint: bytes) -> bytes:
    """The payload. Raises ValueError for damage, another version, or another protocol's messages."""
    if checks.instance("data", data, bytes)[:3] != MAGIC:
        raise ValueError("data must be a frame of messages; this does not begin like one")
    if data[3:4] != bytes([VERSION]):
        raise ValueError(f"data must be a frame of version {VERSION}; read it with the release that wrote it")
    if len(data) < CHECKSUM or _checksum(data[:-CHECKSUM]) != data[-CHECKSUM:]:
        raise ValueError("data must be a whole frame; these bytes were cut off or damaged")
    end = 5 + data[4]
    if data[5:end] != fingerprint:
        raise ValueError(
            "data must hold messages of this protocol; these belong to another or to other parameters"
        )
    payload = data[end + 8 : -CHECKSUM]
    if int.from_bytes(data[end : end + 8], "little") != len(payload):
        raise ValueError("data must be one whole frame; its length is not the one that it names")
    return payload


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECKSUM).digest()
