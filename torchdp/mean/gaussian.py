"""What a curator's Gaussian releases have in common: their noise, its calibration and its guarantee."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.mean.protocol import DomainProtocol
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Limits, Users
from torchdp.protocol.rounded_sum import RoundedSum, released_guarantee


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
