"""One kind of message: users add a share of integer noise to their bit and send as many identical
messages.

The noise is infinitely divisible (Poisson), or bounded and symmetric, without a floor.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy.accounting import Profile
from torchdp.protocol.records import Limits, farthest
from torchdp.shuffle.count_laws import (
    FAR,
    CountLaw,
    NotFollowed,
    one_type_profiles,
    poisson_law,
    scattered_poisson,
    variation_of,
)
from torchdp.shuffle.inversion import moved_delta
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.search import Sensitivity, Target, least_noise_or_less

WIDEST = 1 << 14  # counts over which the noise is followed


@dataclass(frozen=True)
class OneTypeSum(MessageLaw):
    """A user with x, a bit or a count, sends x + Z identical messages; the n independent Z add up
    to D.

    The estimate of the sum of all x is the number of messages less E D.

    What the analyst sees is the count S + D, as if a curator had added D. The other users' bits are
    a known shift, so (1 + D, D) and its swap are exact dominating pairs, whatever the others hold;
    with absent users D loses their shares.
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
        return moved_delta(
            self.noise_law(absent), epsilon, moves.instances, moves.change, moves.largest
        )

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
            place = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device).repeat(
                len(bits)
            )
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
        mean, variance = (
            each * (n / self.users) for each in (self.noise_mean, self.noise_variance)
        )
        return Limits(0, most * n + mean + farthest(math.sqrt(variance), max(1.0, variance / mean)))

    def variance(self, ones: Tensor) -> Tensor:
        """Var D."""
        return torch.full_like(ones, self.noise_variance, dtype=torch.float64)

    def cumulants(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        """Of D, by the distribution that the accounting follows."""
        law = self.noise_law()
        away = np.arange(len(law.mass)) - np.arange(len(law.mass)) @ law.mass
        second = law.mass @ away**2
        third = torch.full_like(ones, law.mass @ away**3, dtype=torch.float64)
        return third, torch.full_like(ones, law.mass @ away**4 - 3 * second**2, dtype=torch.float64)


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
class BoundedSum(OneTypeSum):
    """D is the sum of n shares on 0, ..., 2 (c + 1), symmetric about c + 1, of variance
    deviation^2/n each.

    A share is c + 1 and a number that is uniform on -(c + 1), ..., c + 1 with probability q, else
    on -c, ..., c; c is the largest whole number with c (c + 1)/3 <= variance/n, and q makes the
    variance right. E D = n (c + 1) messages: those of every user that are not cancelled by a
    negative number mask it, and are subtracted. Equal shares of an infinitely divisible
    distribution, as Poisson's, have Pr[D = 0] >= e^-Var D, which costs delta whatever the
    accounting; these have (q/(2 c + 3))^n. D is unimodal: centred uniforms are, and so are sums of
    them (Wintner).

    deviation: that of D, > 0. Raises ValueError.

    Guarantees: the exact dominating pairs (1 + D, D) and (D, 1 + D).
    Source: here; the view of a count: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """

    own_number: ClassVar[bool] = True

    deviation: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, deviation=checks.positive)
        checks.fits("deviation", 64, self.half_width)

    @property
    def noise_variance(self) -> float:
        """n (c + 1) (c + 2 q)/3: deviation^2, and a little more where q was rounded up."""
        return self.users * (self.half_width + 1) * (self.half_width + 2 * self.share) / 3

    @property
    def half_width(self) -> int:
        """c: a share moves by at most c + 1 from its mean."""
        own = self.deviation**2 / self.users
        c = max(0, math.floor((math.sqrt(1 + 12 * own) - 1) / 2))
        while (c + 1) * (c + 2) / 3 <= own:
            c += 1
        return c if c * (c + 1) / 3 <= own else c - 1

    @property
    def share(self) -> float:
        """q, a multiple of 2^-53: drawn without error."""
        c = self.half_width
        share = (self.deviation**2 / self.users - c * (c + 1) / 3) / (2 * (c + 1) / 3)
        return math.ceil(min(1.0, share) * 2.0**53) * 2.0**-53

    @property
    def variation(self) -> float:
        return 0.0

    @property
    def noise_mean(self) -> float:
        return float(self.users * (self.half_width + 1))

    @cached_property
    def chances(self) -> np.ndarray:
        """Of the values 0, ..., 2 (c + 1) of one share."""
        c, q = self.half_width, self.share
        chances = np.full(2 * c + 3, q / (2 * c + 3))
        chances[1:-1] += (1 - q) / (2 * c + 1)
        return chances

    def noise(self, like: Tensor, draws: Draws) -> Tensor:
        """How many users have each value, one value after another: O(c), whatever their number."""
        total, left, rest = (
            torch.zeros_like(like, dtype=torch.int64),
            torch.full_like(like, self.users),
            1.0,
        )
        left = left.to(torch.int64)
        for value, chance in enumerate(self.chances):
            last = value == len(self.chances) - 1
            here = left if last else draws.binomial(left, min(1.0, float(chance) / rest))
            total, left, rest = total + value * here, left - here, rest - float(chance)
        return total

    def scattered(self, users: int, instances: int, draws: Draws) -> Tensor:
        wide = draws.integers((users, instances)) < math.ceil(self.share * 2.0**63)
        shares = torch.empty_like(wide, dtype=torch.int64)
        for reach, kind in ((self.half_width, ~wide), (self.half_width + 1, wide)):
            shares[kind] = (
                draws.below(2 * reach + 1, (int(kind.sum()),)) + self.half_width + 1 - reach
            )
        place = torch.arange(instances, dtype=torch.int32, device=draws.device).repeat(users)
        return torch.repeat_interleave(place, shares.flatten())

    def noise_law(self, absent: int = 0) -> CountLaw:
        """By repeated squaring of sums of non-negative terms, tails below e^-100 left out. Raises
        ValueError.
        """
        if self.deviation * 30 > WIDEST:
            raise NotFollowed(
                f"deviation must be at most {WIDEST / 30:.3g}, not {self.deviation:.3g}; ask for a larger epsilon or "
                "delta, or take PoissonSum, whose floor is far then"
            )
        n = self.present(absent)
        law, power, lost = np.ones(1), self.chances, 0.0
        for bit in bin(n)[:1:-1]:
            if bit == "1":
                law, less = _trimmed(np.convolve(law, power))
                lost += less
            power, less = _trimmed(np.convolve(power, power))
            lost += n * less
        half = law[: len(law) // 2 + 1]
        law = np.concatenate([half, half[:-1][::-1]])  # symmetric to the last digit
        return CountLaw(
            0, law / law.sum(), np.diff(np.log(law)), lost + 2 * len(law) * math.exp(-FAR)
        )

    def resized(self, users: int, factor: float) -> Self:
        return replace(self, users=users, deviation=self.deviation * math.sqrt(factor))

    @classmethod
    def least(cls, target: Target) -> Self:
        target = target.composed(cls)
        return least_noise_or_less(partial(cls._wide, target.users), target)

    @classmethod
    def _wide(cls, users: int, deviation: float) -> Self:
        """Raises NotFollowed for shares so wide that the memory does not hold their chances."""
        try:
            return cls(users, deviation)
        except ValueError as error:
            raise NotFollowed(str(error)) from error


def _trimmed(law: np.ndarray) -> tuple[np.ndarray, float]:
    """The distribution without tails below e^-100 of the largest, the same at both ends, and what
    was left out.
    """
    kept = np.flatnonzero(law >= law.max() * math.exp(-FAR))
    cut = min(int(kept[0]), len(law) - 1 - int(kept[-1]))
    return law[cut : len(law) - cut], float(law[:cut].sum() + law[len(law) - cut :].sum())
