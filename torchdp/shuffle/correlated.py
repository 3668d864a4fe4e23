"""Correlated noise: pairs of messages that cancel hide the noise that does not."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.shuffle.bitsum import ShuffledBitSum
from torchdp.shuffle.dominating import Profile, correlated_profiles
from torchdp.shuffle.draws import scattered_negative_binomial
from torchdp.shuffle.messages import Messages


@dataclass(frozen=True)
class CorrelatedSum(ShuffledBitSum):
    """The protocol of three negative binomials: a user with bit x sends x + Z1 + Z3 times "+1" and Z2 + Z3 times "-1".

    The n independent Z1 add up to D1 ~ NB(1, ratio), the Z2 to D2 of the same law, the Z3 to the flood
    D3 ~ NB(flood_shape, flood_ratio). The estimate, the sum of all messages, is S + D1 - D2: the flood cancels, and
    the error is exactly discrete Laplace, Pr[k] = (1 - ratio)/(1 + ratio) ratio^|k|, of variance
    2 ratio/(1 - ratio)^2. Raises ValueError.

    Guarantees: its exact dominating pair and the pair's swap. The view is (U, V), the numbers of "+1" and "-1", less
    the known shift by the other users' bits. If the user holds 0, d = U - V = D1 - D2 and min(D1, D2), geometric of
    ratio ratio^2, are independent, so t = V - max(0, -d) ~ g, the law of D3 + min(D1, D2), whatever d is. If the user
    holds 1, d = 1 + D1 - D2, and t ~ g where d >= 1 but t - 1 ~ g where d <= 0. On either side the law of d is the
    same for both bits, up to the side's probability: 1/(1 + ratio) for d >= 1 and ratio/(1 + ratio) for d <= 0 if the
    user holds 1, the reverse if 0. So the pair is (side, and t where d <= 0). As the flood grows it approaches binary
    randomized response at epsilon = -log(ratio), which it never beats. With absent users: an upper bound.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorem 1; the flood for sensitivity one after Ghazi, Kumar,
    Manurangsi, Pagh, Sinha (2021), Lemma 9.
    """

    ratio: float
    flood_shape: float
    flood_ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ratio", checks.fraction("ratio", self.ratio))
        object.__setattr__(self, "flood_shape", checks.positive("flood_shape", self.flood_shape))
        object.__setattr__(self, "flood_ratio", checks.fraction("flood_ratio", self.flood_ratio))

    @property
    def contents(self) -> tuple[int, ...]:
        return (-1, 1)

    @property
    def messages_per_user(self) -> float:
        """1 + (2 ratio/(1 - ratio) + 2 E D3)/n."""
        flood = self.flood_shape * self.flood_ratio / (1 - self.flood_ratio)
        return 1 + 2 * (self.ratio / (1 - self.ratio) + flood) / self.users

    def speak(self, bits: Tensor, draws: Draws) -> Messages:
        """x + Z1 + Z3 messages "+1" and Z2 + Z3 messages "-1" of each user in each instance: (m, instances) bool."""
        (users, instances), true = bits.shape, bits.nonzero()[:, 1].to(torch.int32)
        above, below = (
            scattered_negative_binomial(users, instances, 1 / self.users, self.ratio, draws) for _ in range(2)
        )
        flood = scattered_negative_binomial(
            users, instances, self.flood_shape / self.users, self.flood_ratio, draws
        )
        return signed_messages([true, above, flood], [below, flood])

    def _estimate(self, messages: Tensor, total: Tensor, present: int) -> Tensor:
        return total.double()

    def drawn(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + D1 - D2."""
        return (ones + discrete_laplace(ones, self.ratio, draws)).double()

    def variance(self, ones: Tensor) -> Tensor:
        """2 ratio/(1 - ratio)^2."""
        return torch.full_like(self._ones(ones), 2 * self.ratio / (1 - self.ratio) ** 2, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        left = self._present(absent) / self.users
        return correlated_profiles(self.ratio, left * self.flood_shape, self.flood_ratio, shape=left)


def signed_messages(plus: list[Tensor], minus: list[Tensor]) -> Messages:
    """Messages "+1" and "-1" from the instances they belong to, int32."""
    instance, positive = torch.cat(plus + minus), sum(len(part) for part in plus)
    content = torch.ones_like(instance, dtype=torch.int8)
    content[positive:] = -1
    return Messages(instance, content)


def discrete_laplace(like: Tensor, ratio: float, draws: Draws) -> Tensor:
    """Pr[k] = (1 - ratio)/(1 + ratio) ratio^|k|, int64, of this shape: the difference of two NB(1, ratio)."""
    one = torch.ones_like(like, dtype=torch.float64)
    return draws.negative_binomial(one, ratio) - draws.negative_binomial(one, ratio)
