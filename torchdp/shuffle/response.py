"""Randomized response behind a shuffler: every user sends one bit."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.shuffle.bitsum import ShuffledBitSum
from torchdp.shuffle.dominating import Profile, response_profile
from torchdp.shuffle.messages import Messages


@dataclass(frozen=True)
class RandomizedResponseSum(ShuffledBitSum):
    """Each user sends its bit, flipped with probability ``flip`` in (0, 1/2): exactly one message.

    The shuffled messages are their number of ones Y ~ Binomial(S, 1 - flip) + Binomial(n - S, flip), and the
    estimate is (Y - n flip)/(1 - 2 flip), with variance n flip (1 - flip)/(1 - 2 flip)^2 whatever the bits.
    Raises ValueError.

    Guarantees: its exact dominating pairs. With k ones among the other n - 1 users, Y has law
    P_k = (1 - flip) (N_k + 1) + flip N_k if the user holds a one and Q_k = flip (N_k + 1) + (1 - flip) N_k if not,
    N_k ~ Binomial(n - 1 - k, flip) + Binomial(k, 1 - flip). Every pair of neighbours is some (P_k, Q_k) or its swap,
    so their largest hockey-stick divergence is the smallest curve that bounds all of them; it need not be attained
    at k = 0 or n - 1. Users who are absent leave the protocol of those present.
    Source: Warner (1965); Cheu, Smith, Ullman, Zeber, Zhilyaev (2019) for the protocol behind a shuffler.
    """

    flip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "flip", checks.fraction("flip", self.flip))
        if self.flip >= 0.5:
            raise ValueError(f"flip must be below 1/2, not {self.flip}: at 1/2 the messages say nothing")

    @property
    def contents(self) -> tuple[int, ...]:
        return (0, 1)

    @property
    def messages_per_user(self) -> float:
        """1."""
        return 1.0

    def speak(self, bits: Tensor, draws: Draws) -> Messages:
        """One message of each user in each instance: (m, instances) bool."""
        flips = draws.uniform(tuple(bits.shape)) < self.flip
        instance = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device).repeat(len(bits))
        return Messages(instance, (bits ^ flips).flatten().to(torch.int8))

    def _estimate(self, messages: Tensor, total: Tensor, present: int) -> Tensor:
        if (messages != present).any():
            raise ValueError(
                f"every instance needs exactly one message of each of the {present} users present; some instance "
                "has more or fewer. State how many users sent nothing as absent, or leave out what was sent twice"
            )
        return self._decode(total.double(), present)

    def drawn(self, ones: Tensor, draws: Draws) -> Tensor:
        """(Binomial(S, 1 - flip) + Binomial(n - S, flip) - n flip)/(1 - 2 flip)."""
        kept, flipped = ones - draws.binomial(ones, self.flip), draws.binomial(self.users - ones, self.flip)
        return self._decode((kept + flipped).double(), self.users)

    def variance(self, ones: Tensor) -> Tensor:
        """n flip (1 - flip)/(1 - 2 flip)^2."""
        variance = self.users * self.flip * (1 - self.flip) / (1 - 2 * self.flip) ** 2
        return torch.full_like(self._ones(ones), variance, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        return (response_profile(self._present(absent), self.flip),)

    @classmethod
    def of_rmse(cls, users: int, rmse: float) -> Self:
        """flip = (1 - sqrt(n/(n + 4 rmse^2)))/2, without cancellation."""
        whole = users + 4 * rmse**2
        return cls(users, 2 * rmse**2 / (whole * (1 + math.sqrt(users / whole))))

    def _decode(self, total: Tensor, present: int) -> Tensor:
        return (total - present * self.flip) / (1 - 2 * self.flip)
