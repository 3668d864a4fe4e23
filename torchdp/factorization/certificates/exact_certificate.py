"""Certificates to keep: in fractions, proved in exact arithmetic, and as files that other programs can verify."""

import math
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import certify, check_exponent, fitting, magnitude
from torchdp.factorization.factorize import Factorization

LARGEST = 80  # m + n: seconds
FORMAT = "torchdp factorization 1"
ARRAYS = ("W", "left", "right", "row_weights", "column_weights")
DIGITS = 40  # bits to which factors and weights are rounded: any are as good, if they are close
Exact = NDArray[np.object_]  # of fractions


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
    given = fitting(W, left=left, right=right, row_weights=row_weights, column_weights=column_weights)
    W, left, right, c, P = (each.cpu() for each in (W, *given))
    x, y = (w / w.amax().clamp_min(torch.finfo(w.dtype).tiny) for w in (c.sqrt(), P.sqrt()))
    U, _, Vh = torch.linalg.svd(x[:, None] * (W / magnitude(W)) * y, full_matrices=False)
    exact, L, R, Q, X, Y = _fractions(W), *(_rounded(each) for each in (left, right, U @ Vh, x, y))
    over = np.sum if p == 2 else np.max
    missing = exact - L @ R
    upper = outer_root(over((L * L).sum(1)) * (R * R).sum(0).max(), up=True)
    upper += outer_root(over((missing * missing).sum(1)), up=True)
    product, rows = X @ (exact * Q) @ Y, (X * X).max() if p == 2 else X @ X
    size = rows * (Y @ Y) * _proved(Q if len(Q) < Q.shape[1] else Q.T)
    lower = outer_root(product * product / size, up=False) if product > 0 and size > 0 else Fraction(0)
    return ExactCertificate(lower, upper)


def _proved(Q: Exact) -> Fraction:
    """nu with nu I - Q Q^T >= 0, near 1, for the short side of Q as its rows."""
    gram, one = Q @ Q.T, np.eye(len(Q), dtype=object)
    for excess in (Fraction(1, 2**30), Fraction(1, 2**10), Fraction(1), Fraction(3)):
        if positive_definite((1 + excess) * one - gram):
            return 1 + excess
    raise ArithmeticError("no bound on the witness was proved: the weights or factors are not of this W")


def positive_definite(A: Exact) -> bool:
    """Whether every pivot of A = L D L^T is positive."""
    A = np.array(A, dtype=object)
    for k, row in enumerate(A):
        if row[k] <= 0:
            return False
        A[k + 1 :] -= np.outer(A[k + 1 :, k] / row[k], row)
    return True


def _fractions(values: Tensor) -> Exact:
    return np.vectorize(Fraction, otypes=[object])(values.numpy())


def _rounded(values: Tensor) -> Exact:
    """In multiples of 2^-40 of the largest entry's power of two."""
    unit = magnitude(torch.atleast_2d(values))[0] / 2**DIGITS
    return _fractions((values / unit).round() * unit)


def outer_root(value: Fraction, up: bool) -> Fraction:
    """The square root, rounded outwards to 64 bits."""
    places = 64 + max(0, value.denominator.bit_length() - value.numerator.bit_length() // 2)
    root = math.isqrt((value.numerator << 2 * places) // value.denominator)
    return Fraction(root + (1 if up and value else 0), 1 << places)


def save(path: str | PathLike[str], W: Tensor, factorization: Factorization, *, p: float = math.inf) -> None:
    """Writes W, its factorization for the norm p and the bounds as an ``.npz`` of float64 arrays, judged again.

    Its arrays: W, left, right, row_weights, column_weights, shift where there is one, p, lower, upper, and ``format``.
    Another program verifies them with 40 lines of numpy: ``docs/relaxation.md``. Raises TypeError, ValueError.
    """
    found = checks.instance("factorization", factorization, Factorization)
    values = (W, found.left, found.right, found.row_weights, found.column_weights)
    judged = certify(*values, p=p, shift=found.shift)
    arrays = dict(zip(ARRAYS, values, strict=True)) | {"lower": judged.lower, "upper": judged.upper}
    arrays |= {} if found.shift is None else {"shift": found.shift}
    plain: dict[str, Any] = {name: array.detach().double().cpu().numpy() for name, array in arrays.items()}
    plain |= {"format": np.array(FORMAT), "p": np.array(float(p))}
    with open(checks.path("path", path), "wb") as file:
        np.savez(file, allow_pickle=False, **plain)


def load(path: str | PathLike[str]) -> tuple[Tensor, Factorization, float]:
    """(W, factorization, p) of a file by :func:`save`, in float64, its bounds proved again.

    Raises ValueError where an array is missing or the bounds that the file states are not what its arrays prove.
    """
    with np.load(checks.path("path", path), allow_pickle=False) as file:
        missing = {*ARRAYS, "format", "p", "lower", "upper"} - {*file.files}
        if missing or str(file["format"]) != FORMAT:
            raise ValueError(f"path must be a file by save, with format {FORMAT!r}; missing: {sorted(missing)}")
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "format"}
    p, shift = float(arrays["p"]), arrays.get("shift")
    W, left, right, c, P = (arrays[name] for name in ARRAYS)
    judged = certify(W, left, right, c, P, p=p, shift=shift)
    lower, upper = arrays["lower"], arrays["upper"]
    stated = (lower <= judged.lower + judged.rounding) & (upper >= judged.upper - judged.rounding)
    if not bool(stated.all()):
        raise ValueError("path states bounds that its factors and weights do not prove")
    return W, Factorization(left, right, shift, c, P, judged, 0), p
