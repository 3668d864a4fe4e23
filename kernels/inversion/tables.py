"""Distributions of integers as thresholds of 128 bits: P(X >= j) to the nearest one."""

import decimal
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

from torchdp import checks

# thresholds of one table
LONGEST = 1 << 16
# of the sums; what they lose in 2^18 terms is far below 2^-128
DIGITS = 60
# a tail below this share of the mass is left out
CUT = Decimal(2) ** -140
# deviations of a rounded normal that is drawn from a table
NARROWEST = 1 / 16
WIDEST = 2048.0
# of a Poisson distribution: a table of 128 bits has more than so many deviations
DEVIATIONS = 12


@dataclass(frozen=True, eq=False)
class Table:
    """X = first + #{j : W < T_j}, W uniform on [0, 2^128).

    T_j = 2^128 P(X >= first + j), rounded, j = 1, 2, ...; they fall.

    Args:
        first: the least X.
        words: (4, size) int64, the 32-bit words of the thresholds from the highest on; zeros fill
            them up to a power of two.
        length: how many are no filling.

    Guarantees: X's total variation distance from the distribution is at most ``variation`` =
    (length + 3) 2^-129, so that N draws change a delta by (1 + e^epsilon) N variation at most, for
    uniform words.
    """

    first: int
    words: Tensor
    length: int

    @property
    def variation(self) -> float:
        """Half a unit for each threshold, and what is left out at both ends."""
        return (self.length + 3) * 2.0**-129

    @property
    def device(self) -> torch.device:
        """Where draws are made."""
        return self.words.device

    def to(self, device: torch.device | str) -> "Table":
        """The same table on a device."""
        return Table(self.first, self.words.to(device), self.length)


def poisson(mean: float) -> Table:
    """Poisson(mean) for mean > 0, up to a few millions. Raises ValueError."""
    mean = checks.positive("mean", mean)
    if DEVIATIONS * math.sqrt(mean) > LONGEST:
        raise _too_long()
    rate = Decimal(mean)
    return _table(lambda y: rate / y, math.floor(mean), Decimal(0))


def logarithmic(ratio: float) -> Table:
    """Pr[k] = -ratio^k/(k log(1 - ratio)), k = 1, 2, ..., less one: k - 1. Raises ValueError.

    ratio: in (0, 1).
    """
    p = Decimal(checks.fraction("ratio", ratio))
    return _table(lambda y: p * y / (y + 1), 0, p)


def _table(step: Callable[[int], Decimal], mode: int, limit: Decimal) -> Table:
    """The distribution on 0, 1, ... with Pr[y]/Pr[y - 1] = step(y).

    step is at most 1 above the mode and at least 1 below it; it falls with y, or rises to ``limit``
    from a mode of 0.
    """
    with _digits(DIGITS):
        above = _masses(step, mode, limit)
        below = _masses_below(step, mode)
        return _of_masses(mode - len(below), [*below[::-1], Decimal(1), *above])


def rounded_normal(sigma: float) -> Table:
    """round(sigma g), g standard normal: P(X >= j) = P(g >= (j - 1/2)/sigma).

    sigma: from 1/16 to 2048.
    P(X = j) = phi(c) 2 h sum over even m of a_m/(m + 1), c = j/sigma, h = 1/(2 sigma), a_m =
    He_m(c) h^m/m!: the Taylor series of phi over one cell, with a_(m+1) = (c h a_m - h^2
    a_(m-1))/(m + 1). Raises ValueError.
    """
    return _symmetric(sigma, _cell)


def discrete_normal(sigma: float) -> Table:
    """P(X = j) in proportion to e^(-j^2/(2 sigma^2)). Raises ValueError.

    sigma: from 1/16 to 2048.
    """
    return _symmetric(sigma, lambda j, q: Decimal(1))


def truncated_laplace(parameters: tuple[float, int]) -> Table:
    """P(X = j) in proportion to e^(-rate |j|), |j| <= reach; parameters: rate, reach.

    Raises ValueError.
    """
    rate, reach = parameters
    with _digits(DIGITS):
        ratio = (-Decimal(checks.positive("rate", rate))).exp()
        half = [ratio**j for j in range(1 + checks.integer("reach", reach, 1))]
        return _of_masses(-reach, [*half[:0:-1], *half])


