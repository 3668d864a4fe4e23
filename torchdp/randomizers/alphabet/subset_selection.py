"""Subset selection: the message is a set of w values, more often one that holds the user's own.

How many of n random subsets hold each value is drawn exactly in distribution, without drawing one
of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
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
from torchdp.randomizers.draws import WORD, popcount, unpack, without_replacement
from torchdp.threads import on_host

AT_ONCE = 32  # values missing from a set: up to here they are added one by one, without a sort
TAIL = 56.0  # -log of the chance, 1e-24, that a table of picks leaves out
CELLS = 2**20  # of a table, and of the crowds that one step works on


def subset_sums(free: Tensor, bound: Tensor, w: int, draws: Draws) -> Tensor:
    """Free users hold a uniform w-subset of [0, k), those bound to v a uniform one among those that
    hold v.

    free: (repetitions,), bound: (repetitions, k), int64 users; returns how many hold each value,
    (repetitions, k).

    [0, k) is halved again and again. Of a user all that matters in a block of values is how many of
    them it holds: of those a hypergeometric number lies in the block's first half, and given their
    numbers its sets in the two halves are uniform and independent. So crowds are split, not users.
    A block of s values meets about s^{1/2} different numbers, which split into as many: O(k log k)
    binomials whatever w and the users, fewer where users are few.
    """
    repetitions, k = bound.shape
    size = 1 << (k - 1).bit_length()
    # the free, the bound
    crowds = torch.zeros(2, repetitions, 1, w + 1, dtype=torch.int64, device=bound.device)
    crowds[0, :, 0, w], crowds[1, :, 0, w - 1] = free, bound.sum(1)
    before = torch.nn.functional.pad(bound.cumsum(1), (1, 0))
    # all blocks of ``size`` values, and a smaller last one
    whole, rest = (crowds, None) if k == size else (crowds[:, :, :0], crowds)
    while size > 1:
        half, start, done = size // 2, whole.shape[2] * size, []
        if start:
            own = before[:, : start + 1 : half].diff()  # users bound to values of each half
            done.append(torch.stack(split(whole, size, half, own[:, ::2], draws), 3).flatten(2, 3))
        if rest is not None and k - start > half:
            own = (before[:, start + half] - before[:, start])[:, None]
            left, rest = split(rest, k - start, half, own, draws)
            done.append(left)
        elif rest is not None and k - start == half:
            done, rest = [*done, rest[..., : half + 1]], None
        width = max(each.shape[-1] for each in done)
        whole, size = torch.cat([_pad(each, width) for each in done], 2), half
    return whole[0, :, :, 1] + bound


def split(crowds: Tensor, s: int, h: int, own: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Crowds of blocks of s values in those of their first h values and of the other s - h.

    crowds: (2, repetitions, blocks, r + 1), how many free and bound users hold r values of the
    block, a bound user's own not counted; own: (repetitions, blocks), users bound to one of the
    first h.
    """
    free, bound = crowds
    most = crowds.shape[-1] - 1
    shape = tuple(crowds.shape[:-1])
    left = crowds.new_zeros(*shape, min(h, most) + 1)
    right = crowds.new_zeros(*shape, min(s - h, most) + 1)
    first = without_replacement(bound, own, draws)
    for crowd, values, a, (kind, other) in (
        (free, s, h, (0, 0)),
        (first, s - 1, h - 1, (1, 0)),
        (bound - first, s - 1, h, (0, 1)),
    ):
        for block, r, here, users in picks(crowd, values, a, draws):
            _add(left[kind], block, here, users)
            _add(right[other], block, r - here, users)
    return left, right


