"""One kind of message: users add a share of integer noise to their bit and send as many identical messages."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy.accounting import Profile
from torchdp.protocol.records import Limits, farthest
from torchdp.shuffle.count_laws import CountLaw, negative_binomial_law, poisson_law
from torchdp.shuffle.dominating import one_type_profiles
from torchdp.shuffle.draws import (
    MOST_RATE,
    MOST_RATIO,
    scattered_negative_binomial,
    scattered_poisson,
    variation_of,
)
from torchdp.shuffle.inversion import moved_delta
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.search import Sensitivity, Target, least_noise_or_less


@dataclass(frozen=True)
class OneTypeSum(MessageLaw):
    """A user with x, a bit or a count, sends x + Z identical messages; the n independent Z add up to D.

    The estimate of the sum of all x is the number of messages less E D.

    What the analyst sees is the count S + D, as if a curator had added D. The other users' bits are a known shift,
    so (1 + D, D) and its swap are exact dominating pairs, whatever the others hold; with absent users D loses their
    shares.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """

    takes_counts: ClassVar[bool] = True

    @property
    @abstractmethod
    def noise_mean(self) -> float:
        """E D."""

    @property
    @abstractmethod
    def noise_variance(self) -> float:
        """Var D."""

    @abstractmethod
    def noise_law(self, absent: int = 0) -> CountLaw:
        """The distribution of D, less the shares of so many users. Raises ValueError."""

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        return one_type_profiles(self.noise_law(absent))

    def moved_delta(self, epsilon: float, moves: Sensitivity, absent: int = 0) -> float:
        return moved_delta(self.noise_law(absent), epsilon, moves.instances, moves.change, moves.largest)

    @abstractmethod
    def noise(self, like: Tensor, draws: Draws) -> Tensor:
        """Draws of D of this shape, int64."""

    @abstractmethod
    def scattered(self, users: int, instances: int, draws: Draws) -> Tensor:
        """The instance of every noise message of so many users, int32."""

    @property
    def contents(self) -> tuple[int, ...]:
        return (1,)

    @property
    def messages_per_user(self) -> float:
        """1 + E D / n."""
        return 1 + self.noise_mean / self.users

    def randomize_unchecked(self, bits: Tensor, draws: Draws) -> ShuffledMessages:
        """x + Z messages of each user in each instance."""
        if bits.dtype == torch.bool:
            true = bits.nonzero()[:, 1].to(torch.int32)
        else:
            place = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device).repeat(len(bits))
            true = torch.repeat_interleave(place, bits.flatten())
        instance = torch.cat([true, self.scattered(len(bits), bits.shape[1], draws)])
        return ShuffledMessages(len(bits), instance, torch.ones_like(instance, dtype=torch.int8))

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + D."""
        return ones + self.noise(ones, draws)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """total - E D n/users."""
        return total.double() - self.noise_mean * (n / self.users)

    def limits(self, n: int, most: float = 1.0) -> Limits:
        mean, variance = (each * (n / self.users) for each in (self.noise_mean, self.noise_variance))
        return Limits(0, most * n + mean + farthest(math.sqrt(variance), max(1.0, variance / mean)))

    def variance(self, ones: Tensor) -> Tensor:
        """Var D."""
        return torch.full_like(ones, self.noise_variance, dtype=torch.float64)


@dataclass(frozen=True)
class PoissonSum(OneTypeSum):
    """D ~ Poisson(mean): each user adds Poisson(mean/n) messages. Variance mean. Raises ValueError.

    Guarantees: the exact dominating pairs (1 + D, D) and (D, 1 + D).
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """

    mean: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, mean=checks.positive)

    @property
    def noise_mean(self) -> float:
        return self.mean

    @property
    def noise_variance(self) -> float:
        return self.mean

    def noise(self, like: Tensor, draws: Draws) -> Tensor:
        return draws.poisson(torch.full_like(like, self.mean, dtype=torch.float64))

    def scattered(self, users: int, instances: int, draws: Draws) -> Tensor:
        return scattered_poisson(users, instances, self.mean / self.users, draws)

    @property
    def variation(self) -> float:
        return variation_of(self.users, self.mean)

    def noise_law(self, absent: int = 0) -> CountLaw:
        return poisson_law(self.mean * self.present(absent) / self.users)

    def resized(self, users: int, factor: float) -> Self:
        return replace(self, users=users, mean=self.mean * factor)

    @classmethod
    def least(cls, target: Target) -> Self:
        target = target.composed(cls)
        return least_noise_or_less(lambda rmse: cls(target.users, rmse**2), target)


@dataclass(frozen=True)
class NegativeBinomialSum(OneTypeSum):
    """D ~ NB(shape, ratio): each user adds NB(shape/n, ratio) messages, mostly none.

    Pr[D = k] = C(k + shape - 1, k) (1 - ratio)^shape ratio^k; mean shape ratio/(1 - ratio), variance
    mean/(1 - ratio): at equal variance 1 - ratio times the messages of Poisson noise. Raises ValueError.

    Guarantees: the exact dominating pairs (1 + D, D) and (D, 1 + D).
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """

    shape: float
    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, shape=checks.positive, ratio=checks.fraction)

    @property
    def noise_mean(self) -> float:
        return self.shape * self.ratio / (1 - self.ratio)

    @property
    def noise_variance(self) -> float:
        return self.noise_mean / (1 - self.ratio)

    def noise(self, like: Tensor, draws: Draws) -> Tensor:
        return draws.negative_binomial(torch.full_like(like, self.shape, dtype=torch.float64), self.ratio)

    def scattered(self, users: int, instances: int, draws: Draws) -> Tensor:
        return scattered_negative_binomial(users, instances, self.shape / self.users, self.ratio, draws)

    @property
    def variation(self) -> float | None:
        return variation_of(self.users, (MOST_RATE + 1) * self.noise_mean) if self.ratio <= MOST_RATIO else None

    def noise_law(self, absent: int = 0) -> CountLaw:
        return negative_binomial_law(self.shape * self.present(absent) / self.users, self.ratio)

    @classmethod
    def least(cls, target: Target, ratio: float = 0.5) -> Self:
        target, scale = target.composed(cls), (1 - checks.fraction("ratio", ratio)) ** 2 / ratio
        return least_noise_or_less(lambda rmse: cls(target.users, rmse**2 * scale, ratio), target)
