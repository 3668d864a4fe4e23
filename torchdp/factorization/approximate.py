"""Approximate factorizations: gamma_2(W; alpha), zeta, and the alpha of least mean squared error.

Fewer rows of R by random projection or truncation: what comes out is a factorization of
gamma_2(W; alpha), alpha = certificate.residual, how far it is from W at most.
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
from torchdp.factorization.factorize import Factorization, Matrix, balance, factorize, matrix_of
from torchdp.factorization.norm import witness
from torchdp.factorization.solvers.iteration import least, warn_where_open
from torchdp.factorization.solvers.splitting import Best, conic, weighted
from torchdp.threads import one_thread

LARGEST_CONE = 1024  # m + n up to which the semidefinite program is worth its eigendecompositions
ROUNDING = 1e-14  # an error below this share of the largest entry is 0
Proof = tuple[Tensor, Tensor, Tensor]  # witness, row weights, column weights
LEAST = 1e-6  # of ``relative``: below it t - log(1 + t) has few digits left
NEGLIGIBLE = 1e-14  # singular values below this share of the largest are cut off


def approximate(
    W: Matrix, alpha: Tensor | float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """The factorization of least gamma_2 whose product is within ``alpha`` of W in every entry,
    with its certificate.

    W: (*batch, m, n), real, numpy arrays and lists too, or a :class:`Workload` (made dense). alpha:
    a number >= 0, or a tensor that broadcasts with (*batch): a whole curve gamma_2(W; alpha) is one
    call. tol: relative gap at which each problem stops. The factors follow W's dtype and device;
    the work is in float64. The result's witness and weights prove ``certificate.lower``: the
    weights that gamma_2*(witness) <= 1; certificate.residual = max abs(W - left right).

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
    tol, max_iterations = (
        checks.positive("tol", tol),
        checks.integer("max_iterations", max_iterations, 1),
    )
    given = matrix_of(W)
    dense, alpha = given.double(), amounts("alpha", alpha, given)
    alpha = alpha.expand(np.broadcast_shapes(given.shape[:-2], alpha.shape))
    dense = dense.expand(*alpha.shape, *dense.shape[-2:])
    left, right, proof, iterations = _solve(dense, alpha, tol, max_iterations)
    left, right = left.to(given.dtype), right.to(given.dtype)
    certificate = certify_approximate(dense, alpha, left, right, *proof)
    warn_where_open(certificate, tol, _size(dense), given.dtype, iterations, max_iterations)
    return Factorization(left, right, None, *proof[1:], certificate, iterations, proof[0])


@one_thread
def _solve(
    W: Tensor, alpha: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, Proof, int]:
    """Factors, their proof and the iterations: both phases on W scaled to largest entry 1, its
    longer side first.
    """
    (m, n), batch, size = W.shape[-2:], alpha.shape, _size(W)
    level = (alpha / size).reshape(-1, 1, 1)
    scaled = (W / size[..., None, None]).reshape(-1, m, n)
    tall = m >= n
    Y = scaled if tall else scaled.mT
    exact = factorize(Y, tol=tol)
    best = Best(Y, (exact.left, exact.right))
    everything = torch.arange(Y.shape[0], device=W.device)
    proof = exact.row_weights, exact.column_weights
    best.raise_(everything, Y, level, witness(Y, *proof), *proof)
    best.cut(
        everything, Y, level, Y.new_zeros(*Y.shape[:-1], 1), Y.new_zeros(Y.shape[0], 1, Y.shape[-1])
    )
    _offer_signs(Y, level, best)
    iterations = 0
    going = (best.gap() > tol).nonzero()[:, 0]
    if len(going):
        iterations, state = weighted(Y[going], level[going], best, going, tol, max_iterations)
        still = best.gap()[going] > tol
        going, start = going[still], tuple(part[still] for part in state)
    if len(going) and m + n <= LARGEST_CONE and iterations < max_iterations:
        iterations += conic(
            Y[going], level[going], best, going, start, tol, max_iterations - iterations
        )
    left, right, U, c, P = (
        best.left,
        best.right,
        best.witness,
        best.row_weights,
        best.column_weights,
    )
    if not tall:
        left, right, U, c, P = right.mT, left.mT, U.mT, P, c
    half = size.sqrt()[..., None, None]

    def shaped(x: Tensor) -> Tensor:
        return x.reshape(*batch, *x.shape[1:])

    return half * shaped(left), half * shaped(right), (shaped(U), shaped(c), shaped(P)), iterations


