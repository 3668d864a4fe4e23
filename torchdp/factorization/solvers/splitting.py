"""min over X of gamma_2(X) with abs(X - W) <= alpha in every entry: two splittings. alpha:
(*batch, 1, 1), >= 0.
"""

import math

import torch
from torch import Tensor

from torchdp.factorization.solvers.iteration import simplex

CHECK = 5  # iterations between two looks at the bounds
PATIENCE = 200  # the first phase ends where the gap has not fallen by a tenth in so many iterations
RELAX = 1.6  # over-relaxation of the alternating directions
BALANCE = 1.5  # factor by which the penalty follows the ratio of the residuals
# rho times the largest singular value: a Gram matrix knows the others to about 1e-8 of it
STIFFEST = 1e4
SETTLED = 1000  # iterations after which the penalty stays, so that convergence is the textbook's
FLOOR = 0.1  # weights stay above FLOOR * tol / side, as in the exact fixed point
TINY = 1e-300


class Best:
    """The best factors and the best witness of each problem of a flat batch, (b, m, n)."""

    def __init__(self, W: Tensor, exact: tuple[Tensor, Tensor]) -> None:
        b, m, n = W.shape
        self.exact = left, right = compress(*exact)  # of W, balanced: allowed whatever alpha is
        self.left, self.right = left.clone(), right.clone()
        self.size = left.norm(dim=-1).amax(-1) * right.norm(dim=-2).amax(-1)
        self.upper = self.size.clone()
        self.lower = W.new_zeros(b)
        self.witness = torch.zeros_like(W)
        self.row_weights, self.column_weights = W.new_full((b, m), 1 / m), W.new_full((b, n), 1 / n)

    def gap(self) -> Tensor:
        """upper / lower - 1 of each problem."""
        return torch.where(
            self.upper > self.lower, self.upper / self.lower.clamp_min(TINY) - 1, 0.0
        )

    def cut(self, which: Tensor, W: Tensor, alpha: Tensor, left: Tensor, right: Tensor) -> None:
        """Offers factors, (b', m, r) and (b', r, n), of problems ``which``, mixed with W's own
        until alpha allows them.

        Squared row and column norms of [(1 - theta)^{1/2} L, theta^{1/2} L_W] and its partner are
        mixtures too.
        """
        excess = ((left @ right - W).abs() - alpha).clamp_min(0).amax((-2, -1))
        theta = excess / (alpha[..., 0, 0] + excess).clamp_min(TINY)
        rows, columns = left.norm(dim=-1).amax(-1), right.norm(dim=-2).amax(-1)
        value = (1 - theta) * rows * columns + theta * self.size[which]
        better = value < self.upper[which]
        chosen, theta = which[better], theta[better, None, None]
        ratio = torch.where((rows > 0) & (columns > 0), columns / rows.clamp_min(TINY), 1.0)
        scale = ratio.sqrt()[better, None, None]
        self.upper[chosen] = value[better]
        self.left[chosen], self.right[chosen] = compress(
            torch.cat(
                [(1 - theta).sqrt() * scale * left[better], theta.sqrt() * self.exact[0][chosen]],
                -1,
            ),
            torch.cat(
                [(1 - theta).sqrt() / scale * right[better], theta.sqrt() * self.exact[1][chosen]],
                -2,
            ),
        )

    def raise_(
        self, which: Tensor, W: Tensor, alpha: Tensor, U: Tensor, c: Tensor, P: Tensor
    ) -> None:
        """Offers witnesses with gamma_2*(U) <= 1, as the weights c, P prove."""
        value = (W * U - alpha * U.abs()).sum((-2, -1))
        better = value > self.lower[which]
        chosen = which[better]
        self.lower[chosen], self.witness[chosen] = value[better], U[better]
        self.row_weights[chosen], self.column_weights[chosen] = c[better], P[better]


