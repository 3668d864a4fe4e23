"""Approximate factorizations: gamma_2(W; alpha), zeta, and the alpha of least mean squared error."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, allowance
from torchdp.factorization.certificates.objective_certificate import amounts, certify_approximate
from torchdp.factorization.factorize import Factorization, Matrix, factorize, matrix_of
from torchdp.factorization.norm import witness
from torchdp.factorization.solvers.lines import least
from torchdp.factorization.solvers.splitting import Best, conic, weighted
from torchdp.factorization.solvers.stopping import warn_where_open
from torchdp.threads import one_thread

LARGEST_CONE = 1024  # m + n up to which the semidefinite program is worth its eigendecompositions
ROUNDING = 1e-14  # an error below this share of the largest entry is 0
Proof = tuple[Tensor, Tensor, Tensor]  # witness, row weights, column weights


def approximate(
    W: Matrix, alpha: Tensor | float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> Factorization:
    """The factorization of least gamma_2 whose product is within ``alpha`` of W in every entry, with its certificate.

    W: (*batch, m, n), real, numpy arrays and lists too, or a :class:`Workload` (made dense). alpha: a number >= 0, or
    a tensor that broadcasts with (*batch): a whole curve gamma_2(W; alpha) is one call. tol: relative gap at which
    each problem stops. The factors follow W's dtype and device; the work is in float64. The result's witness and
    weights prove ``certificate.lower``: the weights that gamma_2*(witness) <= 1; certificate.residual = max abs(W -
    left right).

    Closed forms are offered first: the factorization of W itself, 0, and one level with signs. Then two splittings:
    ``solvers.splitting.weighted`` costs an eigendecomposition of side min(m, n) an iteration; where
    the weights vanish on rows that still bind, ``solvers.splitting.conic`` (side m + n, up to 1024)
    finishes. Warns (RuntimeWarning) where the certified gap exceeds ``tol``; the certificate is true all the same.
    Raises ValueError, TypeError.

    Guarantees: certificate.lower <= gamma_2(W; alpha) <= certificate.upper, and certificate.residual <= alpha up to
    rounding.
    Source: Ghazi et al. (2023), section 1; Edmonds, Nikolov, Ullman (2020), Lemma 12; the alternating directions by
    Glowinski, Marroco (1975) and Gabay, Mercier (1976).
    """
    tol, max_iterations = checks.positive("tol", tol), checks.integer("max_iterations", max_iterations, 1)
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
def _solve(W: Tensor, alpha: Tensor, tol: float, max_iterations: int) -> tuple[Tensor, Tensor, Proof, int]:
    """Factors, their proof and the iterations: both phases on W scaled to largest entry 1, its longer side first."""
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
    best.cut(everything, Y, level, Y.new_zeros(*Y.shape[:-1], 1), Y.new_zeros(Y.shape[0], 1, Y.shape[-1]))
    _offer_signs(Y, level, best)
    iterations = 0
    going = (best.gap() > tol).nonzero()[:, 0]
    if len(going):
        iterations, state = weighted(Y[going], level[going], best, going, tol, max_iterations)
        still = best.gap()[going] > tol
        going, start = going[still], tuple(part[still] for part in state)
    if len(going) and m + n <= LARGEST_CONE and iterations < max_iterations:
        iterations += conic(Y[going], level[going], best, going, start, tol, max_iterations - iterations)
    left, right, U, c, P = best.left, best.right, best.witness, best.row_weights, best.column_weights
    if not tall:
        left, right, U, c, P = right.mT, left.mT, U.mT, P, c
    half = size.sqrt()[..., None, None]

    def shaped(x: Tensor) -> Tensor:
        return x.reshape(*batch, *x.shape[1:])

    return half * shaped(left), half * shaped(right), (shaped(U), shaped(c), shaped(P)), iterations


def _offer_signs(W: Tensor, alpha: Tensor, best: Best) -> None:
    """Offers level u v^T with signs u, v, whose norm is the level, and the witness that is 1 at W's largest entry.

    Both are best where no entry is further than alpha from such a matrix: gamma_2(W; alpha) = max abs(W) - alpha, as
    for entries of one sign from alpha = (max - min) / 2 on. u = v = 1, up to W's sign; or those of W's row and column
    through its largest entry.
    """
    b, m, n = W.shape
    everything = torch.arange(b, device=W.device)
    place = W.abs().flatten(1).argmax(1)
    i, j = place // n, place % n
    sign = torch.where(W[everything, i, j] < 0, -1.0, W.new_ones(()))
    row, column = (torch.where(x < 0, -1.0, torch.ones_like(x)) for x in (W[everything, i], W[everything, :, j]))
    root = (W.abs().amax((-2, -1), keepdim=True) - alpha).clamp_min(0).sqrt()
    for u, v in (sign[:, None].expand(b, m), torch.ones_like(row)), (column, row * sign[:, None]):
        best.cut(everything, W, alpha, root * u[:, :, None], root * v[:, None, :])
    U = torch.zeros_like(W)
    U[everything, i, j] = sign.to(W)
    best.raise_(everything, W, alpha, U, U.abs().sum(2), U.abs().sum(1))


def _size(W: Tensor) -> Tensor:
    size = W.abs().amax((-2, -1))
    return torch.where(size > 0, size, 1.0)


def zeta(W: Matrix, n: int, epsilon: float, *, tol: float = 1e-3, max_iterations: int = 5_000) -> Factorization:
    """zeta(W, n, epsilon) = min over alpha >= 0 of gamma_2(W; alpha) + alpha epsilon sqrt(n), with its factorization.

    W: as in :func:`approximate`. n: users; epsilon: of local privacy. certificate.lower and .upper bound zeta; its
    residual is the alpha found best, and the witness is that of gamma_2(W; alpha). Warns and raises likewise.

    Guarantees: certificate.lower <= zeta(W, n, epsilon) <= certificate.upper.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 1.
    """
    price = checks.positive("epsilon", epsilon) * math.sqrt(checks.integer("n", n, 1))

    def priced(norm: Tensor, alpha: Tensor) -> Weighed:
        return norm + price * alpha, torch.ones_like(norm), torch.full_like(norm, price)

    found, certificate = _best_alpha(matrix_of(W), priced, tol, max_iterations)
    return replace(found, certificate=certificate)


def least_error(W: Matrix, variance: float, *, tol: float = 1e-3, max_iterations: int = 5_000) -> Factorization:
    """The alpha that is best for the mean squared error: minimise variance gamma_2(W; alpha)^2 + alpha^2.

    A query is answered by l_i^T (mean of the users' noisy vectors): with ||l_i||, ||R_x|| <= gamma_2^{1/2} its
    variance is at most gamma_2^2 ``variance`` and its bias at most alpha. variance: of a coordinate of the mean for
    vectors of norm at most 1, that is v / n for a randomizer with Cov = v I and n users.

    W: (m, n), as in :func:`approximate`. tol: relative gap of the root of the mean squared error at which it stops.
    certificate: of that mean squared error, of the worst query at worst over the users' data; else as :func:`zeta`.
    Raises ValueError, TypeError; warns like :func:`approximate`.

    Guarantees: certificate.lower <= min over alpha of variance gamma_2(W; alpha)^2 + alpha^2 <= certificate.upper.
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
    squared = Certificate(root.upper.square(), root.lower.square(), root.residual, rounding=rounding)
    return replace(found, certificate=squared)


Weighed = tuple[Tensor, Tensor, Tensor]  # a convex function of norm and alpha, of degree 1, and its two slopes


def _best_alpha(
    W: Tensor, error: Callable[[Tensor, Tensor], Weighed], tol: float, max_iterations: int
) -> tuple[Factorization, Certificate]:
    """The factorization of least error(gamma_2(W; alpha), alpha) over alpha >= 0, and bounds on that error.

    A witness U of one alpha bounds gamma_2(W; .) from below by a line, <W, U> - alpha sum abs(U), and the error lies
    above its own slopes' plane: so each alpha gives a line below the error, which :func:`least` goes by.
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
        alpha, upper, lower = least(look, middle, middle + size / 8, (0.0, size), tol, ROUNDING * size)
        again = next((found for x, found in seen if torch.equal(x, alpha)), None)
        found = again or approximate(W, alpha, tol=tol / 4, max_iterations=max_iterations)
    residual = found.certificate.residual
    _, by_norm, by_alpha = error(found.norm, alpha)
    terms = sum(W.shape[-2:])
    # The residual is a difference of numbers as large as W: its rounding is weighed by the price of alpha.
    rounding = by_norm * found.certificate.rounding + by_alpha * allowance(size, terms) + allowance(upper, terms)
    certificate = Certificate(upper, lower.clamp_min(0), residual, rounding=rounding)
    warn_where_open(certificate, tol, _size(W.double()), W.dtype, found.iterations, max_iterations, stacklevel=4)
    return found, certificate
