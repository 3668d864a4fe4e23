"""The evaluator of factorizations under repeated participation: it shares nothing with the solver."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    check_exponent,
    conjugate,
    fitting,
    fitting_factors,
    fitting_weights,
    or_infinite,
    row_norm,
    scaled_weights,
)


def certify_epochs(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    row_weights: Tensor,
    directions: Tensor,
    period: int,
    *,
    p: float = math.inf,
) -> Certificate:
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64; S as in ``factorize_epochs``.

    upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row norms * sqrt(epochs), E = W - left right (the
    factorization E = E I); S+^2 = max_i sum of abs(X_st) over the pairs of columns of class i, S^2 at least.
    lower = trace norm of [diag(c)^{1/2} W_i D_i]_i / sqrt(sum_i max_{s in i} ||d_s||^2), W_i the columns of class i,
    D_i the rows d_s of ``directions``, c = row_weights scaled to norm 1 in l_{p/(p-2)}. It is a lower bound since
    ||diag(c)^{1/2} L [R_i D_i]_i||_tr <= ||diag(c)^{1/2} L||_F ||[R_i D_i]_i||_F, and ||R_i D_i||_F is what a user
    whose gradients are the rows d_s moves, at most S max ||d_s||.

    W: (m, n); left: (m, r); right: (r, n); row_weights: (m,), non-negative; directions: (n, k), any k at most the
    length of a gradient. Raises ValueError, TypeError.

    Guarantees: lower <= least value <= upper for any factors, weights and directions, good or bad.
    Source: the two lines above; Hoelder's inequality for trace and Frobenius norms.
    """
    W, p, period = checks.one_matrix("W", W), check_exponent(p), checks.integer("period", period, 1)
    (m, n), k = W.shape, checks.matrix("directions", directions).shape[-1]
    (left, right), directions = fitting_factors(left, right, W), fitting("directions", directions, W, (n, k))
    weights = scaled_weights(fitting_weights("row_weights", row_weights, W, (m,)), conjugate(p))
    missing, epochs = W - left @ right, -(-n // period)
    upper = or_infinite(row_norm(left, p) * sensitivity(right, period) + row_norm(missing, p) * math.sqrt(epochs))
    size, largest = float(W.abs().max()) or 1.0, float(directions.abs().max()) or 1.0
    W, directions = W / size, directions / largest
    Y = torch.cat([W[:, i::period] @ directions[i::period] for i in range(min(period, n))], 1)
    norm = torch.stack([directions[i::period].square().sum(1).max() for i in range(min(period, n))]).sum().sqrt()
    trace = torch.linalg.svdvals(weights.sqrt()[:, None] * Y).sum()
    lower = torch.where(norm > 0, trace / norm, 0.0) * size
    rounding = allowance(upper, m + n + len(right) + k)
    return Certificate(upper, lower, or_infinite(missing.abs().max()), rounding=rounding)


def sensitivity(right: Tensor, period: int) -> Tensor:
    """The root of the largest sum of abs(X_st) over a class; of any scale."""
    size, sums = float(right.abs().max()) or 1.0, []
    for i in range(min(period, right.shape[1])):
        part = right[:, i::period] / size
        sums.append((part.mT @ part).abs().sum())
    return torch.stack(sums).max().sqrt() * size
