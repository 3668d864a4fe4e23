"""One kind of message: users add a share of integer noise to their bit and send as many of it.

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
from torchdp.protocol.records import Limits, noise_limit
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

# Counts over which bounded noise is followed, and deviations that they hold.
WIDEST = 1 << 14
DEVIATIONS = 30


@dataclass(frozen=True)
class OneTypeSum(MessageLaw):
    """A user with x, a bit or a count, sends x + Z messages; the n independent Z add up to D.

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
        law = self.noise_law(absent)
        return moved_delta(law, epsilon, moves.instances, moves.change, moves.largest)

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
        users, instances = bits.shape
        if bits.dtype == torch.bool:
            true = bits.nonzero()[:, 1].int()
        else:
            true = _repeated(bits)
        instance = torch.cat([true, self.scattered(users, instances, draws)])
        return ShuffledMessages(users, instance, torch.ones_like(instance, dtype=torch.int8))

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + D."""
        return ones + self.noise(ones, draws)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """total - E D n/users."""
        return total.double() - self.noise_mean * (n / self.users)

    def limits(self, n: int, most: float = 1.0) -> Limits:
        mean = self.noise_mean * (n / self.users)
        variance = self.noise_variance * (n / self.users)
        noise = noise_limit(math.sqrt(variance), max(1.0, variance / mean))
        return Limits(0, most * n + mean + noise)

    def variance(self, ones: Tensor) -> Tensor:
        """Var D."""
        return torch.full_like(ones, self.noise_variance, dtype=torch.float64)

    def cumulants(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        """Of D, by the distribution that the accounting follows."""
        mass = self.noise_law().mass
        counts = np.arange(len(mass))
        away = counts - counts @ mass
        second = mass @ away**2
        third = torch.full_like(ones, mass @ away**3, dtype=torch.float64)
        return third, torch.full_like(third, mass @ away**4 - 3 * second**2)


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
    """D is the sum of n shares on 0, ..., 2 (c + 1), symmetric, of variance deviation^2/n each.

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
        # The largest c with c (c + 1)/3 <= own.
        own = self.deviation**2 / self.users
        c = max(0, math.floor((math.sqrt(1 + 12 * own) - 1) / 2))
        # The root is rounded.
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
        c = self.half_width
        q = self.share
        chances = np.full(2 * c + 3, q / (2 * c + 3))
        chances[1:-1] += (1 - q) / (2 * c + 1)
        return chances

    def noise(self, like: Tensor, draws: Draws) -> Tensor:
        """How many users have each value, one value after another: O(c), whatever their number."""
        total = torch.zeros_like(like, dtype=torch.int64)
        left = torch.full_like(total, self.users)
        rest = 1.0
        # A multinomial, by binomials of the users and of the chance that are left.
        for value, chance in enumerate(self.chances[:-1].tolist()):
            count = draws.binomial(left, min(1.0, chance / rest))
            total = total + value * count
            left = left - count
            rest -= chance
        return total + (len(self.chances) - 1) * left

    def scattered(self, users: int, instances: int, draws: Draws) -> Tensor:
        # A share of reach c + 1 with probability q, by whole numbers.
        wide = draws.integers((users, instances)) < math.ceil(self.share * 2.0**63)
        shares = torch.empty_like(wide, dtype=torch.int64)
        for reach, kind in ((self.half_width, ~wide), (self.half_width + 1, wide)):
            uniform = draws.below(2 * reach + 1, (int(kind.sum()),))
            shares[kind] = uniform + self.half_width + 1 - reach
        return _repeated(shares)

    def noise_law(self, absent: int = 0) -> CountLaw:
        """By repeated squaring, tails below e^-100 left out. Raises ValueError."""
        if self.deviation * DEVIATIONS > WIDEST:
            raise NotFollowed(
                f"deviation must be at most {WIDEST / DEVIATIONS:.3g}, not {self.deviation:.3g}; "
                "ask for a larger epsilon or delta, or take PoissonSum, whose floor is far then"
            )
        n = self.present(absent)
        mass = np.ones(1)
        power = self.chances
        lost = 0.0
        # All terms of the sums are non-negative: nothing cancels.
        for bit in bin(n)[:1:-1]:
            if bit == "1":
                mass, outside = _trimmed(np.convolve(mass, power))
                lost += outside
            power, outside = _trimmed(np.convolve(power, power))
            lost += n * outside
        half = mass[: len(mass) // 2 + 1]
        mass = np.concatenate([half, half[:-1][::-1]])  # symmetric to the last digit
        lost += 2 * len(mass) * math.exp(-FAR)
        return CountLaw(0, mass / mass.sum(), np.diff(np.log(mass)), lost)

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


def _repeated(counts: Tensor) -> Tensor:
    """The instance of each of so many messages of users, (users, instances): int32."""
    users, instances = counts.shape
    places = torch.arange(instances, dtype=torch.int32, device=counts.device)
    return torch.repeat_interleave(places.repeat(users), counts.flatten())


def _trimmed(mass: np.ndarray) -> tuple[np.ndarray, float]:
    """Without tails below e^-100 of the largest, as much at both ends, and the mass left out."""
    kept = np.flatnonzero(mass >= mass.max() * math.exp(-FAR))
    cut = min(int(kept[0]), len(mass) - 1 - int(kept[-1]))
    end = len(mass) - cut
    return mass[cut:end], float(mass[:cut].sum() + mass[end:].sum())
