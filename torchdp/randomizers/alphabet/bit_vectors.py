"""Oracles whose message is a set of values, one bit for each: optimised and symmetric unary encoding."""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import unary_counts
from torchdp.kernels.dispatch import fuses
from torchdp.privacy import Guarantee
from torchdp.randomizers.alphabet.chances import at_least, exponential, logarithm, stated, told_apart
from torchdp.randomizers.alphabet.frequency import (
    WORDS_AT_ONCE,
    FrequencyOracle,
    all_counted,
    alphabet,
    budget,
    in_parts,
)
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import WORD, bernoulli, bernoulli_words, column_counts, popcount, words_for


@dataclass(frozen=True)
class BitVectorOracle(FrequencyOracle):
    """The message b in {0, 1}^k has P(b_x = 1) = p for the user's own x and q for every other value.

    Decoded: Y = (b - q 1)/(p - q). Messages are packed: bit v is bit v % 64 of the int64 word v // 64, so a message
    is ceil(k/64) words. A tally holds, for each value, the users whose bit is set, and at its end the users.
    k >= 2; epsilon in [1e-9, 700]. Raises ValueError.
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

    def _others(self, users: int, chance: float, draws: Draws) -> Tensor:
        """Independent bits, each 1 with this chance: (users, words), none beyond the k-th."""
        words = bernoulli_words((users, self._words), chance, draws)
        if self.k % WORD:
            words[:, -1] &= (1 << self.k % WORD) - 1
        return words

    def _own(self, users: int, draws: Draws) -> Tensor:
        """Each user's own bit, 0 with probability ``lost``: (users,), int64."""
        return 1 - bernoulli(users, self.lost, draws)


@dataclass(frozen=True)
class UnaryEncoding(BitVectorOracle):
    """A bit vector whose k bits are independent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        root = self._growth
        wanted = (root - 1) / (root + 1)  # p - q for p = 1 - q; half as much for p = 1/2
        drawn = 1 - 2 * Fraction(self.off)
        told_apart(self.epsilon, drawn, wanted)

    @property
    @abstractmethod
    def _growth(self) -> Fraction:
        """(1 - q)/q, at most."""

    @cached_property
    def off(self) -> float:
        return at_least(1 / (self._growth + 1))  # a float is a dyadic number, which is drawn without rounding

    @property
    def on(self) -> float:
        """p."""
        return 1 - self.lost

    @property
    def _drawn(self) -> float:
        """log p (1 - q)/(q (1 - p)) of the chances drawn."""
        lost, off = Fraction(self.lost), Fraction(self.off)
        return stated(self.epsilon, logarithm((1 - lost) * (1 - off) / (lost * off)))

    def covariance(self, x: int) -> Tensor:
        covariance = torch.eye(self.k, dtype=torch.float64) * (self.off * (1 - self.off) / self.gap**2)
        covariance[self._type(x), x] = self.on * self.lost / self.gap**2
        return covariance

    def workload_variance(self, W: Tensor) -> Tensor:
        """(sum_v W_iv^2 q (1 - q) + W_ix^2 (p (1 - p) - q (1 - q)))/(p - q)^2. O(m k)."""
        squares = self._workload(W).square()
        own, other = (chance * (1 - chance) / self.gap**2 for chance in (self.lost, self.off))
        return squares.sum(-1, keepdim=True) * other + squares * (own - other)

    @property
    def bits(self) -> int:
        """k."""
        return self.k

    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        """One packed message for each user: int64 (*x.shape, ceil(k/64))."""
        own = x.flatten()
        words = self._others(len(own), self.off, draws)
        put_bit(words, own, self._own(len(own), draws))
        return words.view(*x.shape, self._words)

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
            own = self._own(len(part), draws)
            instead = others[user // WORD, held] >> user % WORD & 1  # drawn as if the value were not the user's
            if len(part) % WORD:
                others[-1] &= (1 << len(part) % WORD) - 1
            total[:-1] += popcount(others).sum(0)
            total.index_add_(0, held, own - instead)
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

    k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chances drawn are floats, q rounded to the private side.
    Source: Wang, Blocki, Li, Jha (2017), section 4.2 (OUE).
    """

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self._drawn, "Wang, Blocki, Li, Jha (2017), OUE; log p (1 - q)/(q (1 - p)) as drawn")

    @property
    def _growth(self) -> Fraction:
        return exponential(self.epsilon)

    @property
    def lost(self) -> float:
        """1 - p = 1/2."""
        return 0.5

    @property
    def gap(self) -> float:
        """p - q, near tanh(epsilon/2)/2."""
        return 0.5 - self.off  # without rounding for q near 1/2


@dataclass(frozen=True)
class SymmetricUnaryEncoding(UnaryEncoding):
    """Unary encoding with p = 1 - q = e^{epsilon/2}/(e^{epsilon/2} + 1): Cov(Y | x) = I / (4 sinh^2(epsilon/4)).

    One-time RAPPOR without a Bloom filter. k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chances drawn are floats, q rounded to the private side.
    Source: Erlingsson, Pihur, Korolova (2014), basic one-time RAPPOR; Wang, Blocki, Li, Jha (2017), section 4.2 (SUE).
    """

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self._drawn, "Erlingsson, Pihur, Korolova (2014); 2 log p/(1 - p) as drawn")

    @property
    def _growth(self) -> Fraction:
        return exponential(self.epsilon / 2)

    @property
    def lost(self) -> float:
        """1 - p = q."""
        return self.off

    @property
    def gap(self) -> float:
        """p - q, near tanh(epsilon/4)."""
        return 1 - 2 * self.off


def put_bit(words: Tensor, x: Tensor, bit: Tensor) -> None:
    """Set bit x of each row of packed words (n, words) to ``bit``, in place; x, bit: (n,)."""
    where, place = (x // WORD)[:, None], (x % WORD)[:, None]
    cleared = words.gather(1, where) & ~(torch.ones_like(place) << place)
    words.scatter_(1, where, cleared | (bit[:, None] << place))