def _symmetric(sigma: float, cell: Callable[[int, Decimal], Decimal]) -> Table:
    """P(X = j) in proportion to e^(-2 q j^2) cell(|j|, q), q = 1/(4 sigma^2), log-concave."""
    sigma = checks.positive("sigma", sigma)
    if not NARROWEST <= sigma <= WIDEST:
        raise ValueError(
            f"sigma must be from {NARROWEST:g} to {WIDEST:g} steps in one table, not {sigma:g}"
        )
    h = 0.5 / sigma
    # the series alternate: digits that cancel come on top
    cancelled = math.ceil((13.5 * h + 1.5 * h * h) / math.log(10))
    with _digits(DIGITS + cancelled):
        q = 1 / (4 * Decimal(sigma) ** 2)
        # e^(-2 q j^2), its ratio to the next one, and the ratio's own
        density = Decimal(1)
        ratio = (-2 * q).exp()
        fall = (-4 * q).exp()
        masses = [cell(0, q)]
        while True:
            density *= ratio
            ratio *= fall
            masses.append(density * cell(len(masses), q))
            share = masses[-1] / masses[-2]  # falls with j
            if masses[-1] * share < CUT * (1 - share):
                break
        return _of_masses(1 - len(masses), [*masses[:0:-1], *masses])


def _cell(j: int, q: Decimal) -> Decimal:
    """The sum over even m of a_m/(m + 1), until all that follows is below the digits."""
    ch = 2 * j * q
    least = Decimal(10) ** -decimal.getcontext().prec
    before = Decimal(0)
    a = Decimal(1)
    total = Decimal(1)
    m = 0
    # from m = 2 (c h + h^2) on each term is at most half of the one before
    while m < 2 * (ch + q) or max(abs(a), abs(before)) > least:
        following = (ch * a - q * before) / (m + 1)
        before = a
        a = following
        m += 1
        if m % 2 == 0:
            total += a / (m + 1)
    return total


def _digits(digits: int) -> AbstractContextManager[decimal.Context]:
    return decimal.localcontext(decimal.Context(prec=digits, Emin=-(10**9), Emax=10**9))


def _of_masses(first: int, masses: list[Decimal]) -> Table:
    """The table of the distribution on first, first + 1, ... in proportion to ``masses``."""
    total = sum(masses)
    tail = Decimal(0)
    thresholds = []
    for mass in masses[:0:-1]:  # from the far end on, so that rare events keep all their digits
        tail += mass
        thresholds.append(int((tail / total * 2**128).to_integral_value()))
    thresholds.reverse()
    certain = sum(threshold >= 2**128 for threshold in thresholds)
    kept = [threshold for threshold in thresholds[certain:] if threshold]
    if len(kept) > LONGEST:
        raise _too_long()
    size = 1 << len(kept).bit_length()
    filled = kept + [0] * (size - len(kept))
    words = [[part >> shift & 0xFFFFFFFF for part in filled] for shift in (96, 64, 32, 0)]
    return Table(first + certain, torch.tensor(words, dtype=torch.int64, device="cpu"), len(kept))


def _masses(step: Callable[[int], Decimal], mode: int, limit: Decimal) -> list[Decimal]:
    """Pr[y]/Pr[mode] for y > mode, until all that follows is below CUT.

    That is a geometric series at most: mass worst/(1 - worst).
    """
    masses: list[Decimal] = []
    mass = Decimal(1)
    while True:
        ratio = step(mode + 1 + len(masses))
        mass *= ratio
        worst = max(ratio, limit)
        masses.append(mass)
        if mass == 0 or (worst < 1 and mass * worst < CUT * (1 - worst)):
            return masses
        if len(masses) > 2 * LONGEST:
            raise _too_long()


def _masses_below(step: Callable[[int], Decimal], mode: int) -> list[Decimal]:
    """Pr[y]/Pr[mode] for y = mode - 1, ..., to 0 or until all that follows is below CUT."""
    masses: list[Decimal] = []
    mass = Decimal(1)
    for y in range(mode, 0, -1):
        ratio = 1 / step(y)
        mass *= ratio
        masses.append(mass)
        if ratio < 1 and mass * ratio < CUT * (1 - ratio):
            break
        if len(masses) > 2 * LONGEST:
            raise _too_long()
    return masses


def _too_long() -> ValueError:
    return ValueError(
        f"this distribution needs more than {LONGEST} thresholds; take a smaller mean or ratio, "
        "or draw it without a table (torch.poisson of a rate)"
    )
