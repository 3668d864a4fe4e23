"""k-ary randomized response."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import response_counts
from torchdp.kernels.dispatch import keyed
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Tally
from torchdp.randomizers.alphabet.chances import TOTAL, exponential, logarithm, stated, told_apart
from torchdp.randomizers.alphabet.frequency import (
    AlikeVariance,
    FrequencyOracle,
    bounded_proxy,
    keep_range,
    spread,
)
from torchdp.randomizers.base import exact_local


@dataclass(frozen=True)
class RandomizedResponse(FrequencyOracle):
    """Report x in [0, k) with probability p = e^epsilon/(e^epsilon + k - 1), any other value with q = p/e^epsilon.

    q is rounded up to a multiple of 2^-63, which is what is drawn, decoded and stated: at epsilon = 40 it costs .02 of
    it for k = 2, and none is above 43.7. k >= 2; epsilon in (0, 700], for many types above about k^2 2^-43. Raises
    ValueError.

    Guarantees: exactly ``guarantee.epsilon``-LDP, log(p/q) of the integers drawn, at most epsilon.
    Source: Warner (1965); Kairouz, Bonawitz, Ramage (2016), section 4.1.
    """

    k: int
    epsilon: float

    def __post_init__(self) -> None:
        keep_range(self)
        growth = exponential(self.epsilon)
        told_apart(self.epsilon, self._kept_exactly, (growth - 1) / (growth + self.k - 1))

    @property
    def guarantee(self) -> Guarantee:
        drawn = logarithm(Fraction(TOTAL - (self.k - 1) * self._step, self._step))
        return exact_local(stated(self.epsilon, drawn), "Warner (1965); log p/q of the integers drawn")

    @property
    def blanket(self) -> Blanket:
        return Blanket.two_level(self.guarantee.epsilon, 1 / self.k, bit=self.k == 2)

    @property
    def p(self) -> float:
        """Chance of the true value, as it is drawn."""
        return float(1 - (self.k - 1) * Fraction(self._step, TOTAL))

    @property
    def outputs(self) -> int:
        """k."""
        return self.k

    @property
    def variance(self) -> AlikeVariance:
        own, other = self.p * (self._uniform - self.q), self.q * (1 - self.q)
        return AlikeVariance(self.k, own / self._kept**2, other / self._kept**2)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One report in [0, k) for each user: int64, the shape of ``x``."""
        # one integer of 63 bits for each user: each of the k values owns `step` of them, what is left keeps x
        value = draws.integers(tuple(x.shape)).div_(self._step, rounding_mode="floor")
        return torch.where(value < self.k, value, x.long())

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        key = draws.kernel_key() if keyed(x.device) else None
        if key is None:
            return super().collect_unchecked(x, draws)
        return Tally(len(x), {"reports": response_counts.counts(x, self.k, self._step, key)})

    def covariance(self, x: int) -> Tensor:
        """(diag(pi) - pi pi^T)/(p - q)^2, pi = q 1 + (p - q) e_x the distribution of the report."""
        pi = torch.full((self.k,), self.q, dtype=torch.float64)
        pi[self._type(x)] = self.p
        return (torch.diag(pi) - torch.outer(pi, pi)) / self._kept**2

    def workload_variance(self, W: Tensor) -> Tensor:
        """(q S_i + k q (p - q) d_ix^2)/(p - q)^2; d_ix = W_ix - mean_x W_ix, S_i = sum_x d_ix^2. O(m k)."""
        d, S = spread(self._workload(W))
        return (self.q / self._kept * S + self._uniform * d.square()) / self._kept

    def laws(self, types: Tensor) -> Tensor:
        own = types[:, None] == torch.arange(self.k, device=types.device)
        return self.q + (self.p - self.q) * own.double()

    def mixed(self, shares: Tensor) -> Tensor:
        return self.q + (self.p - self.q) * shares

    def gathered(self, values: Tensor) -> Tensor:
        return self.q * values.sum(-1, keepdim=True) + (self.p - self.q) * values

    def workload_proxy(self, W: Tensor) -> Tensor:
        W = self._workload(W)
        low, high = ((end - self.q * W.sum(-1)) / self._kept for end in (W.amin(-1), W.amax(-1)))
        return bounded_proxy(low, high, W)

    def totals(self, tally: Tally) -> Tensor:
        """Sum of (e_y - q 1)/(p - q) over the users."""
        return (tally["reports"].double() - tally.users(1) * self.q) / self._kept

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """Binomial(counts_x, k q) users of type x report uniformly, the others x.

        The reports of the former are drawn by halving [0, k) again and again. O(k) for each row, whatever the users.
        """
        uniform = draws.binomial(counts, self._uniform)
        pools = uniform.sum(-1, keepdim=True)  # users who report uniformly, in one pool
        width = 1 << self.bits_per_user
        while width > 1:  # split each pool of `width` values into its two halves
            half = width // 2
            starts = torch.arange(pools.shape[-1], device=counts.device) * width
            left = (self.k - starts).clamp(0, half)  # values below k in each half
            both = (self.k - starts).clamp(0, width)
            share = torch.where(both > 0, left.double() / both.clamp_min(1), 1.0)
            first = draws.binomial(pools, share)
            pools = torch.stack([first, pools - first], -1).flatten(-2)
            width = half
        return counts - uniform + pools[..., : self.k]

    @cached_property
    def _step(self) -> int:
        """Of the 2^63 integers, those that lead to each other value."""
        return math.ceil(TOTAL / (exponential(self.epsilon) + self.k - 1))

    @property
    def _kept_exactly(self) -> Fraction:
        return 1 - Fraction(self.k * self._step, TOTAL)

    @cached_property
    def q(self) -> float:
        """Chance of each other value, as it is drawn."""
        return self._step / TOTAL

    @cached_property
    def _kept(self) -> float:
        return float(self._kept_exactly)  # p - q

    @cached_property
    def _uniform(self) -> float:
        return self.k * self._step / TOTAL  # 1 - (p - q); kept to full precision where it is tiny
