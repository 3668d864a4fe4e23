"""Rounded normals: integer noise that keeps every promise of Gaussian noise.

To read: ``RoundedNormal`` is made of pieces, each drawn by a ``Guide``; ``split`` says of which.
"""

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.kernels import guided_draws
from torchdp.kernels.guided_draws import OPEN
from torchdp.kernels.inversion import Table, discrete_normal, rounded_normal
from torchdp.kernels.inversion.tables import WIDEST as ONE_TABLE

# draws whose words and cells stay in a nearby cache
AT_ONCE = 2**16
# on a GPU, where each part costs launches and a wait
AT_ONCE_THERE = 2**24
# Bits of a draw's first part, and those of them that choose a cell of the guide.
SHORT = (16, 16)
LONG = (32, 20)
# thresholds from which on the first part is LONG: 1 cell in 32 is open at most
MANY = 2048
# steps of sigma where the step is free
FINE = 256
# the sign bit alone: flipping it turns unsigned order into signed order
LOWEST = -(2**63)
# steps of sigma
WIDEST = 2.0**28
# steps of sigma in two pieces; beyond, four or five with small tables
PAIR = 2.0**20
# about the coarse piece's sigma
PIECE = 64
# the largest distance of its values
MOST_APART = 900
# sigma of the fine piece over the distance of the coarse one's values
SMOOTH = 2.25
# total variation distance of their sum from a normal
BUMPS = 2.0**-135


