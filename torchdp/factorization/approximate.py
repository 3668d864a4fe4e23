"""Approximate factorizations: gamma_2(W; alpha), zeta, the price of an entry's error, and the best alpha."""

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.approximate_certificate import amounts, certify_approximate, certify_zeta
from torchdp.factorization.certificates.certificate import Certificate, refuse_contradiction
from torchdp.factorization.factorize import factorize
from torchdp.factorization.norm import witness
from torchdp.factorization.solvers.splitting import Best, Bound, Price, compress, conic, weighted
from torchdp.factorization.solvers.stopping import warn_where_open, working
from torchdp.threads import on_host, one_thread
from torchdp.workloads import Workload

LARGEST_CONE = 1024  # m + n up to which the semidefinite program is worth its eigendecompositions


@dataclass(frozen=True)
class ApproximateFactorization(Brief):
    """W = left right up to ``residual`` <= alpha in every entry, with a certificate of how close to optimal it is.

    left: (*batch, m, r), the decoder; right: (*batch, r, n); balanced: the largest row norm of left is the largest
    column norm of right. alpha: (*batch), the largest error of an entry that was allowed, or that was found best.
    witness U (*batch, m, n), row_weights (*batch, m), column_weights (*batch, n): what proves ``certificate.lower``;
    the weights prove gamma_2*(U) <= 1. certificate: of gamma_2(W; alpha), or of what the function that made it
    minimises; certificate.residual = max abs(W - left right).
    """

    left: Tensor
    right: Tensor
    alpha: Tensor
    witness: Tensor
    row_weights: Tensor
    column_weights: Tensor
    certificate: Certificate
    iterations: int

    @property
    def norm(self) -> Tensor:
        """Largest row norm of left * largest column norm of right, (*batch), float64."""
        return self.left.double().norm(dim=-1).amax(-1) * self.right.double().norm(dim=-2).amax(-1)


