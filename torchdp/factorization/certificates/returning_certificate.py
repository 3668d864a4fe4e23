"""The evaluator of factorizations under repeated participation; it shares nothing with solvers.

Users take part in passes (certify_epochs) or with a gap between their steps (certify_separated).

Notation:
    W: the workload, (m, n), a column a step; left (m, r), right (r, n): its factors L and R.
    E: what they miss, W - L R; X = right^T right; p: the errors' norm, in [2, inf].
    S: what one user moves at most; S+: an upper bound on it.
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
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64.

    S as in ``factorize_epochs``. upper = l_p norm of left's row norms * S+(right) + l_p norm of E's
    row norms * sqrt(epochs) (the factorization E = E I); S+^2 = max_i sum of abs(X_st) over the
    pairs of columns of class i, S^2 at least. lower = trace norm of [diag(c)^{1/2} W_i D_i]_i /
    sqrt(sum_i max_{s in i} ||d_s||^2), W_i the columns of class i, D_i the rows d_s of
    ``directions``, c = row_weights scaled to norm 1 in l_{p/(p-2)}. It is a lower bound since
    ||diag(c)^{1/2} L [R_i D_i]_i||_tr <= ||diag(c)^{1/2} L||_F ||[R_i D_i]_i||_F, and ||R_i D_i||_F
    is what a user whose gradients are the rows d_s moves, at most S max ||d_s||.

    Args:
        W: (m, n).
        left: (m, r).
        right: (r, n).
        row_weights: (m,), non-negative.
        directions: (n, k), any k at most the length of a gradient.
        period: between two steps of a user.
        p: in [2, inf].

    Raises ValueError, TypeError.

    Guarantees: lower <= least value <= upper for any factors, weights and directions, good or bad.
    Source: the two lines above; Hoelder's inequality for trace and Frobenius norms.
    """
    period = checks.integer("period", period, 1)
    W = checks.one_matrix("W", W)
    p = check_exponent(p)
    n = W.shape[1]
    k = checks.matrix("directions", directions).shape[-1]
    left, right, c, D = fitting(
        W,
        left=left,
        right=right,
        row_weights=row_weights,
        directions=(directions, (n, k)),
    )
    missing = W - left @ right
    moved = sensitivity(right, period)
    epochs = -(-n // period)
    upper = value_of(left, missing, moved, p, epochs)

    # W and the directions are scaled, so that nothing overflows.
    c = scaled_weights(c, conjugate(p))
    D = D / _largest(D)
    classes = min(period, n)
    place = torch.arange(n, device=W.device) % period
    # A user of class i moves at most S max ||d_s||, so that the sum of squares is S^2 times this.
    largest = D.new_zeros(classes).scatter_reduce_(0, place, D.square().sum(1), "amax")
    total = largest.sum()
    # [D_i]_i: the rows of each class in columns of their own.
    by_class = torch.cat([D * (place == i)[:, None] for i in range(classes)], 1)
    by_class = torch.where(total > 0, by_class / total.sqrt(), 0.0)
    size = _largest(W)
    weighted = c.sqrt()[:, None] * (W / size) @ by_class
    trace = torch.linalg.svdvals(weighted).sum()
    lower = trace * size
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
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64.

    S as in ``Separated``. upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row
    norms * sqrt(times); S+^2 is ``worst_separated`` of abs(right^T right), at least S^2. lower is
    that of ``fixed``, the certificate of W for users in passes of max(gap, ceil(n / times)) steps:
    such users keep apart, too.

    Args:
        W: (m, n).
        left: (m, r).
        right: (r, n).
        fixed: see above.
        gap: between two steps of a user, at least.
        times: steps of a user, at most.
        p: in [2, inf].

    Raises ValueError, TypeError.

    Guarantees: lower <= least value <= upper for any factors, good or bad.
    Source: the lines above.
    """
    W = checks.one_matrix("W", W)
    p = check_exponent(p)
    left, right = fitting(W, left=left, right=right)
    gap = checks.integer("gap", gap, 1)
    times = checks.integer("times", times, 1)
    n = W.shape[1]
    # Of scale 1, so that squares neither overflow nor vanish.
    size = _largest(right)
    gram = (right / size).mT @ (right / size)
    sizes = gram.abs().cpu().numpy()
    squared, _ = worst_separated(sizes, gap, times)
    moved = W.new_tensor(math.sqrt(squared) * size)
    most = min(times, n)
    missing = W - left @ right
    upper = value_of(left, missing, moved, p, most)
    terms = sum(W.shape) + len(right) + n + most
    bounds = judged(upper, fixed.lower, missing, terms)
    return replace(bounds, rounding=bounds.rounding + fixed.rounding)


def sensitivity(right: Tensor, period: int) -> Tensor:
    """The root of the largest sum of abs(X_st) over a class; of any scale."""
    size = _largest(right)
    sums = []
    for i in range(min(period, right.shape[1])):
        part = right[:, i::period] / size
        X = part.mT @ part
        sums.append(X.abs().sum())
    largest = torch.stack(sums).max()
    return largest.sqrt() * size


def _largest(matrix: Tensor) -> float:
    """The largest absolute entry; 1 for 0."""
    return float(matrix.abs().max()) or 1.0
