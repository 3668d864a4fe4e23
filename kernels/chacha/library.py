"""The same keystream from OpenSSL, by the package cryptography: many times as fast as torch on a
CPU.
"""

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from torch import Tensor

ZEROS = bytes(2**18)  # what is encrypted at once: stays in the cache
# bytes of a block; the package refuses to count on into the counter's upper half
BLOCK, COUNTERS = 64, 2**32


def keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> Tensor:
    """As in reference.py, for a key on a CPU whose low bytes come first."""
    out = torch.empty(16 * blocks, dtype=torch.int32, device="cpu")
    target, done = out.numpy().view("uint8").data, 0
    while done < blocks:
        run = min(blocks - done, COUNTERS - (first + done) % COUNTERS)
        _write(
            _cipher(key, first + done, group, stream), target[BLOCK * done : BLOCK * (done + run)]
        )
        done += run
    return out


class Running:
    """The keystream from block 0 on, its cipher kept between calls."""

    def __init__(self, key: Tensor) -> None:
        self._key, self._at, self._cipher = key, 0, _cipher(key, 0, 0, 0)

    def fill(self, words: Tensor, first: int) -> None:
        """Fills int64 words from block ``first``, where the last call ended; the rest of the last
        block is left.
        """
        blocks = -(-8 * words.numel() // BLOCK)
        if first // COUNTERS != (first + blocks) // COUNTERS:  # once in 2^32 blocks
            words.copy_(keystream(self._key, first, blocks).view(torch.int64)[: words.numel()])
            self._cipher = _cipher(self._key, first + blocks, 0, 0)
        else:
            _write(self._cipher, words.numpy().view("uint8").data)
            self._cipher.update(ZEROS[: BLOCK * blocks - 8 * words.numel()])


def _cipher(key: Tensor, first: int, group: int, stream: int) -> CipherContext:
    nonce = first.to_bytes(8, "little") + group.to_bytes(4, "little") + stream.to_bytes(4, "little")
    return Cipher(algorithms.ChaCha20(key.numpy().tobytes(), nonce), None).encryptor()


def _write(cipher: CipherContext, target: memoryview) -> None:
    for start in range(0, len(target), len(ZEROS)):
        part = target[start : start + len(ZEROS)]
        cipher.update_into(ZEROS[: len(part)] if len(part) < len(ZEROS) else ZEROS, part)
