"""Subset selection: the message is a set of w values, more often one that holds the user's own.

How many of n random subsets hold each value is drawn exactly in distribution, without drawing one
of them.

Notation: p = ``on`` is the chance of the user's own value, q = ``off`` that of any other, and
r = ``_pair`` that of two others together.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Limits, Tally, Users
from torchdp.randomizers.alphabet.bit_vectors import BitVectorOracle, put_bit
from torchdp.randomizers.alphabet.chances import (
    at_least,
    exponential,
    logarithm,
    stated,
    told_apart,
)
from torchdp.randomizers.alphabet.frequency import (
    FrequencyOracle,
    bounded_proxy,
    keep_range,
    spread,
)
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.draws import WORD, popcount, without_replacement

# Values missing from a set: up to here they are added one by one, without a sort.
AT_ONCE = 32

# -log of the chance, 1e-24, that a table of picks leaves out.
TAIL = 56.0

# Of a table, and of the crowds that one step works on.
CELLS = 2**20


def subset_sums(free: Tensor, bound: Tensor, w: int, draws: Draws) -> Tensor:
    """How many users hold each of k values, (repetitions, k), int64.

    Free users hold a uniform w-subset of [0, k), those bound to v a uniform one among those that
    hold v.

    [0, k) is halved again and again. Of a user all that matters in a block of values is how many of
    them it holds: of those a hypergeometric number lies in the block's first half, and given their
    numbers its sets in the two halves are uniform and independent. So crowds are split, not users.
    A block of s values meets about s^{1/2} different numbers, which split into as many: O(k log k)
    binomials whatever w and the users, fewer where users are few.

    Args:
        free: users, (repetitions,), int64.
        bound: users, (repetitions, k), int64.
        w: size of a set.
        draws: of the splits.
    """
    repetitions, k = bound.shape
    size = 1 << (k - 1).bit_length()
    crowds = bound.new_zeros(2, repetitions, 1, w + 1)  # the free, the bound
    crowds[0, :, 0, w] = free
    crowds[1, :, 0, w - 1] = bound.sum(1)
    before = torch.nn.functional.pad(bound.cumsum(1), (1, 0))
    # Blocks of ``size`` values, and one of the last, fewer values.
    blocks = crowds if k == size else crowds[:, :, :0]
    rest = None if k == size else crowds
    while size > 1:
        half = size // 2
        start = blocks.shape[2] * size  # of the rest
        halves = []
        if start:
            own = before[:, : start + 1 : half].diff()  # users bound to values of each half
            both = split(blocks, size, half, own[:, ::2], draws)
            halves.append(torch.stack(both, 3).flatten(2, 3))
        if rest is not None and k - start > half:
            own = (before[:, start + half] - before[:, start])[:, None]
            left, rest = split(rest, k - start, half, own, draws)
            halves.append(left)
        elif rest is not None and k - start == half:
            halves.append(rest[..., : half + 1])
            rest = None
        width = max(part.shape[-1] for part in halves)
        blocks = torch.cat([_pad(part, width) for part in halves], 2)
        size = half
    return blocks[0, :, :, 1] + bound


def split(crowds: Tensor, s: int, h: int, own: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Crowds of blocks of s values in those of their first h values and of the other s - h.

    Args:
        crowds: how many free and bound users hold r values of the block, a bound user's own not
            counted, (2, repetitions, blocks, r + 1).
        s: values of a block.
        h: values of its first half.
        own: users bound to one of the first h, (repetitions, blocks).
        draws: of the picks.
    """
    free, bound = crowds
    *shape, numbers = crowds.shape
    left = crowds.new_zeros(*shape, min(h + 1, numbers))
    right = crowds.new_zeros(*shape, min(s - h + 1, numbers))
    first = without_replacement(bound, own, draws)
    # The free, those bound to the first half, and those bound to the second: (3, blocks, r + 1).
    kinds = torch.stack([free, first, bound - first]).flatten(1, 2)
    blocks = kinds.shape[1]
    kind, number = kinds.any(1).nonzero(as_tuple=True)
    if not len(kind):
        return left, right
    # A user's own value fills one place of its half, and is free no more in the other one.
    to_first = (kind == 1).long()
    to_second = (kind == 2).long()
    values = s - to_first - to_second
    half = h - to_first
    reach = math.sqrt(TAIL / 2 * max(1, min(s - h, h)))
    width = 2 * math.ceil(reach) + 2
    at_once = max(1, CELLS // min(width, h + 1))
    for rows in torch.arange(len(kind), device=kind.device).split(at_once):
        low, sums = _hypergeometric(number[rows], values[rows], half[rows])
        columns = kinds[kind[rows], :, number[rows]]
        row, block = columns.nonzero(as_tuple=True)
        users = columns[row, block]
        # Crowds that come out of each step.
        parts = torch.bincount(users.clamp_max(width).cumsum(0) // CELLS)
        for some in torch.arange(len(row), device=row.device).split(parts.cpu().tolist()):
            origin, place, crowd = _descended(row[some], users[some], sums, draws)
            origin = some[origin]
            held = rows[row[origin]]
            picks = low[row[origin]] + place
            _add(left, to_first[held] * blocks + block[origin], picks, crowd)
            _add(right, to_second[held] * blocks + block[origin], number[held] - picks, crowd)
    return left, right


def _hypergeometric(r: Tensor, s: Tensor, h: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Least number of picks in the table of each r; chances of it and the next, added up in pairs.

    Of r values picked from s without replacement, picks are those among the first h; (rows,) each.
    What lies farther from the mean than (TAIL/2 min(r, s - r, h, s - h))^{1/2} is left out.
    Source: Hoeffding (1963), sections 2 and 6.
    """
    smallest = torch.stack([r, s - r, h, s - h]).amin(0)
    reach = (TAIL / 2 * smallest.double()).sqrt()
    reach = reach.ceil().long() + 1
    mean = r * h // s.clamp_min(1)
    others = s - h - r  # the picks above them are among the first h
    low = torch.maximum((-others).clamp_min(0), mean - reach)
    high = torch.minimum(torch.minimum(r, h), mean + reach)
    width = int((high - low).max()) + 1
    j = low[:, None] + torch.arange(width, device=r.device)
    # The ratio of the chances of j + 1 and j picks.
    up = (h[:, None] - j) * (r[:, None] - j)
    down = (j + 1) * (others[:, None] + j + 1)
    # Past the last pick a ratio of 1 keeps the cumulated logarithms finite.
    ratio = torch.where(j < high[:, None], up.double() / down.double(), 1.0)
    logs = torch.nn.functional.pad(ratio.log_()[:, :-1].cumsum(1), (1, 0))
    # Only shares of chances are drawn: with a largest of 1 their products stay in range.
    logs = logs - logs.amax(1, keepdim=True)
    chances = torch.where(j <= high[:, None], logs, -torch.inf).exp_()
    sums = [_pad(chances, 1 << (width - 1).bit_length())]
    while sums[-1].shape[1] > 1:
        sums.append(sums[-1].unflatten(1, (-1, 2)).sum(-1))
    return low, sums


def _descended(
    row: Tensor, users: Tensor, sums: list[Tensor], draws: Draws
) -> tuple[Tensor, Tensor, Tensor]:
    """Crowds drawn from the rows of a table, half by half, where there are users.

    Returns: which crowd it was, column, users.
    """
    origin = torch.arange(len(row), device=row.device)
    place = torch.zeros_like(row)
    for level in reversed(sums[:-1]):
        index = row[origin] * (level.shape[1] // 2) + place
        first, second = level.view(-1, 2).index_select(0, index).unbind(1)
        share = torch.where(second > 0, first / (first + second), 1.0)
        picked = draws.binomial(users, share)
        both = torch.stack([picked, users - picked], -1).flatten()
        # Halves without users are dropped: no level holds more rows than there are users.
        kept = both.nonzero()[:, 0]
        users = both[kept]
        parent = kept // 2
        origin = origin[parent]
        place = 2 * place[parent] + kept % 2
    return origin, place, users


def _add(crowds: Tensor, block: Tensor, r: Tensor, users: Tensor) -> None:
    crowds.view(-1).index_add_(0, block * crowds.shape[-1] + r, users)


def _pad(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]))


@dataclass(frozen=True)
class SubsetSelection(BitVectorOracle):
    """A w-subset of [0, k), e^epsilon times as likely if it holds the user's value x.

    P(x in S) = p = w e^epsilon/(w e^epsilon + k - w), the rest of S uniform; w is k/(e^epsilon + 1)
    rounded to the neighbour of smaller error. With q = P(v in S) and r = P(v, v' in S) for values
    other than x, Cov(Y | x) (p - q)^2 = p (1 - p) at (x, x), p (w - 1)/(k - 1) - p q at (x, v), q
    (1 - q) at (v, v) and r - q^2 at (v, v'). At w = 1 it is randomized response.
    k >= 2; epsilon in [1e-9, 700], for many types above about k 2^-33. Raises ValueError.

    Guarantees: exactly epsilon-LDP: the chance drawn is a float, rounded to the private side.
    Source: Wang et al. (2016); Ye, Barg (2018), section III, who show it optimal for the histogram.
    """

    def __post_init__(self) -> None:
        keep_range(self)
        w = self.subset
        growth = exponential(self.epsilon)
        p = w * growth / (w * growth + self.k - w)
        wanted = (self.k * p - w) / (self.k - 1)  # p - q
        told_apart(self.epsilon, self._gap_exactly, wanted)
        super().__post_init__()

    @property
    def guarantee(self) -> Guarantee:
        w = self.subset
        lost = Fraction(self.lost)
        drawn = logarithm((1 - lost) * (self.k - w) / (lost * w))
        source = "Ye, Barg (2018); log P(S | x in S)/P(S | x not in S) as drawn"
        return exact_local(stated(self.epsilon, drawn), source)

    @property
    def blanket(self) -> Blanket:
        share = self.subset / self.k
        both = share * (self.subset - 1) / (self.k - 1)
        return Blanket.two_level(self.guarantee.epsilon, share, both, bit=self.k == 2)

    @cached_property
    def subset(self) -> int:
        """w."""
        best = self.k / (math.exp(self.epsilon) + 1)
        near = {max(1, math.floor(best)), max(1, math.ceil(best))}
        return min(near, key=lambda w: subset_error(self.k, w, self.epsilon))

    @cached_property
    def lost(self) -> float:
        """1 - p."""
        w = self.subset
        # Rounded up: a set that misses the own value more often is the private side.
        return at_least((self.k - w) / (w * exponential(self.epsilon) + self.k - w))

    @cached_property
    def off(self) -> float:
        """q."""
        return float((self.subset - 1 + Fraction(self.lost)) / (self.k - 1))

    @cached_property
    def gap(self) -> float:
        """p - q."""
        return float(self._gap_exactly)

    @property
    def _gap_exactly(self) -> Fraction:
        # As a fraction: the difference of the floats p and q cancels where epsilon is small.
        return (self.k - self.subset - self.k * Fraction(self.lost)) / (self.k - 1)

    @cached_property
    def outputs(self) -> int:
        """The number of w-subsets."""
        return math.comb(self.k, self.subset)

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"reports": Limits(0, n, n * self.subset)}

    def checked(self, messages: Tensor) -> Tensor:
        return self._of_sets("messages", super().checked(messages))

    def decode(self, data: bytes) -> Tensor:
        return self._of_sets("data", super().decode(data))

    def _of_sets(self, name: str, messages: Tensor) -> Tensor:
        if (popcount(messages).sum(-1) != self.subset).any():
            raise ValueError(f"{name} must hold sets of {self.subset} types each")
        return messages

    @property
    def together(self) -> tuple[float, float, float, float]:
        w = self.subset
        p = self.on
        # Where there are so few types the chances of more than there are do not count.
        pairs = (self.k - 1) * max(1, self.k - 2)
        own_one = p * (w - 1) / (self.k - 1)
        own_two = p * (w - 1) * (w - 2) / pairs
        three = own_two * (w - 3) + self.lost * w * (w - 1) * (w - 2) / pairs
        return own_one, own_two, self._pair, three / max(1, self.k - 3)

    def workload_variance(self, W: Tensor) -> Tensor:
        """((q - r) (S_i + k d_ix^2) + (r - q^2) k^2 d_ix^2)/(p - q)^2, in O(m k).

        d_ix = W_ix - mean_x W_ix, S_i = sum_x d_ix^2. Y adds up to 1, so a row may be shifted to
        vanish at x: only the others' symmetric part is left.
        """
        q = self.off
        r = self._pair
        d, S = spread(self._workload(W))
        own = (q - r) * (S + self.k * d.square())
        shared = (r - q * q) * (self.k * d).square()
        return (own + shared) / self.gap**2

    def workload_proxy(self, W: Tensor) -> Tensor:
        """By the sets of least and largest sum."""
        W = self._workload(W)
        centre = self.off * W.sum(-1)
        least = -(-W).topk(self.subset).values.sum(-1)
        most = W.topk(self.subset).values.sum(-1)
        return bounded_proxy((least - centre) / self.gap, (most - centre) / self.gap, W)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One packed subset for each user: int64 (*x.shape, ceil(k/64)).

        x by its own coin; of the others independent bits, with a chance that seldom makes too many
        (those sets are drawn again), then values at random until the size is right, most of them in
        the first few rounds: given its size a set that is drawn without regard to its members'
        names is uniform.
        """
        own = x.flatten().long()
        held = self._own(len(own), draws)
        wanted = self.subset - held  # others to pick
        words = self._first(own, wanted, draws)
        rows = torch.arange(len(own), device=x.device)
        missing = wanted - popcount(words).sum(-1)
        while True:
            rows = rows[missing > 0]
            missing = missing[missing > 0]
            if not len(rows):
                break
            row = torch.arange(len(rows), device=x.device)
            many = int(missing.max()) > AT_ONCE
            if many:
                row = row.repeat_interleave(missing)
            value = draws.below(self.k - 1, (len(row),))
            # One of k - 1 numbers, then past the own value: uniform among the others.
            value += value >= own[rows][row]
            held_before = words[rows[row], value // WORD] >> value % WORD & 1
            fresh = held_before == 0
            row = row[fresh]
            value = value[fresh]
            if many:  # at most as many as are missing
                new = (row * self.k + value).unique()
                row = new // self.k
                value = new % self.k
            place = rows[row] * self.words + value // WORD
            # Bits that were 0: adding sets them.
            words.view(-1).index_add_(0, place, torch.ones_like(value) << value % WORD)
            missing -= torch.bincount(row, minlength=len(rows))
        put_bit(words, own, held)
        return words.view(*x.shape, self.words)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        # the bits of a set are not independent
        return FrequencyOracle.collect_unchecked(self, x, draws)

    def _first(self, own: Tensor, wanted: Tensor, draws: Draws) -> Tensor:
        """Sets of at most ``wanted`` values other than ``own``: (n, words)."""
        least = self.subset - 1
        share = 0.0
        if least > 8:
            # A multiple of 2^-8 takes few words, and 1.5 deviations are seldom passed.
            expected = least - 1.5 * math.sqrt(least)
            share = math.floor(256 * expected / self.k) / 256
        words = own.new_empty(len(own), self.words)
        rows = torch.arange(len(own), device=own.device)
        while len(rows):
            some = self._others(len(rows), share, draws)
            put_bit(some, own[rows], torch.zeros_like(rows))
            words[rows] = some
            rows = rows[popcount(some).sum(-1) > wanted[rows]]
        return words

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """Exactly in distribution: O(k log k) binomials a repetition, whatever w and the users.

        A subset is, with probability a, uniform among those that hold x, and otherwise uniform
        among all w-subsets (a chosen so that the ratio is e^epsilon).
        """
        bound = draws.binomial(counts, self._bound)
        return subset_sums((counts - bound).sum(1), bound, self.subset, draws)

    @cached_property
    def _bound(self) -> float:
        """Probability of the branch 'uniform among the w-subsets that hold x'."""
        return float(1 - Fraction(self.lost) * self.k / (self.k - self.subset))

    @property
    def _pair(self) -> float:
        """r = P(v, v' in S), v and v' other values than x."""
        p = self.on
        w = self.subset
        k = self.k
        if k == 2:
            return 0.0
        return (w - 1) * (p * (w - 2) + (1 - p) * w) / ((k - 1) * (k - 2))


def subset_error(k: int, w: int, epsilon: float) -> float:
    """E ||Y - e_x||^2 over k values, for w of them in a set; infinite where p - q underflows."""
    rest = (k - w) * math.exp(-epsilon)
    p = w / (w + rest)
    q = (w - p) / (k - 1)
    # p - q by expm1: the difference itself has no digits where epsilon is small.
    gap = w * (k - w) * -math.expm1(-epsilon) / ((w + rest) * (k - 1))
    if gap**2 == 0:
        return math.inf
    return (p * (1 - p) + (k - 1) * q * (1 - q)) / gap**2
