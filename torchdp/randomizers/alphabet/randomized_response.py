"""Oracles whose message is one number: k-ary randomized response; an index of a Hadamard matrix."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from scipy.linalg import hadamard
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import response_counts
from torchdp.kernels.dispatch import keyed
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Tally
from torchdp.randomizers.alphabet.chances import (
    TOTAL,
    at_least,
    exponential,
    logarithm,
    stated,
    told_apart,
)
from torchdp.randomizers.alphabet.frequency import (
    AlikeVariance,
    StrategyOracle,
    keep_range,
    spread,
)
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import bernoulli, halved, popcount

BLOCK = 32  # rows of H in one product


@dataclass(frozen=True)
class RandomizedResponse(StrategyOracle):
    """Report x in [0, k) with probability p = e^epsilon/(e^epsilon + k - 1), any other value with
    q = p/e^epsilon.

    q is rounded up to a multiple of 2^-63, which is what is drawn, decoded and stated: at epsilon =
    40 it costs .02 of it for k = 2, and none is above 43.7. k >= 2; epsilon in (0, 700], for many
    types above about k^2 2^-43. Raises ValueError.

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
        return exact_local(
            stated(self.epsilon, drawn), "Warner (1965); log p/q of the integers drawn"
        )

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
        return AlikeVariance(self.k, own / self._kept**2, other / self._kept**2, 1 / self._kept)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One report in [0, k) for each user: int64, the shape of ``x``."""
        # one integer of 63 bits for each user: each of the k values owns `step` of them, what is
        # left keeps x
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
        """(q S_i + k q (p - q) d_ix^2)/(p - q)^2; d_ix = W_ix - mean_x W_ix, S_i = sum_x d_ix^2.
        O(m k).
        """
        d, S = spread(self._workload(W))
        return (self.q / self._kept * S + self._uniform * d.square()) / self._kept

    def laws(self, types: Tensor) -> Tensor:
        own = types[:, None] == torch.arange(self.k, device=types.device)
        return self.q + (self.p - self.q) * own.double()

    def mixed(self, shares: Tensor) -> Tensor:
        return self.q + (self.p - self.q) * shares

    def gathered(self, values: Tensor) -> Tensor:
        return self.q * values.sum(-1, keepdim=True) + (self.p - self.q) * values

    def decoder(self, W: Tensor) -> Tensor:
        W = self._workload(W)
        return (W - self.q * W.sum(-1, keepdim=True)) / self._kept

    def totals(self, tally: Tally) -> Tensor:
        """Sum of (e_y - q 1)/(p - q) over the users."""
        return (tally["reports"].double() - tally.users(1) * self.q) / self._kept

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """Binomial(counts_x, k q) users of type x report uniformly, the others x.

        The reports of the former are drawn by halving [0, k) again and again. O(k) for each row,
        whatever the users.
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


