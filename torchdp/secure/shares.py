"""Additive secret sharing modulo 2^32 or 2^64."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise, source


def share(words: Tensor, servers: int, *, noise: Noise | None = None) -> Tensor:
    """Words as sums of one share for each server: (*shape) int32 or int64 -> (servers, *shape).

    shares[0], ..., shares[S - 2] are masks, uniform words from ``noise``; shares[S - 1] = words - the others, modulo
    2^bits. Raises ValueError, TypeError.

    Guarantees: any S - 1 shares are uniform and independent of the words (perfectly with perfect masks: whichever share
        is left out, the words move it by a translation of the group, and the other S - 1 are a bijection of the
        masks), to anybody who can not tell ``Noise`` from random.
    Source: Shamir (1979) for the notion; Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4.3.
    """
    if not isinstance(words, Tensor) or words.dtype not in (torch.int32, torch.int64):
        kind = words.dtype if isinstance(words, Tensor) else type(words).__name__
        raise TypeError(f"words must be an int32 or int64 tensor, as Ring.to_words returns it, not {kind}")
    checks.dense("words", words)
    checks.fits("the shares", checks.integer("servers", servers, 2), words.numel())
    shares = torch.empty((servers, *words.shape), dtype=words.dtype, device=words.device)
    shares[:-1] = masks(shares[:-1].shape, words.dtype, source(noise, words.device))
    torch.sub(words, shares[0], out=shares[-1])
    for other in shares[1:-1]:
        shares[-1] -= other
    return shares


def masks(shape: tuple[int, ...], dtype: torch.dtype, draws: Draws) -> Tensor:
    """Words uniform on all 2^bits, int32 or int64; two of 32 bits from each of 64."""
    count = math.prod(shape)
    words = draws.words((-(-count * dtype.itemsize // 8),))
    return words.view(dtype)[:count].view(shape)


def reconstruct(shares: Tensor) -> Tensor:
    """The sum of all servers' shares modulo 2^bits: (servers, *shape) -> (*shape). Raises ValueError, TypeError."""
    if not isinstance(shares, Tensor) or shares.dtype not in (torch.int32, torch.int64):
        kind = shares.dtype if isinstance(shares, Tensor) else type(shares).__name__
        raise TypeError(f"shares must be an int32 or int64 tensor, not {kind}")
    if checks.dense("shares", shares).ndim == 0 or len(shares) < 2:
        raise ValueError(
            f"shares must have shape (servers, ...) with 2 servers or more, not {tuple(shares.shape)}"
        )
    return shares.sum(0, dtype=shares.dtype)
