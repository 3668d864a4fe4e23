"""ChaCha20: words that look random without the key, the same integers on every device."""

import os
import sys
from importlib.util import find_spec

import torch
from torch import Tensor

from torchdp.kernels.chacha import reference
from torchdp.kernels.chacha.reference import block
from torchdp.kernels.dispatch import Kernel, examples

__all__ = ["Stream", "block", "key_of", "keystream", "system_key"]

# of 64 bits, in one block
WORDS = 8
LIBRARY = find_spec("cryptography") is not None and sys.byteorder == "little"


def system_key(device: torch.device | str = "cpu") -> Tensor:
    """A key of 256 bits that cannot be repeated, from the operating system: (8,) int32."""
    return key_of(os.urandom(32), device)


def key_of(data: bytes, device: torch.device | str = "cpu") -> Tensor:
    """32 bytes as a key, (8,) int32."""
    key = torch.frombuffer(bytearray(data), dtype=torch.int32)
    device = torch.device(device)
    if device.type == "cpu":
        return key
    # The host does not wait for the device: pinned memory is copied behind its back.
    pinned = torch.empty(8, dtype=torch.int32, device="cpu", pin_memory=True)
    return pinned.copy_(key).to(device, non_blocking=True)


def keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> Tensor:
    """Blocks first, ..., first + blocks - 1, one after the other: (16 blocks,) int32.

    The reference's words by every path, on the key's device. No two uses of a key may share a
    block: whoever sees one then knows the other.

    Args:
        key: (8,) int32.
        first: the number of a block, from 0 on, below 2^63.
        blocks: how many.
        group: in [0, 2^32), of the nonce.
        stream: in [0, 2^32), of the nonce.
    """
    if key.device.type == "cpu":
        return _keystream(key, first, blocks, group, stream)
    return KEYSTREAM(key.device, key, first, blocks, group, stream)


def _keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> Tensor:
    if LIBRARY and key.device.type == "cpu":
        from torchdp.kernels.chacha import library

        return library.keystream(key, first, blocks, group, stream)
    return reference.keystream(key, first, blocks, group, stream)


KEYSTREAM = Kernel(__name__, "keystream", _keystream, examples.keystream)


class Stream:
    """The words of one key in their order, from block 0 on, none twice. For one thread at a time.

    A call takes whole blocks; what it does not use of its last one is left out, the same on every
    device. used: words taken so far.
    """

    def __init__(self, key: Tensor) -> None:
        self.used = 0
        self._key = key
        self._cipher = None
        if LIBRARY and key.device.type == "cpu":
            from torchdp.kernels.chacha import library

            self._cipher = library.Running(key)

    def fill(self, words: Tensor) -> None:
        """Fills a contiguous int64 tensor of one dimension, on the key's device."""
        first = self.used // WORDS
        blocks = (words.numel() + WORDS - 1) // WORDS
        self.used += WORDS * blocks
        if self._cipher is not None:
            self._cipher.fill(words, first)
            return
        drawn = keystream(self._key, first, blocks).view(torch.int64)
        words.copy_(drawn[: words.numel()])
