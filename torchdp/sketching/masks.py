"""Uniform words that hide: from the operating system for deployment, from a torch generator for simulation."""

import math
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from torchdp import checks
from torchdp.kernels import chacha
from torchdp.kernels.dispatch import fuses

# Draws independent uniform words: masks(shape, dtype, device), dtype int32 or int64.
Masks = Callable[[Sequence[int], torch.dtype, torch.device], Tensor]

BYTES_AT_ONCE = 2**18  # stays in the cache


def system_masks(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Words that only the operating system could predict; the masks of a deployment.

    A stream cipher under a key drawn from os.urandom for this call alone and forgotten with it, so that no counter is
    used twice and a fork shares nothing: ChaCha20 on a GPU, where the words are wanted; on the CPU AES-256 in counter
    mode by the package ``cryptography``, or without it os.urandom itself, slower and no weaker. torch's own generators
    (Mersenne Twister, Philox) are no ciphers: whoever sees some of their output can compute the rest. Raises
    ValueError.

    Guarantees: uniform and independent to anybody who can not tell AES-256, ChaCha20 or the system's generator from
        random.
    """
    if fuses(device):
        return _from_chacha(tuple(shape), _integer(dtype), device)
    words = torch.empty(tuple(shape), dtype=_integer(dtype))
    if words.numel():
        fill = _fill_aes if find_spec("cryptography") else _fill_system
        fill(words.view(-1).view(torch.uint8).numpy().data)
    return words.to(device)


def generator_masks(generator: torch.Generator) -> Masks:
    """Masks from a torch generator, which whoever knows its state can repeat: for simulations and tests alone.

    Raises TypeError, ValueError (a generator on another device than the words).
    """
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, not {type(generator).__name__}")

    def masks(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        words = torch.empty(tuple(shape), dtype=_integer(dtype), device=device)
        # without its bounds random_ draws no negative numbers: one bit less
        return words.random_(torch.iinfo(dtype).min, None, generator=checks.random_source(generator, words.device))

    return masks


def _integer(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.int32, torch.int64):
        raise ValueError(f"dtype must be torch.int32 or torch.int64, not {dtype}")
    return dtype


def _from_chacha(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    count = math.prod(shape)
    blocks = -(-count * dtype.itemsize // 64)
    return chacha.keystream(chacha.system_key(device), 0, blocks).view(dtype)[:count].view(shape)


def _fill_system(target: memoryview) -> None:
    for start in range(0, len(target), BYTES_AT_ONCE):
        part = target[start : start + BYTES_AT_ONCE]
        part[:] = os.urandom(len(part))


def _fill_aes(target: memoryview) -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    zeros = memoryview(bytes(BYTES_AT_ONCE))
    buffer = memoryview(bytearray(BYTES_AT_ONCE + 15))  # old versions ask for 15 more
    for start in range(0, len(target), BYTES_AT_ONCE):
        part = target[start : start + BYTES_AT_ONCE]
        stream.update_into(zeros[: len(part)], buffer)
        part[:] = buffer[: len(part)]