def _offer_signs(W: Tensor, alpha: Tensor, best: Best) -> None:
    """Offers level u v^T with signs u, v, whose norm is the level, and the witness that is 1 at W's
    largest entry.

    Both are best where no entry is further than alpha from such a matrix: gamma_2(W; alpha) = max
    abs(W) - alpha, as for entries of one sign from alpha = (max - min) / 2 on. u = v = 1, up to W's
    sign; or those of W's row and column through its largest entry.
    """
    b, m, n = W.shape
    everything = torch.arange(b, device=W.device)
    place = W.abs().flatten(1).argmax(1)
    i, j = place // n, place % n
    sign = torch.where(W[everything, i, j] < 0, -1.0, W.new_ones(()))
    row, column = (
        torch.where(x < 0, -1.0, torch.ones_like(x))
        for x in (W[everything, i], W[everything, :, j])
    )
    root = (W.abs().amax((-2, -1), keepdim=True) - alpha).clamp_min(0).sqrt()
    for u, v in (sign[:, None].expand(b, m), torch.ones_like(row)), (column, row * sign[:, None]):
        best.cut(everything, W, alpha, root * u[:, :, None], root * v[:, None, :])
    U = torch.zeros_like(W)
    U[everything, i, j] = sign.to(W)
    best.raise_(everything, W, alpha, U, U.abs().sum(2), U.abs().sum(1))


def _size(W: Tensor) -> Tensor:
    size = W.abs().amax((-2, -1))
    return divisor(size)


