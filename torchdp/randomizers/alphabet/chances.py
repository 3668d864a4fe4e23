"""Chances as they are drawn, in rational numbers: rounded to the private side, and measured.

An epsilon that is stated is the log ratio of what is drawn, rounded up.
"""

import decimal
import math
from fractions import Fraction

import torch
from torch import Tensor

# Digits of exponentials, and of the logarithms that judge them: more, so that rounding in a
# logarithm is far below that of a float.
DIGITS = decimal.Context(prec=60, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
MORE = decimal.Context(prec=90, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)

# Of the integers of one column of a table.
TOTAL = 2**63

# Relative: an epsilon drawn this close below the one asked for is stated as that one.
SAME = 1e-9

# Where a column can not be settled, the least chances of all rows are lowered by 2^-40 of theirs.
SPARE = 40

# Relative: rounding may change the difference of two chances by this much, no more.
BIAS = Fraction(1, 2**20)


def exponential(epsilon: float) -> Fraction:
    """A rational in [1, e^epsilon] for epsilon >= 0, at most 1e-58 of e^epsilon below it."""
    below = decimal.Decimal(epsilon).exp(DIGITS).next_minus(DIGITS)
    return max(Fraction(1), Fraction(below))


def logarithm(ratio: Fraction) -> float:
    """The least float at or above log(ratio), ratio >= 1."""
    quotient = MORE.divide(decimal.Decimal(ratio.numerator), decimal.Decimal(ratio.denominator))
    bound = quotient.next_plus(MORE).ln(MORE).next_plus(MORE)
    nearest = float(bound)
    return nearest if nearest >= bound else math.nextafter(nearest, math.inf)


def at_least(chance: Fraction) -> float:
    """The least float at or above ``chance``."""
    nearest = float(chance)
    return nearest if nearest >= chance else math.nextafter(nearest, math.inf)


def stated(asked: float, drawn: float) -> float:
    """The epsilon to state: ``drawn``, or ``asked`` where that is hardly more (1e-9 of it)."""
    return asked if asked * (1 - SAME) <= drawn <= asked else drawn


def told_apart(epsilon: float, drawn: Fraction, wanted: Fraction) -> None:
    """Refuses an epsilon so small that rounding changes a difference of two chances.

    Raises ValueError.
    """
    if drawn <= 0 or abs(drawn - wanted) > BIAS * wanted:
        raise ValueError(
            f"epsilon = {epsilon!r} is too small: the chances drawn can not tell the types apart "
            "as it says; take a larger epsilon or fewer types"
        )


def whole_table(Q: Tensor) -> tuple[Tensor, float]:
    """Integers n (m, k), int64, of columns that add up to 2^63, n/2^63 near Q; and their epsilon.

    Q: (m, k), m >= 2, float64, positive, columns that add up to 1 to rounding. In each row the
    least entry is rounded up, the others are kept below the largest ratio of Q's rows times it;
    what a column lacks or has too much is settled on its largest entries first. epsilon = log max_y
    (max_x n_yx/min_x n_yx), rounded up: never above that of Q. Raises ValueError where no such
    integers are found.
    """
    Q = Q.cpu()
    scaled = (Q * 2.0**63).clamp(1, 2.0**63 - 1024)  # the last float64 below 2^63
    largest = _largest_ratio(Q)
    least = scaled.amin(1).ceil().to(torch.int64)
    for low in (least, least - (least >> SPARE)):
        limits = [min(TOTAL - 1, math.floor(entry * largest)) for entry in low.tolist()]
        high = low.new_tensor(limits)
        n = _settled(scaled.round().to(torch.int64), low[:, None], high[:, None])
        ratio = _largest_ratio(n)
        if not _excess(n).any() and 1 < ratio <= largest:
            return n, logarithm(ratio)
    raise ValueError(
        "matrix holds differences that integers of 63 bits can not keep; merge outputs that hardly "
        "ever occur, or take a larger epsilon"
    )


def _excess(n: Tensor) -> Tensor:
    """By how much each column passes 2^63.

    Sums of int64 go round at 2^64, which does not change a small excess.
    """
    return n.sum(0) + TOTAL // 2 + TOTAL // 2


def _settled(n: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """n between low and high, moved to columns that add up to 2^63 as far as these allow."""
    n = n.maximum(low).minimum(high)
    excess = _excess(n)
    order = n.argsort(0, descending=True)
    lowered = _shares(n - low, order, excess)
    raised = _shares(high - n, order, -excess)
    return n - lowered + raised


def _shares(most: Tensor, order: Tensor, amount: Tensor) -> Tensor:
    """``amount`` of each column, where positive, on its entries: up to ``most``, in ``order``."""
    wanted = amount.clamp_min(0)
    part = most.gather(0, order).minimum(wanted)
    before = part.cumsum(0) - part
    part = (wanted - before).clamp_min(0).minimum(part)
    return torch.zeros_like(most).scatter(0, order, part)


def _largest_ratio(table: Tensor) -> Fraction:
    """Of the largest and the least entry of a row, over the rows, exactly."""
    low = table.amin(1)
    high = table.amax(1)
    ratio = high.double() / low.double()
    # In rational numbers only rows that rounding can not exclude.
    rows = ratio >= ratio.max() * (1 - 2**-50)
    pairs = torch.stack([low[rows], high[rows]], 1).unique(dim=0)
    return max(Fraction(most) / Fraction(least) for least, most in pairs.tolist())
