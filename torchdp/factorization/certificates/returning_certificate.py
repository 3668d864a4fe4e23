"""The evaluator of factorizations under repeated participation, in passes or with a minimum
separation.

It shares nothing with the solvers.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    check_exponent,
    conjugate,
    fitting,
    judged,
    scaled_weights,
    value_of,
)
from torchdp.factorization.certificates.worst_sets import worst_separated


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
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64; S as in
    ``factorize_epochs``.

    upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row norms * sqrt(epochs), E =
    W - left right (the factorization E = E I); S+^2 = max_i sum of abs(X_st) over the pairs of
    columns of class i, S^2 at least. lower = trace norm of [diag(c)^{1/2} W_i D_i]_i /
    sqrt(sum_i max_{s in i} ||d_s||^2), W_i the columns of class i, D_i the rows d_s of
    ``directions``, c = row_weights scaled to norm 1 in l_{p/(p-2)}. It is a lower bound since
    ||diag(c)^{1/2} L [R_i D_i]_i||_tr <= ||diag(c)^{1/2} L||_F ||[R_i D_i]_i||_F, and ||R_i D_i||_F
    is what a user whose gradients are the rows d_s moves, at most S max ||d_s||.

    W: (m, n); left: (m, r); right: (r, n); row_weights: (m,), non-negative; directions: (n, k), any
    k at most the length of a gradient. Raises ValueError, TypeError.

    Guarantees: lower <= least value <= upper for any factors, weights and directions, good or bad.
    Source: the two lines above; Hoelder's inequality for trace and Frobenius norms.
    """
    period = checks.integer("period", period, 1)
    W, p = checks.one_matrix("W", W), check_exponent(p)
    n, k = W.shape[1], checks.matrix("directions", directions).shape[-1]
    left, right, c, D = fitting(
        W, left=left, right=right, row_weights=row_weights, directions=(directions, (n, k))
    )
    c = scaled_weights(c, conjugate(p))
    missing = W - left @ right
    upper = value_of(left, missing, sensitivity(right, period), p, -(-n // period))

    D = D / (float(D.abs().max()) or 1.0)
    squares = D.square().sum(1)
    classes = min(period, n)
    place = torch.arange(n, device=W.device) % period
    # sum_i max_{s in i} ||d_s||^2
    moved = squares.new_zeros(classes).scatter_reduce_(0, place, squares, "amax").sum()
    apart = torch.cat([D * (place == i)[:, None] for i in range(classes)], 1)
    apart = torch.where(moved > 0, apart / moved.sqrt(), 0.0)
    size = float(W.abs().max()) or 1.0
    lower = torch.linalg.svdvals(c.sqrt()[:, None] * (W / size) @ apart).sum() * size
    return judged(upper, lower, missing, sum(W.shape) + len(right) + k)


def certify_separated(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    fixed: Certificate,
    gap: int,
    times: int,
    *,
    p: float = math.inf,
) -> Certificate:
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64; S as in
    ``Separated``.

    upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row norms * sqrt(times), E =
    W - left right; S+^2 is ``worst_separated`` of abs(right^T right), at least S^2. lower is that
    of ``fixed``, the certificate of W for users in passes of max(gap, ceil(n / times)) steps: such
    users keep apart, too.

    W: (m, n); left: (m, r); right: (r, n). Raises ValueError, TypeError.

    Guarantees: lower <= least value <= upper for any factors, good or bad.
    Source: the lines above.
    """
    W, p = checks.one_matrix("W", W), check_exponent(p)
    left, right = fitting(W, left=left, right=right)
    gap, times = checks.integer("gap", gap, 1), checks.integer("times", times, 1)
    n = W.shape[1]
    size = float(right.abs().max()) or 1.0
    gram = (right / size).mT @ (right / size)
    squared, _ = worst_separated(gram.abs().cpu().numpy(), gap, times)
    most = min(times, n)
    missing = W - left @ right
    upper = value_of(left, missing, W.new_tensor(math.sqrt(squared) * size), p, most)
    found = judged(upper, fixed.lower, missing, sum(W.shape) + len(right) + n + most)
    return replace(found, rounding=found.rounding + fixed.rounding)


def sensitivity(right: Tensor, period: int) -> Tensor:
    """The root of the largest sum of abs(X_st) over a class; of any scale."""
    size, sums = float(right.abs().max()) or 1.0, []
    for i in range(min(period, right.shape[1])):
        part = right[:, i::period] / size
        sums.append((part.mT @ part).abs().sum())
    return torch.stack(sums).max().sqrt() * size