def weighted(
    W: Tensor, alpha: Tensor, best: Best, which: Tensor, tol: float, max_iterations: int
) -> tuple[int, tuple[Tensor, ...]]:
    """Alternating directions in the metric of the dual weights: one eigendecomposition of side n an
    iteration.

    gamma_2(X) = max over weights c, P of the trace norm of diag(c)^{1/2} X diag(P)^{1/2}. For fixed
    weights the problem is split into X1 (trace norm) = X2 (within alpha), whose steps in the metric
    c_i P_j are a soft threshold of singular values and an entrywise clip; the multiplier V always
    has operator norm at most 1, so that U = diag(c)^{1/2} V diag(P)^{1/2} is a witness. Between two
    steps the weights take the multiplicative update of the exact fixed point. Rows and columns
    whose weights vanish are fitted slowly or not at all: then the gap stops falling, and
    :func:`conic` takes over.

    W: (b, m, n), m >= n, problems ``which`` of ``best``. Returns the iterations and the last
    (left, right, U, c, P).
    """
    b, m, n = W.shape
    c, P = W.new_full((b, m), 1 / m), W.new_full((b, n), 1 / n)
    X, V = W.clone(), torch.zeros_like(W)
    spectrum = torch.linalg.svdvals(W / math.sqrt(m * n))
    rho = 3 * (spectrum > 1e-9 * spectrum[:, :1]).sum(-1) / spectrum.sum(-1).clamp_min(TINY)
    rho = torch.where(rho > 0, rho, 1.0)[:, None, None]  # W = 0 has no scale
    mark, marked = math.inf, 0
    floor = FLOOR * tol
    iteration = 0
    while True:
        iteration += 1
        scale = c.sqrt()[..., None] * P.sqrt()[..., None, :]
        target = scale * X
        M = target + V / rho
        values, B = torch.linalg.eigh(M.mT @ M)
        S = values.clamp_min(0).sqrt()[:, None, :]  # (b, 1, n)
        MB = M @ B
        kept = (S - 1 / rho).clamp_min(0)
        V = (MB * torch.minimum(rho, 1 / S.clamp_min(TINY))) @ B.mT
        half = kept.sqrt()
        left = MB * (half / S.clamp_min(TINY)) / c.sqrt()[..., None]
        right = half.mT * B.mT / P.sqrt()[..., None, :]
        if iteration % CHECK == 0 or iteration == max_iterations:
            best.raise_(which, W, alpha, scale * V, c, P)
            best.cut(which, W, alpha, left, right)
            gap = float(best.gap()[which].max())
            if gap <= tol or iteration >= max_iterations or iteration - marked > PATIENCE:
                return iteration, (left, right, scale * V, c, P)
            if gap < 0.9 * mark:
                mark, marked = gap, iteration
        inner = scale * (left @ right)
        relaxed = RELAX * inner + (1 - RELAX) * target
        last, X = X, W + ((relaxed - V / rho) / scale - W).clamp(-alpha, alpha)
        if iteration % CHECK == 0:
            primal = torch.linalg.matrix_norm(inner - scale * X)
            rho = _balance(
                rho, primal, rho[:, 0, 0] * torch.linalg.matrix_norm(scale * (X - last)), 5.0
            )
            rho = rho.minimum(STIFFEST / S[..., -1:].clamp_min(TINY))
        trace = kept.sum(-1).clamp_min(TINY)
        c = simplex(c * (left.square().sum(-1) / trace).clamp_min(1e-3), floor / m)
        P = simplex(P * (right.square().sum(-2) / trace).clamp_min(1e-3), floor / n)


