"""Factorizations for users who take part again and again: in one step of each epoch, always the same one."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, check_exponent
from torchdp.factorization.certificates.returning_certificate import certify_epochs, sensitivity
from torchdp.factorization.solvers.epochs_solver import Attempt, attempts, classes_of
from torchdp.factorization.solvers.fixed_point import power_norm
from torchdp.factorization.solvers.stopping import closed, warn_where_open, working
from torchdp.threads import one_thread
from torchdp.workloads import Workload

DEGENERATE = 1e-10  # share of the largest singular value below which W counts as deficient


@dataclass(frozen=True)
class EpochFactorization:
    """W = left right, with a certificate of how close to optimal it is under repeated participation.

    left: (m, n); right: (n, n), its columns of one class orthogonal; the l_p norm of left's row norms equals the
    sensitivity of right. row_weights: (m,) and directions: (n, epochs), the dual variables behind
    ``certificate.lower``, see :func:`certify_epochs`.
    """

    left: Tensor
    right: Tensor
    row_weights: Tensor
    directions: Tensor
    certificate: Certificate
    iterations: int


@one_thread
def factorize_epochs(
    W: Tensor | Workload, period: int, p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 1000
) -> EpochFactorization:
    """The W = L R of least error where a user owns columns i, i + period, i + 2 period, ... for one i, certified.

    Minimises (sum_t ||L_t||^p)^{1/p} * S(R), S(R)^2 = max_i max ||sum_s R_s u_s^T||_F^2 over the columns s of class i
    and vectors u_s of norm at most 1: what one user's gradients can move in all epochs together. With X = R^T R and its
    block X_i of class i, S^2 = max_i max <X_i, C> over correlation matrices C. The dual problem is to maximise the
    trace norm of diag(c)^{1/2} W M^{1/2}, M block diagonal with blocks mu_i C_i, mu and c as in :func:`factorize`.
    In a best strategy the columns of a class are orthogonal: see ``orthogonal_columns``, whose factors are returned,
    so that the sensitivity is the largest sum of squared column norms over a class, and attained.

    Iteration: from diag(c)^{1/2} W M^{1/2} = U T V^T and X = M^{-1/2} V T V^T M^{-1/2},
        C_i <- X_i^STEP C_i X_i^STEP scaled to a unit diagonal, mu_i <- mu_i <X_i, C_i>^{2 STEP},
    rows as in :func:`factorize`; the logarithms are accelerated as there. O(m n^2 + n^3) for each.

    A W of smaller rank gets n more rows delta I while it is solved, so small that they cost a part of ``tol``.

    W: (m, n) of any rank, or a Workload. period: columns of an epoch; n or more is ``factorize``. p: in [2, inf]. tol:
    relative gap at which it stops. Float64 inside; the factors follow W's dtype. Warns (RuntimeWarning) where the gap
    exceeds ``tol``, after ``max_iterations`` or where rounding is in the way. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= the least value of any factorization <= certificate.upper.
    Source: here. The problem: Choquette-Choo, McMahan, Rush, Thakurta (2023), fixed-epoch-order participation; its dual
    for one epoch: Edmonds, Nikolov, Ullman (2020), Lemma 12.
    """
    W = working("W", checks.matrix("W", W.dense() if isinstance(W, Workload) else W).detach(), stacklevel=4)
    if W.ndim != 2:
        raise ValueError(f"W must be one (m, n) matrix, not of shape {tuple(W.shape)}")
    period, p, tol = checks.integer("period", period, 1), check_exponent(p), checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    size, (m, n) = float(W.abs().max()) or 1.0, W.shape
    A = W.double() / size
    order, shapes = classes_of(n, period, W.device)
    values = torch.linalg.svdvals(A)
    if m < n or not values[-1] > DEGENERATE * values[0]:
        A = torch.cat([A, _slack(tol, p, n, shapes[0][1]) * torch.eye(n, dtype=A.dtype, device=A.device)])
    for found in attempts(A[:, order], shapes, p, tol, max_iterations):
        result = _finish(W, size, order, shapes[0][1], period, p, found)
        if closed(result.certificate, tol, W.double().abs().max(), W.dtype):
            break
    warn_where_open(
        result.certificate, tol, W.double().abs().max(), W.dtype, result.iterations, max_iterations, stacklevel=3
    )
    return result


def _finish(
    W: Tensor, size: float, order: Tensor, epochs: int, period: int, p: float, found: Attempt
) -> EpochFactorization:
    """Factors of W in its own order and dtype, balanced, and their certificate."""
    left, right, c, roots, iterations = found
    left, c, back = left[: len(W)], c[: len(W)], order.argsort()
    directions = torch.cat([torch.nn.functional.pad(B, (0, epochs - B.shape[-1])).flatten(0, 1) for B in roots])
    right, directions = right[:, back], directions[back]
    rows, columns = power_norm(left.norm(dim=1), p), sensitivity(right, period)
    balance = torch.where((rows > 0) & (columns > 0), rows / columns, 1.0).sqrt()
    half = math.sqrt(size)
    left, right = (left * (half / balance)).to(W.dtype), (right * (half * balance)).to(W.dtype)
    certificate = certify_epochs(W, left, right, c, directions, period, p=p)
    return EpochFactorization(left, right, c, directions, certificate, iterations)


def _slack(tol: float, p: float, n: int, epochs: int) -> float:
    """delta such that [W; delta I], of rank n, is no harder than W of largest entry 1 and any rank, to a part of tol.

    From a best W = L R, S(R)^2 = (sum_t ||L_t||^p)^{2/p} = v >= 1, the factors [L, 0; 0, (delta / s) I] and [R; s I]
    cost v times at most (1 + n (delta / s)^p)^{1/p} (1 + s^2 epochs)^{1/2}. Here s^2 epochs = tol / (64 n), and
    n (delta / s)^p = p tol / 16, or 1 where p is infinite.
    """
    return math.sqrt(tol / (64 * n * epochs)) * (1.0 if p == math.inf else (p * tol / (16 * n)) ** (1 / p))
