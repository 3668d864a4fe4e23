"""The evaluators of any objective, and of gamma_2 within alpha; they share nothing with solvers.

Notation:
    W: the workload, (*batch, m, n); L (*batch, m, r), R (*batch, r, n): left and right, its
    factors. E: what they miss, W - L R. a, b: squared row norms of L, (*batch, m), and column norms
    of R, (*batch, n). c, P: weights of the rows (*batch, m) and of the columns (*batch, n). U: a
    witness, (*batch, m, n).
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

    Args:
        W: as in :func:`certify`, like the factors.
        left: (*batch, m, r).
        right: (*batch, r, n).
        objective: what is certified.
        rows: (*batch, k), one multiplier >= 0 for each of its values.
        columns: (*batch, l), likewise.

    Raises TypeError, ValueError.

    Guarantees: lower <= the least error <= upper for any factors and multipliers, where rows and
    least_columns are convex.
    Source: Nikolov, Tang (2023), Theorem 26, for the norms; the slopes are derived here.
    """
    W = checks.matrix("W", W).detach().double()
    left, right = fitting(W, left=left, right=right)
    missing = W - left @ right
    a = left.square().sum(-1)
    b = right.square().sum(-2)
    offset = checks.instance("objective", objective, Objective).offset(W)
    c, P, rows = _slopes(W, objective, a, b, rows, columns)
    weighted = c.sqrt()[..., None] * W * P.sqrt()[..., None, :]
    trace = torch.linalg.svdvals(weighted).sum(-1)
    constant = (rows * offset).sum(-1)
    squared = constant + trace.square()
    lower = squared.clamp_min(0).sqrt()

    # What is missing joins the factors as s E and I / s.
    missed = missing.square().sum(-1)
    largest = missed.amax(-1)
    # s makes the two parts of a' alike.
    ratio = a.amax(-1) / b.amax(-1) / largest
    s2 = ratio.sqrt()
    s2 = torch.where((s2 > 0) & s2.isfinite(), s2, 1.0)
    added = torch.where(largest > 0, 1 / s2, 0.0)
    a = a + s2[..., None] * missed
    b = b + added[..., None]
    column = objective.columns(b).amax(-1, keepdim=True)
    squares = objective.rows(a) * column + offset
    upper = squares.amax(-1).clamp_min(0).sqrt()
    subtracted = (rows * offset).abs().sum(-1)
    terms = sum(W.shape[-2:]) + left.shape[-1]
    return judged(upper, lower, missing, terms, subtracted.sqrt())


def _slopes(
    W: Tensor, objective: Objective, a: Tensor, b: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """c, P, and the rows' multipliers scaled to sum 1, as :func:`certify_objective` has them."""
    with torch.inference_mode(False), torch.enable_grad():
        a = a.clone().requires_grad_()
        b = b.clone().requires_grad_()
        row_values = objective.rows(a)
        column_values = objective.least_columns(b)
        rows, columns = fitting(
            W,
            rows=(rows, row_values.shape[-1:]),
            columns=(columns, column_values.shape[-1:]),
        )
        rows = scaled_weights(rows, 1.0)
        columns = scaled_weights(columns, 1.0)
        # A batch's problems depend on entries of their own: one gradient serves all.
        total = (rows * row_values).sum() + (columns * column_values).sum()
        c, P = torch.autograd.grad(total, [a, b])
    # Rounding may leave a slope below 0.
    return c.clamp_min(0), P.clamp_min(0), rows


def certify_approximate(
    W: Tensor,
    alpha: Tensor | float,
    left: Tensor,
    right: Tensor,
    U: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
) -> Certificate:
    """Bounds on gamma_2(W; alpha) = min over abs(W' - W) <= alpha entrywise of gamma_2(W').

    All in float64. upper = largest row norm of left * largest column norm of right, plus the
    largest row norm of what left right misses beyond alpha. lower = (<W, U> - alpha sum abs(U)) /
    max(1, s), at least 0, with s the operator norm of diag(c)^{-1/2} U diag(P)^{-1/2} for the
    weights c, P scaled to sum 1: gamma_2*(U) <= s.

    Args:
        W: as in :func:`certify`, like the factors and the weights.
        alpha: a number or (*batch), >= 0.
        left: (*batch, m, r).
        right: (*batch, r, n).
        U: (*batch, m, n).
        row_weights: (*batch, m), non-negative.
        column_weights: (*batch, n), likewise.

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
    left, right, U, c, P = fitting(W, left=left, right=right, U=(U, (m, n)), **weights)
    alpha = amounts("alpha", alpha, W)
    bound = alpha[..., None, None]
    missing = W - left @ right
    excess = missing - missing.clamp(-bound, bound)
    upper = value_of(left, excess, row_norm(right.mT, math.inf), math.inf)

    size, U = dual_size(U, c, P)  # a row of weight 0 proves nothing about U there
    size = size.clamp_min(1)
    price = alpha * U.abs().sum((-2, -1))
    products = W * U
    lower = (products.sum((-2, -1)) - price) / size
    # What was summed, without signs: its rounding.
    sizes = products.abs().sum((-2, -1)) + price
    terms = m + n + left.shape[-1]
    return judged(upper, lower.clamp_min(0), missing, terms, sizes / size)


def amounts(name: str, value: Tensor | float, W: Tensor) -> Tensor:
    """A number >= 0, or a tensor of such for the batch of W, in float64 on W's device."""
    if not isinstance(value, Tensor):
        value = torch.tensor(checks.non_negative(name, value), dtype=torch.float64, device=W.device)
    value = checks.floating(name, value).detach().to(W.device, torch.float64)
    if bool((value < 0).any()):
        raise ValueError(f"{name} must hold no negative numbers")
    try:
        np.broadcast_shapes(value.shape, W.shape[:-2])
    except ValueError as error:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} must broadcast with the batch "
            f"{tuple(W.shape[:-2])} of W"
        ) from error
    return value