@dataclass(frozen=True)
class HadamardResponse(StrategyOracle):
    """An index y in [0, K), K = 2^ceil(log2(k + 1)), e^epsilon times as likely where H[x + 1, y] =
    1 as where -1.

    H is Sylvester's Hadamard matrix, H[a, y] = (-1)^popcount(a & y). Decoded: Y_v = c H[v + 1, y],
    c = coth(epsilon/2); Cov(Y | x) is c^2 on the diagonal and c at (a, b) with (a + 1) xor
    (b + 1) = x + 1, less e_x e_x^T. k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chance drawn is a float, rounded to the private side.
    Source: Acharya, Sun, Zhang (2019), the high privacy regime.
    """

    k: int
    epsilon: float

    def __post_init__(self) -> None:
        keep_range(self)
        growth = exponential(self.epsilon)
        told_apart(self.epsilon, 1 - 2 * Fraction(self.lost), (growth - 1) / (growth + 1))

    @property
    def guarantee(self) -> Guarantee:
        drawn = logarithm(1 / Fraction(self.lost) - 1)
        source = "Acharya, Sun, Zhang (2019); log ratio of the two probabilities drawn"
        return exact_local(stated(self.epsilon, drawn), source)

    @property
    def blanket(self) -> Blanket:
        """Half of each row, a quarter of two rows is 1; the index 0 is in all."""
        return Blanket.two_level(self.guarantee.epsilon, 0.5, 0.25, 1 / self.outputs)

    @property
    def outputs(self) -> int:
        """K."""
        return 1 << self.k.bit_length()

    @cached_property
    def lost(self) -> float:
        """P(H[x + 1, y] = -1)."""
        return at_least(1 / (exponential(self.epsilon) + 1))

    @property
    def _scale(self) -> float:
        return 1 / (1 - 2 * self.lost)  # a difference without rounding, near 1/2

    @property
    def variance(self) -> AlikeVariance:
        return AlikeVariance(self.k, self._scale**2 - 1, self._scale**2, 2 * self._scale)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One index in [0, K) for each user: int64, the shape of ``x``.

        A uniform index; where its sign is not the one drawn, the lowest bit of x + 1 is flipped in
        it, which maps the indices of one sign one to one onto those of the other.
        """
        y, row = draws.words(tuple(x.shape)) & (self.outputs - 1), x.long() + 1
        wanted = bernoulli(x.numel(), self.lost, draws).view(x.shape)  # 1: H = -1
        return torch.where((popcount(row & y) & 1) == wanted, y, y ^ (row & -row))

    def laws(self, types: Tensor) -> Tensor:
        y = torch.arange(self.outputs, device=types.device)
        signs = 1 - 2 * (popcount((types.long()[:, None] + 1) & y) & 1).double()
        return (1 + signs * (1 - 2 * self.lost)) / self.outputs

    def _transformed(self, values: Tensor) -> Tensor:
        """sum_x H[x + 1, y] values_x: (*batch, k) -> (*batch, K)."""
        padded = torch.nn.functional.pad(values, (1, self.outputs - self.k - 1))
        return walsh_hadamard(padded)

    def mixed(self, shares: Tensor) -> Tensor:
        return (1 + (1 - 2 * self.lost) * self._transformed(shares)) / self.outputs

    def gathered(self, values: Tensor) -> Tensor:
        signed = walsh_hadamard(values)[..., 1 : self.k + 1]
        return (values.sum(-1, keepdim=True) + (1 - 2 * self.lost) * signed) / self.outputs

    def decoder(self, W: Tensor) -> Tensor:
        return self._scale * self._transformed(self._workload(W))

    def totals(self, tally: Tally) -> Tensor:
        """By a fast transform."""
        return self._scale * walsh_hadamard(tally["reports"].double())[..., 1 : self.k + 1]

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """O(K log K) coins for each row, whatever the users and types.

        A user of type x has a = x + 1 and the parity c of a & y, which is 1 with the small chance;
        given it y is uniform. Its highest bit t is a fair coin, unless it is the only one of a,
        when t = c. The lower bits are uniform given their parity with those of a, which is c + t
        a_high: users who agree in these two are alike.
        """
        crowds = counts.new_zeros(len(counts), 1, self.outputs, 2)
        odd = draws.binomial(counts, self.lost)
        crowds[:, 0, 1 : self.k + 1] = torch.stack([counts - odd, odd], -1)
        for _ in range(self.bits_per_user):
            # (rows, blocks of y, high bit of a, its lower bits, parity)
            high = crowds.unflatten(2, (2, -1))
            zero = halved(high, draws)
            zero[:, :, 1, 0, 0], zero[:, :, 1, 0, 1] = high[:, :, 1, 0, 0], 0
            one = high - zero
            both = [zero[:, :, 0] + zero[:, :, 1], one[:, :, 0] + one[:, :, 1].flip(-1)]
            crowds = torch.stack(both, 2).flatten(1, 2)
        return crowds[..., 0, 0]


def walsh_hadamard(values: Tensor) -> Tensor:
    """H values along the last dimension, whose length is a power of two: by products with blocks of
    H.
    """
    shape, width = values.shape, 1
    while width < shape[-1]:
        rows = min(BLOCK, shape[-1] // width)
        block = torch.from_numpy(hadamard(rows)).to(values)
        blocks = shape[-1] // (rows * width)
        values = (block @ values.reshape(*shape[:-1], blocks, rows, width)).reshape(shape)
        width *= rows
    return values
