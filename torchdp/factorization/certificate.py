"""The one evaluator of factorizations: it judges every solver and shares nothing with any of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks


@dataclass(frozen=True)
class Certificate:
    """Proof that a factorization norm lies in [lower, upper], recomputed in float64 from factors and weights.

    upper, lower, residual: float64 tensors of shape (*batch). None is squared.
    ``residual`` is max abs(W - shift 1^T - left right); its own factorization norm is part of ``upper``, so a
    factorization that misses W is charged for it.
    Both bounds hold up to the rounding of float64 linear algebra (about 1e-14 relative).
    """

    upper: Tensor
    lower: Tensor
    residual: Tensor

    @property
    def gap(self) -> Tensor:
        """upper / lower - 1, the relative distance to the optimum at most (0 where both bounds are 0)."""
        return torch.where(self.upper == self.lower, 0.0, self.upper / self.lower - 1)


def certify(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
    *,
    p: float = math.inf,
    shift: Tensor | None = None,
) -> Certificate:
    """Bounds on gamma_(p)(W), or with ``shift`` on min_v gamma_(p)(W + v 1^T), in float64.

    upper = l_p norm of left's row norms * largest column norm of right + ||E||, where E is what is missing
    (E = W - shift 1^T - left right, and ||E|| the l_p norm of its row norms: the factorization E = E I).
    lower = trace norm of diag(c)^{1/2} (W - W P 1^T [with shift only]) diag(P)^{1/2}, for c = row_weights
    scaled to ||c||_{p/(p-2)} = 1 and P = column_weights scaled to sum 1.

    W: (*batch, m, n); left: (*batch, m, r); right: (*batch, r, n); row_weights: (*batch, m) and
    column_weights: (*batch, n), non-negative (all zero: lower = 0); shift: (*batch, m) or None.
    Raises ValueError on p outside [2, inf] and on weights that are negative or not finite.

    Guarantees: lower <= norm <= upper for any factors and any non-negative weights, good or bad.
    Source: weak duality, Edmonds, Nikolov, Ullman (2020), Lemma 12; with p and shift, Nikolov, Tang (2023),
    Theorem 26; the triangle inequality for the residual.
    """
    p = check_exponent(p)
    W, left, right = W.double(), left.double(), right.double()
    missing = W - left @ right
    if shift is not None:
        missing = missing - shift.double()[..., None]
    upper = _row_norm(left, p) * _norm(right, 2.0, -2).amax(-1) + _row_norm(missing, p)

    rows = _weights("row_weights", row_weights, 1.0 if p == math.inf else math.inf if p == 2 else p / (p - 2))
    columns = _weights("column_weights", column_weights, 1.0)
    centred = W if shift is None else W - (W @ columns[..., None])
    weighted = rows.sqrt()[..., None] * centred * columns.sqrt()[..., None, :]
    lower = torch.linalg.svdvals(weighted).sum(-1)
    return Certificate(upper, lower, missing.abs().amax((-2, -1)))


def check_exponent(p: float) -> float:
    """``p`` as a float in [2, inf]. Raises ValueError."""
    if p != math.inf:
        p = checks.positive("p", p)
    if p < 2:
        raise ValueError(f"p must lie in [2, inf], not {p}")
    return float(p)


def _row_norm(matrix: Tensor, p: float) -> Tensor:
    return _norm(_norm(matrix, 2.0, -1), p, -1)


def _norm(values: Tensor, p: float, dim: int) -> Tensor:
    """l_p norm along ``dim``, scaled so that no power overflows or underflows."""
    top = values.abs().amax(dim, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return (torch.linalg.vector_norm(values / top, ord=p, dim=dim, keepdim=True) * top).squeeze(dim)


def _weights(name: str, weights: Tensor, order: float) -> Tensor:
    weights = checks.floating(name, weights).double()
    if (weights < 0).any():
        raise ValueError(f"{name} must hold no negative weights")
    size = _norm(weights, order, -1)[..., None]
    return weights / torch.where(size > 0, size, 1.0)
