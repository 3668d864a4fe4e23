"""A clipping bound that follows a quantile of the norms of users' gradients, within the plan's guarantee."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks

FAR = 1e6  # the bound stays within so many times the plan's
SHORTER = 1 - 2.0**-50  # for what rounds where a sum is scaled


@dataclass(frozen=True)
class AdaptiveBound:
    """The clipping bound C_t of step t follows the ``quantile`` of the norms of users' gradients.

        C_1 = plan.bound,  C_{t+1} = C_t exp(-rate (u_t - quantile))

    u_t, in [0, 1], is the noisy share of the batch whose gradients are not longer than C_t, in groups none of a
    gradient's parts longer than its own part of C_t; it is public, and C_t within a millionth and a million times C_1.
    quantile: in (0, 1). rate: in (0, 1]. share: s, in [.001, .9].

    A user's row is B (sqrt(1 - s^2) g min(1, C_t / |g|) / C_t, +-s), B = plan.bound, + where |g| <= C_t; in groups g's
    parts are clipped one by one, which leaves it at most C_t long. To the rows' sum the plan adds its own noise. The
    first part times C_t / (B sqrt(1 - s^2)) is the gradient, with half a percent more noise where s = .1; the last
    number gives u_t = 1/2 + number / (2 s B batch). Noise of a correlated plan is in units of C_t and cancels less
    while C_t moves, which changes the error that the plan states and no guarantee. On a GPU the host waits for u_t at
    each step. Raises ValueError.

    Guarantees: gradients, counts and bounds of all steps together have the plan's guarantee.
    Proof: a row's norm is at most B sqrt((1 - s^2) + s^2) = B for every C_t > 0. It is a function of the user's data
    and of earlier outputs, of which alone C_t and the parameters are functions. The plan's guarantee is for such rows,
    which earlier outputs may choose, of any size. Sampling and strategy are as they were; gradient, u_t and C_{t+1} are
    functions of outputs up to step t, which every process of a group has.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), Theorem 2.1; Andrew, Thakkar, McMahan, Ramaswamy (2021).
    """

    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.1

    def __post_init__(self) -> None:
        checks.fraction("quantile", self.quantile)
        checks.within("rate", checks.positive("rate", self.rate), 0, 1, ": the bound would move too far")
        checks.within("share", self.share, 1e-3, 0.9)

    def rows(self, total: Tensor, balance: Tensor, bound: float, limit: float) -> Tensor:
        """The sum of rows of norm ``limit``, (size + 1,): of gradients clipped to ``bound``, (size,), and of signs."""
        first = total.double() * (SHORTER / self.unit(bound, limit))
        last = balance.to(first).view(1) * (SHORTER * limit * self.share)
        return torch.cat([first, last]).to(total.dtype)

    def unit(self, bound: float, limit: float) -> float:
        """What a row is multiplied by to be a gradient."""
        return bound / (limit * math.sqrt(1 - self.share**2))

    def following(self, number: float, bound: float, limit: float, batch: int) -> float:
        """The next step's bound, by the last number of a step's rows, with its noise."""
        within = min(1.0, max(0.0, 0.5 + number / (2 * self.share * limit * batch)))
        moved = bound * math.exp(-self.rate * (within - self.quantile))
        return min(limit * FAR, max(limit / FAR, moved))
