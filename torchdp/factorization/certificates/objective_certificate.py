"""The evaluator of any objective: like certify, it shares nothing with the solvers."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    fitting,
    or_infinite,
    scaled_weights,
)
from torchdp.factorization.objectives import Objective


def certify_objective(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    objective: Objective,
    rows: Tensor,
    columns: Tensor,
    *,
    shift: Tensor | None = None,
) -> Certificate:
    """Bounds on the root of the least squared error of W = L R, or of W - v 1^T = L R, in float64.

    upper: the factors' own, of left' = (left, s E) and right' = (right; I / s), where E is what left right
    misses; s makes the two parts alike. With X = W, or with shift W - W P 1^T / sum P,
        lower = (<rows, offset> + ||diag(c)^{1/2} X diag(P)^{1/2}||_tr^2)^{1/2},
    c the slope at the factors' a of <rows, objective.rows(a)> and P that of
    <columns, objective.least_columns(b)>, the multipliers scaled to sum 1.

    Proof. f convex and homogeneous of degree 1 has f(a') >= <f'(a), a'> everywhere. So for every
    factorization max_k rows_k(a') >= <c, a'> and max_l columns_l(b') >= <P, b'>, and
        <c, a'> <P, b'> = ||diag(c)^{1/2} L||_F^2 ||R diag(P)^{1/2}||_F^2
                       >= ||diag(c)^{1/2} (W - v 1^T) diag(P)^{1/2}||_tr^2.
    Multiplying from the right by the projection off P^{1/2} lowers the trace norm and leaves X, whatever v is.

    Shapes as in :func:`certify`; rows: (*batch, k) and columns: (*batch, l), one multiplier >= 0
    for each value of the objective. Raises TypeError, ValueError.

    Guarantees: lower <= the least error <= upper for any factors and multipliers, where rows and
    least_columns are convex.
    Source: Nikolov, Tang (2023), Theorem 26, for the norms; the slopes are derived here.
    """
    W = checks.matrix("W", W).detach().double()
    left, right = fitting(W, left=left, right=right)
    v = None if shift is None else fitting(W, shift=shift)[0][..., None]
    missing = W - left @ right if v is None else W - left @ right - v
    a, b = left.square().sum(-1), right.square().sum(-2)
    offset = checks.instance("objective", objective, Objective).offset(W)
    if v is not None and bool((offset != 0).any()):
        raise ValueError("shift is for an objective without offset: the offset is of W, and a shift would move it")
    with torch.inference_mode(False), torch.enable_grad():
        at, by = a.clone().requires_grad_(), b.clone().requires_grad_()
        values, held = objective.rows(at), objective.least_columns(by)
        sizes = {"rows": (rows, values.shape[-1:]), "columns": (columns, held.shape[-1:])}
        rows, columns = (scaled_weights(x, 1.0) for x in fitting(W, **sizes))
        total = (rows * values).sum() + (columns * held).sum()
        c, P = (slope.clamp_min(0) for slope in torch.autograd.grad(total, [at, by]))
    X = W if v is None else W - W @ P[..., None] / P.sum(-1)[..., None, None]
    trace = torch.linalg.svdvals(c.sqrt()[..., None] * X * P.sqrt()[..., None, :]).sum(-1)
    constant = (rows * offset).sum(-1)
    lower = (constant + trace.square()).clamp_min(0).sqrt()

    rest = missing.square().sum(-1)  # squared row norms of E
    largest = rest.amax(-1)
    s2 = (_ratio(a.amax(-1), b.amax(-1)) * _ratio(torch.ones_like(largest), largest)).sqrt()
    a, b = a + s2[..., None] * rest, b + torch.where(largest > 0, 1 / s2, 0.0)[..., None]
    worst = (objective.rows(a) * objective.columns(b).amax(-1, keepdim=True) + offset).amax(-1)
    upper = or_infinite(worst.clamp_min(0).sqrt())
    others = [(rows * offset).abs().sum(-1).sqrt()]
    others += [] if v is None else [W.abs().amax((-2, -1))]
    rounding = allowance(upper, sum(W.shape[-2:]) + left.shape[-1], *others)
    return Certificate(upper, lower, or_infinite(missing.abs().amax((-2, -1))), rounding=rounding)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 1 where it is no positive number."""
    ratio = a / b
    return torch.where((ratio > 0) & ratio.isfinite(), ratio, 1.0)
