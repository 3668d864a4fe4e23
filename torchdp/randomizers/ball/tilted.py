"""A normal with one side of a threshold made e^epsilon times as likely, by inversion: what decides PrivUnit's cap."""

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchdp.batch import entrywise
from torchdp.draws import MOST, Draws
from torchdp.randomizers.alphabet.chances import TOTAL, exponential
from torchdp.randomizers.base import ball_epsilon


def cap_chance(epsilon: float, survival: float) -> int:
    """Of 2^63 integers those that lead to a set of this share, e^epsilon times as likely as the rest; rounded down."""
    growth, share = exponential(epsilon), Fraction(survival)
    return math.floor(TOTAL * growth * share / (1 + (growth - 1) * share))


def tilted(shape: tuple[int, ...], draws: Draws, threshold: float, chance: int, survival: float) -> Tensor:
    """N(0, 1) given >= threshold with probability chance/2^63, given < threshold otherwise; float64, by inversion.

    The uniform number within either part has 126 bits near both of its ends, so that no tail ends before 2^-127 of it
    and none is cut off at the threshold. survival: P(N(0, 1) >= threshold).
    """
    word = draws.words(shape)
    near = draws.exponential(shape).neg_().exp_().mul_(0.5)
    return inverted(word.bitwise_and(TOTAL - 1) < chance, word < 0, near, threshold, survival)


def inverted(above: Tensor, ends_here: Tensor, near: Tensor, threshold: float, survival: float) -> Tensor:
    """N(0, 1) on either side of the threshold at a share ``near`` < 1/2 of that side's mass from one of its ends.

    ends_here: from infinity; else from the threshold.
    """
    far = 1 - near
    outer, inner = torch.where(ends_here, near, far), torch.where(ends_here, far, near)
    beyond = torch.where(above, outer * survival, outer * (1 - survival))  # P(|N| further out on its side)
    before = survival + inner * (1 - survival)  # P(N > z), below the threshold
    lower = ~above & (beyond > 0.5)
    z = torch.special.ndtri(torch.where(lower, before, beyond))
    return torch.where(above, (-z).clamp_min(threshold), torch.where(lower, -z, z).clamp_max(threshold))


@entrywise(epsilon=ball_epsilon)
def threshold(epsilon: Tensor) -> Tensor:
    """k = E tau for the tilted normal tau of threshold k, the cap's in many dimensions.

    Newton's method on a concave function, monotone and quadratic.
    """
    growth, k = log_excess(epsilon), torch.zeros_like(epsilon)
    while True:
        odds = growth + torch.special.log_ndtr(-k)
        more = odds.clamp_min(0) + torch.log1p((-odds.abs()).exp())  # log(1 + e^odds)
        mean = (growth - k * k / 2 - math.log(2 * math.pi) / 2 - more).exp()
        rising = mean > k * (1 + 1e-15)
        if not bool(rising.any()):
            return k
        k = torch.where(rising, mean, k)


def log_excess(epsilon: Tensor) -> Tensor:
    """log(e^epsilon - 1)."""
    return epsilon + (-torch.expm1(-epsilon)).log()


def sided(own: Tensor, threshold: float, chance: int, survival: float) -> tuple[Tensor, Tensor]:
    """A normal whose side of the threshold is chosen by ``chance`` of 2^63, (n,), and how near an end its share lies.

    own: (n, 2): side and end to count from, share of the side's mass.
    """
    side, near = own[:, 0], own[:, 1].bitwise_and(MOST).double().add_(0.5).mul_(2.0**-64)
    return inverted(side.bitwise_and(MOST) < chance, side < 0, near, threshold, survival), near


def placed(context: Any, own: list[int], chance: int) -> tuple[bool, Any]:
    """``sided`` without error: whether beyond the threshold, and the share of that side further out."""
    side, place = own[0] >> 192, own[1] % (1 << 255)
    near = (2 * place + 1) * context.mpf(2) ** -257
    return side % (1 << 63) < chance, near if side >> 63 else 1 - near