def picks(
    crowds: Tensor, s: int, h: int, draws: Draws
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(block, r, picks, users): of r values picked from s without replacement, how many are among
    the first h.

    crowds: (repetitions, blocks, r + 1) users who pick r; block: of repetitions * blocks.
    """
    flat = crowds.flatten(0, 1)
    held = flat.any(0).nonzero()[:, 0]
    width = 2 * math.ceil(math.sqrt(TAIL / 2 * max(1, min(s - h, h)))) + 2
    for part in held.split(max(1, CELLS // min(width, h + 1))) if len(held) else ():
        first, sums = _hypergeometric(part, s, h)
        columns = (
            flat[:, part[0] : part[-1] + 1]
            if len(part) == int(part[-1] - part[0]) + 1
            else flat[:, part]
        )
        block, row = columns.nonzero(as_tuple=True)
        users = columns[block, row]
        # crowds that come out of each step
        share = torch.bincount(users.clamp_max(width).cumsum(0) // CELLS)
        for some in torch.arange(len(row), device=row.device).split(share.cpu().tolist()):
            origin, place, crowd = _descended(row[some], users[some], sums, draws)
            origin = some[origin]
            at = row[origin]
            yield block[origin], part[at], first[at] + place, crowd


def _hypergeometric(r: Tensor, s: int, h: int) -> tuple[Tensor, list[Tensor]]:
    """Least number of picks in the table of each r, and the chances of it and the next ones, added
    up in pairs.

    What lies farther from the mean than (TAIL/2 min(r, s - r, h, s - h))^{1/2} is left out. Source:
    Hoeffding (1963), sections 2 and 6.
    """
    reach = (
        TAIL / 2 * torch.minimum(r, s - r).clamp(max=min(h, s - h)).double()
    ).sqrt().ceil().long() + 1
    mean = r * h // max(1, s)
    low = torch.maximum((r - (s - h)).clamp_min(0), mean - reach)
    high = torch.minimum(r.clamp_max(h), mean + reach)
    j = low[:, None] + torch.arange(int((high - low).max()) + 1, device=r.device)
    inside = j < high[:, None]
    up = (h - j) * (r[:, None] - j)
    down = (j + 1) * (s - h - r[:, None] + j + 1)
    steps = torch.where(inside, up.double() / down.double(), 1.0).log_()
    logs = torch.nn.functional.pad(steps[:, :-1].cumsum(1), (1, 0))
    law = torch.where(j <= high[:, None], logs - logs.amax(1, keepdim=True), -torch.inf).exp_()
    sums = [_pad(law, 1 << (law.shape[1] - 1).bit_length())]
    while sums[-1].shape[1] > 1:
        sums.append(sums[-1].unflatten(1, (-1, 2)).sum(-1))
    return low, sums


def _descended(
    row: Tensor, users: Tensor, sums: list[Tensor], draws: Draws
) -> tuple[Tensor, Tensor, Tensor]:
    """Crowds drawn from the rows of a table, half by half: (which crowd, column, users), where
    there are users.
    """
    origin, place = torch.arange(len(row), device=row.device), torch.zeros_like(row)
    for level in reversed(sums[:-1]):
        pair = level.view(-1, 2).index_select(0, row[origin] * (level.shape[1] // 2) + place)
        share = torch.where(pair[:, 1] > 0, pair[:, 0] / (pair[:, 0] + pair[:, 1]), 1.0)
        first = draws.binomial(users, share)
        both = torch.stack([first, users - first], -1)
        kept = both.flatten().nonzero()[:, 0]
        users, half = both.flatten()[kept], kept // 2
        origin, place = origin[half], 2 * place[half] + (kept - 2 * half)
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
        w, growth = self.subset, exponential(self.epsilon)
        wanted = w * (self.k - w) * (growth - 1) / ((w * growth + self.k - w) * (self.k - 1))
        told_apart(self.epsilon, self._gap_exactly, wanted)
        super().__post_init__()

    @property
    def guarantee(self) -> Guarantee:
        w, lost = self.subset, Fraction(self.lost)
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
        k, best = self.k, self.k / (math.exp(self.epsilon) + 1)
        near = {max(1, math.floor(best)), max(1, math.ceil(best))}
        return min(near, key=lambda w: subset_error(k, w, self.epsilon))

    @cached_property
    def lost(self) -> float:
        """1 - p."""
        w = self.subset
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
        return (self.k - self.subset - self.k * Fraction(self.lost)) / (self.k - 1)

    @cached_property
    def outputs(self) -> int:
        """The number of w-subsets."""
        return math.comb(self.k, self.subset)

    @cached_property
    def bits_per_user(self) -> int:
        """ceil(log2 of the number of w-subsets), above k = 4096 to rounding."""
        k, w = self.k, self.subset
        if k <= 4096:
            return (self.outputs - 1).bit_length()
        return math.ceil(
            (math.lgamma(k + 1) - math.lgamma(w + 1) - math.lgamma(k - w + 1)) / math.log(2)
        )

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"reports": Limits(0, n, n * self.subset)}

    def checked(self, messages: Tensor) -> Tensor:
        messages = super().checked(messages)
        if (popcount(messages).sum(-1) != self.subset).any():
            raise ValueError(f"messages must be sets of {self.subset} types each")
        return messages

    def encode(self, messages: Tensor) -> bytes:
        """The rank of each set among all, in bits_per_user. O(k) operations on whole numbers of
        that length each.
        """
        size = max(1, -(-self.bits_per_user // 8))
        sets = unpack(self.checked(messages).cpu())[:, : self.k].bool()
        return b"".join(rank(row.nonzero()[:, 0].tolist()).to_bytes(size, "little") for row in sets)

    @on_host
    def decode(self, data: bytes) -> Tensor:
        size = max(1, -(-self.bits_per_user // 8))
        if len(checks.instance("data", data, bytes)) % size:
            raise ValueError(
                f"data must hold {size} bytes for each message, not {len(data)} bytes in all"
            )
        words = torch.zeros(len(data) // size, self.words, dtype=torch.int64)
        for row, start in zip(words, range(0, len(data), size), strict=True):
            number = int.from_bytes(data[start : start + size], "little")
            if number >= self.outputs:
                raise ValueError(
                    f"data must hold numbers below that of sets of {self.subset} types; one is not"
                )
            member = torch.tensor(members(number, self.k, self.subset), dtype=torch.int64)
            row.index_add_(0, member // WORD, torch.ones_like(member) << member % WORD)
        return words

    @property
    def together(self) -> tuple[float, float, float, float]:
        w = self.subset
        # Where there are so few types the chances of more than there are do not count.
        pairs = (self.k - 1) * max(1, self.k - 2)
        own_two = self.on * (w - 1) * (w - 2) / pairs
        three = own_two * (w - 3) + self.lost * w * (w - 1) * (w - 2) / pairs
        return self.on * (w - 1) / (self.k - 1), own_two, self._pair, three / max(1, self.k - 3)

    def workload_variance(self, W: Tensor) -> Tensor:
        """((q - r) (S_i + k d_ix^2) + (r - q^2) k^2 d_ix^2)/(p - q)^2; d_ix = W_ix - mean_x W_ix,
        S_i = sum_x d_ix^2.

        O(m k). Y adds up to 1, so a row may be shifted to vanish at x: only the others' symmetric
        part is left.
        """
        q, gap, k = self.off, self.gap, self.k
        d, S = spread(self._workload(W))
        squares = S + k * d.square()
        return ((q - self._pair) * squares + (self._pair - q * q) * (k * d).square()) / gap**2

    def workload_proxy(self, W: Tensor) -> Tensor:
        """By the sets of least and largest sum."""
        W = self._workload(W)
        sums = (sign * (sign * W).topk(self.subset).values.sum(-1) for sign in (-1, 1))
        low, high = ((each - self.off * W.sum(-1)) / self.gap for each in sums)
        return bounded_proxy(low, high, W)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One packed subset for each user: int64 (*x.shape, ceil(k/64)).

        x by its own coin; of the others independent bits, with a chance that seldom makes too many
        (those sets are drawn again), then values at random until the size is right, most of them in
        the first few rounds: given its size a set that is drawn without regard to its members'
        names is uniform.
        """
        own, k = x.flatten().long(), self.k
        held = self._own(len(own), draws)
        wanted = self.subset - held  # others to pick
        words = self._first(own, wanted, draws)
        rows, missing = torch.arange(len(own), device=x.device), wanted - popcount(words).sum(-1)
        while True:
            rows = rows[missing > 0]
            missing = missing[missing > 0]
            if not len(rows):
                break
            row, many = torch.arange(len(rows), device=x.device), int(missing.max()) > AT_ONCE
            if many:
                row = row.repeat_interleave(missing)
            value = draws.below(k - 1, (len(row),))
            value += value >= own[rows][row]
            fresh = words[rows[row], value // WORD] >> value % WORD & 1 == 0
            row, value = row[fresh], value[fresh]
            if many:  # at most as many as are missing
                new = (row * k + value).unique()
                row, value = new // k, new % k
            place = rows[row] * self.words + value // WORD
            # bits that were 0
            words.view(-1).index_add_(0, place, torch.ones_like(value) << value % WORD)
            missing -= torch.bincount(row, minlength=len(rows))
        put_bit(words, own, held)
        return words.view(*x.shape, self.words)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        # the bits of a set are not independent
        return FrequencyOracle.collect_unchecked(self, x, draws)

    def _first(self, own: Tensor, wanted: Tensor, draws: Draws) -> Tensor:
        """Sets of other values than ``own``, with at most ``wanted`` members: (n, words), without
        own's bit.
        """
        least = self.subset - 1
        share = (
            math.floor(256 * (least - 1.5 * math.sqrt(least)) / self.k) / 256 if least > 8 else 0.0
        )
        words = self._others(len(own), share, draws)
        put_bit(words, own, torch.zeros_like(own))
        rows = (popcount(words).sum(-1) > wanted).nonzero()[:, 0]
        while len(rows):
            again = self._others(len(rows), share, draws)
            put_bit(again, own[rows], torch.zeros_like(rows))
            words[rows] = again
            rows = rows[popcount(again).sum(-1) > wanted[rows]]
        return words

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """The tally, exactly in distribution: O(k log k) binomials for each repetition, whatever w
        and the users.

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
        p, w, k = self.on, self.subset, self.k
        return (w - 1) * (p * (w - 2) + (1 - p) * w) / ((k - 1) * (k - 2)) if k > 2 else 0.0


def subset_error(k: int, w: int, epsilon: float) -> float:
    """E ||Y - e_x||^2 over the k values, for w of them in a set; infinite where p - q
    underflows.
    """
    rest = (k - w) * math.exp(-epsilon)
    p = w / (w + rest)
    gap = w * (k - w) * -math.expm1(-epsilon) / ((w + rest) * (k - 1))
    q = (w - p) / (k - 1)
    return (p * (1 - p) + (k - 1) * q * (1 - q)) / gap**2 if gap**2 > 0 else math.inf


def rank(values: list[int]) -> int:
    """sum_i C(values_i, i), i from 1: 0, 1, ... for the sets of one size, in colexicographic order.

    values: increasing. Source: Lehmer (1964), the combinatorial number system.
    """
    total, value, choose = 0, 0, 0  # C(value, i)
    for i, end in enumerate(values, 1):
        for v in range(value, end):
            choose = choose * (v + 1) // (v + 1 - i) if v >= i else int(v + 1 == i)
        total += choose
        value, choose = end + 1, choose * (end + 1) // (i + 1)
    return total


def members(number: int, k: int, w: int) -> list[int]:
    """The w values in [0, k) whose ``rank`` is this number, decreasing."""
    found, choose = [], math.comb(k - 1, w)  # C(v, w)
    for v in range(k - 1, -1, -1):
        taken = w > 0 and number >= choose
        if taken:
            number -= choose
            found.append(v)
        choose = choose * (w if taken else v - w) // max(v, 1)  # C(v - 1, w - 1) or C(v - 1, w)
        w -= taken
    return found
