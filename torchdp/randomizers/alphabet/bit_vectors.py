"""Oracles whose message is a set of values, a bit for each: optimised, symmetric unary encoding.

Notation: b is the message, p = ``on`` the chance of the user's own bit, q = ``off`` that of any
other, and 1 - p = ``lost``.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws
from torchdp.kernels import unary_counts
from torchdp.kernels.dispatch import keyed
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Layout, Limits, Tally, Users
from torchdp.randomizers.alphabet.chances import (
    at_least,
    exponential,
    logarithm,
    stated,
    told_apart,
)
from torchdp.randomizers.alphabet.frequency import (
    WORDS_AT_ONCE,
    AlikeVariance,
    FrequencyOracle,
    bounded_proxy,
    keep_range,
    least_step,
)
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import (
    WORD,
    bernoulli,
    bernoulli_words,
    column_counts,
    popcount,
    unpack,
    words_for,
)


@dataclass(frozen=True)
class BitVectorOracle(FrequencyOracle):
    """A message b in {0, 1}^k: P(b_x = 1) = p for the user's own x, q for every other value.

    The bits are independent unless a class says otherwise. A class says ``lost``, ``off`` and its
    ``source``. Decoded: Y = (b - q 1)/(p - q). Messages are packed: bit v is bit v % 64 of the
    int64 word v // 64, so a message is ceil(k/64) words. A tally holds, for each value, the users
    whose bit is set. k >= 2; epsilon in [1e-9, 700]. Raises ValueError.
    """

    k: int
    epsilon: float
    source: ClassVar[str]  # author, year, theorem: of the guarantee

    def __post_init__(self) -> None:
        keep_range(self)
        checks.validated(self, "off")  # an epsilon that chances drawn can not keep
        if not (0 < self.off < 1 and 0 < self.lost < 1 and self.gap > 0):
            raise ValueError(
                f"lost, off must be chances with off < 1 - lost, not {self.lost!r} and {self.off!r}"
            )

    @property
    @abstractmethod
    def lost(self) -> float:
        """1 - p, to full precision: what is drawn, since p itself may round to 1."""

    @property
    @abstractmethod
    def off(self) -> float:
        """q."""

    @property
    def gap(self) -> float:
        """p - q."""
        return self.on - self.off

    @property
    def on(self) -> float:
        """p."""
        return 1 - self.lost

    @property
    def variance(self) -> AlikeVariance:
        square = self.gap**2
        own = self.on * self.lost / square
        other = self.off * (1 - self.off) / square
        return AlikeVariance(self.k, own, other, 1 / self.gap)

    @property
    def entry_variance(self) -> float:
        return self.variance.other

    @property
    def layout(self) -> Layout:
        return {"reports": ((self.k,), torch.int64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"reports": Limits(0, n)}

    @property
    def words(self) -> int:
        """ceil(k/64), the int64 of one message."""
        return words_for(self.k)

    def _counted(self, messages: Tensor) -> Tensor:
        return column_counts(messages)[: self.k]

    def _counted_in(self, groups: Tensor, size: int, messages: Tensor) -> Tensor:
        bits = unpack(messages)[:, : self.k]
        return bits.new_zeros(size, self.k).index_add_(0, groups, bits)

    def checked(self, messages: Tensor) -> Tensor:
        checks.typed("messages", messages, torch.int64, note=", packed bits as randomize returns")
        checks.shaped("messages", messages, "n", self.words, empty=True)
        if self.k % WORD and (messages[:, -1] >> self.k % WORD).any():
            raise ValueError(f"messages must have no bit set beyond the {self.k}-th")
        return messages

    def encode(self, messages: Tensor) -> bytes:
        """ceil(k/8) bytes each, the low bit first."""
        return wire.pack(self.checked(messages), self.k)

    def decode(self, data: bytes) -> Tensor:
        return wire.unpack(data, self.k, self.words)

    def totals(self, tally: Tally) -> Tensor:
        return (tally["reports"].double() - tally.users(1) * self.off) / self.gap

    def workload_step(self, W: Tensor) -> Tensor:
        return least_step(W / self.gap)

    def _others(self, users: int, chance: float, draws: Draws) -> Tensor:
        """Independent bits, each 1 with this chance: (users, words), none beyond the k-th."""
        words = bernoulli_words((users, self.words), chance, draws)
        # ``checked`` refuses bits beyond the k-th: a message may carry none.
        if self.k % WORD:
            words[:, -1] &= (1 << self.k % WORD) - 1
        return words

    def _own(self, users: int, draws: Draws) -> Tensor:
        """Each user's own bit, 0 with probability ``lost``: (users,), int64."""
        return 1 - bernoulli(users, self.lost, draws)

    @property
    def guarantee(self) -> Guarantee:
        """log p (1 - q)/(q (1 - p)) of the chances drawn."""
        # Exact fractions of the floats that are drawn: epsilon is that of the coins themselves.
        lost = Fraction(self.lost)
        off = Fraction(self.off)
        drawn = stated(self.epsilon, logarithm((1 - lost) * (1 - off) / (lost * off)))
        return exact_local(drawn, self.source)

    @property
    def blanket(self) -> Blanket:
        """The user's own of k bits of chance q is set more often; all ones are in every set."""
        return Blanket.two_level(self.guarantee.epsilon, self.off, self.off**2, self.off**self.k)

    def covariance(self, x: int) -> Tensor:
        """Of the bits, by their ``together``, over (p - q)^2."""
        own_one, _, two, _ = self.together
        covariance = torch.full((self.k, self.k), two - self.off**2, dtype=torch.float64)
        covariance.fill_diagonal_(self.off * (1 - self.off))
        covariance[self._type(x)] = own_one - self.on * self.off
        covariance[:, x] = own_one - self.on * self.off
        covariance[x, x] = self.on * self.lost
        return covariance / self.gap**2

    @property
    def together(self) -> tuple[float, float, float, float]:
        """Chances that the bits of x and one, x and two, two, three other values are all 1."""
        p = self.on
        q = self.off
        return p * q, p * q**2, q**2, q**3

    @property
    def third_moment(self) -> tuple[float, float, float]:
        """(a, b, c): E T(Y, Y, Y) = a sum_v T_vvv + b T_xxx + c sum_v T_vvx.

        T is symmetric and of sums 0 along each axis. By how many of three values differ. With
        D = sum_v T_vvv and t = sum_v T_vvx sums of T_vvw
        over v != w are -D, t - 2 T_xxx of them with x; sums over three values are 2 D, 3
        (2 T_xxx - t) of them with x.
        """
        own_one, own_two, two, three = self.together
        more_two = own_one - two
        more_three = own_two - three
        every = self.off - 3 * two + 2 * three
        own = self.gap - 6 * more_two + 6 * more_three
        beside = 3 * (more_two - more_three)
        return every / self.gap**3, own / self.gap**3, beside / self.gap**3

    def workload_variance(self, W: Tensor) -> Tensor:
        """(sum_v W_iv^2 q (1 - q) + W_ix^2 (p (1 - p) - q (1 - q)))/(p - q)^2. O(m k)."""
        squares = self._workload(W).square()
        variance = self.variance
        return squares.sum(-1, keepdim=True) * variance.other + squares * variance.slope

    def workload_proxy(self, W: Tensor) -> Tensor:
        """Those of independent bits add."""
        squares = self._workload(W).square()
        low, high = squares.new_tensor([[-self.off], [1 - self.off]]) / self.gap
        other = bounded_proxy(low, high, squares.new_tensor([[0.0]]))
        own = bounded_proxy(low, high, squares.new_tensor([[1.0]]))
        # The own bit takes the place of one of the others: the worst type gains most by that.
        return squares.sum(-1) * other + (squares * (own - other)).amax(-1)

    @property
    def outputs(self) -> int:
        """2^k."""
        return 1 << self.k

    @property
    def bits_per_user(self) -> int:
        """k."""
        return self.k

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One packed message for each user: int64 (*x.shape, ceil(k/64))."""
        own = x.flatten().long()
        # All places are drawn alike, and the own one overwritten: no draw depends on x.
        words = self._others(len(own), self.off, draws)
        put_bit(words, own, self._own(len(own), draws))
        return words.view(*x.shape, self.words)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """As in the base class, 64 users to a word for each value."""
        key = draws.kernel_key() if keyed(x.device) else None
        if key is not None:
            counts = unary_counts.tally(x, self.k, self.lost, self.off, key)
            return Tally(len(x), {"reports": counts[:-1]})
        total = torch.zeros(self.k, dtype=torch.int64, device=x.device)
        at_once = WORD * max(1, WORDS_AT_ONCE // max(self.k, WORD))
        for part in x.split(at_once):
            held = part.long()
            user = torch.arange(len(part), device=x.device)
            others = bernoulli_words((words_for(len(part)), self.k), self.off, draws)
            own = self._own(len(part), draws)
            # Drawn as if the value were not the user's: its own coin takes the place below.
            instead = others[user // WORD, held] >> user % WORD & 1
            if len(part) % WORD:  # bits of nobody
                others[-1] &= (1 << len(part) % WORD) - 1
            total += popcount(others).sum(0)
            total.index_add_(0, held, own - instead)
        return Tally(len(x), {"reports": total})

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """Binomial(counts_v, p) + Binomial(n - counts_v, q) users have bit v set: O(k)."""
        others = counts.sum(-1, keepdim=True) - counts
        both = torch.stack([counts, others], -2)
        chance = torch.tensor([[self.on], [self.off]], dtype=torch.float64, device=counts.device)
        return draws.binomial(both, chance).sum(-2)


@dataclass(frozen=True)
class OptimizedUnaryEncoding(BitVectorOracle):
    """Unary encoding with p = 1/2, q = 1/(e^epsilon + 1).

    Cov(Y | x) = I / sinh^2(epsilon/2) + e_x e_x^T.
    k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chances drawn are floats, q rounded to the private side.
    Source: Wang, Blocki, Li, Jha (2017), section 4.2 (OUE).
    """

    source = "Wang, Blocki, Li, Jha (2017), OUE; log p (1 - q)/(q (1 - p)) as drawn"
    lost = 0.5  # p - q is near tanh(epsilon/2)/2, without rounding for q near 1/2

    @cached_property
    def off(self) -> float:
        return least_off(self.epsilon, exponential(self.epsilon))


@dataclass(frozen=True)
class SymmetricUnaryEncoding(BitVectorOracle):
    """Unary encoding with p = 1 - q = e^{epsilon/2}/(e^{epsilon/2} + 1).

    Cov(Y | x) = I / (4 sinh^2(epsilon/4)). One-time RAPPOR without a Bloom filter.
    k >= 2; epsilon in [1e-9, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chances drawn are floats, q rounded to the private side.
    Source: Erlingsson, Pihur, Korolova (2014), basic one-time RAPPOR; Wang, Blocki, Li, Jha (2017),
    section 4.2 (SUE).
    """

    source = "Erlingsson, Pihur, Korolova (2014); 2 log p/(1 - p) as drawn"

    @cached_property
    def off(self) -> float:
        return least_off(self.epsilon, exponential(self.epsilon / 2))

    @property
    def lost(self) -> float:
        """1 - p = q."""
        return self.off

    @property
    def gap(self) -> float:
        """p - q, near tanh(epsilon/4)."""
        return 1 - 2 * self.off


def least_off(epsilon: float, growth: Fraction) -> float:
    """q with (1 - q)/q at most ``growth``: a dyadic number, which is drawn without rounding.

    Raises ValueError.
    """
    # A larger q only lowers (1 - q)/q: rounding up is the private side.
    off = at_least(1 / (growth + 1))
    gap = 1 - 2 * Fraction(off)  # p - q for p = 1 - q, twice it for p = 1/2
    told_apart(epsilon, gap, (growth - 1) / (growth + 1))
    return off


def put_bit(words: Tensor, x: Tensor, bit: Tensor) -> None:
    """Set bit x of each row of packed words (n, words) to ``bit``, in place; x, bit: (n,)."""
    where = (x // WORD)[:, None]
    place = (x % WORD)[:, None]
    cleared = words.gather(1, where) & ~(torch.ones_like(place) << place)
    words.scatter_(1, where, cleared | (bit[:, None] << place))
