"""Hadamard response: one index of a Hadamard matrix."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import multinomial, popcount
from torchdp.randomizers.frequency import FrequencyOracle, alphabet, budget


@dataclass(frozen=True)
class HadamardResponse(FrequencyOracle):
    """An index y in [0, K), K = 2^ceil(log2(k + 1)), e^epsilon times as likely where H[x + 1, y] = 1 as where -1.

    H is Sylvester's Hadamard matrix, H[a, y] = (-1)^popcount(a & y). Decoded: Y_v = c H[v + 1, y], c = coth(epsilon/2);
    Cov(Y | x) is c^2 on the diagonal and c at (a, b) with (a + 1) xor (b + 1) = x + 1, less e_x e_x^T.
    k >= 2; epsilon in (0, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP.
    Source: Acharya, Sun, Zhang (2019), the high privacy regime.
    """

    k: int
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", alphabet(self.k))
        object.__setattr__(self, "epsilon", budget(self.epsilon))

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self.epsilon, "Acharya, Sun, Zhang (2019); two probabilities, ratio e^epsilon")

    @property
    def bits(self) -> int:
        """log2 K."""
        return self.k.bit_length()

    @property
    def tallies(self) -> int:
        """K: how many users report each index."""
        return 1 << self.bits

    @property
    def _words(self) -> int:
        return 1

    @property
    def _scale(self) -> float:
        return 1 / math.tanh(self.epsilon / 2)

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
        lifted = torch.nn.functional.pad(W, (1, self.tallies - self.k - 1))
        pairs = walsh_hadamard(walsh_hadamard(lifted).square())[..., 1 : self.k + 1] / self.tallies
        squares = W.square()
        return c * c * squares.sum(-1, keepdim=True) + c * pairs - squares

    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        """One index in [0, K) for each user: int64, the shape of ``x``.

        A uniform index; where its sign is not the one drawn, the lowest bit of x + 1 is flipped in it, which maps
        the indices of one sign one to one onto those of the other.
        """
        y, row = draws.words(tuple(x.shape)) & (self.tallies - 1), x + 1
        # 1: H = -1, with a probability that is rounded up to a multiple of 2^-53, the private side
        wanted = (draws.uniform(tuple(x.shape)) < 1 / (1 + math.exp(self.epsilon))).long()
        return torch.where((popcount(row & y) & 1) == wanted, y, y ^ (row & -row))

    def tally(self, messages: Tensor) -> Tensor:
        """How many messages are each index: (K,), int64. messages: integers in [0, K)."""
        messages = checks.indices("messages", messages, self.tallies)
        return torch.bincount(messages.flatten(), minlength=self.tallies)

    def decode_counts(self, reports: Tensor) -> Tensor:
        """Sum of Y from the tally: (*batch, K) -> (*batch, k), float64, by a fast transform."""
        return self._scale * walsh_hadamard(self._tallied(reports))[..., 1 : self.k + 1]

    def _reports(self, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """One multinomial for each type that is held: O(k K) binomials for each repetition, whatever the users."""
        row = torch.arange(1, self.k + 1, device=counts.device)[:, None]
        odd = popcount(row & torch.arange(self.tallies, device=counts.device)) & 1
        unlikely = 2 / self.tallies / (1 + math.exp(self.epsilon))
        laws = unlikely * (1 + math.expm1(self.epsilon) * (1 - odd.double()))
        return multinomial(counts.expand(*shape, self.k), laws, draws)


def walsh_hadamard(values: Tensor) -> Tensor:
    """H values along the last dimension, whose length is a power of two."""
    size, width = values.shape[-1], 1
    while width < size:
        pairs = values.unflatten(-1, (-1, 2, width))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        values = torch.stack([first + second, first - second], -2).flatten(-3)
        width *= 2
    return values
