"""The free constant of a quadratic form: h^T (W + c 1 1^T) h = h^T W h + c for a probability vector h."""

import math
from dataclasses import dataclass

from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import refuse_contradiction
from torchdp.factorization.factorize import factorize
from torchdp.factorization.norm import witness

ROUNDING = 1e-13  # of the largest entry of W


@dataclass(frozen=True)
class FreeConstant:
    """min over c of gamma_2(W + c 1 1^T) lies in [lower, upper]; ``constant`` attains upper.

    rounding: what float64 may have cost the bounds. Raises ArithmeticError where lower > upper + rounding.
    """

    constant: float
    upper: float
    lower: float
    rounding: float

    def __post_init__(self) -> None:
        refuse_contradiction(self.lower, self.upper, self.rounding)


def free_constant(W: Tensor, *, tol: float = 1e-3, most: int = 60) -> FreeConstant:
    """The constant that, added to every entry of W, makes gamma_2 least, with bounds on that least value.

    gamma_2(W + c 1 1^T) is convex in c, and every witness U gives a line below it, <W, U> + c sum U. From the middle
    of W's range c moves down the slope until the slope changes sign; then the next c is where the two innermost lines
    meet (at least a tenth of the bracket from its ends). The height of that point is a lower bound. Stops at the
    relative gap ``tol`` or after ``most`` factorizations.

    W: (m, n), real. Raises ValueError, TypeError.
    Guarantees: lower <= min over c of gamma_2(W + c 1 1^T) <= upper.
    Source: Edmonds, Nikolov, Ullman (2020), Lemma 12, for the lines; Kelley (1960) for the method.
    """
    W = checks.one_matrix("W", W)
    tol, most = checks.positive("tol", tol), checks.integer("most", most, 1)
    middle, width = -float(W.max() + W.min()) / 2, float(W.max() - W.min())
    size = float(W.abs().max())
    falling: tuple[float, float, float] | None = None  # c, height at 0 and slope of the innermost line that falls
    rising: tuple[float, float, float] | None = None
    c, best, upper, lower = middle, middle, math.inf, 0.0
    for _ in range(most):
        found = factorize(W + c, tol=tol / 4)
        if float(found.certificate.upper) < upper:
            best, upper = c, float(found.certificate.upper)
        U = witness(W + c, found.row_weights, found.column_weights)
        line = c, float((W * U).sum()), float(U.sum())
        if line[2] < 0:
            falling = line
        else:
            rising = line
        if falling is None or rising is None:
            if line[2] == 0:
                lower = max(lower, line[1])
            c += width if rising is None else -width
            width *= 2
        else:
            meet = (falling[1] - rising[1]) / (rising[2] - falling[2])
            lower = max(lower, rising[1] + meet * rising[2])
            margin = (rising[0] - falling[0]) / 10
            c = min(max(meet, falling[0] + margin), rising[0] - margin)
        if upper <= lower * (1 + tol) or upper <= ROUNDING * size:
            break
    return FreeConstant(best, upper, lower, ROUNDING * size)
