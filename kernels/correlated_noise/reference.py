"""The specification of one step of correlated noise, in plain torch."""

import math

import torch
from torch import Tensor

from torchdp.kernels.correlated_noise.step import Step
from torchdp.kernels.secure_sketch.reference import integers

# streams: the last word of ChaCha20's nonce; the word before it is the step
RADIUS, ANGLE, FURTHER = 0, 1, 2
# of one key
STEPS = 2**32
# an integer of 63 bits below this takes 63 further bits, where its logarithm matters
COARSE = 2**32
MOST = 2**63 - 1


def normals(key: Tensor, step: int, first: int, count: int) -> Tensor:
    """Numbers first, ..., first + count - 1 of the step, N(0, 1): (count,) float64.

    At most 13.2 in size.
    Numbers 2 j and 2 j + 1 are r cos a and r sin a: r = sqrt(-2 log U), U to 126 bits where it is
    small, from word j of the stream RADIUS; a to 64 bits from word j of ANGLE. Source: Box, Muller
    (1958).
    """
    pair = first // 2
    pairs = (first + count + 1) // 2 - pair
    whole = integers(key, pair, pairs, torch.int64, step, RADIUS).bitwise_and_(MOST)
    small = (whole < COARSE).nonzero()[:, 0].cpu().tolist()  # once in 2^31
    coarse = whole[small].double()
    radius = whole.double().add_(0.5).mul_(2.0**-63).log_()
    for place, integer in zip(small, coarse, strict=True):
        rest = integers(key, pair + place, 1, torch.int64, step, FURTHER).bitwise_and_(MOST)
        fraction = rest.double().add_(0.5).mul_(2.0**-63)[0]
        radius[place] = (integer + fraction).log() - 63 * math.log(2)
    radius.mul_(-2).sqrt_()
    angle = integers(key, pair, pairs, torch.int64, step, ANGLE).double()
    angle.mul_(2 * math.pi * 2.0**-64)
    both = torch.empty(pairs, 2, dtype=torch.float64, device=key.device)
    torch.mul(radius, angle.sin(), out=both[:, 1])
    torch.mul(radius, angle.cos_(), out=both[:, 0])
    return both.view(-1)[first - 2 * pair :][:count]


def add(
    changed: tuple[Tensor, Tensor], total: Tensor, now: Step, key: Tensor, step: int, first: int
) -> None:
    """As ``correlated_noise.add``."""
    out, state = changed
    with torch.autocast(state.device.type, enabled=False):
        drawn = normals(key, step, first, len(total)).mul_(now.numbers[1])
        earlier = now.lags[1:].cpu().tolist() if len(now.lags) > 1 else []
        for lag, feed in zip(earlier, now.numbers[2:], strict=True):
            drawn.add_(normals(key, step - lag, first, len(total)).mul_(feed))
        u = drawn.to(state.dtype)
        # without a state u is not kept, and may change
        w = (now.gains @ state).add_(u) if len(state) else u
        w.div_(now.numbers[0])
        running = state[: len(now.decays)]
        if len(running):
            running.add_(torch.addcmul(u, running, now.decays[:, None]))
        for slot, kept in zip(now.slots, (w, u), strict=True):
            if slot >= 0:
                state[slot] = kept
        torch.add(total, w, out=out)
