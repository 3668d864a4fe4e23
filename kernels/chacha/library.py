"""The same keystream from OpenSSL, by the package cryptography: many times as fast on a CPU."""

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from torch import Tensor

# what is encrypted at once: stays in the cache
ZEROS = bytes(2**18)
# bytes
BLOCK = 64
# the package refuses to count on into the counter's upper half
COUNTERS = 2**32


def keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> Tensor:
    """As in reference.py, for a key on a CPU whose low bytes come first."""
    out = torch.empty(16 * blocks, dtype=torch.int32, device="cpu")
    target = _bytes_of(out)
    done = 0
    while done < blocks:
        run = min(blocks - done, COUNTERS - (first + done) % COUNTERS)
        part = target[BLOCK * done : BLOCK * (done + run)]
        _write(_cipher(key, first + done, group, stream), part)
        done += run
    return out


class Running:
    """The keystream from block 0 on, its cipher kept between calls."""

    def __init__(self, key: Tensor) -> None:
        self._key = key
        self._cipher = _cipher(key, 0, 0, 0)

    def fill(self, words: Tensor, first: int) -> None:
        """Fills int64 words from block ``first``, where the last call ended.

        The rest of the last block is left.
        """
        count = words.numel()
        blocks = (8 * count + BLOCK - 1) // BLOCK
        if first // COUNTERS != (first + blocks) // COUNTERS:  # once in 2^32 blocks
            words.copy_(keystream(self._key, first, blocks).view(torch.int64)[:count])
            self._cipher = _cipher(self._key, first + blocks, 0, 0)
        else:
            _write(self._cipher, _bytes_of(words))
            self._cipher.update(ZEROS[: BLOCK * blocks - 8 * count])


def _bytes_of(words: Tensor) -> memoryview:
    return words.numpy().view("uint8").data


def _cipher(key: Tensor, first: int, group: int, stream: int) -> CipherContext:
    nonce = first.to_bytes(8, "little") + group.to_bytes(4, "little") + stream.to_bytes(4, "little")
    return Cipher(algorithms.ChaCha20(key.numpy().tobytes(), nonce), None).encryptor()


def _write(cipher: CipherContext, target: memoryview) -> None:
    # a stream cipher's words are what it makes of zeros
    for start in range(0, len(target), len(ZEROS)):
        part = target[start : start + len(ZEROS)]
        zeros = ZEROS[: len(part)] if len(part) < len(ZEROS) else ZEROS
        cipher.update_into(zeros, part)