@dataclass(frozen=True)
class RoundedNormal:
    """R = step round(sigma g / step), g standard normal.

    P(R >= j step) = P(g >= (j - 1/2) step/sigma). X + R = step round((X + sigma g)/step) for X in
    step Z: a function of the Gaussian mechanism (``torchdp.grid``, 2). step: a power of two; sigma:
    from 1/16 to 2^28 steps. Raises ValueError.

    Beyond 2048 steps R = round(s g) + z K, K discrete normal, P(K = k) in proportion to
    e^(-k^2/(2 t^2)), and s^2 + z^2 t^2 = sigma^2, rounded up by 1e-14 at most: X + R =
    round(X + s g + z K). The density of s g + z K over that of sigma g is proportional to the sum
    over k of e^(-(k - c)^2/(2 v^2)), 1/v^2 = 1/t^2 + z^2/s^2, which is the same for all c but for a
    share 2.0001 e^(-2 pi^2 v^2), by Poisson's summation. Beyond 2^20 steps K is made of such pieces
    in its turn, for which the same holds: P(L + z K = n) for discrete normals L, K.

    Guarantees: independent draws, each within ``variation`` of this distribution in total
    variation, for uniform words.
    """

    sigma: float
    step: float = 1.0

    def __post_init__(self) -> None:
        checks.keep(self, sigma=checks.positive, step=checks.positive)
        if math.frexp(self.step)[0] != 0.5:
            raise ValueError(
                f"step must be a power of two, not {self.step:g}: "
                "multiples of it are exact in float64"
            )
        steps = self.sigma / self.step
        if steps > WIDEST:
            raise ValueError(
                f"sigma must be at most 2^28 steps, not {steps:g}; count in coarser steps"
            )
        self._pieces("cpu")  # refuses a sigma that no table holds

    @staticmethod
    def fine(sigma: float) -> "RoundedNormal":
        """For integers, in steps of 1 or of a fraction below sigma/128.

        Rounding costs 5e-6 of the variance. sigma: up to 2^28. Raises ValueError.
        """
        sigma = checks.positive("sigma", sigma)
        # The largest power of two of which sigma has more than 128, but 1 at most.
        exponent = math.ceil(math.log2(sigma / FINE))
        return RoundedNormal(sigma, 2.0 ** min(0, exponent))

    @property
    def variation(self) -> float:
        """Largest total variation distance of one draw from its target.

        (thresholds + 3) 2^-129, of all pieces.
        """
        pieces = self._pieces("cpu")
        return sum(guide.variation for _, guide in pieces) + BUMPS * (len(pieces) - 1)

    @property
    def variance(self) -> float:
        """Of the distribution: sigma^2 + step^2/12, where sigma is a step or more to 1e-7 of it."""
        return self.step**2 * sum(
            stride**2 * guide.variance for stride, guide in self._pieces("cpu")
        )

    def draw(self, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """R/step, int64, on the device of ``draws``.

        16 or 32 bits each, and 112 or 96 more where these do not decide. Equal words give equal
        integers: however many are drawn at once, first come the first bits of all of them.
        """
        out = torch.empty(math.prod(shape), dtype=torch.int64, device=draws.device)
        (_, first), *others = self._pieces(str(draws.device))
        first.fill(out, draws)
        for stride, guide in others:
            guide.fill(out, draws, stride)
        return out.view(shape)

    def added(self, total: Tensor, draws: Draws, shape: tuple[int, ...] = ()) -> Tensor:
        """total + R, (*shape, *total.shape): int64 for int64 and whole steps, else float64.

        Exact up to 2^53 steps.
        """
        noise = self.draw((*shape, *total.shape), draws)
        if self.step == 1 and total.dtype == torch.int64:
            return noise.add_(total)
        return noise.double().mul_(self.step).add_(total)

    def _pieces(self, device: str) -> "tuple[tuple[int, Guide], ...]":
        return _pieces(self.sigma / self.step, device)


@dataclass(frozen=True, eq=False)
class Guide:
    """A table, and for each cell of a draw's first bits the integer that they decide, or ``OPEN``.

    Args:
        last: what is drawn below all thresholds.
        high: the first 64 bits of the rising thresholds, the sign bit flipped: compared as signed
            integers.
        low: the 64 bits below them, likewise.
        cells: int16.
        bits: of a draw's first part.
        variation: total variation distance of a draw from its distribution.
    """

    last: int
    high: Tensor
    low: Tensor
    cells: Tensor
    bits: int
    variation: float

    @functools.cached_property
    def variance(self) -> float:
        """Of what is drawn: sum (2 j - 1) T_j - (sum T_j)^2, T_j = P(X >= first + j)."""
        chances = (self.high.double() + 2.0**63) * 2.0**-64  # the sign bit flipped back
        tails = chances.flip(0)
        j = torch.arange(1, len(tails) + 1, dtype=torch.float64, device=tails.device)
        second = math.fsum(((2 * j - 1) * tails).tolist())
        return second - math.fsum(tails.tolist()) ** 2

    @staticmethod
    def of(table: Table) -> "Guide":
        """On the table's device."""
        first, second, third, fourth = table.words[:, : table.length].flip(1)
        bits, chosen = SHORT if table.length <= MANY else LONG
        thresholds = torch.bincount(first >> (32 - chosen), minlength=2**chosen)  # in each cell
        last = table.first + table.length
        below = last - thresholds.cumsum(0)  # what a cell without thresholds decides
        return Guide(
            last=last,
            high=(first << 32 | second) ^ LOWEST,
            low=(third << 32 | fourth) ^ LOWEST,
            cells=below.masked_fill_(thresholds > 0, OPEN).to(torch.int16),
            bits=bits,
            variation=table.variation,
        )

    def fill(self, out: Tensor, draws: Draws, times: int = 0) -> None:
        """Draws into a contiguous int64 tensor of one dimension, part by part.

        What the first bits leave open waits for the end. times: so many times the draws are added
        to what is there; 0: they are put in its place.
        """
        step = AT_ONCE if out.device.type == "cpu" else AT_ONCE_THERE
        size = min(step, len(out) + -len(out) % 64)
        # whole words, of which each holds the first bits of two or four draws
        words = torch.empty(size * self.bits // 64, dtype=torch.int64, device=out.device)
        parts = words.view(torch.int16 if self.bits == 16 else torch.int32)
        places = []
        begun = []
        for start in range(0, len(out), step):
            part = out[start : start + step]
            draws.fill(words[: -(-len(part) * self.bits // 64)])
            where = guided_draws.fill(part, parts[: len(part)], self.cells, times)
            places.append(where + start)
            begun.append(parts[where])
        if not len(out):
            return
        where = torch.cat(places)
        late = self.decided(torch.cat(begun).long(), draws.words((2, len(where))))
        out[where] = out[where] + times * (late - OPEN) if times else late

    def decided(self, first: Tensor, rest: Tensor) -> Tensor:
        """last - #{thresholds <= W}, W of 128 bits.

        first: the first bits of W, (n,), signed; rest: two words for the others, (2, n).
        """
        above, below = rest
        left = 64 - self.bits
        high = (first << left | (above >> self.bits) & ((1 << left) - 1)) ^ LOWEST
        low = below ^ LOWEST
        passed = torch.searchsorted(self.high, high)
        # where the upper halves are equal, the lower ones decide
        tied = (torch.searchsorted(self.high, high, right=True) > passed).nonzero()[:, 0]
        equal = self.high == high[tied, None]
        passed[tied] += (equal & (self.low <= low[tied, None])).sum(1)
        return self.last - passed


@functools.lru_cache(maxsize=64)
def _pieces(sigma: float, device: str) -> tuple[tuple[int, Guide], ...]:
    """How far the values of each independent piece lie apart, and its guide."""
    if sigma <= ONE_TABLE:
        return ((1, guide(rounded_normal, sigma, device)),)
    two = sigma <= PAIR
    stride, fine, coarse = split(sigma, MOST_APART if two else PIECE)
    rest = ((1, guide(discrete_normal, coarse, device)),) if two else _discrete(coarse, device)
    return (1, guide(rounded_normal, fine, device)), *_spread(stride, rest)


def _discrete(sigma: float, device: str) -> tuple[tuple[int, Guide], ...]:
    """Likewise, of a discrete normal."""
    if sigma <= 4 * PIECE:
        return ((1, guide(discrete_normal, sigma, device)),)
    stride, fine, coarse = split(sigma, PIECE)
    rest = _discrete(coarse, device)
    return (1, guide(discrete_normal, fine, device)), *_spread(stride, rest)


def _spread(stride: int, pieces: tuple[tuple[int, Guide], ...]) -> list[tuple[int, Guide]]:
    """The pieces, their values so many times as far apart."""
    return [(stride * distance, piece) for distance, piece in pieces]


@functools.lru_cache(maxsize=128)
def guide(tabulate: Callable[[Any], Table], parameter: Hashable, device: str) -> Guide:
    """Of ``tabulate(parameter)``, on a device."""
    if device == "cpu":
        return Guide.of(tabulate(parameter))
    host = guide(tabulate, parameter, "cpu")
    return replace(
        host, high=host.high.to(device), low=host.low.to(device), cells=host.cells.to(device)
    )


def split(sigma: float, most: int = MOST_APART) -> tuple[int, float, float]:
    """z up to ``most``, s, t with s = 2.25 z and s^2 + z^2 t^2 >= sigma^2, and hardly more."""
    stride = min(math.ceil(sigma / PIECE), most)
    fine = SMOOTH * stride
    # sigma^2 - fine^2 as a product, which loses no digits where the two are near.
    coarse = math.sqrt((sigma - fine) * (sigma + fine)) / stride
    # exactly: a sigma that rounding made smaller would promise too much
    while Fraction(fine) ** 2 + stride**2 * Fraction(coarse) ** 2 < Fraction(sigma) ** 2:
        coarse = math.nextafter(coarse, math.inf)
    return stride, fine, coarse
