"""Certificates of structured matrices from the certificates of their parts: nothing dense is formed."""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import Certificate, allowance, or_infinite


def kronecker(certificates: Sequence[Certificate]) -> Certificate:
    """The certificate of W_1 (x) W_2 (x) ... with the Kronecker products of the factors' lefts and rights.

    upper = prod upper_i and lower = prod lower_i. What is missing is every product with at least one E_i, where
    W_i = left_i right_i + E_i; prod upper_i, multiplied out, holds a factorization of each of them, so all are charged.
    As max abs(W_i) <= gamma_(p)(W_i) <= upper_i, with e_i = residual_i,
        residual = prod (upper_i + e_i) - prod upper_i, summed without cancellation, bounds what is missing entrywise.

    rounding is made of the parts' likewise.

    Guarantees: lower <= gamma_(p)(W_1 (x) W_2 (x) ...) <= upper for the p of the parts, none with a shift.
    Source: Nikolov, Tang (2023), Lemma 62; both inequalities hold for any factors and any weights.
    """
    upper, lower = (reduce(torch.mul, [getattr(c, side) for c in certificates]) for side in ("upper", "lower"))
    upper = or_infinite(upper)
    residual = or_infinite(_more([(c.upper, c.residual) for c in certificates]))
    rounding = _more([(c.upper, c.rounding) for c in certificates]) + allowance(upper, len(certificates))
    return Certificate(upper, lower, residual, rounding=torch.where(upper.isfinite(), rounding, 0.0))


def rounded(certificate: Certificate, columns: int, relative: float) -> Certificate:
    """The certificate once left's rows and right's columns have each moved by at most ``relative`` of their norms.

    An entry of left right moves by at most d = (1 + relative)^2 - 1 times ||left_i|| ||right_j||: the residual grows by
    at most d upper, and what is missing has rows of norm at most d sqrt(n) ||left_i|| max_j ||right_j||, which
    charges d sqrt(n) upper; n = ``columns``. Underflow apart.
    """
    moved = math.expm1(2 * math.log1p(relative)) * certificate.upper
    return Certificate(
        upper=or_infinite(certificate.upper + math.sqrt(columns) * moved),
        lower=certificate.lower,
        residual=or_infinite(certificate.residual + moved),
        rounding=certificate.rounding,
    )


def _more(pairs: Sequence[tuple[Tensor, Tensor | float]]) -> Tensor:
    """prod (a_i + b_i) - prod a_i, without cancellation."""
    more, above = torch.zeros_like(pairs[0][0]), torch.ones_like(pairs[0][0])
    for a, b in pairs:
        more, above = more * a + above * b, above * (a + b)
    return more
