"""Factorizations under repeated participation: one step of each epoch, or steps kept apart.

Notation:
    class i: the columns i, i + period, ... of one user; epochs: how many at most.
    S(R), S(C): how far one user moves at most; X = R^T R; c: the dual weights of the rows.
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

# Share of the largest singular value below which W counts as deficient.
DEGENERATE = 1e-10

# Iterations of the search over bands for one of the search over weights on sets: they are cheaper.
BANDED_SHARE = 5


@one_thread
def factorize_epochs(
    W: Matrix, period: int, p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 1000
) -> Factorization:
    """The W = L R of least error where a user owns columns i, i + period, ... for one i, certified.

    Minimises (sum_t ||L_t||^p)^{1/p} * S(R), S(R)^2 = max_i max ||sum_s R_s u_s^T||_F^2 over the
    columns s of class i and vectors u_s of norm at most 1: what one user's gradients can move in
    all epochs together.

    Args:
        W: (m, n) of any rank, or a Workload.
        period: columns of an epoch; n or more is ``factorize``.
        p: in [2, inf].
        tol: relative gap at which it stops.
        max_iterations: O(m n^2 + n^3) each.

    With X = R^T R and its block X_i of class i, S^2 = max_i max <X_i, C> over correlation matrices
    C. The dual problem is to maximise the trace norm of diag(c)^{1/2} W M^{1/2}, M block diagonal
    with blocks mu_i C_i, mu and c as in :func:`factorize`. In a best strategy a class's columns
    are orthogonal: see ``orthogonal_columns``, whose factors are returned, so that the sensitivity
    is the largest sum of squared column norms over a class, and attained. The result's witness
    holds the directions of :func:`certify_epochs`, (n, epochs), and column_weights their squared
    norms.

    Iteration: from diag(c)^{1/2} W M^{1/2} = U T V^T and X = M^{-1/2} V T V^T M^{-1/2},
        C_i <- X_i^STEP C_i X_i^STEP scaled to a unit diagonal, mu_i <- mu_i <X_i, C_i>^{2 STEP},
    rows as in :func:`factorize`; the logarithms are accelerated as there. A W of smaller rank gets
    n more rows delta I while it is solved, so small that they cost a part of ``tol``.

    Float64 inside; the factors follow W's dtype. Warns (RuntimeWarning) where the gap exceeds
    ``tol``, after ``max_iterations`` or where rounding is in the way. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= the least value of any factorization <= certificate.upper.
    Source: here. The problem: Choquette-Choo, McMahan, Rush, Thakurta (2023), fixed-epoch-order
    participation; its dual for one epoch: Edmonds, Nikolov, Ullman (2020), Lemma 12.
    """
    W = matrix_of(W)
    if W.ndim != 2:
        raise ValueError(f"W must be one (m, n) matrix, not of shape {tuple(W.shape)}")
    period = checks.integer("period", period, 1)
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    m, n = W.shape
    largest = W.double().abs().max()
    size = float(largest) or 1.0
    A = W.double() / size
    order, shapes = classes_of(n, period, W.device)
    epochs = shapes[0][1]
    values = torch.linalg.svdvals(A)
    # The iteration is for a W of rank n.
    if m < n or not values[-1] > DEGENERATE * values[0]:
        more = _slack(tol, p, n, epochs) * torch.eye(n, dtype=A.dtype, device=A.device)
        A = torch.cat([A, more])
    for attempt in attempts(A[:, order], shapes, p, tol, max_iterations):
        result = _finish(W, size, order, epochs, period, p, attempt)
        if closed(result.certificate, tol, largest, W.dtype):
            break
    warn_where_open(result.certificate, tol, largest, W.dtype, result.iterations, max_iterations)
    return result


def _finish(
    W: Tensor, size: float, order: Tensor, epochs: int, period: int, p: float, attempt: Attempt
) -> Factorization:
    """Factors of W in its own order and dtype, balanced, and their certificate.

    size: by which W was divided. order: of the columns, class by class, that the attempt has.
    """
    left, right, c, roots, iterations = attempt
    left = left[: len(W)]
    c = c[: len(W)]
    back = order.argsort()
    right = right[:, back]
    blocks = []
    for root in roots:
        missing = epochs - root.shape[-1]
        # A class without a step in the last epoch has no direction there.
        whole = torch.nn.functional.pad(root, (0, missing))
        blocks.append(whole.flatten(0, 1))
    directions = torch.cat(blocks)[back]
    scale = balance(power_norm(left.norm(dim=1), p), sensitivity(right, period))
    half = math.sqrt(size)
    left = (half * scale * left).to(W.dtype)
    right = (half / scale * right).to(W.dtype)
    certificate = certify_epochs(W, left, right, c, directions, period, p=p)
    columns = directions.square().sum(1)
    return Factorization(left, right, None, c, columns, certificate, iterations, directions)


def _slack(tol: float, p: float, n: int, epochs: int) -> float:
    """delta such that [W; delta I], of rank n, is no harder than W, to a part of tol.

    W is of largest entry 1 and any rank. From a best W = L R,
    S(R)^2 = (sum_t ||L_t||^p)^{2/p} = v >= 1, the factors
    [L, 0; 0, (delta / s) I] and [R; s I] cost v times at most (1 + n (delta / s)^p)^{1/p}
    (1 + s^2 epochs)^{1/2}. Here s^2 epochs = tol / (64 n), and n (delta / s)^p = p tol / 16, or 1
    where p is infinite.
    """
    s = math.sqrt(tol / (64 * n * epochs))
    if p == math.inf:
        return s
    return s * (p * tol / (16 * n)) ** (1 / p)


@dataclass(frozen=True)
class StreamFactorization(Brief):
    """W (G + C^{-1} Z): a strategy C that no user moves by more than 1, and how good it is.

    Args:
        strategy: C; 1 holds to rounding.
        row_norms: of W C^{-1}, (steps,), the standard errors for Z of standard deviation 1 where
            users take part as was asked for.
        certificate: of the least value of any strategy for such users, its upper bound the l_p norm
            of row_norms.
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
    """The C of least error for users of at most ``times`` steps, any two ``gap`` or more apart.

    Minimises (sum_t ||(W C^{-1})_t||^p)^{1/p} S(C), S as in ``training.Separated``.

    Args:
        W: (n, n), lower triangular, its diagonal not 0, or a Workload of such a matrix.
        gap: at least 1.
        times: at least 1.
        p: in [2, inf].
        tol: relative distance from the least error, as the search sees it, at which it stops.
        max_iterations: of the search, O(n^3) each.

    The best C of ``gap`` bands is the solution of a smooth convex problem (``banded_strategy``).
    Weights on sets of steps lead to a strategy without bands (``separated_moment``); the better of
    the two is returned. The lower bound is that of users who return in passes of
    max(gap, ceil(n / times)) steps (:func:`factorize_epochs`), some of those who keep apart: for
    prefix sums 2 to 5 % below the error where ``times`` is all that ``gap`` permits, up to a third
    where it is less.

    Optimised on the CPU; the results, in float64, are on W's device. Raises TypeError, ValueError.

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
            "W must be one square lower triangular matrix without 0 on its diagonal, "
            "as Iterates(...).dense() makes"
        )
    n = len(given)
    size = float(given.abs().max())
    W = given.double().cpu() / size
    gap = n if times == 1 else min(gap, n)
    times = min(times, -(-n // gap))

    def error(C: Tensor) -> float:
        return float(torch.linalg.vector_norm(_row_norms(W, C), ord=p))

    banded = banded_strategy(W, gap, times, p, BANDED_SHARE * max_iterations)
    X = separated_moment(W, gap, times, p, error(banded), tol, max_iterations)
    strategies = [_scaled(banded, gap, times)]
    triangular = _triangular(X)
    if triangular is not None:
        strategies.append(_scaled(triangular, gap, times))
    best = min(strategies, key=error)
    row_norms = (_row_norms(W, best) * size).to(given.device)
    C = best.to(given.device)
    left = torch.linalg.solve_triangular(C, given.double(), upper=False, left=False)
    # Users of every pass of so many steps are some of those who keep apart: a lower bound.
    period = max(gap, -(-n // times))
    fixed = factorize_epochs(given.double(), period, p, tol).certificate
    certificate = certify_separated(given, left, C, fixed, gap, times, p=p)
    return StreamFactorization(BandedStrategy.of(C), row_norms, certificate)


def _scaled(C: Tensor, gap: int, times: int) -> Tensor:
    """C over its sensitivity."""
    gram = (C.mT @ C).abs()
    bound, _ = worst_separated(gram.numpy(), gap, times)
    return C / math.sqrt(bound)


def _row_norms(W: Tensor, C: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)


def _triangular(X: Tensor) -> Tensor | None:
    """The lower triangular C, of positive diagonal, with C^T C = X; None: X is singular."""
    # Cholesky of X with its order reversed: X = L L^T would be the other triangle.
    root, failed = torch.linalg.cholesky_ex(X.flip(0, 1))
    return None if failed else root.flip(0, 1).mT.contiguous()
