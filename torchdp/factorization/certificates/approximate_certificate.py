"""The evaluator of approximate factorizations: like certify, it shares nothing with the solvers."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    fitting,
    or_infinite,
    row_norm,
    scaled_weights,
)


def certify_approximate(
    W: Tensor,
    alpha: Tensor | float,
    left: Tensor,
    right: Tensor,
    U: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
) -> Certificate:
    """Bounds on gamma_2(W; alpha) = min over abs(W' - W) <= alpha (every entry) of gamma_2(W'), in float64.

    upper = largest row norm of left * largest column norm of right, plus the largest row norm of what left right
    misses beyond alpha. lower = (<W, U> - alpha sum abs(U)) / max(1, s), at least 0, with s the operator norm of
    diag(c)^{-1/2} U diag(P)^{-1/2} for the weights c, P scaled to sum 1: gamma_2*(U) <= s.

    W, U: (*batch, m, n); factors and weights as in :func:`certify`; alpha: a number or (*batch). Raises TypeError,
    ValueError.

    Guarantees: lower <= gamma_2(W; alpha) <= upper for any factors, any U and any non-negative weights.
    Source: Ghazi et al. (2023), section 1 (entries within alpha; Edmonds, Nikolov, Ullman (2020) define it with
    alpha/2, but their dual, Lemma 12, is the one for alpha); Lemma 13 for the weights.
    """
    W, left = (checks.matrix(*pair).detach().double() for pair in (("W", W), ("left", left)))
    m, n = W.shape[-2:]
    try:
        W = W.expand(*torch.broadcast_shapes(W.shape[:-2], left.shape[:-2]), m, n)
    except RuntimeError as error:
        raise ValueError(
            f"left of shape {tuple(left.shape)} must have a batch that broadcasts with that of W, {tuple(W.shape[:-2])}"
        ) from error
    weights = {"row_weights": row_weights, "column_weights": column_weights}
    left, right, U, *given = fitting(W, left=left, right=right, U=(U, (m, n)), **weights)
    alpha = amounts("alpha", alpha, W)
    missing, bound = W - left @ right, alpha[..., None, None]
    beyond = missing - missing.clamp(-bound, bound)
    upper = or_infinite(row_norm(left, math.inf) * row_norm(right.mT, math.inf) + row_norm(beyond, math.inf))

    c, P = (scaled_weights(w, 1.0) for w in given)
    rows, columns = (torch.where(w > 0, w, 1.0).rsqrt() for w in (c, P))
    proved = (c > 0)[..., None] & (P > 0)[..., None, :]
    U = torch.where(proved, U, 0.0)  # a row of weight 0 proves nothing about U there
    size = torch.linalg.matrix_norm(rows[..., None] * U * columns[..., None, :], 2).clamp_min(1)
    lower = ((W * U).sum((-2, -1)) - alpha * U.abs().sum((-2, -1))) / size
    summed = ((W * U).abs().sum((-2, -1)) + alpha * U.abs().sum((-2, -1))) / size
    rounding = allowance(upper, m + n + left.shape[-1], summed)
    return Certificate(upper, lower.clamp_min(0), or_infinite(missing.abs().amax((-2, -1))), rounding=rounding)


def amounts(name: str, value: Tensor | float, W: Tensor) -> Tensor:
    """A number, or a tensor of numbers for the batch of W, in float64 on W's device; none negative."""
    if not isinstance(value, Tensor):
        value = torch.tensor(checks.non_negative(name, value), dtype=torch.float64, device=W.device)
    value = checks.floating(name, value).detach().to(W.device, torch.float64)
    if bool((value < 0).any()):
        raise ValueError(f"{name} must hold no negative numbers")
    try:
        torch.broadcast_shapes(value.shape, W.shape[:-2])
    except RuntimeError as error:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} must broadcast with the batch {tuple(W.shape[:-2])} of W"
        ) from error
    return value