def conic(
    W: Tensor,
    alpha: Tensor,
    best: Best,
    which: Tensor,
    start: tuple[Tensor, ...],
    tol: float,
    max_iterations: int,
) -> int:
    """Alternating directions on the semidefinite program: slower (side m + n), but sure whatever
    the weights.

    minimise t over Z = [[A, X], [X^T, B]] >= 0 with diagonal at most t, abs(X - W) <= alpha. One
    step projects on the semidefinite matrices; the other is separable: X is clipped, and the
    diagonal cut off at the t whose cut weighs 1 / rho. The negative part N of the projected matrix
    is the multiplier: U = -2 rho N_12, and the row sums of abs(N_11) and abs(N_22) are weights for
    it: with them on the diagonal and N_12 beside it the matrix stays semidefinite, since what
    replaces N_11 and N_22 exceeds them by a diagonally dominant matrix.

    W: (b, m, n), problems ``which`` of ``best``; start: (left, right, U, c, P) to begin from.
    Returns the iterations.
    """
    m, rho = W.shape[1], W.new_full((len(W), 1, 1), 0.1)
    Z, dual = _beginning(*start)
    dual = dual / rho
    iteration = 0
    while True:
        iteration += 1
        values, vectors = torch.linalg.eigh(Z - dual)
        half = vectors * values.clamp_min(0).sqrt()[:, None, :]
        positive = half @ half.mT
        if iteration % CHECK == 0 or iteration == max_iterations:
            best.raise_(which, W, alpha, *_proof(positive - (Z - dual), m))
            best.cut(which, W, alpha, half[:, :m], half[:, m:].mT)
            going = best.gap()[which] > tol
            if not bool(going.any()) or iteration >= max_iterations:
                return iteration
            if not bool(going.all()):
                W, Z, dual, rho = (x[going] for x in (W, Z, dual, rho))
                which, positive, alpha = (x[going] for x in (which, positive, alpha))
        relaxed = RELAX * positive + (1 - RELAX) * Z
        last, Z = Z, _separable(relaxed + dual, W, alpha, rho)
        dual = dual + relaxed - Z
        if iteration % (4 * CHECK) == 0 and iteration <= SETTLED:
            primal = torch.linalg.matrix_norm(positive - Z) / torch.linalg.matrix_norm(Z).clamp_min(
                TINY
            )
            moved = torch.linalg.matrix_norm(Z - last) / torch.linalg.matrix_norm(dual).clamp_min(
                TINY
            )
            scaled = _balance(rho, primal, moved, 3.0)
            dual, rho = dual * (rho / scaled), scaled


def _beginning(
    left: Tensor, right: Tensor, U: Tensor, c: Tensor, P: Tensor
) -> tuple[Tensor, Tensor]:
    """Z of the factors and the multiplier of the witness, (b, m + n, m + n)."""
    m, stacked = left.shape[1], torch.cat([left, right.mT], -2)
    Z = stacked @ stacked.mT
    dual = torch.zeros_like(Z)
    dual[:, :m, m:], dual[:, m:, :m] = -U / 2, -U.mT / 2
    dual.diagonal(dim1=-2, dim2=-1).copy_(torch.cat([c, P], -1) / 2)
    return Z, dual


def _proof(negative: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """U with gamma_2*(U) <= 1 and its weights c, P, from the negative part of the projected
    matrix.
    """
    sums = negative[:, :m, :m].abs().sum(-1), negative[:, m:, m:].abs().sum(-1)
    c, P = (simplex(s.clamp_min(TINY), 1e-12 / s.shape[-1]) for s in sums)
    U = -negative[:, :m, m:]
    size = torch.linalg.matrix_norm(U / (c.sqrt()[..., None] * P.sqrt()[..., None, :]), 2)
    return U / size.clamp_min(TINY)[:, None, None], c, P


def _separable(wanted: Tensor, W: Tensor, alpha: Tensor, rho: Tensor) -> Tensor:
    """The Z nearest to ``wanted`` at the price of t: its entries X within alpha of W, its diagonal
    cut off.
    """
    m, Z = W.shape[1], wanted.clone()
    X = W + (wanted[:, :m, m:] - W).clamp(-alpha, alpha)
    Z[:, :m, m:], Z[:, m:, :m] = X, X.mT
    diagonal = wanted.diagonal(dim1=-2, dim2=-1)
    Z.diagonal(dim1=-2, dim2=-1).copy_(diagonal.minimum(_level(diagonal, 1 / rho[:, 0])))
    return Z


def compress(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same product with n inner columns, (*batch, m, n) and (*batch, n, n): no row or column
    gets longer.
    """
    lacking = right.shape[-1] - right.shape[-2]
    if lacking > 0:
        left = torch.cat([left, left.new_zeros(*left.shape[:-1], lacking)], -1)
        right = torch.cat([right, right.new_zeros(*right.shape[:-2], lacking, right.shape[-1])], -2)
    Q, triangle = torch.linalg.qr(right)
    return left @ Q, triangle


def _level(values: Tensor, weight: Tensor) -> Tensor:
    """The t at which sum max(values - t, 0) = weight, (b, 1); weight (b, 1)."""
    ordered = values.sort(-1, descending=True).values
    ranks = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    return ((ordered.cumsum(-1) - weight) / ranks).amax(-1, keepdim=True)


def _balance(rho: Tensor, primal: Tensor, dual: Tensor, ratio: float) -> Tensor:
    factor = torch.where(
        primal > ratio * dual, BALANCE, torch.where(dual > ratio * primal, 1 / BALANCE, 1.0)
    )
    return rho * factor[:, None, None]