def approximate(
    W: Tensor | Workload, alpha: Tensor | float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> ApproximateFactorization:
    """The factorization of least gamma_2 whose product is within ``alpha`` of W in every entry, with its certificate.

    W: (*batch, m, n), real, or a :class:`Workload` (made dense). alpha: a number >= 0, or a tensor that broadcasts
    with (*batch): a whole curve gamma_2(W; alpha) is one call. tol: relative gap at which each problem stops. The
    factors follow W's dtype and device; the work is in float64.

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
    given, dense, batch, tol, max_iterations = prepare(W, tol, max_iterations)
    alpha = amounts("alpha", alpha, dense)
    batch = torch.broadcast_shapes(batch, alpha.shape)
    alpha = alpha.expand(batch)
    size = _size(dense)
    found = _solve(dense, batch, Bound((alpha / size).reshape(-1, 1, 1)), tol, max_iterations)
    left, right = found.left.to(given.dtype), found.right.to(given.dtype)
    certificate = certify_approximate(dense, alpha, left, right, *found.proof)
    warn_where_open(certificate, tol, _size(dense), given.dtype, found.iterations, max_iterations)
    return ApproximateFactorization(left, right, alpha, *found.proof, certificate, found.iterations)


def priced(
    W: Tensor | Workload, price: Tensor | float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> ApproximateFactorization:
    """The factorization that minimises gamma_2 + price * (largest error of an entry), with its certificate.

    W: (*batch, m, n) or a :class:`Workload`; price: > 0, a number or a tensor that broadcasts with (*batch).
    The result's ``alpha`` is the error found best. Warns and raises like :func:`approximate`.

    Guarantees: certificate.lower <= min over alpha of gamma_2(W; alpha) + price alpha <= certificate.upper.
    Source: as :func:`zeta`.
    """
    given, dense, batch, tol, max_iterations = prepare(W, tol, max_iterations)
    price = amounts("price", price, dense)
    if bool((price == 0).any()):
        raise ValueError("price must be > 0: at 0 every matrix is approximated by 0")
    batch = torch.broadcast_shapes(batch, price.shape)
    price = price.expand(batch)
    found = _solve(dense, batch, Price(price.reshape(-1, 1, 1)), tol, max_iterations)
    left, right = found.left.to(given.dtype), found.right.to(given.dtype)
    certificate = certify_zeta(dense, price, left, right, *found.proof)
    warn_where_open(certificate, tol, _size(dense), given.dtype, found.iterations, max_iterations)
    return ApproximateFactorization(left, right, certificate.residual, *found.proof, certificate, found.iterations)


def zeta(
    W: Tensor | Workload, n: int, epsilon: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> ApproximateFactorization:
    """zeta(W, n, epsilon) = min over alpha >= 0 of gamma_2(W; alpha) + alpha epsilon sqrt(n), by :func:`priced`.

    n: users; epsilon: of local privacy. certificate.lower and .upper bound zeta.

    Guarantees: certificate.lower <= zeta(W, n, epsilon) <= certificate.upper.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 1.
    """
    price = checks.positive("epsilon", epsilon) * math.sqrt(checks.integer("n", n, 1))
    return priced(W, price, tol=tol, max_iterations=max_iterations)


@dataclass(frozen=True)
class _Found:
    left: Tensor
    right: Tensor
    proof: tuple[Tensor, Tensor, Tensor]  # witness, row weights, column weights
    iterations: int


@one_thread
def _solve(W: Tensor, batch: torch.Size, h: Bound | Price, tol: float, max_iterations: int) -> _Found:
    """Both phases on W scaled to largest entry 1, its longer side first, in a flat batch; h in that scale."""
    m, n = W.shape[-2:]
    size = _size(W)
    scaled = (W / size[..., None, None]).expand(*batch, m, n).reshape(-1, m, n)
    tall = m >= n
    Y = scaled if tall else scaled.mT
    exact = factorize(Y, tol=tol)
    best = Best(Y, (exact.left, exact.right))
    everything = torch.arange(Y.shape[0], device=W.device)
    proof = exact.row_weights, exact.column_weights
    best.raise_(everything, Y, h, witness(Y, *proof), *proof)
    best.cut(everything, Y, h, Y.new_zeros(*Y.shape[:-1], 1), Y.new_zeros(Y.shape[0], 1, Y.shape[-1]))
    _offer_signs(Y, h, best)
    iterations = 0
    going = (best.gap() > tol).nonzero()[:, 0]
    if len(going):
        iterations, state = weighted(Y[going], h.pick(going), best, going, tol, max_iterations)
        still = best.gap()[going] > tol
        going, start = going[still], tuple(part[still] for part in state)
    if len(going) and m + n <= LARGEST_CONE and iterations < max_iterations:
        iterations += conic(Y[going], h.pick(going), best, going, start, tol, max_iterations - iterations)
    left, right, U, c, P = best.left, best.right, best.witness, best.row_weights, best.column_weights
    if not tall:
        left, right, U, c, P = right.mT, left.mT, U.mT, P, c
    half = size.expand(batch).sqrt()[..., None, None]

    def shaped(x: Tensor) -> Tensor:
        return x.reshape(*batch, *x.shape[1:])

    return _Found(half * shaped(left), half * shaped(right), (shaped(U), shaped(c), shaped(P)), iterations)


def _offer_signs(W: Tensor, h: Bound | Price, best: Best) -> None:
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
    root = h.level(W).sqrt()[:, None, None]
    for u, v in (sign[:, None].expand(b, m), torch.ones_like(row)), (column, row * sign[:, None]):
        best.cut(everything, W, h, root * u[:, :, None], root * v[:, None, :])
    U = torch.zeros_like(W)
    U[everything, i, j] = sign.to(W)
    best.raise_(everything, W, h, U, U.abs().sum(2), U.abs().sum(1))


def prepare(
    W: Tensor | Workload, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, torch.Size, float, int]:
    given = working("W", checks.matrix("W", W.dense() if isinstance(W, Workload) else W).detach(), stacklevel=4)
    tol, max_iterations = checks.positive("tol", tol), checks.integer("max_iterations", max_iterations, 1)
    return given, given.double(), given.shape[:-2], tol, max_iterations


def _size(W: Tensor) -> Tensor:
    size = W.abs().amax((-2, -1))
    return torch.where(size > 0, size, 1.0)


@dataclass(frozen=True)
class LeastError(Brief):
    """min over alpha of variance gamma_2(W; alpha)^2 + alpha^2 lies in [lower, upper]; ``factorization`` attains upper.

    Both are mean squared errors: of the worst query, over the privacy noise, at worst over the users' data.
    rounding: what float64 may have cost them. Raises ArithmeticError where lower > upper + rounding.
    """

    upper: float
    lower: float
    factorization: ApproximateFactorization
    rounding: float

    def __post_init__(self) -> None:
        refuse_contradiction(self.lower, self.upper, self.rounding)


def least_error(
    W: Tensor | Workload, variance: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> LeastError:
    """The alpha that is best for the mean squared error: minimise variance gamma_2(W; alpha)^2 + alpha^2.

    A query is answered by l_i^T (mean of the users' noisy vectors): with ||l_i||, ||R_x|| <= gamma_2^{1/2} its
    variance is at most gamma_2^2 ``variance`` and its bias at most alpha. variance: of a coordinate of the mean for
    vectors of norm at most 1, that is v / n for a randomizer with Cov = v I and n users.

    With a = variance^{1/2}, (a^2 gamma^2 + alpha^2)^{1/2} >= a cos(t) (gamma + alpha tan(t) / a) for every angle t,
    with equality at tan t = alpha / (a gamma): the least error is the largest a cos(t) zeta over t, and t is found by
    bisection (a larger t has a smaller alpha). Of two neighbours the best mixture is taken: squared row and column
    norms, and errors, mix.

    W: (m, n) or a :class:`Workload`. tol: relative gap of the root of the mean squared error at which it stops.
    Raises ValueError, TypeError; warns like :func:`approximate`.

    Guarantees: lower <= min over alpha of variance gamma_2(W; alpha)^2 + alpha^2 <= upper.
    Source: the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12, once more.
    """
    given, dense, batch, tol, max_iterations = prepare(W, tol, max_iterations)
    if batch:
        raise ValueError(f"W must be one matrix, not of shape {tuple(dense.shape)}")
    checks.matrix("W", dense, checks.LARGEST)  # squares are returned
    a = math.sqrt(checks.positive("variance", variance))
    low, high, angle = 0.0, math.pi / 2, math.pi / 4
    sides: dict[bool, ApproximateFactorization] = {}
    points: list[tuple[float, ApproximateFactorization]] = []
    lower, rounding = 0.0, 0.0
    while True:
        with warnings.catch_warnings():  # one warning is enough: the one below
            warnings.simplefilter("ignore", RuntimeWarning)
            found = priced(dense, math.tan(angle) / a, tol=tol / 4, max_iterations=max_iterations)
        lower = max(lower, a * math.cos(angle) * float(found.certificate.lower))
        rounding = max(rounding, a * float(found.certificate.rounding))
        aim = math.atan2(float(found.certificate.residual), a * float(found.norm))
        sides[aim > angle] = found
        low, high = (max(low, angle), min(high, aim)) if aim > angle else (max(low, aim), min(high, angle))
        points += [(_error(found, a), found)]
        if len(sides) == 2:
            mixed = _mix(dense, a, sides[True], sides[False])
            points += [(_error(mixed, a), mixed)]
        points = [min(points, key=lambda point: point[0])]
        if points[0][0] <= lower * (1 + tol) or high - low < 1e-9 or points[0][0] == 0:
            break
        angle = (low + high) / 2
    best = points[0][1]
    best = replace(best, left=best.left.to(given.dtype), right=best.right.to(given.dtype))
    proof = best.witness, best.row_weights, best.column_weights
    best = replace(best, certificate=certify_approximate(dense, best.alpha, best.left, best.right, *proof))
    upper = _error(best, a)
    if upper > lower * (1 + tol) + 16 * torch.finfo(given.dtype).eps * float(dense.abs().max()):
        warnings.warn(
            f"least_error stopped at a certified gap of {upper / max(lower, 1e-300) - 1:.2e}, above tol = {tol:.2e}; "
            "raise tol or max_iterations",
            RuntimeWarning,
            stacklevel=2,
        )
    return LeastError(upper**2, lower**2, best, rounding=2 * (upper + rounding) * rounding)


def _error(found: ApproximateFactorization, a: float) -> float:
    return math.hypot(a * float(found.norm), float(found.certificate.residual))


@on_host
def _mix(
    W: Tensor, a: float, first: ApproximateFactorization, second: ApproximateFactorization
) -> ApproximateFactorization:
    """The mixture of two factorizations of least a^2 norm^2 + residual^2."""
    x = torch.tensor([a * float(first.norm), float(first.certificate.residual)], dtype=torch.float64)
    y = torch.tensor([a * float(second.norm), float(second.certificate.residual)], dtype=torch.float64)
    step = y - x
    share = float((-(x @ step) / (step @ step).clamp_min(1e-300)).clamp(0, 1))
    left, right = compress(
        torch.cat([math.sqrt(1 - share) * first.left, math.sqrt(share) * second.left], -1),
        torch.cat([math.sqrt(1 - share) * first.right, math.sqrt(share) * second.right], -2),
    )
    U = (1 - share) * first.witness + share * second.witness
    c = (1 - share) * first.row_weights + share * second.row_weights
    P = (1 - share) * first.column_weights + share * second.column_weights
    residual = (W - left @ right).abs().amax()
    certificate = certify_approximate(W, residual, left, right, U, c, P)
    count = first.iterations + second.iterations
    return ApproximateFactorization(left, right, residual, U, c, P, certificate, count)
