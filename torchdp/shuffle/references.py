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
class CuratorSum(BitLaw):
    """Users hand their bits to a curator, who publishes the sum with noise. Absent users change nothing.

    A curator adds up numbers in [0, 1] as well as bits: nothing has to be rounded.
    """

    takes_numbers: ClassVar[bool] = True

    def decode(self, total: Tensor, n: int) -> Tensor:
        """The total."""
        return total.double()

    def limits(self, n: int, most: float = 1.0) -> Limits:
        noise = farthest(self.rmse)
        return Limits(-noise, n + noise)


@dataclass(frozen=True)
class CentralGaussianSum(CuratorSum):
    """S + N(0, sigma^2). Raises ValueError.

    Guarantees: its exact dominating pair N(1, sigma^2), N(0, sigma^2), which is its own swap.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006); Balle, Wang (2018), Theorem 8.
    """

    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, sigma=checks.positive)

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + N(0, sigma^2)."""
        return ones + self.sigma * draws.normal(tuple(ones.shape))

    def variance(self, ones: Tensor) -> Tensor:
        """sigma^2."""
        return torch.full_like(ones, self.sigma**2, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        self.present(absent)
        return (gaussian_profile(self.sigma),)

    def flipped_delta(self, epsilon: float, instances: int, absent: int = 0) -> float:
        return self.moved_delta(epsilon, Sensitivity(instances), absent)

    def flipped_epsilon(self, delta: float, instances: int, absent: int = 0) -> float:
        return gaussian_epsilon(math.sqrt(instances) / self.sigma, delta)

    def moved_delta(self, epsilon: float, moves: Sensitivity, absent: int = 0) -> float:
        """Exact: sums of numbers move by sqrt(change) in l_2 norm."""
        move = math.sqrt(moves.change)
        return math.exp(gaussian_log_delta(self.sigma, epsilon, move))

    @classmethod
    def least(cls, target: Target) -> Self:
        target, move = target.positive_delta(cls), min(target.change, target.flips * target.largest**2)
        return cls(target.users, gaussian_sigma(target.epsilon, target.delta, math.sqrt(move)))


@dataclass(frozen=True)
class ExactSum(CuratorSum):
    """S itself: the error of everything else without privacy noise. No privacy: epsilon is infinite."""

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S."""
        return ones.double()

    def variance(self, ones: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(ones, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        raise ValueError("ExactSum is not private; take it as a reference for the error only")
