"""Kernel density estimation by a trusted curator: what shuffled densities are measured against."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.family import Features
from torchdp.density.means import OfFeatures, moved
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.records import alike, beside, combined
from torchdp.protocol.rounded_sum import RoundedSum, in_blocks, released_guarantee
from torchdp.shuffle import CentralGaussianSum


@dataclass(frozen=True, eq=False)
class CentralKDE(OfFeatures, CuratorProtocol[Crowd]):
    """The same density by a trusted curator, who sums the features without rounding.

    features: public. law: of the noise; with sigma = 0 no privacy at all. delta: at which the guarantee is stated.
    Whole steps of the noise leave (:class:`RoundedSum`). Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, of what leaves: Gaussian noise at the l_2 distance
    that ``features.movement`` allows, with room for floats (``moved``).
    Source: Balle, Wang (2018), Theorem 8.
    """

    features: Features
    law: CentralGaussianSum
    delta: float

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("law", self.law, CentralGaussianSum)
        checks.keep(self, delta=checks.fraction)

    @staticmethod
    def calibrated(features: Features, users: int, epsilon: float, delta: float) -> "CentralKDE":
        """With the least Gaussian noise that makes the release (epsilon, delta)-DP. Raises ValueError, TypeError."""
        sums = _rounded(checks.instance("features", features, Features))
        multiplier = gaussian_sigma(checks.positive("epsilon", epsilon), checks.fraction("delta", delta) * ROUNDED)
        return CentralKDE(features, CentralGaussianSum(users, sums(multiplier).sigma), delta)

    @cached_property
    def sums(self) -> RoundedSum | None:
        """What the curator adds up, and its noise; None without noise."""
        sigma = self.law.sigma
        return replace(_rounded(self.features)(1.0), sigma=sigma) if sigma else None

    @cached_property
    def guarantee(self) -> Guarantee:
        if self.sums is None:
            central, replace_one = Model.CENTRAL, Neighbours.REPLACE_ONE
            return Guarantee(math.inf, self.delta, central, replace_one, True, "no noise, no promise")
        return released_guarantee(self.sums.sigma / self.sums.sensitivity, self.delta, self.sums.size)

    @property
    def layout(self) -> Layout:
        return {"total": ((self.features.instances,), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"total": self.law.limits(alike(n))}

    def impossible(self, tally: Tally) -> str | None:
        return None if alike(tally.n) == self.law.users else f"the curator is told of {self.law.users}"

    def validate(self, x: Tensor) -> Tensor:
        """x, (law.users, d) in the domain. Raises TypeError, ValueError."""
        if len(x := self.features.family.validate(x)) != self.law.users:
            raise ValueError(f"x must have a row for each of the {self.law.users} users, not {len(x)}")
        return x

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        if self.sums is None:
            total = (beside(summary.n, 1) + self.features.sums(summary)[0] / self.features.bound) / 2
            return Tally(summary.n, {"total": self.law.noised(total.expand(*shape, *total.shape), draws)})
        blocks = in_blocks(summary.rows, summary.counts, self.features.at_once)
        shares = ((self.features.share(x.flatten(0, -2)).view(*x.shape[:-1], -1), counts) for x, counts in blocks)
        each = (combined(counts, (1 + share.double().clamp_(-1, 1)) / 2) for share, counts in shares)
        return Tally(summary.n, {"total": self.sums.released(self.sums.blocks(each, summary.n), draws, shape)})

    def analyse(self, tally: Tally) -> Density:
        return self._density(self.check(tally))


def _rounded(features: Features) -> Callable[[float], RoundedSum]:
    """By the multiplier, a curator's sums of the chances, their noise in proportion to how far these move."""
    own = moved(features)
    distance, size = min(own.change, own.flips) ** 0.5, own.instances
    return lambda multiplier: RoundedSum.least(multiplier, distance, size**0.5, size)
