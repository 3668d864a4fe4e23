"""What shuffled sums are measured against: a trusted curator, and no privacy at all."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from torchdp.privacy.accounting import Profile
from torchdp.privacy.composition import gaussian_profile
from torchdp.protocol.records import Limits, farthest
from torchdp.shuffle.laws import BitLaw
from torchdp.shuffle.search import Sensitivity, Target


@dataclass(frozen=True)
class CentralGaussianSum(BitLaw):
    """S + N(0, sigma^2), published by a curator to whom users hand their bits, or numbers in [0, 1] as they are.

    Absent users change nothing. sigma = 0: S itself, the error of everything else without noise, and no privacy.
    Raises ValueError.

    Guarantees: its exact dominating pair N(1, sigma^2), N(0, sigma^2), which is its own swap.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006); Balle, Wang (2018), Theorem 8.
    """

    takes_numbers: ClassVar[bool] = True

    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, sigma=checks.non_negative)

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + N(0, sigma^2)."""
        return ones + self.sigma * draws.normal(tuple(ones.shape))

    def decode(self, total: Tensor, n: int) -> Tensor:
        """The total."""
        return total.double()

    def limits(self, n: int, most: float = 1.0) -> Limits:
        noise = farthest(self.sigma)
        return Limits(-noise, n + noise)

    def variance(self, ones: Tensor) -> Tensor:
        """sigma^2."""
        return torch.full_like(ones, self.sigma**2, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        self.present(absent)
        return (gaussian_profile(self._noisy),)

    def flipped_delta(self, epsilon: float, instances: int, absent: int = 0) -> float:
        return self.moved_delta(epsilon, Sensitivity(instances), absent)

    def flipped_epsilon(self, delta: float, instances: int, absent: int = 0) -> float:
        return gaussian_epsilon(math.sqrt(instances) / self._noisy, delta)

    def moved_delta(self, epsilon: float, moves: Sensitivity, absent: int = 0) -> float:
        """Exact: sums of numbers move by sqrt(change) in l_2 norm."""
        return math.exp(gaussian_log_delta(self._noisy, epsilon, math.sqrt(moves.change)))

    @property
    def _noisy(self) -> float:
        """sigma. Raises ValueError for 0."""
        if not self.sigma:
            raise ValueError("a sum with sigma = 0 is not private; take it as a reference for the error only")
        return self.sigma

    @classmethod
    def least(cls, target: Target) -> Self:
        target, move = (
            target.positive_delta(cls),
            min(target.sensitivity.change, target.sensitivity.flips * target.sensitivity.largest**2),
        )
        return cls(target.users, gaussian_sigma(target.epsilon, target.delta, math.sqrt(move)))
