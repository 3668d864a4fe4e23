"""The evaluator of factorizations where a user's steps keep apart: it shares nothing with the solvers."""

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
    fitting_factors,
    fitting_weights,
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
    W, p = checks.one_matrix("W", W), check_exponent(p)
    m, n = W.shape
    gap, times = checks.integer("gap", gap, 1), checks.integer("times", times, 1)
    left, right = fitting_factors(left, right, W)
    c = scaled_weights(fitting_weights("row_weights", dual.row_weights, W, (m,)), conjugate(p))
    missing, size = W - left @ right, float(right.abs().max()) or 1.0
    gram = (right / size).mT @ (right / size)
    bound, _ = worst_separated(gram.abs().cpu().numpy(), gap, times)
    upper = row_norm(left, p) * math.sqrt(bound) * size + row_norm(missing, p) * math.sqrt(min(times, n))
    upper = or_infinite(upper)
    lower, defect = _lower(W, c, _moment(W, dual, gap, times))
    rounding = allowance(upper, m + 2 * n + len(right) + min(times, n)) + lower * defect
    return Certificate(upper, lower, or_infinite(missing.abs().max()), rounding=rounding)


def _lower(W: Tensor, c: Tensor, M: Tensor) -> tuple[Tensor, float]:
    """The trace norm, by M's eigenvectors; and what their rounding E may add to it, relatively.

    <X, E> <= ||E|| tr X <= ||E|| n S^2 where X = R^T R, and ||E|| <= 4 n eps ||M||.
    """
    n, size = len(M), float(W.abs().max()) or 1.0
    values, Q = torch.linalg.eigh(M)
    root = Q * values.clamp_min(0).sqrt()
    trace = torch.linalg.svdvals(c.sqrt()[:, None] * (W / size) @ root).sum() * size
    return trace, 2 * n * n * torch.finfo(M.dtype).eps * float(values[-1])


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
    weights = scaled_weights(fitting_weights("weights", weights, W, (count,)), 1.0)
    directions = fitting("directions", directions, W, tuple(directions.shape)) * real[:, :, None]
    directions = directions / (directions.norm(dim=2).max().clamp_min(torch.finfo(W.dtype).tiny) * (1 + 1e-15))
    M = W.new_zeros(n + 1, n + 1)
    blocks = weights[:, None, None] * directions @ directions.mT
    rows, columns = (each.expand_as(blocks) for each in (steps[:, :, None], steps[:, None, :]))
    M.index_put_((rows, columns), blocks, accumulate=True)
    return M[:n, :n]
