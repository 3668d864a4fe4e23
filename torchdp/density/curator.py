"""A curator's accuracy: kernel densities by one who is trusted, and by servers that see secret shares alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density, OfFeatures, moved
from torchdp.density.family import Features
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.rounded_sum import RoundedSum, in_blocks, released_guarantee
from torchdp.protocol.users import alike, beside, combined
from torchdp.secure.shared_sum import SharedSum, Shown
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


@dataclass(frozen=True, eq=False)
class SecureKDE(SharedSum[Crowd], OfFeatures):
    """The means of the features f_i(x)_j/R over n clients, each in integers with its share of the noise.

    features: public. clients: n; epsilon; delta: in (0, 1), or 0 for discrete Laplace noise; corrupt clients collude,
    absent others may drop out, together fewer than n. ``estimate`` gives a ``Density``. Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's vector, n public: that of :class:`SecureSketch` or
        :class:`PureSecureSketch` on a plain sum, at the distance that ``features.movement`` allows, with room for the
        floats that features are computed in (``moved``).
    Source: Wagner (2025), Algorithm 1, whose shuffled bits an exact sum replaces; Balle, Wang (2018), Theorem 8.
    """

    features: Features
    clients: int
    epsilon: float
    delta: float = 0.0
    corrupt: int | None = field(default=None, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.validated(self, "client")  # clients and an epsilon that have no noise

    @property
    def shown(self) -> Shown:
        moves = moved(self.features)
        apart = 2 * min(moves.change, moves.flips) ** 0.5  # of f/R; ``moved`` speaks of (1 + f/R)/2
        return Shown(moves.instances, moves.instances**0.5, 1.0, apart, moves.instances**0.5 * apart)

    @property
    def scales(self) -> Tensor:
        return torch.full((self.words,), self.features.bound, dtype=torch.float64)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) in the domain, of at most ``clients`` clients. Raises TypeError, ValueError."""
        return self.few(self.features.family.validate(x))

    def client_input(self, x: Tensor) -> Tensor:
        return self.features.share(x).double().clamp_(-1, 1)

    def total(self, summary: Crowd) -> tuple[Tensor, Users]:
        summary = self._users(summary)
        return self.features.sums(summary)[0] / self.features.bound, summary.n

    def value(self, total: Tensor, n: Users) -> Tensor:
        return super().value(total, n) / beside(n, 1)

    def variances(self, n: Users) -> Tensor:
        return super().variances(n) / beside(n, 1) ** 2

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> Density:
        bound, stretch = self.features.bound, self.client.stretch
        kept = (value, error, n, 0.0, None, (-bound, bound), stretch)
        return Density(*kept, features=self.features, guarantee=self.guarantee)

    def _variances(self, summary: Crowd) -> tuple[Tensor, Tensor]:
        noise = self.predicted_mse(summary)
        return torch.zeros_like(noise), noise
