"""Correlated noise: pairs of messages that cancel mask the noise that does not."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Draws
from torchdp.privacy.accounting import Profile
from torchdp.protocol.records import Limits, noise_limit
from torchdp.shuffle.count_laws import (
    MOST_RATE,
    MOST_RATIO,
    correlated_profiles,
    scattered_negative_binomial,
    unlimited_flood_profiles,
    variation_of,
)
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.search import Target, largest_epsilon, least_noise

# Of epsilon, spent on a flood that is not unlimited: about the increase of the RMSE.
SHARE = 0.05

# Accuracy of the root of the flood's shape, and where searches for it start.
ROUGH = 0.005
FIRST = 2.5

# c of a flood for very many flips, and the flips of which it is half of that.
STEEP = 0.8
HALF_STEEP = 30

# The most counts in which a flood's chances fall by e.
WIDEST = 2.0**15


@dataclass(frozen=True)
class CorrelatedSum(MessageLaw):
    """The protocol of three negative binomials, two of which mask each other's sum.

    A user with bit x sends x + Z1 + Z3 times "+1" and Z2 + Z3 times "-1". The n independent Z1 add
    up to D1 ~ NB(1, ratio), the Z2 to D2 of the same distribution, the Z3 to the flood
    D3 ~ NB(flood_shape, flood_ratio). The estimate, the sum of all messages, is S + D1 - D2: the
    flood cancels, and the error is exactly discrete Laplace, Pr[k] = (1 - ratio)/(1 + ratio)
    ratio^|k|, of variance 2 ratio/(1 - ratio)^2. Raises ValueError.

    Guarantees: its exact dominating pair and the pair's swap. The view is (U, V), the numbers of
    "+1" and "-1", less the known shift by the other users' bits. If the user holds 0, d = U - V =
    D1 - D2 and min(D1, D2), geometric of ratio ratio^2, are independent, so t = V - max(0, -d) ~ g,
    the distribution of D3 + min(D1, D2), whatever d is. If the user holds 1, d = 1 + D1 - D2, and t
    ~ g where d >= 1 but t - 1 ~ g where d <= 0. On either side that of d is the same for both bits,
    up to the side's probability: 1/(1 + ratio) for d >= 1 and ratio/(1 + ratio) for d <= 0 if the
    user holds 1, the reverse if 0. So the pair is (side, and t where d <= 0). As the flood grows it
    approaches binary randomized response at epsilon = -log(ratio), which it never beats. With
    absent users: an upper bound.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorem 1; the flood for sensitivity one after
    Ghazi, Kumar, Manurangsi, Pagh, Sinha (2021), Lemma 9.
    """

    laplace: ClassVar[bool] = True

    ratio: float
    flood_shape: float
    flood_ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(
            self, ratio=checks.fraction, flood_shape=checks.positive, flood_ratio=checks.fraction
        )

    @property
    def contents(self) -> tuple[int, ...]:
        return (-1, 1)

    @property
    def messages_per_user(self) -> float:
        """1 + (2 ratio/(1 - ratio) + 2 E D3)/n."""
        flood = self.flood_shape * self.flood_ratio / (1 - self.flood_ratio)
        return 1 + 2 * (self.ratio / (1 - self.ratio) + flood) / self.users

    @property
    def variation(self) -> float | None:
        if max(self.ratio, self.flood_ratio) > MOST_RATIO:
            return None
        return variation_of(3 * self.users, (MOST_RATE + 1) * self.messages_per_user * self.users)

    def randomize_unchecked(self, bits: Tensor, draws: Draws) -> ShuffledMessages:
        """x + Z1 + Z3 messages "+1" and Z2 + Z3 messages "-1" of each user in each instance."""
        users, instances = bits.shape
        share = 1 / self.users
        # Each user's Z are NB(share, ratio): those of all add up to NB(1, ratio).
        true = bits.nonzero()[:, 1].int()
        above = scattered_negative_binomial(users, instances, share, self.ratio, draws)
        below = scattered_negative_binomial(users, instances, share, self.ratio, draws)
        flood = scattered_negative_binomial(
            users, instances, self.flood_shape * share, self.flood_ratio, draws
        )
        positive = torch.cat([true, above, flood])
        instance = torch.cat([positive, below, flood])
        content = torch.ones_like(instance, dtype=torch.int8)
        content[len(positive) :] = -1
        return ShuffledMessages(users, instance, content)

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + D1 - D2."""
        return ones + discrete_laplace(ones, self.ratio, draws)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """The total."""
        return total.double()

    def limits(self, n: int, most: float = 1.0) -> Limits:
        """Of n bits and a difference of two NB(n/users, ratio)."""
        deviation = math.sqrt(2 * n / self.users * self.ratio) / (1 - self.ratio)
        noise = noise_limit(deviation, 1 / (1 - self.ratio))
        return Limits(-noise, n + noise)

    def variance(self, ones: Tensor) -> Tensor:
        """2 ratio/(1 - ratio)^2."""
        return torch.full_like(ones, 2 * self.ratio / (1 - self.ratio) ** 2, dtype=torch.float64)

    def cumulants(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        fourth = laplace.fourth_cumulant(-math.log(self.ratio))
        third = torch.zeros_like(ones, dtype=torch.float64)
        return third, torch.full_like(third, fourth)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        left = self.present(absent) / self.users
        flood_shape = left * self.flood_shape
        return correlated_profiles(self.ratio, flood_shape, self.flood_ratio, shape=left)

    @classmethod
    def least(cls, target: Target) -> Self:
        """Noise of ratio e^(-0.95 e), e the largest that an unlimited flood makes private.

        Then a small flood, NB(shape, e^(-c e)). Fewest messages need c from 0.03 of one flip to 0.6
        of many, about; the shape is searched, and certified. Flips alone are counted.
        """
        target = target.composed(cls)
        left = (target.users - target.absent) / target.users
        flips = target.sensitivity.flips

        def one_direction(e: float) -> tuple[Profile, ...]:
            return unlimited_flood_profiles(math.exp(-e), shape=left)[:1]

        limit = largest_epsilon(one_direction, target)
        ratio = math.exp(-(1 - SHARE) * limit)
        c = STEEP * flips / (flips + HALF_STEEP)
        flood = math.exp(-max(c * limit, 1 / WIDEST))
        return least_noise(
            lambda root: cls(target.users, ratio, root**2, flood), FIRST, target, ROUGH
        )


def discrete_laplace(like: Tensor, ratio: float, draws: Draws) -> Tensor:
    """Pr[k] = (1 - ratio)/(1 + ratio) ratio^|k|, int64: the difference of two NB(1, ratio)."""
    one = torch.ones_like(like, dtype=torch.float64)
    return draws.negative_binomial(one, ratio) - draws.negative_binomial(one, ratio)