def zeta(
    W: Matrix, n: int, epsilon: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """zeta(W, n, epsilon) = min over alpha >= 0 of gamma_2(W; alpha) + alpha epsilon sqrt(n), with
    its factorization.

    W: as in :func:`approximate`. n: users; epsilon: of local privacy. certificate.lower and .upper
    bound zeta; its residual is the alpha found best, and the witness is that of gamma_2(W; alpha).
    Warns and raises likewise.

    Guarantees: certificate.lower <= zeta(W, n, epsilon) <= certificate.upper.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 1.
    """
    price = checks.positive("epsilon", epsilon) * math.sqrt(checks.integer("n", n, 1))

    def priced(norm: Tensor, alpha: Tensor) -> Weighed:
        return norm + price * alpha, torch.ones_like(norm), torch.full_like(norm, price)

    found, certificate = _best_alpha(matrix_of(W), priced, tol, max_iterations)
    return replace(found, certificate=certificate)


def least_error(
    W: Matrix, variance: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """The alpha that is best for the mean squared error: minimise variance gamma_2(W; alpha)^2 +
    alpha^2.

    A query is answered by l_i^T (mean of the users' noisy vectors): with ||l_i||, ||R_x|| <=
    gamma_2^{1/2} its variance is at most gamma_2^2 ``variance`` and its bias at most alpha.
    variance: of a coordinate of the mean for vectors of norm at most 1, that is v / n for a
    randomizer with Cov = v I and n users.

    W: (m, n), as in :func:`approximate`. tol: relative gap of the root of the mean squared error at
    which it stops. certificate: of that mean squared error, of the worst query at worst over the
    users' data; else as :func:`zeta`. Raises ValueError, TypeError; warns like :func:`approximate`.

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

    found, root = _best_alpha(W, error, tol, max_iterations)
    rounding = 2 * (root.upper + root.rounding) * root.rounding
    squared = Certificate(
        root.upper.square(), root.lower.square(), root.residual, rounding=rounding
    )
    return replace(found, certificate=squared)


# a convex function of norm and alpha, of degree 1, and its two slopes
Weighed = tuple[Tensor, Tensor, Tensor]


def _best_alpha(
    W: Tensor, error: Callable[[Tensor, Tensor], Weighed], tol: float, max_iterations: int
) -> tuple[Factorization, Certificate]:
    """The factorization of least error(gamma_2(W; alpha), alpha) over alpha >= 0, and bounds on
    that error.

    A witness U of one alpha bounds gamma_2(W; .) from below by a line, <W, U> - alpha sum abs(U),
    and the error lies above its own slopes' plane: so each alpha gives a line below the error,
    which :func:`least` goes by.
    """
    tol, sizes = checks.positive("tol", tol), W.double().abs()
    size, middle = sizes.amax((-2, -1)), (sizes.amax((-2, -1)) - sizes.amin((-2, -1))) / 2
    seen: list[tuple[Tensor, Factorization]] = []

    def look(alpha: Tensor) -> Weighed:
        found = approximate(W, alpha, tol=tol / 4, max_iterations=max_iterations)
        value = error(found.norm, found.certificate.residual)[0]
        _, by_norm, by_alpha = error(found.norm, alpha)
        seen.append((alpha, found))
        lower, U = found.certificate.lower, cast(Tensor, found.witness)
        slope = U.abs().sum((-2, -1))
        height = (W * U).sum((-2, -1)) - alpha * slope  # what the certificate may have divided
        falls = torch.where(lower > 0, slope * lower / height, 0.0)
        return value, by_norm * lower + by_alpha * alpha, by_alpha - by_norm * falls

    with warnings.catch_warnings():  # one warning is enough: the one below
        warnings.simplefilter("ignore", RuntimeWarning)
        alpha, upper, lower = least(
            look, middle, middle + size / 8, (0.0, size), tol, ROUNDING * size
        )
        again = next((found for x, found in seen if torch.equal(x, alpha)), None)
        found = again or approximate(W, alpha, tol=tol / 4, max_iterations=max_iterations)
    residual = found.certificate.residual
    _, by_norm, by_alpha = error(found.norm, alpha)
    terms = sum(W.shape[-2:])
    # The residual is a difference of numbers as large as W: its rounding is weighed by the price of
    # alpha.
    rounding = (
        by_norm * found.certificate.rounding
        + by_alpha * allowance(size, terms)
        + allowance(upper, terms)
    )
    certificate = Certificate(upper, lower.clamp_min(0), residual, rounding=rounding)
    warn_where_open(
        certificate, tol, _size(W.double()), W.dtype, found.iterations, max_iterations, stacklevel=4
    )
    return found, certificate


def truncate(factorization: Factorization, rank: int) -> Factorization:
    """The best approximation of rank ``rank`` in the Frobenius norm weighed by the factorization's
    dual weights.

    X = left right, c and P the dual weights of its rows and columns, diag(c)^{1/2} X
    diag(P)^{1/2} = U S V^T; with the ``rank`` largest singular values kept,
        left' = X diag(P)^{1/2} V S^{-1/2},  right' = S^{-1/2} U^T diag(c)^{1/2} X.
    Where no weight is 0, left' right' is the matrix of that rank with the least sum_ij c_i P_j
    (X - left' right')_ij^2. Its rows and columns are those of the spectral factors of X with
    coordinates dropped, so at optimal weights its norm is at most gamma_2(X).

    rank: at least 1; from the factorization's own rank on, its factors come back as they are. A
    shift stays apart: what is approximated is W - shift 1^T. Batched; its residual counts the
    factorization's own. Raises ValueError.

    Guarantees: certificate.residual >= max abs(W - shift 1^T - left right) up to rounding, and
    certificate.lower <= gamma_2(W - shift 1^T; certificate.residual) <= certificate.upper = norm.
    Source: Eckart, Young (1936); the weights by Nikolov, Tang (2023), Theorem 26.
    """
    rank = checks.integer("rank", rank, 1)
    checks.instance("factorization", factorization, Factorization)
    if rank >= factorization.left.shape[-1]:
        return factorization
    X = factorization.left.double() @ factorization.right.double()
    rows, columns = (
        factorization.row_weights.sqrt()[..., None],
        factorization.column_weights.sqrt()[..., None, :],
    )
    U, S, Vh = torch.linalg.svd(rows * X * columns, full_matrices=False)
    U, S, Vh = U[..., :rank], S[..., :rank], Vh[..., :rank, :]
    inverse = torch.where(S > NEGLIGIBLE * S[..., :1], S, math.inf).rsqrt()
    left = X @ (columns * Vh).mT * inverse[..., None, :]
    right = inverse[..., None] * ((rows * U).mT @ X)
    return _near(factorization, left, right)


def johnson_lindenstrauss(
    factorization: Factorization, rank: int, *, generator: torch.Generator
) -> Factorization:
    """Both factors projected by one Gaussian matrix: left A and A^T right, A (r x rank) with E A
    A^T = I.

    The entries of A are independent N(0, 1/rank), one A for each problem of a batch, so left A A^T
    right is unbiased for left right. :func:`jl_rank` says which rank keeps every entry close; here
    the error is measured.

    rank: at least 1; from the factorization's own rank on, its factors come back as they are
    (a projection would only add error). A shift stays apart, as in :func:`truncate`. Raises
    ValueError, TypeError.

    Guarantees: residual and bounds as of :func:`truncate`.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 12 and 13.
    """
    rank = checks.integer("rank", rank, 1)
    checks.instance("factorization", factorization, Factorization)
    left, right = factorization.left.double(), factorization.right.double()
    generator = checks.random_source(generator, left.device)
    if rank >= left.shape[-1]:
        return factorization
    shape = (*left.shape[:-2], left.shape[-1], rank)
    A = torch.randn(
        shape, dtype=torch.float64, device=left.device, generator=generator
    ) / math.sqrt(rank)
    return _near(factorization, left @ A, A.mT @ right)


def jl_rank(m: int, n: int, relative: float, *, failure: float = 0.5) -> int:
    """A rank at which a Gaussian projection of any factors keeps all m n entries and all norms,
    with high probability.

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

    m, n: positive. relative: in [1e-6, 1e150]. failure: in (0, 1). Raises ValueError.
    Guarantees: the two inequalities, with probability 1 - failure at least, for any factors of any
    m x n matrix.
    Source: Ghazi et al. (2023), Lemma 12; the constant is derived here.
    """
    m, n = checks.integer("m", m, 1), checks.integer("n", n, 1)
    t, failure = (
        checks.within("relative", relative, LEAST, checks.LARGEST),
        checks.fraction("failure", failure),
    )
    return math.ceil(2 * math.log((2 * m * n + m + n) / failure) / (t - math.log1p(t)))


def _near(factorization: Factorization, left: Tensor, right: Tensor) -> Factorization:
    """Balanced, in the factorization's dtype, and certified.

    The product X of the factorization's own factors is within r, its residual, of W: so what misses
    X by d misses W by at most d + r, and gamma_2(W; d + r) >= gamma_2(X; d + 2 r).
    """
    scale = balance(left.double().norm(dim=-1).amax(-1), right.double().norm(dim=-2).amax(-1))
    dtype, r = factorization.left.dtype, factorization.certificate.residual
    left, right = (scale * left).to(dtype), (right / scale).to(dtype)
    X = factorization.left.double() @ factorization.right.double()
    d = (X - left.double() @ right.double()).abs().amax((-2, -1))
    weights = factorization.row_weights, factorization.column_weights
    U = witness(X, *weights)
    judged = certify_approximate(X, d + 2 * r, left, right, U, *weights)
    return replace(
        factorization,
        left=left,
        right=right,
        witness=U,
        certificate=replace(judged, residual=d + r),
    )
