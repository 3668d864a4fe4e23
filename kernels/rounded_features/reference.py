"""The specification of counts of rounded waves in plain torch."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchdp.kernels import philox

BITS_AT_ONCE = 2**22


def nearest(t: Tensor) -> Tensor:
    """Turns from the nearest whole number, in [-1/2, 1/2] and exact."""
    return t - torch.floor(t + 0.5)


def turns(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """(n, d), (d, I), (waves, I) -> (n, I waves)."""
    # reduced before the phase is added, so that large ones lose nothing; a projection beyond the
    # largest float counts as 0: the waves of a frequency stay those of one angle
    reduced = nearest(x @ frequencies).nan_to_num(0.0)
    return nearest(reduced[..., None] + phases.mT).flatten(1)


def levels(t: Tensor) -> Tensor:
    """2^31 cos(2 pi t), in [-2^31, 2^31], towards zero: float32 -> int64.

    Exact from |cos| = 2^-8 on.
    """
    return (torch.cos(t * (2 * math.pi)) * 2.0**31).to(torch.int64)


def integers(key: int, user: Tensor, features: int, waves: int, repeat: int) -> Tensor:
    """Uniform on [-2^31, 2^31): (n, features waves), int64."""
    # one counter serves four neighbouring frequencies
    group = torch.arange((features + 3) // 4, device=user.device)
    columns = []
    for wave in range(waves):
        drawn = philox.words(key, user[:, None], group, repeat * waves + wave)
        columns.append(torch.stack(drawn, -1).flatten(1)[:, :features])
    return torch.stack(columns, -1).flatten(1) - 2**31


def rounded_bits(
    x: Tensor, frequencies: Tensor, phases: Tensor, key: int, first: int, repeat: int
) -> Tensor:
    """(n, I waves) bool: an integer is below the level."""
    user = first + torch.arange(len(x), device=x.device)
    random = integers(key, user, frequencies.shape[1], len(phases), repeat)
    return random < levels(turns(x, frequencies, phases))


def positive_bits(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """(n, I waves) bool: cos 2 pi t > 0, which needs no cosine."""
    return turns(x, frequencies, phases).abs() < 0.25


def rounded_counts(
    x: Tensor, frequencies: Tensor, phases: Tensor, key: int, first: int, repeats: int
) -> Tensor:
    """(repeats, I waves)."""
    total = torch.zeros(repeats, phases.numel(), dtype=torch.int64, device=x.device)
    for part in _parts(len(x), phases.numel()):
        for repeat in range(repeats):
            user = first + part.start
            bits = rounded_bits(x[part], frequencies, phases, key, user, repeat)
            total[repeat] += bits.sum(0)
    return total


def positive_counts(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """(I waves,)."""
    total = torch.zeros(phases.numel(), dtype=torch.int64, device=x.device)
    for part in _parts(len(x), phases.numel()):
        total += positive_bits(x[part], frequencies, phases).sum(0)
    return total


def _parts(users: int, width: int) -> Iterator[slice]:
    """Slices of the users whose features take little memory."""
    step = max(1, BITS_AT_ONCE // max(1, width))
    for start in range(0, users, step):
        yield slice(start, start + step)
