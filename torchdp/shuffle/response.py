"""Randomized response behind a shuffler: every user sends one bit."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy.accounting import Profile
from torchdp.protocol import Limits
from torchdp.shuffle.count_laws import SURELY
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.response_curve import flip_of, least_flip, response_profile
from torchdp.shuffle.search import Target, least_noise


@dataclass(frozen=True)
class RandomizedResponseSum(MessageLaw):
    """Each user sends its bit, flipped with probability ``flip`` in (0, 1/2): exactly one message.

    The shuffled messages are their number of ones Y ~ Binomial(S, 1 - flip) + Binomial(n - S, flip), and the
    estimate is (Y - n flip)/(1 - 2 flip), with variance n flip (1 - flip)/(1 - 2 flip)^2 whatever the bits.
    Raises ValueError.

    Guarantees: its exact dominating pairs. With k ones among the other n - 1 users, Y has distribution
    P_k = (1 - flip) (N_k + 1) + flip N_k if the user holds a one and Q_k = flip (N_k + 1) + (1 - flip) N_k if not,
    N_k ~ Binomial(n - 1 - k, flip) + Binomial(k, 1 - flip). Every pair of neighbours is some (P_k, Q_k) or its swap,
    so their largest hockey-stick divergence is the smallest curve that bounds all of them; it need not be attained
    at k = 0 or n - 1. Flips alone are counted, also of numbers that are rounded to bits. Users who are absent leave the
    protocol of those present. Before any shuffling it is ln((1 - flip)/flip)-private.
    Source: Warner (1965); Cheu, Smith, Ullman, Zeber, Zhilyaev (2019) for the protocol behind a shuffler.
    """

    own_number: ClassVar[bool] = True

    flip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, flip=checks.fraction)
        if self.flip >= 0.5:
            raise ValueError(f"flip must be below 1/2, not {self.flip}: at 1/2 the messages say nothing")

    @property
    def contents(self) -> tuple[int, ...]:
        return (0, 1)

    @property
    def messages_per_user(self) -> float:
        """1."""
        return 1.0

    def randomize_unchecked(self, bits: Tensor, draws: Draws) -> ShuffledMessages:
        """One message of each user in each instance."""
        flips = draws.integers(tuple(bits.shape)) < math.ceil(Fraction(self.flip) * 2**63)  # no fewer than flip
        instance = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device).repeat(len(bits))
        return ShuffledMessages(len(bits), instance, (bits ^ flips).flatten().to(torch.int8))

    @property
    def variation(self) -> float:
        return 0.0

    def refuse(self, messages: Tensor, n: int) -> None:
        if (messages != n).any():
            raise ValueError(
                f"messages must have one of each of the {n} users in every instance; some instance has more or "
                "fewer. Count only the users who sent, and leave out what was sent twice"
            )

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """Binomial(S, 1 - flip) + Binomial(n - S, flip)."""
        return ones - draws.binomial(ones, self.flip) + draws.binomial(self.users - ones, self.flip)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """(Y - n flip)/(1 - 2 flip)."""
        return (total.double() - n * self.flip) / (1 - 2 * self.flip)

    def limits(self, n: int, most: float = 1.0) -> Limits:
        return Limits(0, n)

    def variance(self, ones: Tensor) -> Tensor:
        """n flip (1 - flip)/(1 - 2 flip)^2."""
        variance = self.users * self.flip * (1 - self.flip) / (1 - 2 * self.flip) ** 2
        return torch.full_like(ones, variance, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        return (response_profile(self.present(absent), self.flip),)

    def pure_epsilon(self, absent: int = 0) -> float:
        """ln((1 - flip)/flip), rounded up; 1 - 2 flip loses no digit near 1/2."""
        return math.log1p((1 - 2 * self.flip) / self.flip) * SURELY

    @classmethod
    def least(cls, target: Target) -> Self:
        if target.delta == 0:
            law = cls(target.users, 1 / (1 + math.exp(target.epsilon / target.sensitivity.flips)))
            while (
                law.pure_epsilon() * target.sensitivity.flips > target.epsilon
            ):  # by some units in the last place
                law = cls(target.users, math.nextafter(law.flip, 1))
            return law
        target = target.composed(cls)
        if target.sensitivity.flips == 1:
            return cls(target.users, least_flip(target.users - target.absent, target.epsilon, target.delta))
        return least_noise(lambda rmse: cls.of_rmse(target.users, rmse), target.central, target)

    @classmethod
    def of_rmse(cls, users: int, rmse: float) -> Self:
        """flip = (1 - sqrt(n/(n + 4 rmse^2)))/2, without cancellation."""
        return cls(users, flip_of(users, rmse))
