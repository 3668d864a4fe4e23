"""Hadamard response: one index of a Hadamard matrix."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from scipy.linalg import hadamard
from torch import Tensor

from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Tally
from torchdp.randomizers.alphabet.chances import at_least, exponential, logarithm, stated, told_apart
from torchdp.randomizers.alphabet.frequency import AlikeVariance, FrequencyOracle, bounded_proxy, keep_range
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import bernoulli, halved, popcount

BLOCK = 32  # rows of H in one product


@dataclass(frozen=True)
class HadamardResponse(FrequencyOracle):
    """An index y in [0, K), K = 2^ceil(log2(k + 1)), e^epsilon times as likely where H[x + 1, y] = 1 as where -1.

    H is Sylvester's Hadamard matrix, H[a, y] = (-1)^popcount(a & y). Decoded: Y_v = c H[v + 1, y], c = coth(epsilon/2);
    Cov(Y | x) is c^2 on the diagonal and c at (a, b) with (a + 1) xor (b + 1) = x + 1, less e_x e_x^T.
    k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

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
        return AlikeVariance(self.k, self._scale**2 - 1, self._scale**2)

    def covariance(self, x: int) -> Tensor:
        rows, c = torch.arange(1, self.k + 1), self._scale
        covariance = c * ((rows[:, None] ^ rows) == self._type(x) + 1).double()
        covariance.fill_diagonal_(c * c)
        covariance[x, x] -= 1
        return covariance

    def workload_variance(self, W: Tensor) -> Tensor:
        """c^2 sum_v W_iv^2 + c sum over (a + 1) xor (b + 1) = x + 1 of W_ia W_ib - W_ix^2. O(m k log k).

        The middle sum is a convolution over xor: the transform of the squared transform.
        """
        W, c = self._workload(W), self._scale
        lifted = torch.nn.functional.pad(W, (1, self.outputs - self.k - 1))
        pairs = walsh_hadamard(walsh_hadamard(lifted).square())[..., 1 : self.k + 1] / self.outputs
        squares = W.square()
        return c * c * squares.sum(-1, keepdim=True) + c * pairs - squares

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One index in [0, K) for each user: int64, the shape of ``x``.

        A uniform index; where its sign is not the one drawn, the lowest bit of x + 1 is flipped in it, which maps
        the indices of one sign one to one onto those of the other.
        """
        y, row = draws.words(tuple(x.shape)) & (self.outputs - 1), x.long() + 1
        wanted = bernoulli(x.numel(), self.lost, draws).view(x.shape)  # 1: H = -1
        return torch.where((popcount(row & y) & 1) == wanted, y, y ^ (row & -row))

    def laws(self, types: Tensor) -> Tensor:
        y = torch.arange(self.outputs, device=types.device)
        signs = 1 - 2 * (popcount((types.long()[:, None] + 1) & y) & 1).double()
        return (1 + signs * (1 - 2 * self.lost)) / self.outputs

    def mixed(self, shares: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(shares, (1, self.outputs - self.k - 1))
        return (1 + (1 - 2 * self.lost) * walsh_hadamard(padded)) / self.outputs

    def gathered(self, values: Tensor) -> Tensor:
        signed = walsh_hadamard(values)[..., 1 : self.k + 1]
        return (values.sum(-1, keepdim=True) + (1 - 2 * self.lost) * signed) / self.outputs

    def workload_proxy(self, W: Tensor) -> Tensor:
        W = self._workload(W)
        values = self._scale * walsh_hadamard(torch.nn.functional.pad(W, (1, self.outputs - self.k - 1)))
        return bounded_proxy(values.amin(-1), values.amax(-1), W)

    def totals(self, tally: Tally) -> Tensor:
        """By a fast transform."""
        return self._scale * walsh_hadamard(tally["reports"].double())[..., 1 : self.k + 1]

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """O(K log K) coins for each row, whatever the users and types.

        A user of type x has a = x + 1 and the parity c of a & y, which is 1 with the small chance; given it y is
        uniform. Its highest bit t is a fair coin, unless it is the only one of a, when t = c. The lower bits are
        uniform given their parity with those of a, which is c + t a_high: users who agree in these two are alike.
        """
        crowds = counts.new_zeros(len(counts), 1, self.outputs, 2)
        odd = draws.binomial(counts, self.lost)
        crowds[:, 0, 1 : self.k + 1] = torch.stack([counts - odd, odd], -1)
        for _ in range(self.bits_per_user):
            high = crowds.unflatten(2, (2, -1))  # (rows, blocks of y, high bit of a, its lower bits, parity)
            zero = halved(high, draws)
            zero[:, :, 1, 0, 0], zero[:, :, 1, 0, 1] = high[:, :, 1, 0, 0], 0
            one = high - zero
            both = [zero[:, :, 0] + zero[:, :, 1], one[:, :, 0] + one[:, :, 1].flip(-1)]
            crowds = torch.stack(both, 2).flatten(1, 2)
        return crowds[..., 0, 0]


def walsh_hadamard(values: Tensor) -> Tensor:
    """H values along the last dimension, whose length is a power of two: by products with blocks of H."""
    shape, width = values.shape, 1
    while width < shape[-1]:
        rows = min(BLOCK, shape[-1] // width)
        block = torch.from_numpy(hadamard(rows)).to(values)
        values = (block @ values.reshape(*shape[:-1], -1, rows, width)).reshape(shape)
        width *= rows
    return values
