"""Correlated noise: pairs of messages that cancel mask the noise that does not.

Under pure differential privacy the number of pairs is bounded, and some users stay silent.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Draws
from torchdp.kernels import inversion
from torchdp.kernels.inversion import Table
from torchdp.privacy.accounting import Profile
from torchdp.privacy.composition import pure_profile
from torchdp.protocol.records import Limits, farthest
from torchdp.shuffle.count_laws import (
    MOST_RATE,
    MOST_RATIO,
    correlated_profiles,
    scattered_negative_binomial,
    tabulated,
    unlimited_flood_profiles,
    variation_of,
)
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.search import Target, largest_epsilon, least_noise

ROUGH = 0.005  # of the root of the flood's shape
STEEP, FEW = 0.8, 30  # c of a flood for very many flips; flips of which it is half of that
FIRST = 2.5  # root of a flood's shape, where searches start
WIDEST = 2.0**15  # counts in which a flood's chances fall by e, at most
LONGEST = 2**15  # copies of a flood that a table holds
ROUNDED_UP = 1 + 2.0**-50  # of an epsilon: the floats of its logarithms


@dataclass(frozen=True)
class CorrelatedSum(MessageLaw):
    """The protocol of three negative binomials: a user with bit x sends x + Z1 + Z3 times "+1" and Z2 + Z3 times "-1".

    The n independent Z1 add up to D1 ~ NB(1, ratio), the Z2 to D2 of the same distribution, the Z3 to the flood
    D3 ~ NB(flood_shape, flood_ratio). The estimate, the sum of all messages, is S + D1 - D2: the flood cancels, and
    the error is exactly discrete Laplace, Pr[k] = (1 - ratio)/(1 + ratio) ratio^|k|, of variance
    2 ratio/(1 - ratio)^2. Raises ValueError.

    Guarantees: its exact dominating pair and the pair's swap. The view is (U, V), the numbers of "+1" and "-1", less
    the known shift by the other users' bits. If the user holds 0, d = U - V = D1 - D2 and min(D1, D2), geometric of
    ratio ratio^2, are independent, so t = V - max(0, -d) ~ g, the distribution of D3 + min(D1, D2), whatever d is. If
    the user holds 1, d = 1 + D1 - D2, and t ~ g where d >= 1 but t - 1 ~ g where d <= 0. On either side that of d is
    the same for both bits, up to the side's probability: 1/(1 + ratio) for d >= 1 and ratio/(1 + ratio) for d <= 0 if
    the user holds 1, the reverse if 0. So the pair is (side, and t where d <= 0). As the flood grows it approaches
    binary randomized response at epsilon = -log(ratio), which it never beats. With absent users: an upper bound.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorem 1; the flood for sensitivity one after Ghazi, Kumar,
    Manurangsi, Pagh, Sinha (2021), Lemma 9.
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
        (users, instances), true = bits.shape, bits.nonzero()[:, 1].to(torch.int32)
        above, below = (
            scattered_negative_binomial(users, instances, 1 / self.users, self.ratio, draws)
            for _ in range(2)
        )
        flood = scattered_negative_binomial(
            users, instances, self.flood_shape / self.users, self.flood_ratio, draws
        )
        return signed_messages(users, [true, above, flood], [below, flood])

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + D1 - D2."""
        return ones + discrete_laplace(ones, self.ratio, draws)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """The total."""
        return total.double()

    def limits(self, n: int, most: float = 1.0) -> Limits:
        return signed_limits(n, n / self.users, self.ratio)

    def variance(self, ones: Tensor) -> Tensor:
        """2 ratio/(1 - ratio)^2."""
        return torch.full_like(ones, 2 * self.ratio / (1 - self.ratio) ** 2, dtype=torch.float64)

    def cumulants(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        fourth = torch.full_like(ones, laplace.fourth_cumulant(self.ratio), dtype=torch.float64)
        return torch.zeros_like(fourth), fourth

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        left = self.present(absent) / self.users
        return correlated_profiles(
            self.ratio, left * self.flood_shape, self.flood_ratio, shape=left
        )

    @classmethod
    def least(cls, target: Target, share: float = 0.05) -> Self:
        """Noise ratio e^(-(1 - share) e), e the largest that unlimited flood makes private; then a small flood.

        The flood is NB(shape, e^(-c e)). Least messages ask for c from 0.03 of one flip to 0.6 of many, about; the
        shape is searched, and certified. Flips alone are counted.
        """
        share = checks.fraction("share", share)
        target, left = target.composed(cls), (target.users - target.absent) / target.users
        limit = largest_epsilon(
            lambda e: unlimited_flood_profiles(math.exp(-e), shape=left)[:1], target
        )
        ratio = math.exp(-(1 - share) * limit)
        flips = target.sensitivity.flips
        c = STEEP * flips / (flips + FEW)
        flood = math.exp(-max(c * limit, 1 / WIDEST))
        return least_noise(
            lambda root: cls(target.users, ratio, root**2, flood), FIRST, target, ROUGH
        )


def signed_messages(n: int, plus: list[Tensor], minus: list[Tensor]) -> ShuffledMessages:
    """Messages "+1" and "-1" of n users from the instances they belong to, int32."""
    instance, positive = torch.cat(plus + minus), sum(len(part) for part in plus)
    content = torch.ones_like(instance, dtype=torch.int8)
    content[positive:] = -1
    return ShuffledMessages(n, instance, content)


def signed_limits(n: int, share: float, ratio: float) -> Limits:
    """Of n bits and a difference of two NB(share, ratio)."""
    noise = farthest(math.sqrt(2 * share * ratio) / (1 - ratio), 1 / (1 - ratio))
    return Limits(-noise, n + noise)


def discrete_laplace(like: Tensor, ratio: float, draws: Draws) -> Tensor:
    """Pr[k] = (1 - ratio)/(1 + ratio) ratio^|k|, int64, of this shape: the difference of two NB(1, ratio)."""
    one = torch.ones_like(like, dtype=torch.float64)
    return draws.negative_binomial(one, ratio) - draws.negative_binomial(one, ratio)


@dataclass(frozen=True)
class PureSum(MessageLaw):
    """Correlated noise with a bounded flood: a user with bit x sends x + Z1 + F times "+1" and Z2 + F times "-1", or,
    with probability ``drop``, Z1 times "+1" and Z2 times "-1" whatever x is.

    Z1, Z2 ~ NB(1/n, ratio), ratio = e^(-epsilon_1); F in {0, ..., s}, Pr[F = f] proportional to e^(epsilon_2 f), with
    epsilon_2 = share epsilon, epsilon_1 = epsilon - epsilon_2 and the least s for which
    (1 - drop) Pr[F = 0] <= (e^epsilon - 1) drop. The estimate is the sum of all messages over 1 - drop: the flood
    cancels, and the variance is S drop/(1 - drop) + 2 ratio/((1 - ratio)^2 (1 - drop)^2). Among distributions with
    Pr[F = f + 1] <= e^epsilon_2 Pr[F = f] and this Pr[F = 0], F is stochastically the smallest, up to the rounding
    of s.
    epsilon: of one instance. share, drop in (0, 1). Raises ValueError.

    Guarantees: (epsilon, 0)-DP, in each instance. With ``absent`` users epsilon grows by log(n/(n - absent)).
    Proof. Fix the other users' bits, drops and floods; they shift the view (U, V), the numbers of "+1" and "-1". Let
    Z1, Z2 be the totals over the users present, NB(c, ratio) with c = 1 - absent/n: Pr[Z = z]/Pr[Z = z + 1] =
    (z + 1)/((z + c) ratio) <= e^epsilon_1 / c =: e^a. Write D for the distribution of the view if the user drops (the
    same for both bits) and K_x if not: the view has distribution P_x = drop D + (1 - drop) K_x, K_0 = (Z1 + F, Z2 + F)
    and K_1 = (1 + Z1 + F, Z2 + F). From 1 to 0: Z1 -> Z1 + 1 maps K_1 into K_0, so K_1 <= e^a K_0 and P_1 <= e^a P_0.
    From 0 to 1: on F >= 1, (Z2, F) -> (Z2 + 1, F - 1) leaves the view as it is under K_1 and costs e^(a + epsilon_2);
    on F = 0 the view has distribution D. So P_0 <= (drop + (1 - drop) Pr[F = 0]) D + (1 - drop) e^(a + epsilon_2) K_1,
    at most e^(a + epsilon_2) P_1 as (1 - drop) Pr[F = 0] <= (e^epsilon - 1) drop and epsilon <= a + epsilon_2.
    Source: proved here; after the protocol of Ghazi, Kumar, Manurangsi (2023), with the same roles of noise, flood
    and drops.
    """

    own_number: ClassVar[bool] = True

    epsilon: float
    share: float
    drop: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, epsilon=checks.positive, share=checks.fraction, drop=checks.fraction)
        if not 1e-9 <= (1 - self.share) * self.epsilon <= self.epsilon <= 700:
            raise ValueError(
                f"epsilon must be at most 700, not {self.epsilon}, and (1 - share) epsilon, the noise's part, "
                "at least 1e-9"
            )
        if min(self.share * self.epsilon, self.drop) < 1e-300 or self._least_flood > 2**31:
            raise ValueError(
                "epsilon, share or drop is so small that more than 2^31 copies of a message are needed"
            )

    @property
    def ratio(self) -> float:
        """e^(-epsilon_1) of the noise that stays."""
        return math.exp(-(1 - self.share) * self.epsilon)

    @property
    def flood(self) -> int:
        """s, the most copies of F."""
        least = self._least_flood
        return max(0, math.ceil(least + 1e-9 * abs(least)))  # rounding never takes one away

    @property
    def _least_flood(self) -> float:
        tilt = self.share * self.epsilon
        odds = math.expm1(tilt) * (1 - self.drop) / (math.expm1(self.epsilon) * self.drop)
        return math.log1p(odds) / tilt - 1

    @property
    def contents(self) -> tuple[int, ...]:
        return (-1, 1)

    @property
    def messages_per_user(self) -> float:
        """1 - drop + 2 (1 - drop) E F + 2 ratio/((1 - ratio) n)."""
        tilt, length = self.share * self.epsilon, self.flood + 1
        # nearly uniform: the first terms in tilt, where the closed form cancels
        if tilt * length < 1e-4:
            mean = self.flood / 2 + (length * length - 1) * tilt / 12
        else:
            mean = (
                self.flood - 1 / math.expm1(tilt) + length / math.expm1(min(tilt * length, 700.0))
            )
        return (1 - self.drop) * (1 + 2 * mean) + 2 / (
            math.expm1((1 - self.share) * self.epsilon) * self.users
        )

    @property
    def _flood(self) -> tuple[float, int]:
        """s - F is geometric with this ratio, cut at s."""
        return math.exp(-self.share * self.epsilon), self.flood

    @property
    def _held(self) -> bool:
        """Whether a table holds the flood's distribution."""
        return self.flood < LONGEST and self._flood[0] < 1

    def _missing(self, size: int, draws: Draws) -> Tensor:
        """s - F, (size,) int64: from a table, or in floats where none holds its distribution."""
        if self._held:
            return tabulated(size, _short, self._flood, draws)
        tilt = self.share * self.epsilon
        return (
            -torch.log1p(draws.uniform((size,)) * math.expm1(-tilt * (self.flood + 1))) / tilt
        ).long()

    @property
    def variation(self) -> float | None:
        if self.ratio > MOST_RATIO or not self._held:
            return None
        return variation_of(4 * self.users, (MOST_RATE + 1) * self.messages_per_user * self.users)

    def randomize_unchecked(self, bits: Tensor, draws: Draws) -> ShuffledMessages:
        """The messages "+1" and "-1" of each user in each instance."""
        users, instances = bits.shape
        above, below = (
            scattered_negative_binomial(users, instances, 1 / self.users, self.ratio, draws)
            for _ in range(2)
        )
        kept = tabulated(bits.numel(), _coin, self.drop, draws).view(bits.shape) == 0
        copies = (self.flood - self._missing(bits.numel(), draws).view(bits.shape)).clamp_min(
            0
        ) * kept
        instance = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device).expand(
            bits.shape
        )
        flood = instance.flatten().repeat_interleave(copies.flatten())
        return signed_messages(users, [instance[bits & kept], above, flood], [below, flood])

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """Binomial(S, 1 - drop) + discrete Laplace."""
        return ones - draws.binomial(ones, self.drop) + discrete_laplace(ones, self.ratio, draws)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """total/(1 - drop)."""
        return total.double() / (1 - self.drop)

    def limits(self, n: int, most: float = 1.0) -> Limits:
        return signed_limits(n, n / self.users, self.ratio)

    def variance(self, ones: Tensor) -> Tensor:
        """S drop/(1 - drop) + 2 ratio/((1 - ratio)^2 (1 - drop)^2)."""
        noise = _laplace_variance((1 - self.share) * self.epsilon) / (1 - self.drop) ** 2
        return ones.double() * (self.drop / (1 - self.drop)) + noise

    def pure_epsilon(self, absent: int = 0) -> float:
        """epsilon + log(n/(n - absent))."""
        return (self.epsilon + math.log(self.users / self.present(absent))) * ROUNDED_UP

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        """Binary randomized response at ``pure_epsilon``: it dominates whatever is that private."""
        return (pure_profile(self.pure_epsilon(absent)),)

    @classmethod
    def least(cls, target: Target) -> "PureSum":
        """``tuned`` to the largest epsilon of one instance."""
        flips = target.sensitivity.flips
        if target.delta == 0:
            each = target.epsilon / flips
        else:
            each = largest_epsilon(lambda e: (pure_profile(e),), target.composed(cls))
        left = each * (2 - ROUNDED_UP) ** 2 - math.log(
            target.users / (target.users - target.absent)
        )
        if flips > 1 and each < 1e-6:
            raise ValueError(
                f"epsilon = {target.epsilon:g} leaves {each:.3g} to each of flips = {flips}, where PureSum "
                "needs 1e-06; ask for a larger epsilon, or fewer instances"
            )
        if left <= 0:
            raise ValueError(
                f"absent = {target.absent} of {target.users} users alone cost PureSum {each - left:.3g} in each "
                f"instance, more than the {each:.3g} there is; expect fewer to be absent, or take other noise"
            )
        return PureSum.tuned(target.users, left)

    @staticmethod
    def tuned(users: int, epsilon: float, slack: float = 0.1) -> "PureSum":
        """The PureSum of fewest messages whose RMSE is at most (1 + slack) times the discrete Laplace's at epsilon.

        epsilon: of one instance. For each share, the largest drop that keeps the RMSE solves a quadratic equation.
        Raises ValueError.
        """
        users, epsilon = (
            checks.integer("users", users, 1),
            checks.within("epsilon", epsilon, 1e-6, 700),
        )
        slack = checks.within("slack", checks.positive("slack", slack), 0, 1e9)
        budget = (1 + slack) ** 2 * _laplace_variance(epsilon)

        def law(share: float) -> "PureSum":
            noise = _laplace_variance((1 - share) * epsilon)
            b = 2 * noise + users  # z = drop/(1 - drop):  noise (1 + z)^2 + users z = budget
            z = 2 * (budget - noise) / (b + math.sqrt(b * b + 4 * noise * (budget - noise)))
            return PureSum(users, epsilon, share, z / (1 + z))

        # the share that leaves nothing to drops: 1/sinh(x/2)^2 = 2 budget
        most = 1 - 2 * math.asinh(1 / math.sqrt(2 * budget)) / epsilon
        best = minimize_scalar(
            lambda share: law(share).messages_per_user,
            bounds=(1e-3 * most, (1 - 1e-6) * most),
            method="bounded",
        )
        return law(float(best.x))


def _coin(chance: float) -> Table:
    """1 with this chance, else 0."""
    return inversion.binomial(1, chance)


def _short(setting: tuple[float, int]) -> Table:
    """s - F of (ratio, s)."""
    return inversion.cut_geometric(*setting)


def _laplace_variance(epsilon: float) -> float:
    """2 ratio/(1 - ratio)^2 of the discrete Laplace distribution, ratio = e^(-epsilon)."""
    return 1 / (2 * math.sinh(epsilon / 2) ** 2)
