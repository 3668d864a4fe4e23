"""Oracles whose message is a set of values, one bit for each: optimised and symmetric unary encoding."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import unary_counts
from torchdp.kernels.dispatch import fuses
from torchdp.privacy import Guarantee
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import WORD, bernoulli_words, column_counts, popcount, words_for
from torchdp.randomizers.frequency import (
    WORDS_AT_ONCE,
    FrequencyOracle,
    all_counted,
    alphabet,
    budget,
    in_parts,
)


@dataclass(frozen=True)
class BitVectorOracle(FrequencyOracle):
    """The message b in {0, 1}^k has P(b_x = 1) = p for the user's own x and q for every other value.

    Decoded: Y = (b - q 1)/(p - q). Messages are packed: bit v is bit v % 64 of the int64 word v // 64, so a message
    is ceil(k/64) words. A tally holds, for each value, the users whose bit is set, and at its end the users.
    k >= 2; epsilon in (0, 700]. Raises ValueError.
    """

    k: int
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", alphabet(self.k))
        object.__setattr__(self, "epsilon", budget(self.epsilon))

    @property
    @abstractmethod
    def lost(self) -> float:
        """1 - p, to full precision where it is tiny: what is drawn, since p itself may round to 1."""

    @property
    @abstractmethod
    def off(self) -> float:
        """q."""

    @property
    @abstractmethod
    def gap(self) -> float:
        """p - q."""

    @property
    def tallies(self) -> int:
        """k + 1: the users whose bit v is set, for each v, and the users."""
        return self.k + 1

    @property
    def _words(self) -> int:
        return words_for(self.k)

    def tally(self, messages: Tensor) -> Tensor:
        """(k + 1,), int64, from packed messages of shape (..., ceil(k/64)), int64. Raises TypeError, ValueError."""
        if not isinstance(messages, Tensor) or messages.dtype != torch.int64:
            raise TypeError("messages must be an int64 tensor of packed bits, as sample returns")
        if messages.ndim == 0 or messages.shape[-1] != self._words:
            raise ValueError(f"messages must have shape (..., {self._words}), not {tuple(messages.shape)}")
        rows = messages.reshape(-1, self._words)
        return torch.cat([column_counts(rows)[: self.k], rows.new_tensor([len(rows)])])

    def decode_counts(self, reports: Tensor) -> Tensor:
        """Sum of Y from the tally: (*batch, k + 1) -> (*batch, k), float64."""
        reports = self._tallied(reports)
        return (reports[..., :-1] - reports[..., -1:] * self.off) / self.gap

    def _packed(self, x: Tensor, draws: Draws, other: float) -> Tensor:
        """Independent bits: 0 with probability ``lost`` for the value x, 1 with ``other`` elsewhere; (n, words)."""
        words = bernoulli_words((len(x), self._words), other, draws)
        if self.k % WORD:
            words[:, -1] &= (1 << self.k % WORD) - 1
        put_bit(words, x, self._own(x, draws))
        return words

    def _own(self, x: Tensor, draws: Draws) -> Tensor:
        """Each user's own bit, 0 with probability ``lost`` rounded up to a multiple of 2^-53, the private side."""
        return draws.uniform(tuple(x.shape)) >= self.lost


