"""Bounds on a norm as fractions, proved in exact arithmetic: to cite, independent of floating-point rounding."""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import check_exponent, dual_weights, fitting_factors, magnitude

LARGEST = 80  # m + n: seconds
DIGITS = 40  # bits to which factors and weights are rounded: any are as good, if they are close
Row = list[Fraction]


@dataclass(frozen=True)
class ExactCertificate(Brief):
    """lower <= the norm of W <= upper, in fractions, for W's floats as they are."""

    lower: Fraction
    upper: Fraction


def exact_certificate(
    W: Tensor, left: Tensor, right: Tensor, row_weights: Tensor, column_weights: Tensor, *, p: float = math.inf
) -> ExactCertificate:
    """:func:`certify` of gamma_2 (p = inf) or of p = 2 in fractions: a proof, whatever the arithmetic of a machine.

    upper: (norm of left's rows) * max_j ||right_j|| + (norm of the rows of E), E = W - left right. With rational
    x, y near the roots of the weights and Q near the polar factor of diag(x) W diag(y),
        lower = <diag(x) W diag(y), Q> / (|x| ||y|| nu^{1/2}),   |x| = ||x||, or max x for p = 2,
    where nu I - Q^T Q >= 0 is proved by its LDL^T factorization in fractions. Roots of fractions are rounded outwards.

    W: (m, n), m + n <= 80; factors and weights as in :func:`certify`. Raises TypeError, ValueError, and
    ArithmeticError where no nu up to 4 is proved.

    Guarantees: lower <= the norm of W <= upper, exactly.
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13.
    """
    if check_exponent(p) not in (2, math.inf):
        raise ValueError(f"p must be 2 or inf, not {p:g}: other powers of fractions are no fractions")
    W = checks.one_matrix("W", W)
    if sum(W.shape) > LARGEST:
        raise ValueError(f"W must be (m, n) with m + n <= {LARGEST}, not {tuple(W.shape)}")
    given = W, *fitting_factors(left, right, W), *dual_weights(row_weights, column_weights, W)
    W, left, right, c, P = (each.cpu() for each in given)
    x, y = (w / w.amax().clamp_min(torch.finfo(w.dtype).tiny) for w in (c.sqrt(), P.sqrt()))
    U, _, Vh = torch.linalg.svd(x[:, None] * (W / magnitude(W)) * y, full_matrices=False)
    exact, (x_, y_) = _fractions(W), (_rounded(w[None])[0] for w in (x, y))
    lower = _lower(exact, x_, y_, _rounded(U @ Vh), p)
    return ExactCertificate(lower, _upper(exact, _rounded(left), _rounded(right.mT), p))


def _upper(W: list[Row], left: list[Row], right: list[Row], p: float) -> Fraction:
    missing = [[w - _dot(l, r) for w, r in zip(row, right, strict=True)] for row, l in zip(W, left, strict=True)]
    over = sum if p == 2 else max
    factors = over(_dot(row, row) for row in left) * max(_dot(column, column) for column in right)
    return outer_root(Fraction(factors), up=True) + outer_root(
        Fraction(over(_dot(row, row) for row in missing)), up=True
    )


def _lower(W: list[Row], x: Row, y: Row, Q: list[Row], p: float) -> Fraction:
    along = [_dot([w * q for w, q in zip(*pair, strict=True)], y) for pair in zip(W, Q, strict=True)]
    product = _dot(x, along)
    rows = max(a * a for a in x) if p == 2 else _dot(x, x)
    size = (
        rows * _dot(y, y) * _proved(Q if len(Q) < len(Q[0]) else [list(column) for column in zip(*Q, strict=True)])
    )
    return outer_root(product * product / size, up=False) if product > 0 and size > 0 else Fraction(0)


def _proved(Q: list[Row]) -> Fraction:
    """nu with nu I - Q Q^T >= 0, near 1, for the short side of Q as its rows."""
    for excess in (Fraction(1, 2**30), Fraction(1, 2**10), Fraction(1), Fraction(3)):
        A = [[(1 + excess) * (i == j) - _dot(a, b) for j, b in enumerate(Q)] for i, a in enumerate(Q)]
        if positive_definite(A):
            return 1 + excess
    raise ArithmeticError("no bound on the witness was proved: the weights or factors are not of this W")


def positive_definite(A: list[Row]) -> bool:
    """Whether every pivot of A = L D L^T is positive."""
    for k, row in enumerate(A):
        if row[k] <= 0:
            return False
        for i in range(k + 1, len(A)):
            share = A[i][k] / row[k]
            A[i] = [b - share * a for a, b in zip(row, A[i], strict=True)]
    return True


def _dot(a: Row, b: Row) -> Fraction:
    return sum((s * t for s, t in zip(a, b, strict=True)), Fraction(0))


def _fractions(values: Tensor) -> list[Row]:
    return [[Fraction(value) for value in row] for row in values.tolist()]


def _rounded(values: Tensor) -> list[Row]:
    """The rows in multiples of 2^-40 of the largest entry's power of two."""
    unit = magnitude(values) / 2**DIGITS
    return _fractions((values / unit).round() * unit)


def outer_root(value: Fraction, up: bool) -> Fraction:
    """The square root, rounded outwards to 64 bits."""
    places = 64 + max(0, value.denominator.bit_length() - value.numerator.bit_length() // 2)
    root = math.isqrt((value.numerator << 2 * places) // value.denominator)
    return Fraction(root + (1 if up and value else 0), 1 << places)
