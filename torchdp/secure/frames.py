"""What travels between clients, servers and analyst: words that only a link's ends read or make.

A frame is header | ChaCha20-Poly1305(words; header) | nonce, under a key made of the link's.
Whoever has no key of the link reads nothing but the header (session, sender, receiver, shape) and
the length, and changes nothing unnoticed; a true frame in the wrong place, of another session, for
another server, of other clients, of another shape or ring, is told by its header. Two frames of one
key and one random nonce of 96 bits would tell their difference. A key that is stolen later opens
frames that were recorded before: where that matters, make the links' keys anew for each session.

Source: Nir, Langley (2018), RFC 8439, section 2.8.
"""

import hashlib
import hmac
import math
import os
import struct
from dataclasses import astuple, dataclass
from enum import IntEnum

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from torchdp import checks
from torchdp.secure.ring import WORDS

# of ChaCha20-Poly1305, as RFC 8439 fixes it
NONCE_BYTES = 12
# behind the words
TAG_BYTES = 16 + NONCE_BYTES
# The fields of a header, unpadded and little-endian: one header, one string of bytes anywhere.
_FORMAT = struct.Struct("<16s16sBBHHIIQQ")
HEADER_BYTES = _FORMAT.size
# receiver of the sums; servers are numbered from 0, clients sign with their own numbers
ANALYST = 0xFFFF
NO_SET = bytes(16)


class FrameError(ValueError):
    """A frame that was forged, altered, misdirected or replayed; it has changed no state."""


class Kind(IntEnum):
    """What the words are."""

    MESSAGE = 1  # a client's shares for one server, (copies, clients, columns)
    ROLL = 2  # the clients that a server has heard, one bit for each, (1, words, 1)
    SUM = 3  # a server's share of the sketch, (1, height, columns)


@dataclass(frozen=True)
class Header:
    """Who sends what to whom, and the words' shape and ring; the fields are sent in this order.

    Args:
        session: 16 bytes.
        agreed: 16 bytes that name the set of clients in a sum, ``NO_SET`` elsewhere.
        kind: what the words are.
        bits: of the ring.
        sender: the server's number; 0 for clients, whose number is ``first``.
        receiver: the server's number, or ``ANALYST``.
        copies: s; words have shape (copies, count, columns).
        columns: d.
        first: the first client's number; in the header of sums how many clients they are of.
        count: clients, or rows of a sum.
    """

    session: bytes
    agreed: bytes
    kind: Kind
    bits: int
    sender: int
    receiver: int
    copies: int
    columns: int
    first: int
    count: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.copies, self.count, self.columns

    @property
    def frame_bytes(self) -> int:
        """Length of the whole frame."""
        words = math.prod(self.shape)
        return HEADER_BYTES + words * self.bits // 8 + TAG_BYTES

    def pack(self) -> bytes:
        return _FORMAT.pack(*astuple(self))


def seal(key: bytes, header: Header, words: Tensor) -> bytes:
    """The frame that carries these words, of the header's shape and ring. Raises ValueError."""
    if tuple(words.shape) != header.shape or words.dtype != WORDS[header.bits]:
        raise ValueError(
            f"words must have shape {header.shape} and {WORDS[header.bits]}, "
            f"not {tuple(words.shape)}, {words.dtype}"
        )
    # The header fixes the words' size, not their order of bytes.
    little_endian = words.detach().cpu().contiguous().numpy().astype(f"<i{header.bits // 8}")
    front = header.pack()
    # Random, not counted: a sender that was killed and started again has no count.
    nonce = os.urandom(NONCE_BYTES)
    return front + _cipher(key).encrypt(nonce, little_endian.tobytes(), front) + nonce


def header_of(frame: bytes) -> Header:
    """What the frame claims to be; nothing of it is verified. Raises FrameError."""
    if len(checks.instance("frame", frame, bytes)) < HEADER_BYTES + TAG_BYTES:
        raise FrameError("a frame is shorter than a header and a tag")
    claim = Header(*_FORMAT.unpack_from(frame))
    if claim.bits not in WORDS or claim.kind not in tuple(Kind):
        raise FrameError("a frame has an unknown kind or ring")
    return claim


def unseal(key: bytes, header: Header, frame: bytes) -> Tensor:
    """The words of the frame that ``seal`` made with this key and header. Raises FrameError."""
    front = frame[:HEADER_BYTES]
    # What is due decides, not what the frame claims; the tag then covers the same header.
    if len(frame) != header.frame_bytes or front != header.pack():
        raise FrameError(
            "a frame is not the one due here: another session, sender, receiver, shape or ring"
        )
    body = memoryview(frame)[HEADER_BYTES:-NONCE_BYTES]
    try:
        opened = _cipher(key).decrypt(frame[-NONCE_BYTES:], body, front)
    except InvalidTag:
        raise FrameError(
            "a frame's tag does not fit: it was changed on its way, or made by others"
        ) from None
    # astype copies below: memory of bytes can not be written to.
    words = np.frombuffer(opened, dtype=f"<i{header.bits // 8}")
    return torch.from_numpy(words.astype(f"=i{header.bits // 8}")).view(header.shape)


def _cipher(key: bytes) -> ChaCha20Poly1305:
    # the cipher takes 32 bytes; a link's key may have any length from 16 on
    return ChaCha20Poly1305(hmac.digest(key, b"frame", "sha256"))


def pack_set(members: Tensor, bits: int) -> Tensor:
    """A set of clients, (n,) bool, in words of this many bits: (1, ceil(n / bits), 1)."""
    packed = np.packbits(members.cpu().numpy())
    # Whole words of the ring, so that a roll call is sealed like any other frame.
    packed = np.pad(packed, (0, -len(packed) % (bits // 8)))
    return torch.from_numpy(packed).view(WORDS[bits]).view(1, -1, 1)


def unpack_set(words: Tensor, clients: int) -> Tensor:
    """The set that ``pack_set`` packed: (n,) bool."""
    packed = words.view(-1).view(torch.uint8).numpy()
    return torch.from_numpy(np.unpackbits(packed, count=clients)).bool()


def set_digest(session: bytes, members: Tensor) -> bytes:
    """16 bytes that name a set of clients, (n,) bool, in a session."""
    packed = np.packbits(members.cpu().numpy())
    return hashlib.sha256(session + packed.tobytes()).digest()[:16]
