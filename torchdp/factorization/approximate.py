"""Approximate factorizations: gamma_2(W; alpha), zeta, and the alpha of least mean squared error.

Fewer rows of R by random projection or truncation: what comes out is a factorization of
gamma_2(W; alpha), alpha = certificate.residual, how far it is from W at most.

Notation: c, P: dual weights of rows and columns; U: witness, gamma_2*(U) <= 1.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, allowance, divisor
from torchdp.factorization.certificates.objective_certificate import amounts, certify_approximate
from torchdp.factorization.factorize import (
    Factorization,
    Matrix,
    balance,
    factorize,
    matrix_of,
    size_of,
)
from torchdp.factorization.norm import witness
from torchdp.factorization.solvers.iteration import least, warn_where_open
from torchdp.factorization.solvers.splitting import Best, conic, weighted
from torchdp.threads import one_thread

# m + n up to which the semidefinite program is worth its eigendecompositions.
LARGEST_CONE = 1024

# An error below this share of the largest entry is 0.
ROUNDING = 1e-14

# Of ``relative``: below it t - log(1 + t) has few digits left.
LEAST = 1e-6

# Singular values below this share of the largest are cut off.
NEGLIGIBLE = 1e-14

Proof = tuple[Tensor, Tensor, Tensor]  # witness, row weights, column weights

# A convex function of norm and alpha, of degree 1, and its two slopes.
Weighed = tuple[Tensor, Tensor, Tensor]


def approximate(
    W: Matrix, alpha: Tensor | float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """The factorization of least gamma_2 within ``alpha`` of W in every entry, certified.

    Args:
        W: (*batch, m, n), real, numpy arrays and lists too, or a :class:`Workload` (made dense).
        alpha: a number >= 0, or a tensor that broadcasts with (*batch): a whole curve
            gamma_2(W; alpha) is one call.
        tol: relative gap at which each problem stops.
        max_iterations: of both splittings together.

    The factors follow W's dtype and device; the work is in float64. The result's witness and
    weights prove ``certificate.lower``: the weights that gamma_2*(witness) <= 1;
    certificate.residual = max abs(W - left right).

    Closed forms are offered first: the factorization of W itself, 0, and one level with signs. Then
    two splittings: ``solvers.splitting.weighted`` costs an eigendecomposition of side min(m, n) an
    iteration; where the weights vanish on rows that still bind, ``solvers.splitting.conic``
    (side m + n, up to 1024) finishes. Warns (RuntimeWarning) where the certified gap exceeds
    ``tol``; the certificate is true all the same. Raises ValueError, TypeError.

    Guarantees: certificate.lower <= gamma_2(W; alpha) <= certificate.upper, and
    certificate.residual <= alpha up to rounding.
    Source: Ghazi et al. (2023), section 1; Edmonds, Nikolov, Ullman (2020), Lemma 12; the
    alternating directions by Glowinski, Marroco (1975) and Gabay, Mercier (1976).
    """
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    given = matrix_of(W)
    alpha = amounts("alpha", alpha, given)
    alpha = alpha.expand(np.broadcast_shapes(given.shape[:-2], alpha.shape))
    dense = given.double().expand(*alpha.shape, *given.shape[-2:])
    left, right, proof, iterations = _solve(dense, alpha, tol, max_iterations)
    left = left.to(given.dtype)
    right = right.to(given.dtype)
    certificate = certify_approximate(dense, alpha, left, right, *proof)
    warn_where_open(certificate, tol, size_of([dense]), given.dtype, iterations, max_iterations)
    U, c, P = proof
    return Factorization(left, right, None, c, P, certificate, iterations, U)


@one_thread
def _solve(
    W: Tensor, alpha: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, Proof, int]:
    """Factors, their proof and the iterations: both phases, on W of largest entry 1."""
    m, n = W.shape[-2:]
    batch = alpha.shape
    size = divisor(size_of([W]))
    level = (alpha / size).reshape(-1, 1, 1)
    Y = (W / size[..., None, None]).reshape(-1, m, n)
    tall = m >= n
    if not tall:
        Y = Y.mT
    exact = factorize(Y, tol=tol)
    best = Best(Y, (exact.left, exact.right))
    everything = torch.arange(len(Y), device=W.device)
    c = exact.row_weights
    P = exact.column_weights
    # Closed forms first: most alpha need no iteration.
    best.raise_(everything, Y, level, witness(Y, c, P), c, P)
    best.cut(
        everything, Y, level, Y.new_zeros(*Y.shape[:-1], 1), Y.new_zeros(len(Y), 1, Y.shape[-1])
    )
    _offer_signs(Y, level, best)
    iterations = 0
    going = (best.gap() > tol).nonzero()[:, 0]
    if len(going):
        iterations, state = weighted(Y[going], level[going], best, going, tol, max_iterations)
        still_open = best.gap()[going] > tol
        going = going[still_open]
        start = tuple(part[still_open] for part in state)
    left_over = max_iterations - iterations
    if len(going) and m + n <= LARGEST_CONE and left_over > 0:
        iterations += conic(Y[going], level[going], best, going, start, tol, left_over)

    def shaped(x: Tensor) -> Tensor:
        return x.reshape(*batch, *x.shape[1:])

    half = size.sqrt()[..., None, None]  # of the scale, on either factor
    left = half * shaped(best.left)
    right = half * shaped(best.right)
    U = shaped(best.witness)
    c = shaped(best.row_weights)
    P = shaped(best.column_weights)
    if tall:
        return left, right, (U, c, P), iterations
    return right.mT, left.mT, (U.mT, P, c), iterations


def _offer_signs(W: Tensor, alpha: Tensor, best: Best) -> None:
    """Offers level u v^T with signs u, v, of norm level, and the witness 1 at W's largest entry.

    Both are best where no entry is further than alpha from such a matrix: gamma_2(W; alpha) = max
    abs(W) - alpha, as for entries of one sign from alpha = (max - min) / 2 on. u = v = 1, up to W's
    sign; or those of W's row and column through its largest entry.
    """
    b, m, n = W.shape
    everything = torch.arange(b, device=W.device)
    largest = W.abs().flatten(1).argmax(1)
    i = largest // n
    j = largest % n
    sign = _signs(W[everything, i, j])
    row = _signs(W[everything, i])
    column = _signs(W[everything, :, j])
    level = W.abs().amax((-2, -1), keepdim=True) - alpha
    root = level.clamp_min(0).sqrt()
    constant = (sign[:, None].expand(b, m), torch.ones_like(row))
    crossing = (column, row * sign[:, None])
    for u, v in (constant, crossing):
        best.cut(everything, W, alpha, root * u[:, :, None], root * v[:, None, :])
    U = torch.zeros_like(W)
    U[everything, i, j] = sign
    best.raise_(everything, W, alpha, U, U.abs().sum(2), U.abs().sum(1))


def _signs(x: Tensor) -> Tensor:
    """Those of x, 1 where it is 0."""
    return torch.where(x < 0, -1.0, torch.ones_like(x))


def zeta(
    W: Matrix, n: int, epsilon: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """min over alpha >= 0 of gamma_2(W; alpha) + alpha epsilon sqrt(n), with its factorization.

    Args:
        W: as in :func:`approximate`.
        n: users.
        epsilon: of local privacy.
        tol: relative gap of zeta at which it stops.
        max_iterations: of one :func:`approximate`.

    certificate.lower and .upper bound zeta; its residual is the alpha found best, and the witness
    is that of gamma_2(W; alpha). Warns and raises likewise.

    Guarantees: certificate.lower <= zeta(W, n, epsilon) <= certificate.upper.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 1.
    """
    price = checks.positive("epsilon", epsilon) * math.sqrt(checks.integer("n", n, 1))

    def priced(norm: Tensor, alpha: Tensor) -> Weighed:
        return norm + price * alpha, torch.ones_like(norm), torch.full_like(norm, price)

    best, certificate = _best_alpha(matrix_of(W), priced, tol, max_iterations)
    return replace(best, certificate=certificate)


def least_error(
    W: Matrix, variance: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """The factorization of least worst mean squared error, variance gamma_2(W; alpha)^2 + alpha^2.

    A query is answered by l_i^T (mean of the users' noisy vectors): with ||l_i||, ||R_x|| <=
    gamma_2^{1/2} its variance is at most gamma_2^2 ``variance`` and its bias at most alpha.

    Args:
        W: (m, n), as in :func:`approximate`.
        variance: of a coordinate of the mean for vectors of norm at most 1, that is v / n for a
            randomizer with Cov = v I and n users.
        tol: relative gap of the root of the mean squared error at which it stops.
        max_iterations: of one :func:`approximate`.

    certificate: of that mean squared error, of the worst query at worst over the users' data; else
    as :func:`zeta`. Raises ValueError, TypeError; warns like :func:`approximate`.

    Guarantees: certificate.lower <= min over alpha of variance gamma_2(W; alpha)^2 + alpha^2 <=
    certificate.upper.
    Source: the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12, once more.
    """
    W = checks.matrix("W", matrix_of(W), checks.LARGEST)  # squares are returned
    a = math.sqrt(checks.positive("variance", variance))
    if W.ndim != 2:
        raise ValueError(f"W must be one matrix, not of shape {tuple(W.shape)}")

    def error(norm: Tensor, alpha: Tensor) -> Weighed:
        angle = torch.atan2(alpha, a * norm)
        return torch.hypot(a * norm, alpha), a * angle.cos(), angle.sin()

    best, root = _best_alpha(W, error, tol, max_iterations)
    rounding = 2 * (root.upper + root.rounding) * root.rounding
    squared = Certificate(
        root.upper.square(), root.lower.square(), root.residual, rounding=rounding
    )
    return replace(best, certificate=squared)


def _best_alpha(
    W: Tensor, error: Callable[[Tensor, Tensor], Weighed], tol: float, max_iterations: int
) -> tuple[Factorization, Certificate]:
    """The factorization of least error(gamma_2(W; alpha), alpha), and bounds on that error.

    A witness U of one alpha bounds gamma_2(W; .) from below by a line, <W, U> - alpha sum abs(U),
    and the error lies above its own slopes' plane: so each alpha gives a line below the error,
    which :func:`least` goes by.
    """
    tol = checks.positive("tol", tol)
    sizes = W.double().abs()
    size = sizes.amax((-2, -1))
    middle = (size - sizes.amin((-2, -1))) / 2
    seen: list[tuple[Tensor, Factorization]] = []

    def within(alpha: Tensor) -> Factorization:
        for seen_alpha, factorization in seen:
            if torch.equal(seen_alpha, alpha):
                return factorization
        factorization = approximate(W, alpha, tol=tol / 4, max_iterations=max_iterations)
        seen.append((alpha, factorization))
        return factorization

    def look(alpha: Tensor) -> Weighed:
        near = within(alpha)
        value, _, _ = error(near.norm, near.certificate.residual)
        _, by_norm, by_alpha = error(near.norm, alpha)
        lower = near.certificate.lower
        U = cast(Tensor, near.witness)
        slope = U.abs().sum((-2, -1))
        # The certificate may have divided the witness: the line falls by as much less.
        height = (W * U).sum((-2, -1)) - alpha * slope
        falls = torch.where(lower > 0, slope * lower / height, 0.0)
        return value, by_norm * lower + by_alpha * alpha, by_alpha - by_norm * falls

    with warnings.catch_warnings():  # one warning is enough: the one below
        warnings.simplefilter("ignore", RuntimeWarning)
        alpha, upper, lower = least(
            look, middle, middle + size / 8, (0.0, size), tol, ROUNDING * size
        )
        best = within(alpha)  # of a batch, each problem may have another look's
    _, by_norm, by_alpha = error(best.norm, alpha)
    terms = sum(W.shape[-2:])
    # The residual is a difference of numbers as large as W: its rounding is weighed by the price of
    # alpha.
    rounding = by_norm * best.certificate.rounding + by_alpha * allowance(size, terms)
    rounding = rounding + allowance(upper, terms)
    residual = best.certificate.residual
    certificate = Certificate(upper, lower.clamp_min(0), residual, rounding=rounding)
    warn_where_open(certificate, tol, size, W.dtype, best.iterations, max_iterations, stacklevel=4)
    return best, certificate


def truncate(factorization: Factorization, rank: int) -> Factorization:
    """The best approximation of a rank in the Frobenius norm weighed by the dual weights.

    X = left right, c and P the dual weights of its rows and columns, diag(c)^{1/2} X
    diag(P)^{1/2} = U S V^T; with the ``rank`` largest singular values kept,
        left' = X diag(P)^{1/2} V S^{-1/2},  right' = S^{-1/2} U^T diag(c)^{1/2} X.
    Where no weight is 0, left' right' is the matrix of that rank with the least sum_ij c_i P_j
    (X - left' right')_ij^2. Its rows and columns are those of the spectral factors of X with
    coordinates dropped, so at optimal weights its norm is at most gamma_2(X).

    Args:
        factorization: batched or not. A shift stays as it is: what is approximated is
            W - shift 1^T.
        rank: at least 1; from the factorization's own rank on, its factors come back as they are.

    Its residual counts the factorization's own. Raises ValueError, TypeError.

    Guarantees: certificate.residual >= max abs(W - shift 1^T - left right) up to rounding, and
    certificate.lower <= gamma_2(W - shift 1^T; certificate.residual) <= certificate.upper = norm.
    Source: Eckart, Young (1936); the weights by Nikolov, Tang (2023), Theorem 26.
    """
    rank = checks.integer("rank", rank, 1)
    checks.instance("factorization", factorization, Factorization)
    if rank >= factorization.left.shape[-1]:
        return factorization
    X = factorization.left.double() @ factorization.right.double()
    rows = factorization.row_weights.sqrt()[..., None]
    columns = factorization.column_weights.sqrt()[..., None, :]
    U, S, Vh = torch.linalg.svd(rows * X * columns, full_matrices=False)
    S = S[..., :rank]
    # Of a smaller rank than asked for: 0 instead of a division by it.
    inverse = torch.where(S > NEGLIGIBLE * S[..., :1], S, math.inf).rsqrt()
    U = rows * U[..., :rank]
    V = (columns * Vh[..., :rank, :]).mT
    left = X @ V * inverse[..., None, :]
    right = inverse[..., None] * (U.mT @ X)
    return _near(factorization, left, right)


def johnson_lindenstrauss(
    factorization: Factorization, rank: int, *, generator: torch.Generator
) -> Factorization:
    """Factors of fewer rows by one Gaussian matrix: left A and A^T right, E A A^T = I.

    The entries of A (r x rank) are independent N(0, 1/rank), one A for each problem of a batch, so
    left A A^T right is unbiased for left right. :func:`jl_rank` says which rank keeps every entry
    close; here the error is measured.

    Args:
        factorization: a shift stays as it is, as in :func:`truncate`.
        rank: at least 1; from the factorization's own rank on, its factors come back as they are
            (a projection would only add error).
        generator: of A.

    Raises ValueError, TypeError.

    Guarantees: residual and bounds as of :func:`truncate`.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 12 and 13.
    """
    rank = checks.integer("rank", rank, 1)
    checks.instance("factorization", factorization, Factorization)
    left = factorization.left.double()
    right = factorization.right.double()
    generator = checks.random_source(generator, left.device)
    if rank >= left.shape[-1]:
        return factorization
    shape = (*left.shape[:-2], left.shape[-1], rank)
    A = torch.randn(shape, dtype=torch.float64, device=left.device, generator=generator)
    A = A / math.sqrt(rank)
    return _near(factorization, left @ A, A.mT @ right)


def jl_rank(m: int, n: int, relative: float, *, failure: float = 0.5) -> int:
    """A rank at which a Gaussian projection keeps all entries and norms, of any factors.

    rank = ceil(2 log((2 m n + m + n) / failure) / (relative - log(1 + relative))): then, with
    probability 1 - failure,
        max abs(W - left right) <= relative * norm  and  norm' <= (1 + relative) * norm,
    norm the factors' own (largest row norm * largest column norm) and norm' that of the projected
    ones. For an error alpha take relative = alpha / gamma_2(W): the paper's gamma_2(W)^2 log(k) /
    alpha^2, with its constant.

    Why: for unit u, v with <u, v> = rho, log E exp(rank theta (<A^T u, A^T v> - rho)) is
    rank (h(theta (1 + rho)) + h(-theta (1 - rho))) / 2, h(x) = -log(1 - x) - x. It is convex in
    rho, hence largest at rho = 1, which is the chi-square distribution; Chernoff's bound there is
    exp(-rank (t - log(1 + t)) / 2) for a deviation t, on either side. There are 2 m n such events,
    and m + n of norms that grow by more than sqrt(1 + t). The paper's proof goes through norms of
    sums and differences, and bounds by 2 beta C^2 in its last line what the parallelogram law
    bounds by beta C^2: it projects for half of alpha, which at small alpha quadruples the rank.

    Args:
        m: rows of W, positive.
        n: columns.
        relative: in [1e-6, 1e150].
        failure: in (0, 1).

    Raises ValueError.

    Guarantees: the two inequalities, with probability 1 - failure at least, for any factors of any
    m x n matrix.
    Source: Ghazi et al. (2023), Lemma 12; the constant is derived here.
    """
    m = checks.integer("m", m, 1)
    n = checks.integer("n", n, 1)
    t = checks.within("relative", relative, LEAST, checks.LARGEST)
    failure = checks.fraction("failure", failure)
    events = 2 * m * n + m + n
    return math.ceil(2 * math.log(events / failure) / (t - math.log1p(t)))


def _near(factorization: Factorization, left: Tensor, right: Tensor) -> Factorization:
    """Balanced, in the factorization's dtype, and certified.

    The product X of the factorization's own factors is within r, its residual, of W: so what is d
    away from X is at most d + r from W, and gamma_2(W; d + r) >= gamma_2(X; d + 2 r).
    """
    scale = balance(left.norm(dim=-1).amax(-1), right.norm(dim=-2).amax(-1))
    dtype = factorization.left.dtype
    left = (scale * left).to(dtype)
    right = (right / scale).to(dtype)
    X = factorization.left.double() @ factorization.right.double()
    d = size_of([X - left.double() @ right.double()])
    r = factorization.certificate.residual
    c = factorization.row_weights
    P = factorization.column_weights
    U = witness(X, c, P)
    certificate = certify_approximate(X, d + 2 * r, left, right, U, c, P)
    certificate = replace(certificate, residual=d + r)
    return replace(factorization, left=left, right=right, witness=U, certificate=certificate)
