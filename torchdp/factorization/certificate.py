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
    factorization that misses W is charged for it. With error weights all three are of diag(error_weights) W.
    Both bounds hold up to the rounding of float64 linear algebra (about 1e-14 relative).
    """

    upper: Tensor
    lower: Tensor
    residual: Tensor

    @property
    def gap(self) -> Tensor:
        """upper / lower - 1, the relative distance to the optimum at most (0 where both bounds are equal)."""
        gap = torch.where(self.upper == self.lower, 0.0, self.upper / self.lower - 1)
        return torch.where(self.upper.isfinite(), gap, math.inf)


def certify(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
    *,
    p: float = math.inf,
    shift: Tensor | None = None,
    error_weights: Tensor | None = None,
) -> Certificate:
    """Bounds on gamma_(p)(W), or with ``shift`` on min_v gamma_(p)(W + v 1^T), in float64.

    upper = l_p norm of left's row norms * largest column norm of right + ||E||, where E is what is missing
    (E = W - shift 1^T - left right, and ||E|| the l_p norm of its row norms: the factorization E = E I).
    lower = trace norm of diag(c)^{1/2} (W - W P 1^T [with shift only]) diag(P)^{1/2}, for c = row_weights
    scaled to ||c||_{p/(p-2)} = 1 and P = column_weights scaled to sum 1.

    With ``error_weights`` w each of W, left and shift is multiplied by diag(w) first: the bounds are those of the
    weighted norm, and the residual is max abs(diag(w) E).

    W: (*batch, m, n); left: (*batch, m, r); right: (*batch, r, n); row_weights: (*batch, m) and
    column_weights: (*batch, n), non-negative (all zero: lower = 0); shift: (*batch, m) or None; error_weights:
    (*batch, m), positive, or None. Leading dimensions broadcast to W's; all on W's device. No gradients.
    upper is inf, and so is the gap, where left @ right overflows.
    Raises ValueError or TypeError, naming the argument, on other shapes and devices, on entries that are not finite,
    on negative weights and on p outside [2, inf].

    Guarantees: lower <= norm <= upper for any factors and any non-negative weights, good or bad.
    Source: weak duality, Edmonds, Nikolov, Ullman (2020), Lemma 12; with p and shift, Nikolov, Tang (2023),
    Theorem 26; the triangle inequality for the residual.
    """
    p = check_exponent(p)
    W = checks.matrix("W", W).detach().double()
    m, n = W.shape[-2:]
    r = checks.matrix("left", left).shape[-1]
    left, right = fitting("left", left, W, (m, r)), fitting("right", right, W, (r, n))
    rows = fitting("row_weights", row_weights, W, (m,))
    columns = fitting("column_weights", column_weights, W, (n,))
    shift = None if shift is None else fitting("shift", shift, W, (m,))[..., None]
    if error_weights is not None:
        w = check_error_weights(error_weights, W)[..., None]
        W, left = checks.floating("error_weights times W", w * W), w * left
        shift = None if shift is None else w * shift
    missing = W - left @ right if shift is None else W - left @ right - shift
    upper = _row_norm(left, p) * _norm(right, 2.0, -2).amax(-1) + _row_norm(missing, p)
    residual = missing.abs().amax((-2, -1))

    rows = _weights("row_weights", rows, 1.0 if p == math.inf else math.inf if p == 2 else p / (p - 2))
    columns = _weights("column_weights", columns, 1.0)
    size = W.abs().amax((-2, -1), keepdim=True)
    W = W / torch.where(size > 0, size, 1.0)
    centred = W if shift is None else W - (W @ columns[..., None])
    weighted = rows.sqrt()[..., None] * centred * columns.sqrt()[..., None, :]
    lower = torch.linalg.svdvals(weighted).sum(-1) * size[..., 0, 0]
    return Certificate(_or_infinite(upper), lower, _or_infinite(residual))


def check_error_weights(weights: Tensor, W: Tensor) -> Tensor:
    """``weights`` as positive float64 numbers, one for each row of W. Raises TypeError, ValueError."""
    weights = fitting("error_weights", weights, W, W.shape[-2:-1])
    if not (weights > 0).all():
        raise ValueError(
            "error_weights must be positive: a query of weight 0 may cost without bound, so that no best factorization "
            "exists; drop its row of W, or give it a small weight"
        )
    return weights


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


def _or_infinite(bound: Tensor) -> Tensor:
    return torch.where(bound.isfinite(), bound, math.inf)


def _weights(name: str, weights: Tensor, order: float) -> Tensor:
    """``weights`` scaled to norm 1: first by the largest, so that subnormal ones keep their ratios."""
    if (weights < 0).any():
        raise ValueError(f"{name} must hold no negative weights")
    top = weights.amax(-1, keepdim=True)
    weights = weights / torch.where(top > 0, top, 1.0)
    return weights / torch.linalg.vector_norm(weights, ord=order, dim=-1, keepdim=True).clamp_min(1.0)


def fitting(name: str, value: Tensor, W: Tensor, last: tuple[int, ...]) -> Tensor:
    """``value`` in float64: finite, on W's device, last dimensions ``last``, leading ones that broadcast to W's."""
    value = checks.floating(name, value).detach()
    if value.device != W.device:
        raise ValueError(f"{name} is on {value.device}, W on {W.device}; move it there")
    try:
        batch = torch.broadcast_shapes(value.shape[: -len(last)], W.shape[:-2])
        fits = value.shape[-len(last) :] == last and batch == W.shape[:-2]
    except RuntimeError:
        fits = False
    if not fits:
        wanted = ", ".join(map(str, ("*batch", *last)))
        raise ValueError(
            f"{name} must be of shape ({wanted}) beside W of shape {tuple(W.shape)}, not {tuple(value.shape)}"
        )
    return value.double()
