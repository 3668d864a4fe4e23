"""Oracles whose message is one number: k-ary randomized response; an index of a Hadamard matrix.

Notation: p is the chance of the true value, q = p/e^epsilon that of each other one; H is
Sylvester's matrix, c = coth(epsilon/2).
"""

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
from torchdp.randomizers.draws import bernoulli, halved, multinomial, popcount

BLOCK = 32  # rows of H in one product


@dataclass(frozen=True)
class RandomizedResponse(StrategyOracle):
    """Report x with probability p = e^epsilon/(e^epsilon + k - 1), any other value with q.

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
        wanted = (growth - 1) / (growth + self.k - 1)
        told_apart(self.epsilon, self._kept_exactly, wanted)

    @property
    def guarantee(self) -> Guarantee:
        own = TOTAL - (self.k - 1) * self._step
        drawn = logarithm(Fraction(own, self._step))
        source = "Warner (1965); log p/q of the integers drawn"
        return exact_local(stated(self.epsilon, drawn), source)

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
        square = self._kept**2
        # 1 - p as (1 - (p - q)) - q: near p = 1 the plain difference has no digits.
        own = self.p * (self._uniform - self.q) / square
        other = self.q * (1 - self.q) / square
        return AlikeVariance(self.k, own, other, 1 / self._kept)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One report in [0, k) for each user: int64, the shape of ``x``."""
        # One integer of 63 bits for each user: each of the k values owns `step` of them, the rest
        # keeps x.
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
        """(q S_i + k q (p - q) d_ix^2)/(p - q)^2, in O(m k).

        d_ix = W_ix - mean_x W_ix, S_i = sum_x d_ix^2.
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

        O(k) for each row, whatever the users.
        """
        uniform = draws.binomial(counts, self._uniform)
        pool = uniform.sum(-1, keepdim=True)
        even = torch.ones(1, self.k, dtype=torch.float64, device=counts.device)
        return counts - uniform + multinomial(pool, even, draws)

    @cached_property
    def _step(self) -> int:
        """Of the 2^63 integers, those that lead to each other value."""
        # Rounded up: a larger chance of the other values is the private side.
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
    """An index y in [0, K), e^epsilon times as likely where H[x + 1, y] = 1 as where it is -1.

    H is Sylvester's matrix of K = 2^ceil(log2(k + 1)) rows, H[a, y] = (-1)^popcount(a & y).
    Decoded: Y_v = c H[v + 1, y], c = coth(epsilon/2); Cov(Y | x) is c^2 on the diagonal and c at
    (a, b) with (a + 1) xor (b + 1) = x + 1, less e_x e_x^T.
    k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chance drawn is a float, rounded to the private side.
    Source: Acharya, Sun, Zhang (2019), the high privacy regime.
    """

    k: int
    epsilon: float

    def __post_init__(self) -> None:
        keep_range(self)
        growth = exponential(self.epsilon)
        gap = 1 - 2 * Fraction(self.lost)
        told_apart(self.epsilon, gap, (growth - 1) / (growth + 1))

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
        # A power of two above k: row 0 of H is constant, tells nothing, and stands for no type.
        return 1 << self.k.bit_length()

    @cached_property
    def lost(self) -> float:
        """P(H[x + 1, y] = -1)."""
        # Rounded up: more lies are the private side.
        return at_least(1 / (exponential(self.epsilon) + 1))

    @property
    def _scale(self) -> float:
        """c."""
        return 1 / (1 - 2 * self.lost)  # a difference without rounding, near 1/2

    @property
    def variance(self) -> AlikeVariance:
        return AlikeVariance(self.k, self._scale**2 - 1, self._scale**2, 2 * self._scale)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One index in [0, K) for each user: int64, the shape of ``x``.

        A uniform index; where its sign is not the one drawn, the lowest bit of x + 1 is flipped in
        it, which maps the indices of one sign one to one onto those of the other.
        """
        y = draws.words(tuple(x.shape)) & (self.outputs - 1)
        row = x.long() + 1
        wanted = bernoulli(x.numel(), self.lost, draws).view(x.shape)  # 1: H = -1
        return torch.where((popcount(row & y) & 1) == wanted, y, y ^ (row & -row))

    def laws(self, types: Tensor) -> Tensor:
        y = torch.arange(self.outputs, device=types.device)
        rows = types.long()[:, None] + 1
        odd = popcount(rows & y) & 1
        signs = 1 - 2 * odd.double()
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
            # The highest bit is the only one of a: t = c.
            zero[:, :, 1, 0, 0] = high[:, :, 1, 0, 0]
            zero[:, :, 1, 0, 1] = 0
            one = high - zero
            lower = zero[:, :, 0] + zero[:, :, 1]
            upper = one[:, :, 0] + one[:, :, 1].flip(-1)
            crowds = torch.stack([lower, upper], 2).flatten(1, 2)
        # No digits of a are left, and the parity of none is 0: the other column is empty.
        return crowds[..., 0, 0]


def walsh_hadamard(values: Tensor) -> Tensor:
    """H values along the last dimension, of length 2^n, by products with blocks of H."""
    shape = values.shape
    width = 1
    while width < shape[-1]:
        rows = min(BLOCK, shape[-1] // width)
        block = torch.from_numpy(hadamard(rows)).to(values)
        blocks = shape[-1] // (rows * width)
        values = block @ values.reshape(*shape[:-1], blocks, rows, width)
        values = values.reshape(shape)
        width *= rows
    return values
