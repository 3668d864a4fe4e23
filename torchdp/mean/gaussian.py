"""What a curator's Gaussian releases have in common, their noise and its guarantee; and the mean of points."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.shapes import least_error_shape
from torchdp.draws import Draws
from torchdp.mean.protocol import DomainProtocol, MeanProtocol
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Limits, Tally, Users
from torchdp.protocol.records import beside, combined
from torchdp.protocol.rounded_sum import BLOCK, RoundedSum, released_guarantee


@dataclass(frozen=True, eq=False)
class GaussianRelease(DomainProtocol, CuratorProtocol[Crowd]):
    """Gaussian noise of deviation ``multiplier`` on a sensitivity of 1, and whatever follows from that.

    It is mu-Gaussian DP with mu = 1/multiplier, zCDP with rho = mu^2/2, and has the exact delta of every epsilon. What
    leaves are whole steps (:class:`RoundedSum`), to which the guarantee refers.

    multiplier > 0; delta in (0, 1): where the guarantee is stated. ``calibrated`` finds the multiplier.
    Raises TypeError, ValueError.
    Source: Bun, Steinke (2016), Proposition 1.6; Balle, Wang (2018), Theorem 8.
    """

    domain: Domain
    shape: NoiseShape
    multiplier: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, multiplier=checks.positive, delta=checks.fraction)

    @classmethod
    def calibrated(
        cls,
        domain: Domain,
        shape: NoiseShape,
        *,
        delta: float,
        epsilon: float | None = None,
        rho: float | None = None,
        **own: int,
    ) -> Self:
        """The least noise that is (epsilon, delta)-DP, or rho-zCDP (delta: where epsilon is stated then).

        own: what else the class has, as the order of ``GaussianMoments``. Raises ValueError, TypeError. Guarantees:
        (epsilon, delta)-DP; rho-zCDP.
        """
        return cls(domain, shape, least_multiplier(delta, epsilon, rho), delta, **own)

    @property
    def rho(self) -> float:
        """1 / (2 multiplier^2): every Renyi divergence of order alpha between neighbours is at most rho alpha."""
        return 1 / (2 * self.multiplier**2)

    @property
    @abstractmethod
    def sums(self) -> RoundedSum:
        """What the curator adds up, and its noise."""

    def limits(self, n: Users) -> dict[str, Limits]:
        return dict.fromkeys(self.layout, self.sums.limits(n))

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``, by the exact curve of Gaussian noise, of the whole steps that leave."""
        found = released_guarantee(self.multiplier, self.delta, self.sums.size)
        return replace(found, exact=False, source=f"Nikolov, Tang (2023), Theorem 15; {found.source}")


def least_multiplier(delta: float, epsilon: float | None, rho: float | None) -> float:
    """Of the least Gaussian noise that is (epsilon, delta)-DP, or rho-zCDP. Raises ValueError, TypeError.

    Source: Balle, Wang (2018), Theorem 8; Bun, Steinke (2016), Proposition 1.6.
    """
    if epsilon is not None and rho is None:
        return gaussian_sigma(epsilon, checks.fraction("delta", delta) * ROUNDED)
    if rho is not None and epsilon is None:
        return 1 / math.sqrt(2 * checks.positive("rho", rho))
    raise TypeError("epsilon or rho must be given beside delta, and not both")


@dataclass(frozen=True, eq=False)
class GaussianMean(MeanProtocol, GaussianRelease):
    """The curator releases the mean plus N(0, (multiplier diameter / n)^2 A A^T), A the root of the shape.

    In u = A^+ (x - c) one user's replacement moves the mean by at most diameter / n. A tally is the noisy sum of u.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public; rho-zCDP.
    Source: Nikolov, Tang (2023), Theorem 15.
    """

    @classmethod
    def tuned(
        cls,
        domain: Domain,
        p: float = 2.0,
        *,
        delta: float,
        epsilon: float | None = None,
        rho: float | None = None,
    ) -> "GaussianMean":
        """Of the least (E ||error||_p^2)^{1/2} of our shapes, at every n and for all data.

        ``calibrated`` with ``least_error_shape``. Raises ValueError, TypeError. Guarantees: as ``calibrated``.
        """
        return cls.calibrated(domain, least_error_shape(domain, p), delta=delta, epsilon=epsilon, rho=rho)

    @cached_property
    def sums(self) -> RoundedSum:
        """Of u."""
        own = self.encoding
        return RoundedSum.least(self.multiplier, own.diameter * (1 + 1e-12), own.radius, self.shape.root.shape[1])

    def noise_root(self, n: Users) -> Tensor:
        """B = (sigma/n) A: Cov(estimate) = B B^T, for Gaussian noise of deviation sigma of ``sums``."""
        return self.sums.sigma / beside(checks.people("n", n, 1), 2) * self.shape.root

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        """In one pass: a block holds at most so many users of each group, whose sum is a ``RoundedSum`` of its own."""
        n, zero = torch.bincount(groups, minlength=size), x.new_zeros(size, self.sums.size, dtype=torch.float64)
        parts = zip(x.split(BLOCK), groups.split(BLOCK), strict=True)
        whole = self.sums.blocks((zero.index_add(0, own, self.encoding(some)) for some, own in parts), n)
        return Tally(n, {"sum": self.sums.released(whole, draws) * (n > 0)[:, None]})

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        whole = self.sums.blocks((combined(counts, u) for u, counts in self.encoded(summary)), summary.n)
        return Tally(summary.n, {"sum": self.sums.released(whole, draws, shape)})
