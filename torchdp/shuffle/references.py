"""What the protocols are measured against: a trusted curator, and no privacy at all."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise, source
from torchdp.privacy import Model, gaussian_log_delta
from torchdp.shuffle.bitsum import BitSum
from torchdp.shuffle.dominating import Profile, gaussian_profile


@dataclass(frozen=True)
class CuratorSum(BitSum):
    """Users hand their bits to a curator, one message each, who publishes what ``drawn`` makes of their sum.

    A curator adds up numbers as well as bits: nothing has to be rounded.
    """

    sums_numbers: ClassVar[bool] = True

    @property
    def messages_per_user(self) -> float:
        """1: the bit itself."""
        return 1.0

    def bits_per_message(self, instances: int) -> int:
        return 1 + (checks.integer("instances", instances, 1) - 1).bit_length()

    def collect(self, bits: Tensor, *, noise: Noise | None = None) -> Tensor:
        """The curator counts, then draws: (users present, instances) bool -> (instances,), float64."""
        ones = self._bits(bits).sum(0)
        return self.drawn(ones, source(noise, ones.device))


@dataclass(frozen=True)
class CentralGaussianSum(CuratorSum):
    """S + N(0, sigma^2), published by a trusted curator. Raises ValueError.

    Guarantees: its exact dominating pair N(1, sigma^2), N(0, sigma^2), which is its own swap.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006); Balle, Wang (2018), Theorem 8.
    """

    counts_movement: ClassVar[bool] = True

    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))

    @property
    def model(self) -> Model:
        return Model.CENTRAL

    def drawn(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + N(0, sigma^2)."""
        return ones + self.sigma * draws.normal(tuple(ones.shape))

    def variance(self, ones: Tensor) -> Tensor:
        """sigma^2."""
        return torch.full_like(self._ones(ones), self.sigma**2, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        """The curator's noise counts whoever is absent."""
        self._present(absent)
        return (gaussian_profile(self.sigma),)

    def moved_delta(self, epsilon: float, instances: int, change: float, absent: int = 0) -> float:
        """Exact: sums of numbers in [0, 1] move by sqrt(change) in l_2 norm."""
        distance = math.sqrt(change)
        if epsilon == 0:
            return float(gaussian_profile(self.sigma / distance)(np.zeros(1))[0])
        return math.exp(gaussian_log_delta(self.sigma, epsilon, distance))

    @classmethod
    def of_rmse(cls, users: int, rmse: float) -> Self:
        return cls(users, rmse)


@dataclass(frozen=True)
class ExactSum(CuratorSum):
    """S itself: the error of everything else without privacy noise. It protects nobody."""

    @property
    def model(self) -> Model:
        return Model.CENTRAL

    def drawn(self, ones: Tensor, draws: Draws) -> Tensor:
        """S."""
        return ones.double()

    def variance(self, ones: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(self._ones(ones), dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        raise ValueError("ExactSum is not private; take it as a reference for the error only")
