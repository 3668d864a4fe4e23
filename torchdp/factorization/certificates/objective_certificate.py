"""The evaluators of any objective, and of gamma_2 within alpha: like certify, they share nothing
with the solvers.
"""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    dual_size,
    fitting,
    judged,
    row_norm,
    scaled_weights,
    value_of,
)
from torchdp.factorization.relaxation import Objective


def certify_objective(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    objective: Objective,
    rows: Tensor,
    columns: Tensor,
) -> Certificate:
    """Bounds on the root of the least squared error of W = L R, in float64.

    upper: the factors' own, of left' = (left, s E) and right' = (right; I / s), where E is what
    left right misses; s makes the two parts alike.
        lower = (<rows, offset> + ||diag(c)^{1/2} W diag(P)^{1/2}||_tr^2)^{1/2},
    c the slope at the factors' a of <rows, objective.rows(a)> and P that of
    <columns, objective.least_columns(b)>, the multipliers scaled to sum 1.

    Proof. f convex and homogeneous of degree 1 has f(a') >= <f'(a), a'> everywhere. So for every
    factorization max_k rows_k(a') >= <c, a'> and max_l columns_l(b') >= <P, b'>, and
        <c, a'> <P, b'> = ||diag(c)^{1/2} L||_F^2 ||R diag(P)^{1/2}||_F^2
                       >= ||diag(c)^{1/2} W diag(P)^{1/2}||_tr^2.

    Shapes as in :func:`certify`; rows: (*batch, k) and columns: (*batch, l), one multiplier >= 0
    for each value of the objective. Raises TypeError, ValueError.

    Guarantees: lower <= the least error <= upper for any factors and multipliers, where rows and
    least_columns are convex.
    Source: Nikolov, Tang (2023), Theorem 26, for the norms; the slopes are derived here.
    """
    W = checks.matrix("W", W).detach().double()
    left, right = fitting(W, left=left, right=right)
    missing = W - left @ right
    a, b = left.square().sum(-1), right.square().sum(-2)
    offset = checks.instance("objective", objective, Objective).offset(W)
    with torch.inference_mode(False), torch.enable_grad():
        at, by = a.clone().requires_grad_(), b.clone().requires_grad_()
        values, held = objective.rows(at), objective.least_columns(by)
        sizes = {"rows": (rows, values.shape[-1:]), "columns": (columns, held.shape[-1:])}
        rows, columns = (scaled_weights(x, 1.0) for x in fitting(W, **sizes))
        total = (rows * values).sum() + (columns * held).sum()
        c, P = (slope.clamp_min(0) for slope in torch.autograd.grad(total, [at, by]))
    trace = torch.linalg.svdvals(c.sqrt()[..., None] * W * P.sqrt()[..., None, :]).sum(-1)
    constant = (rows * offset).sum(-1)
    lower = (constant + trace.square()).clamp_min(0).sqrt()

    rest = missing.square().sum(-1)  # squared row norms of E
    largest = rest.amax(-1)
    s2 = (a.amax(-1) / b.amax(-1) / largest).sqrt()
    s2 = torch.where((s2 > 0) & s2.isfinite(), s2, 1.0)
    a, b = a + s2[..., None] * rest, b + torch.where(largest > 0, 1 / s2, 0.0)[..., None]
    worst = (objective.rows(a) * objective.columns(b).amax(-1, keepdim=True) + offset).amax(-1)
    upper = worst.clamp_min(0).sqrt()
    subtracted = (rows * offset).abs().sum(-1).sqrt()
    return judged(upper, lower, missing, sum(W.shape[-2:]) + left.shape[-1], subtracted)


def certify_approximate(
    W: Tensor,
    alpha: Tensor | float,
    left: Tensor,
    right: Tensor,
    U: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
) -> Certificate:
    """Bounds on gamma_2(W; alpha) = min over abs(W' - W) <= alpha (every entry) of gamma_2(W'), in
    float64.

    upper = largest row norm of left * largest column norm of right, plus the largest row norm of
    what left right misses beyond alpha. lower = (<W, U> - alpha sum abs(U)) / max(1, s), at least
    0, with s the operator norm of diag(c)^{-1/2} U diag(P)^{-1/2} for the weights c, P scaled to
    sum 1: gamma_2*(U) <= s.

    W, U: (*batch, m, n); factors and weights as in :func:`certify`; alpha: a number or (*batch).
    Raises TypeError, ValueError.

    Guarantees: lower <= gamma_2(W; alpha) <= upper for any factors, any U and any non-negative
    weights.
    Source: Ghazi et al. (2023), section 1 (entries within alpha; Edmonds, Nikolov, Ullman (2020)
    define it with alpha/2, but their dual, Lemma 12, is the one for alpha); Lemma 13 for the
    weights.
    """
    W = checks.matrix("W", W).detach().double()
    m, n = W.shape[-2:]
    weights = {"row_weights": row_weights, "column_weights": column_weights}
    left, right, U, *given = fitting(W, left=left, right=right, U=(U, (m, n)), **weights)
    alpha = amounts("alpha", alpha, W)
    missing, bound = W - left @ right, alpha[..., None, None]
    beyond = missing - missing.clamp(-bound, bound)
    upper = value_of(left, beyond, row_norm(right.mT, math.inf), math.inf)

    size, U = dual_size(U, *given)  # a row of weight 0 proves nothing about U there
    size = size.clamp_min(1)
    price = alpha * U.abs().sum((-2, -1))
    lower = ((W * U).sum((-2, -1)) - price) / size
    summed = ((W * U).abs().sum((-2, -1)) + price) / size
    return judged(upper, lower.clamp_min(0), missing, m + n + left.shape[-1], summed)


def amounts(name: str, value: Tensor | float, W: Tensor) -> Tensor:
    """A number, or a tensor of numbers for the batch of W, in float64 on W's device; none
    negative.
    """
    if not isinstance(value, Tensor):
        value = torch.tensor(checks.non_negative(name, value), dtype=torch.float64, device=W.device)
    value = checks.floating(name, value).detach().to(W.device, torch.float64)
    if bool((value < 0).any()):
        raise ValueError(f"{name} must hold no negative numbers")
    try:
        np.broadcast_shapes(value.shape, W.shape[:-2])
    except ValueError as error:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} must broadcast with the batch {tuple(W.shape[:-2])} of W"
        ) from error
    return value
