"""The evaluator of factorizations under repeated participation, in passes or with a minimum separation.

It shares nothing with the solvers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    check_exponent,
    conjugate,
    fitting,
    or_infinite,
    row_norm,
    scaled_weights,
)
from torchdp.factorization.certificates.worst_sets import worst_separated


@dataclass(frozen=True)
class SeparatedDual:
    """Weights c of the rows, (m,), and sets of steps that one user may own, with what the user contributes there.

    steps: (N, k) whole numbers, each row increasing, filled up with n; directions: (N, k, j), those of the filling 0;
    weights: (N,).
    """

    row_weights: Tensor
    steps: Tensor
    directions: Tensor
    weights: Tensor


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
    period = checks.integer("period", period, 1)
    given = W, _, right, _ = _given(W, left, right, row_weights, p)
    n, k = W.shape[1], checks.matrix("directions", directions).shape[-1]
    (D,) = fitting(W, directions=(directions, (n, k)))
    D = D / (float(D.abs().max()) or 1.0)
    place = torch.arange(n, device=W.device) % period
    moved = D.square().sum(1).new_zeros(min(period, n)).scatter_reduce_(0, place, D.square().sum(1), "amax").sum()
    root = torch.cat([D * (place == i)[:, None] for i in range(min(period, n))], 1)
    root = torch.where(moved > 0, root / moved.sqrt(), 0.0)
    return _certified(given, p, sensitivity(right, period), -(-n // period), root, k)


def certify_separated(
    W: Tensor, left: Tensor, right: Tensor, dual: SeparatedDual, gap: int, times: int, *, p: float = math.inf
) -> Certificate:
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64; S as in ``Separated``.

    upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row norms * sqrt(times), E = W - left right;
    S+^2 is ``worst_separated`` of abs(right^T right), at least S^2.
    lower = trace norm of diag(c)^{1/2} W M^{1/2}, c = row_weights scaled to norm 1 in l_{p/(p-2)} and
    M = sum_q w_q E_q U_q U_q^T E_q^T over sets q that one user may own, E_q the columns of the identity for its steps,
    the rows of U_q of norm at most 1, w >= 0 of sum 1. It is a lower bound since
    ||diag(c)^{1/2} L R M^{1/2}||_tr <= ||diag(c)^{1/2} L||_F ||R M^{1/2}||_F, and
    ||R M^{1/2}||_F^2 = sum_q w_q ||R E_q U_q||_F^2 <= S^2, U_q being what the user with the steps q might contribute.

    W: (m, n); left: (m, r); right: (r, n). dual: row_weights and weights non-negative, directions, all of any scale.
    Raises ValueError, TypeError, also where a row of ``steps`` is none that a user may own.

    Guarantees: lower <= least value <= upper for any factors, weights, sets and directions, good or bad.
    Source: the lines above; Hoelder's inequality for trace and Frobenius norms.
    """
    given = W, _, right, _ = _given(W, left, right, dual.row_weights, p)
    gap, times = checks.integer("gap", gap, 1), checks.integer("times", times, 1)
    n, size = W.shape[1], float(right.abs().max()) or 1.0
    gram = (right / size).mT @ (right / size)
    bound, _ = worst_separated(gram.abs().cpu().numpy(), gap, times)
    values, Q = torch.linalg.eigh(_moment(W, dual, gap, times))
    # rounding E of M adds <X, E> <= ||E|| tr X <= ||E|| n S^2 at most, X = R^T R, and ||E|| <= 4 n eps ||M||
    defect = 2 * n * n * torch.finfo(W.dtype).eps * float(values[-1])
    root, moved, most = Q * values.clamp_min(0).sqrt(), W.new_tensor(math.sqrt(bound) * size), min(times, n)
    return _certified(given, p, moved, most, root, n + most, defect)


def _given(W: Tensor, left: Tensor, right: Tensor, row_weights: Tensor, p: float) -> tuple[Tensor, ...]:
    """W, left, right and c in float64. Raises TypeError, ValueError."""
    W, p = checks.one_matrix("W", W), check_exponent(p)
    left, right, c = fitting(W, left=left, right=right, row_weights=row_weights)
    return W, left, right, scaled_weights(c, conjugate(p))


def _certified(
    given: tuple[Tensor, ...], p: float, moved: Tensor, most: int, root: Tensor, terms: int, defect: float = 0.0
) -> Certificate:
    """upper from what right moves and how many steps a user has at most; lower from root = M^{1/2}, or its like."""
    W, left, right, c = given
    missing, size = W - left @ right, float(W.abs().max()) or 1.0
    upper = or_infinite(row_norm(left, p) * moved + row_norm(missing, p) * math.sqrt(most))
    lower = torch.linalg.svdvals(c.sqrt()[:, None] * (W / size) @ root).sum() * size
    rounding = allowance(upper, sum(W.shape) + len(right) + terms) + lower * defect
    return Certificate(upper, lower, or_infinite(missing.abs().max()), rounding=rounding)


def sensitivity(right: Tensor, period: int) -> Tensor:
    """The root of the largest sum of abs(X_st) over a class; of any scale."""
    size, sums = float(right.abs().max()) or 1.0, []
    for i in range(min(period, right.shape[1])):
        part = right[:, i::period] / size
        sums.append((part.mT @ part).abs().sum())
    return torch.stack(sums).max().sqrt() * size


def _moment(W: Tensor, dual: SeparatedDual, gap: int, times: int) -> Tensor:
    """M, from sets that a user may own."""
    steps, directions, weights = dual.steps, dual.directions, dual.weights
    n, count = W.shape[1], len(weights)
    k = checks.indices("steps", steps, n + 1).shape[-1]
    if steps.shape != (count, k) or directions.shape[:-1] != (count, k) or steps.device != W.device:
        raise ValueError("steps, directions and weights must be (N, k), (N, k, j) and (N,), on W's device")
    real = steps < n
    apart = (steps[:, 1:] - steps[:, :-1] >= gap) | ~real[:, 1:]
    many = real.sum(1) > times
    if not bool(apart.all()) or bool(many.any()) or bool((real[:, 1:] > real[:, :-1]).any()):
        raise ValueError(
            f"steps must be rows of at most {times} increasing steps, {gap} apart, filled up with {n}"
        )
    weights, directions = fitting(W, weights=(weights, (count,)), directions=(directions, tuple(directions.shape)))
    weights, directions = scaled_weights(weights, 1.0), directions * real[:, :, None]
    directions = directions / (directions.norm(dim=2).max().clamp_min(torch.finfo(W.dtype).tiny) * (1 + 1e-15))
    M = W.new_zeros(n + 1, n + 1)
    blocks = weights[:, None, None] * directions @ directions.mT
    rows, columns = (each.expand_as(blocks) for each in (steps[:, :, None], steps[:, None, :]))
    M.index_put_((rows, columns), blocks, accumulate=True)
    return M[:n, :n]
