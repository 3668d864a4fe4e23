"""The specification of one step of correlated noise, in plain torch."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.kernels.secure_sketch.reference import integers

RADIUS, ANGLE, FURTHER = 0, 1, 2  # streams: the last word of ChaCha20's nonce; the word before it is the step
STEPS = 2**32  # of one key
COARSE = 2**32  # an integer of 63 bits below this takes 63 further bits where its logarithm matters
MOST = 2**63 - 1


@dataclass(frozen=True)
class Step:
    """One step's numbers, whatever strategy they come from: u is drawn, w its noise, the state has ``memory`` rows.

    gains: (memory,), what w takes of each row; decays: (running,), by which the first rows change; both in the state's
    dtype. numbers: (scale, feeds_0, feeds_1, ...), float64. lags: (draws,) int32, how many steps ago each normal was
    drawn first; lags_0 = 0. slots: the rows that w and u take after the step, beyond the running ones; -1: none.
    """

    gains: Tensor
    decays: Tensor
    numbers: Tensor
    lags: Tensor
    slots: tuple[int, int] = (-1, -1)


def normals(key: Tensor, step: int, first: int, count: int) -> Tensor:
    """Numbers first, ..., first + count - 1 of the step, N(0, 1): (count,) float64, at most 13.2 in size.

    Numbers 2 j and 2 j + 1 are r cos a and r sin a: r = sqrt(-2 log U), U to 126 bits where it is small, from word j of
    the stream RADIUS; a to 64 bits from word j of ANGLE. Source: Box, Muller (1958).
    """
    pair = first // 2
    pairs = (first + count + 1) // 2 - pair
    whole = integers(key, pair, pairs, torch.int64, step, RADIUS).bitwise_and_(MOST)
    small = (whole < COARSE).nonzero()[:, 0].cpu().tolist()  # once in 2^31
    low = whole[small].double()
    radius = whole.double().add_(0.5).mul_(2.0**-63).log_()
    for place, integer in zip(small, low, strict=True):
        rest = integers(key, pair + place, 1, torch.int64, step, FURTHER).bitwise_and_(MOST)
        radius[place] = (integer + rest.double().add_(0.5).mul_(2.0**-63)[0]).log() - 63 * math.log(2)
    radius.mul_(-2).sqrt_()
    angle = integers(key, pair, pairs, torch.int64, step, ANGLE).double().mul_(2 * math.pi * 2.0**-64)
    both = torch.empty(pairs, 2, dtype=torch.float64, device=key.device)
    torch.mul(radius, angle.sin(), out=both[:, 1])
    torch.mul(radius, angle.cos_(), out=both[:, 0])
    return both.view(-1)[first - 2 * pair :][:count]


def add(changed: tuple[Tensor, Tensor], total: Tensor, now: Step, key: Tensor, step: int, first: int) -> None:
    """As ``correlated_noise.add``."""
    out, state = changed
    with torch.autocast(state.device.type, enabled=False):
        drawn = normals(key, step, first, len(total)).mul_(now.numbers[1])
        for lag, feed in zip(
            now.lags[1:].cpu().tolist() if len(now.lags) > 1 else (), now.numbers[2:], strict=True
        ):
            drawn.add_(normals(key, step - lag, first, len(total)).mul_(feed))
        u = drawn.to(state.dtype)
        w = (now.gains @ state).add_(u).div_(now.numbers[0]) if len(state) else u.div_(now.numbers[0])
        running = state[: len(now.decays)]
        if len(running):
            running.add_(torch.addcmul(u, running, now.decays[:, None]))
        for slot, kept in zip(now.slots, (w, u), strict=True):
            if slot >= 0:
                state[slot] = kept
        torch.add(total, w, out=out)
