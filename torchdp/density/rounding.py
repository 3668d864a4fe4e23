"""Shares in [-1, 1] rounded to bits, on any device; and bits counted."""

import torch
from torch import Tensor

from torchdp.draws import Draws, Simulated
from torchdp.kernels.dispatch import keyed
from torchdp.kernels.rounded_features import positive_counts, rounded_counts

TURN = 2 * torch.pi


def rounded(shares: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
    """Bernoulli((1 + s)/2) for each share s, ``shape`` times: (...) -> (*shape, ...) bool.

    A random byte decides against the first 8 bits of the chance; where they tie, once in 256, 53 more bits do. The
    chance is right to 2^-60 for the given number s, sure at 1 and none at -1. Numbers outside count as the nearest end.
    """
    levels = (shares * 128).floor_().clamp_(-128, 127).to(torch.int8)
    sizes = (*shape, *shares.shape)
    byte = _bytes(sizes, draws)
    bits = byte < levels
    tied = (byte == levels).view(-1).nonzero()[:, 0]
    where = tied % max(1, shares.numel())
    rest = shares.reshape(-1)[where].double() * 128 - levels.view(-1)[where]
    bits.view(-1)[tied] = draws.uniform(tuple(rest.shape)) < rest
    return bits


def count(bits: Tensor) -> Tensor:
    """How many are set, over the last dimension but one: (..., n, instances) bool -> (..., instances) int64."""
    return bits.view(torch.uint8).sum(-2, dtype=torch.int32).to(torch.int64)


def fused(x: Tensor) -> bool:
    """Whether waves of these vectors are projected, rounded and counted by one kernel: float32, drawn from a key."""
    return x.dtype == torch.float32 and keyed(x.device)


def fused_ones(
    x: Tensor,
    frequencies: Tensor,
    phases: Tensor,
    labels: Tensor,
    classes: int,
    draws: Simulated,
    shape: tuple[int, ...],
) -> Tensor:
    """Ones of rounded cosines: frequencies (d, I), phases (waves, I) -> (*shape, classes, I waves) int64."""
    waves, starts = _turns(x, frequencies), _turns(x, phases)
    repeats = torch.Size(shape).numel()
    counts = rounded_counts(x, waves, starts, labels, classes, key=draws.kernel_key(), repeats=repeats)
    return counts.view(*shape, *counts.shape[1:])


def fused_positive(x: Tensor, frequencies: Tensor, phases: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Users with positive cosines: as above -> (classes, I waves) int64."""
    return positive_counts(x, _turns(x, frequencies), _turns(x, phases), labels, classes)


def _turns(x: Tensor, radians: Tensor) -> Tensor:
    return (radians.to(x.device) / TURN).to(x.dtype)


def _bytes(sizes: tuple[int, ...], draws: Draws) -> Tensor:
    """Uniform int8, eight for each random word."""
    number = torch.Size(sizes).numel()
    return draws.words((-(-number // 8),)).view(torch.int8)[:number].view(sizes)
