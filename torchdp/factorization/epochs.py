"""Factorizations under repeated participation: in one step of each epoch, or with a minimum
separation of steps.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import Certificate, check_exponent, power_norm
from torchdp.factorization.certificates.returning_certificate import (
    certify_epochs,
    certify_separated,
    sensitivity,
)
from torchdp.factorization.certificates.worst_sets import worst_separated
from torchdp.factorization.factorize import Factorization, Matrix, balance, matrix_of
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.factorization.solvers.iteration import closed, warn_where_open
from torchdp.factorization.solvers.returning_solver import (
    Attempt,
    attempts,
    classes_of,
    separated_moment,
)
from torchdp.factorization.streams.strategy import BandedStrategy, StreamStrategy
from torchdp.threads import one_thread

DEGENERATE = 1e-10  # share of the largest singular value below which W counts as deficient


@one_thread
def factorize_epochs(
    W: Matrix, period: int, p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 1000
) -> Factorization:
    """The W = L R of least error where a user owns columns i, i + period, i + 2 period, ... for one
    i, certified.

    Minimises (sum_t ||L_t||^p)^{1/p} * S(R), S(R)^2 = max_i max ||sum_s R_s u_s^T||_F^2 over the
    columns s of class i and vectors u_s of norm at most 1: what one user's gradients can move in
    all epochs together. With X = R^T R and its block X_i of class i, S^2 = max_i max <X_i, C> over
    correlation matrices C. The dual problem is to maximise the trace norm of diag(c)^{1/2} W
    M^{1/2}, M block diagonal with blocks mu_i C_i, mu and c as in :func:`factorize`. In a best
    strategy the columns of a class are orthogonal: see ``orthogonal_columns``, whose factors are
    returned, so that the sensitivity is the largest sum of squared column norms over a class, and
    attained. The result's witness holds the directions of :func:`certify_epochs`, (n, epochs), and
    column_weights their squared norms.

    Iteration: from diag(c)^{1/2} W M^{1/2} = U T V^T and X = M^{-1/2} V T V^T M^{-1/2},
        C_i <- X_i^STEP C_i X_i^STEP scaled to a unit diagonal, mu_i <- mu_i <X_i, C_i>^{2 STEP},
    rows as in :func:`factorize`; the logarithms are accelerated as there. O(m n^2 + n^3) for each.

    A W of smaller rank gets n more rows delta I while it is solved, so small that they cost a part
    of ``tol``.

    W: (m, n) of any rank, or a Workload. period: columns of an epoch; n or more is ``factorize``.
    p: in [2, inf]. tol: relative gap at which it stops. Float64 inside; the factors follow W's
    dtype. Warns (RuntimeWarning) where the gap exceeds ``tol``, after ``max_iterations`` or where
    rounding is in the way. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= the least value of any factorization <= certificate.upper.
    Source: here. The problem: Choquette-Choo, McMahan, Rush, Thakurta (2023), fixed-epoch-order
    participation; its dual for one epoch: Edmonds, Nikolov, Ullman (2020), Lemma 12.
    """
    W = matrix_of(W)
    if W.ndim != 2:
        raise ValueError(f"W must be one (m, n) matrix, not of shape {tuple(W.shape)}")
    period, p, tol = (
        checks.integer("period", period, 1),
        check_exponent(p),
        checks.positive("tol", tol),
    )
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    largest, (m, n) = W.double().abs().max(), W.shape
    size = float(largest) or 1.0
    A = W.double() / size
    order, shapes = classes_of(n, period, W.device)
    values = torch.linalg.svdvals(A)
    if m < n or not values[-1] > DEGENERATE * values[0]:
        A = torch.cat(
            [A, _slack(tol, p, n, shapes[0][1]) * torch.eye(n, dtype=A.dtype, device=A.device)]
        )
    for found in attempts(A[:, order], shapes, p, tol, max_iterations):
        result = _finish(W, size, order, shapes[0][1], period, p, found)
        if closed(result.certificate, tol, largest, W.dtype):
            break
    warn_where_open(result.certificate, tol, largest, W.dtype, result.iterations, max_iterations)
    return result


def _finish(
    W: Tensor, size: float, order: Tensor, epochs: int, period: int, p: float, found: Attempt
) -> Factorization:
    """Factors of W in its own order and dtype, balanced, and their certificate."""
    left, right, c, roots, iterations = found
    left, c, back = left[: len(W)], c[: len(W)], order.argsort()
    directions = torch.cat(
        [torch.nn.functional.pad(B, (0, epochs - B.shape[-1])).flatten(0, 1) for B in roots]
    )
    right, directions = right[:, back], directions[back]
    rows, columns = power_norm(left.norm(dim=1), p), sensitivity(right, period)
    scale, half = balance(rows, columns), math.sqrt(size)
    left, right = (half * scale * left).to(W.dtype), (half / scale * right).to(W.dtype)
    certificate = certify_epochs(W, left, right, c, directions, period, p=p)
    columns = directions.square().sum(1)
    return Factorization(left, right, None, c, columns, certificate, iterations, directions)


def _slack(tol: float, p: float, n: int, epochs: int) -> float:
    """delta such that [W; delta I], of rank n, is no harder than W of largest entry 1 and any rank,
    to a part of tol.

    From a best W = L R, S(R)^2 = (sum_t ||L_t||^p)^{2/p} = v >= 1, the factors
    [L, 0; 0, (delta / s) I] and [R; s I] cost v times at most (1 + n (delta / s)^p)^{1/p}
    (1 + s^2 epochs)^{1/2}. Here s^2 epochs = tol / (64 n), and n (delta / s)^p = p tol / 16, or 1
    where p is infinite.
    """
    return math.sqrt(tol / (64 * n * epochs)) * (
        1.0 if p == math.inf else (p * tol / (16 * n)) ** (1 / p)
    )


@dataclass(frozen=True)
class StreamFactorization(Brief):
    """W (G + C^{-1} Z): a strategy C that no user moves by more than 1, to rounding, and how good
    it is.

    row_norms: of W C^{-1}, (steps,), the standard errors for Z of standard deviation 1 where users
    take part as was asked for. certificate: of the least value of any strategy for such users, its
    upper bound the l_p norm of row_norms.
    """

    strategy: StreamStrategy
    row_norms: Tensor
    certificate: Certificate


def factorize_separated(
    W: Matrix,
    gap: int,
    times: int,
    p: float = math.inf,
    tol: float = 1e-3,
    *,
    max_iterations: int = 400,
) -> StreamFactorization:
    """The C of least error where a user takes part in at most ``times`` steps, any two at least
    ``gap`` apart.

    Minimises (sum_t ||(W C^{-1})_t||^p)^{1/p} S(C), S as in ``training.Separated``. The best C of
    ``gap`` bands is the solution of a smooth convex problem (``banded_strategy``). Weights on sets
    of steps lead to a strategy without bands (``separated_moment``); the better of the two is
    returned. The lower bound is that of users who return in passes of max(gap, ceil(n / times))
    steps (:func:`factorize_epochs`), some of those who keep apart: for prefix sums 2 to 5 % below
    the error where ``times`` is all that ``gap`` permits, up to a third where it is less.

    W: (n, n), lower triangular, its diagonal not 0, or a Workload of such a matrix. p: in [2, inf].
    tol: relative distance from the least error, as the search sees it, at which it stops;
    max_iterations: of the search, O(n^3) each. Optimised on the CPU; the results, in float64, are
    on W's device. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= the least value of any strategy <= certificate.upper, that of
    ``strategy``.
    Source: here. The participation: Choquette-Choo et al. (2023), (k, b)-participation.
    """
    given = matrix_of(W)
    gap = checks.integer("gap", gap, 1)
    times = checks.integer("times", times, 1)
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    square = given.ndim == 2 and given.shape[0] == given.shape[1]
    if not square or given.triu(1).any() or (given.diagonal() == 0).any():
        raise ValueError(
            "W must be one square lower triangular matrix without 0 on its diagonal, as Iterates(...).dense() makes"
        )
    n, size = len(given), float(given.abs().max())
    W = given.double().cpu() / size
    gap = n if times == 1 else min(gap, n)
    times = min(times, -(-n // gap))
    C = banded_strategy(W, gap, times, p, 5 * max_iterations)
    upper = float(torch.linalg.vector_norm(_row_norms(W, C), ord=p))
    X = separated_moment(W, gap, times, p, upper, tol, max_iterations)
    found = [_balanced(W, each, gap, times) for each in (C, _triangular(X)) if each is not None]
    C, errors = min(found, key=lambda one: float(torch.linalg.vector_norm(one[1], ord=p)))
    C, errors = C.to(given.device), (errors * size).to(given.device)
    left = torch.linalg.solve_triangular(C, given.double(), upper=False, left=False)
    fixed = factorize_epochs(given.double(), max(gap, -(-n // times)), p, tol).certificate
    certificate = certify_separated(given, left, C, fixed, gap, times, p=p)
    return StreamFactorization(BandedStrategy.of(C), errors, certificate)


def _balanced(W: Tensor, C: Tensor, gap: int, times: int) -> tuple[Tensor, Tensor]:
    """C over its sensitivity, and the row norms of W C^{-1}."""
    bound, _ = worst_separated((C.mT @ C).abs().numpy(), gap, times)
    C = C / math.sqrt(bound)
    return C, _row_norms(W, C)


def _row_norms(W: Tensor, C: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)


def _triangular(X: Tensor) -> Tensor | None:
    """The lower triangular C with C^T C = X and a positive diagonal; None where X is singular to
    rounding.
    """
    root, failed = torch.linalg.cholesky_ex(X.flip(0, 1))
    return None if failed else root.flip(0, 1).mT.contiguous()