@dataclass(frozen=True)
class UnaryEncoding(BitVectorOracle):
    """A bit vector whose k bits are independent."""

    @property
    @abstractmethod
    def on(self) -> float:
        """p."""

    @property
    def bits(self) -> int:
        """k."""
        return self.k

    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        """One packed message for each user: int64 (*x.shape, ceil(k/64))."""
        return self._packed(x.flatten(), draws, self.off).view(*x.shape, self._words)

    def _collect(self, x: Tensor, draws: Draws) -> Tensor:
        """As in the base class, 64 users to a word for each value."""
        key = draws.kernel_key() if fuses(x.device) else None
        if key is not None:
            tally = unary_counts.tally(x, self.k, self.lost, self.off, key)
            return all_counted(tally, tally[-1], x, self.k)
        total = torch.zeros(self.tallies, dtype=torch.int64, device=x.device)
        for part in in_parts(x, self.k, WORD * max(1, WORDS_AT_ONCE // max(self.k, WORD))):
            held, user = part.long(), torch.arange(len(part), device=x.device)
            others = bernoulli_words((words_for(len(part)), self.k), self.off, draws)
            own = self._own(part, draws)
            instead = others[user // WORD, held] >> user % WORD & 1  # drawn as if the value were not the user's
            if len(part) % WORD:
                others[-1] &= (1 << len(part) % WORD) - 1
            total[:-1] += popcount(others).sum(0)
            total.index_add_(0, held, own.long() - instead)
        total[-1] = len(x)
        return total

    def _reports(self, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """Binomial(counts_v, p) + Binomial(n - counts_v, q) users have bit v set. O(k) for each repetition."""
        total = counts.sum()
        both = torch.stack([counts, total - counts]).expand(*shape, 2, self.k)
        chance = torch.tensor([[self.on], [self.off]], dtype=torch.float64, device=counts.device)
        drawn = draws.binomial(both, chance).sum(-2)
        return torch.cat([drawn, total.expand(*shape, 1)], -1)


@dataclass(frozen=True)
class OptimizedUnaryEncoding(UnaryEncoding):
    """Unary encoding with p = 1/2, q = 1/(e^epsilon + 1): Cov(Y | x) = I / sinh^2(epsilon/2) + e_x e_x^T.

    k >= 2; epsilon in (0, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP.
    Source: Wang, Blocki, Li, Jha (2017), section 4.2 (OUE).
    """

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self.epsilon, "Wang, Blocki, Li, Jha (2017), OUE; p (1 - q)/(q (1 - p)) = e^epsilon")

    @property
    def on(self) -> float:
        """p = 1/2."""
        return 0.5

    @property
    def lost(self) -> float:
        """1 - p = 1/2."""
        return 0.5

    @property
    def off(self) -> float:
        """q = 1/(e^epsilon + 1)."""
        return 1 / (math.exp(self.epsilon) + 1)

    @property
    def gap(self) -> float:
        """p - q = tanh(epsilon/2)/2."""
        return math.tanh(self.epsilon / 2) / 2

    def covariance(self, x: int) -> Tensor:
        covariance = torch.eye(self.k, dtype=torch.float64) / math.sinh(self.epsilon / 2) ** 2
        covariance[self._type(x), x] += 1
        return covariance

    def workload_variance(self, W: Tensor) -> Tensor:
        """sum_v W_iv^2 / sinh^2(epsilon/2) + W_ix^2. O(m k)."""
        squares = self._workload(W).square()
        return squares.sum(-1, keepdim=True) / math.sinh(self.epsilon / 2) ** 2 + squares


@dataclass(frozen=True)
class SymmetricUnaryEncoding(UnaryEncoding):
    """Unary encoding with p = 1 - q = e^{epsilon/2}/(e^{epsilon/2} + 1): Cov(Y | x) = I / (4 sinh^2(epsilon/4)).

    One-time RAPPOR without a Bloom filter. k >= 2; epsilon in (0, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP.
    Source: Erlingsson, Pihur, Korolova (2014), basic one-time RAPPOR; Wang, Blocki, Li, Jha (2017), section 4.2 (SUE).
    """

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self.epsilon, "Erlingsson, Pihur, Korolova (2014); (p/(1 - p))^2 = e^epsilon")

    @property
    def on(self) -> float:
        """p = 1 - q."""
        return 1 - self.off

    @property
    def lost(self) -> float:
        """1 - p = q."""
        return self.off

    @property
    def off(self) -> float:
        """q = 1/(e^{epsilon/2} + 1)."""
        return 1 / (math.exp(self.epsilon / 2) + 1)

    @property
    def gap(self) -> float:
        """p - q = tanh(epsilon/4)."""
        return math.tanh(self.epsilon / 4)

    def covariance(self, x: int) -> Tensor:
        self._type(x)
        return torch.eye(self.k, dtype=torch.float64) / (2 * math.sinh(self.epsilon / 4)) ** 2

    def workload_variance(self, W: Tensor) -> Tensor:
        """sum_v W_iv^2 / (4 sinh^2(epsilon/4)), the same for every x. O(m k)."""
        squares = self._workload(W).square()
        return (squares.sum(-1, keepdim=True) / (2 * math.sinh(self.epsilon / 4)) ** 2).expand_as(squares)


def put_bit(words: Tensor, x: Tensor, bit: Tensor) -> None:
    """Set bit x of each row of packed words (n, words) to ``bit``, in place; x, bit: (n,)."""
    where, place = (x // WORD)[:, None], (x % WORD)[:, None]
    cleared = words.gather(1, where) & ~(torch.ones_like(place) << place)
    words.scatter_(1, where, cleared | (bit.long()[:, None] << place))
