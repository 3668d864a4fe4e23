"""Laws of integers as thresholds of 128 bits: P(X >= j), each to the nearest multiple of 2^-128."""

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

from torchdp import checks

LONGEST = 1 << 16  # thresholds of one table
DIGITS = 60  # of the sums; what they lose in 2^18 terms is far below 2^-128
MOST_TRIALS = 1 << 53
CUT = Decimal(2) ** -140  # a tail below this share of the law is left out


@dataclass(frozen=True, eq=False)
class Table:
    """X = first + #{j : W < T_j}, W uniform on [0, 2^128): T_j = 2^128 P(X >= first + j), rounded, j = 1, 2, ...

    words: (4, size) int64, the 32-bit words of the thresholds from the highest on; the thresholds fall, and zeros fill
    them up to a power of two. length: how many are no filling.

    Guarantees: X's total variation distance from the law is at most ``variation`` = (length + 3) 2^-129, so that N
    draws change a delta by (1 + e^epsilon) N variation at most, for uniform words.
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
    _refuse_wide(math.sqrt(mean))
    rate = Decimal(mean)
    return _table(lambda y: rate / y, math.floor(mean), Decimal(0))


def negative_binomial(shape: float, ratio: float) -> Table:
    """NB(shape, ratio), Pr[k] = C(k + shape - 1, k) (1 - ratio)^shape ratio^k, for any real shape > 0, such as 1/n.

    Raises ValueError.
    """
    shape, ratio = checks.positive("shape", shape), checks.fraction("ratio", ratio)
    _refuse_wide(math.sqrt(shape * ratio) / (1 - ratio))
    mode = math.floor(max(0.0, (shape - 1) * ratio / (1 - ratio)))
    r, p = Decimal(shape), Decimal(ratio)
    return _table(lambda y: (y - 1 + r) * p / y, mode, p)


def binomial(trials: int, probability: float) -> Table:
    """Binomial(trials, probability), probability in (0, 1). Raises ValueError."""
    trials, probability = checks.integer("trials", trials, 1), checks.fraction("probability", probability)
    if trials > MOST_TRIALS:
        raise ValueError(f"trials must be at most 2^53, not {trials}")
    _refuse_wide(math.sqrt(trials * probability * (1 - probability)))
    p, mode = Decimal(probability), min(trials, math.floor((trials + 1) * probability))
    return _table(lambda y: (trials + 1 - y) * p / (y * (1 - p)), mode, Decimal(0))


def _table(step: Callable[[int], Decimal], mode: int, limit: Decimal) -> Table:
    """The law on 0, 1, ... with Pr[y]/Pr[y - 1] = step(y), at most 1 above the mode and at least 1 below it.

    step falls with y, or rises to ``limit`` from a mode of 0.
    """
    with decimal.localcontext(decimal.Context(prec=DIGITS, Emin=-(10**9), Emax=10**9)):
        above, below = _masses(step, mode, limit), _masses_below(step, mode)
        masses = [*below[::-1], Decimal(1), *above]
        total, tail, thresholds = sum(masses), Decimal(0), []
        for mass in masses[:0:-1]:  # from the far end on, so that rare events keep all their digits
            tail += mass
            thresholds.append(int((tail / total * 2**128).to_integral_value()))
    thresholds.reverse()
    certain = sum(threshold >= 2**128 for threshold in thresholds)
    kept = [threshold for threshold in thresholds[certain:] if threshold]
    if len(kept) > LONGEST:
        raise _too_long()
    filled = kept + [0] * ((1 << len(kept).bit_length()) - len(kept))
    words = [[part >> shift & 0xFFFFFFFF for part in filled] for shift in (96, 64, 32, 0)]
    return Table(mode - len(below) + certain, torch.tensor(words, dtype=torch.int64), len(kept))


def _masses(step: Callable[[int], Decimal], mode: int, limit: Decimal) -> list[Decimal]:
    """Pr[y]/Pr[mode] for y > mode, until all that follows is below CUT: at most mass worst/(1 - worst)."""
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
    """Pr[y]/Pr[mode] for y = mode - 1, mode - 2, ..., to 0 or until all that follows is below CUT."""
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


def _refuse_wide(deviation: float) -> None:
    if 12 * deviation > LONGEST:  # a table of 128 bits is longer than that
        raise _too_long()


def _too_long() -> ValueError:
    return ValueError(
        f"this law needs more than {LONGEST} thresholds; take a smaller mean or ratio, "
        "or draw it without a table (torch.poisson of a rate, or of a gamma variable for a negative binomial)"
    )
