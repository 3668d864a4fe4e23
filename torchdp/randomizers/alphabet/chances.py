"""Chances as they are drawn, in rational numbers: rounded to the private side, their epsilon
measured and stated.
"""

import decimal
import math
from fractions import Fraction

import torch
from torch import Tensor

DIGITS, MORE = (
    decimal.Context(prec=n, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX) for n in (60, 90)
)
TOTAL = 2**63  # of the integers of one column of a table
SAME = 1e-9  # relative: an epsilon drawn this close below the one asked for is stated as that one
# where a column finds no room, the least chances of all rows are lowered by 2^-40 of theirs
SPARE = 40
# relative: rounding may change the difference of two chances by this much, no more
BIAS = Fraction(1, 2**20)


def exponential(epsilon: float) -> Fraction:
    """A rational at most e^epsilon, for epsilon >= 0, and at least 1; less than it by 1e-58 of
    it.
    """
    return max(Fraction(1), Fraction(decimal.Decimal(epsilon).exp(DIGITS).next_minus(DIGITS)))


def logarithm(ratio: Fraction) -> float:
    """The least float at or above log(ratio), ratio >= 1."""
    quotient = MORE.divide(decimal.Decimal(ratio.numerator), decimal.Decimal(ratio.denominator))
    exact = quotient.next_plus(MORE).ln(MORE).next_plus(MORE)
    found = float(exact)
    return found if found >= exact else math.nextafter(found, math.inf)


def at_least(chance: Fraction) -> float:
    """The least float at or above ``chance``."""
    found = chance.numerator / chance.denominator
    return found if Fraction(found) >= chance else math.nextafter(found, math.inf)


def stated(asked: float, drawn: float) -> float:
    """The epsilon to state: ``drawn``, or ``asked`` where that is hardly more (1e-9 of it)."""
    return asked if asked * (1 - SAME) <= drawn <= asked else drawn


def told_apart(epsilon: float, drawn: Fraction, wanted: Fraction) -> None:
    """Refuses an epsilon so small that rounding makes a difference of two chances another one.
    Raises ValueError.
    """
    if drawn <= 0 or abs(drawn - wanted) > BIAS * wanted:
        raise ValueError(
            f"epsilon = {epsilon!r} is too small: the chances drawn can not tell the types apart as it says; take a "
            "larger epsilon or fewer types"
        )


def whole_table(Q: Tensor) -> tuple[Tensor, float]:
    """(integers n (m, k), int64, whose columns add up to 2^63 and whose distribution n/2^63 is near
    Q; its epsilon).

    Q: (m, k), m >= 2, float64, positive, columns that add up to 1 to rounding. In each row the
    least entry is rounded up, the others are kept below the largest ratio of Q's rows times it;
    what a column lacks or has too much is settled on its largest entries first. epsilon = log max_y
    (max_x n_yx/min_x n_yx), rounded up: never above that of Q. Raises ValueError where the integers
    leave no room.
    """
    scaled = (Q.cpu() * 2.0**63).clamp(1, 2.0**63 - 1024)
    largest = max(Fraction(high) / Fraction(low) for low, high in _widest(Q.cpu()))
    least = scaled.amin(1).ceil().to(torch.int64)
    for low in (least, least - (least >> SPARE)):
        high = low.new_tensor([min(TOTAL - 1, math.floor(a * largest)) for a in low.tolist()])
        n = _settled(scaled.round().to(torch.int64), low[:, None], high[:, None])
        ratio = max(Fraction(high) / Fraction(low) for low, high in _widest(n))
        if not _excess(n).any() and 1 < ratio <= largest:
            return n, logarithm(ratio)
    raise ValueError(
        "matrix holds differences that integers of 63 bits can not keep; merge outputs that hardly ever occur, or take "
        "a larger epsilon"
    )


def _excess(n: Tensor) -> Tensor:
    """By how much each column passes 2^63: sums of int64 go round at 2^64, which does not change a
    small excess.
    """
    return n.sum(0) + TOTAL // 2 + TOTAL // 2


def _settled(n: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """n between low and high, moved to columns that add up to 2^63 as far as there is room."""
    n = n.maximum(low).minimum(high)
    excess, order = _excess(n), n.argsort(0, descending=True)
    for sign, room in ((-1, n - low), (1, high - n)):
        wanted = (-sign * excess).clamp_min(0)
        room = room.gather(0, order).minimum(wanted)
        before = room.cumsum(0) - room
        n = n.scatter_add(0, order, sign * (wanted - before).clamp_min(0).minimum(room))
    return n


def _widest(table: Tensor) -> list[tuple[int | float, int | float]]:
    """(least, largest) entry of the rows whose ratio is largest to rounding; one of them has the
    largest.
    """
    low, high = table.amin(1), table.amax(1)
    ratio = high.double() / low.double()
    rows = ratio >= ratio.max() * (1 - 2**-50)
    pairs = torch.stack([low[rows], high[rows]], 1).unique(dim=0)
    return [(a, b) for a, b in pairs.tolist()]
