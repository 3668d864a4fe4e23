"""gamma_2 within alpha by two splittings: min of gamma_2(X) over abs(X - W) <= alpha entrywise.

Notation:
    W, X: (b, m, n), a flat batch; alpha: (b, 1, 1), >= 0.
    L, R: factors of X, (b, m, r) and (b, r, n).
    U: a witness, (b, m, n), with gamma_2*(U) <= 1: it proves <W, U> - alpha sum abs(U).
    c, P: dual weights of rows (b, m) and of columns (b, n), of sum 1.
    rho: the penalty of a splitting, (b, 1, 1).

Best keeps what both find; weighted is the fast splitting, conic the sure one.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp.factorization.solvers.iteration import simplex

# Iterations between two looks at the bounds.
CHECK = 5
# The first phase ends where the gap has not fallen to PROGRESS in so many iterations.
PATIENCE = 200
PROGRESS = 0.9
# Over-relaxation of the alternating directions.
RELAX = 1.6
# Factor by which the penalty follows the ratio of the residuals.
BALANCE = 1.5
# rho times the largest singular value: a Gram matrix knows the others to about 1e-8 of it.
STIFFEST = 1e4
# Iterations after which the penalty stays, so that convergence is the textbook's.
SETTLED = 1000
# Weights stay above FLOOR * tol / side, as in the exact fixed point.
FLOOR = 0.1
# Share of the largest singular value from which one counts when the first penalty is chosen.
RESOLVED = 1e-9
# In a step a weight falls at most to this share.
LEAST_FACTOR = 1e-3
TINY = 1e-300


class Best:
    """The best factors and the best witness of each problem of a flat batch."""

    def __init__(self, W: Tensor, exact: tuple[Tensor, Tensor]) -> None:
        b, m, n = W.shape
        # Balanced factors of W itself: allowed whatever alpha is.
        self.exact = compress(*exact)
        self.left = self.exact[0].clone()
        self.right = self.exact[1].clone()
        rows, columns = _norms(self.left, self.right)
        self.size = rows * columns
        self.upper = self.size.clone()
        self.lower = W.new_zeros(b)
        self.witness = torch.zeros_like(W)
        self.row_weights = W.new_full((b, m), 1 / m)
        self.column_weights = W.new_full((b, n), 1 / n)

    def gap(self) -> Tensor:
        """upper / lower - 1 of each problem."""
        relative = self.upper / self.lower.clamp_min(TINY) - 1
        return torch.where(self.upper > self.lower, relative, 0.0)

    def cut(self, which: Tensor, W: Tensor, alpha: Tensor, left: Tensor, right: Tensor) -> None:
        """Offers factors of problems ``which``, mixed with W's own until alpha allows them.

        Squared row and column norms of [(1 - theta)^{1/2} L, theta^{1/2} L_W] and its partner are
        mixtures too.
        """
        error = (left @ right - W).abs()
        excess = (error - alpha).clamp_min(0).amax((-2, -1))
        theta = excess / (alpha[..., 0, 0] + excess).clamp_min(TINY)
        rows, columns = _norms(left, right)
        value = (1 - theta) * rows * columns + theta * self.size[which]
        better = value < self.upper[which]
        chosen = which[better]
        self.upper[chosen] = value[better]
        # Only balanced factors mix to the mixture of the products of their norms.
        ratio = torch.where((rows > 0) & (columns > 0), columns / rows.clamp_min(TINY), 1.0)
        scale = ratio.sqrt()[better, None, None]
        theta = theta[better, None, None]
        offered = (1 - theta).sqrt()
        own = theta.sqrt()
        exact_left, exact_right = self.exact
        L = torch.cat([offered * scale * left[better], own * exact_left[chosen]], -1)
        R = torch.cat([offered / scale * right[better], own * exact_right[chosen]], -2)
        self.left[chosen], self.right[chosen] = compress(L, R)

    def raise_(
        self, which: Tensor, W: Tensor, alpha: Tensor, U: Tensor, c: Tensor, P: Tensor
    ) -> None:
        """Offers witnesses with gamma_2*(U) <= 1, as the weights c, P prove."""
        value = (W * U - alpha * U.abs()).sum((-2, -1))
        better = value > self.lower[which]
        chosen = which[better]
        self.lower[chosen] = value[better]
        self.witness[chosen] = U[better]
        self.row_weights[chosen] = c[better]
        self.column_weights[chosen] = P[better]


def weighted(
    W: Tensor, alpha: Tensor, best: Best, which: Tensor, tol: float, max_iterations: int
) -> tuple[int, tuple[Tensor, ...]]:
    """Alternating directions in the metric of the dual weights: one eigendecomposition each.

    gamma_2(X) = max over weights c, P of the trace norm of diag(c)^{1/2} X diag(P)^{1/2}. For fixed
    weights the problem is split into X1 (trace norm) = X2 (within alpha), whose steps in the metric
    c_i P_j are a soft threshold of singular values and an entrywise clip; the multiplier V always
    has operator norm at most 1, so that U = diag(c)^{1/2} V diag(P)^{1/2} is a witness. Between two
    steps the weights take the multiplicative update of the exact fixed point. Rows and columns
    whose weights vanish are fitted slowly or not at all: then the gap stops falling, and
    :func:`conic` takes over.

    Args:
        W: m >= n; problems ``which`` of ``best``.
        which: (b,), indices.
        tol: relative gap at which it stops.
        max_iterations: at least 1.

    Returns:
        The iterations, and the last (left, right, U, c, P).
    """
    b, m, n = W.shape
    c = W.new_full((b, m), 1 / m)
    P = W.new_full((b, n), 1 / n)
    X = W
    V = torch.zeros_like(W)
    rho = _first_penalty(torch.linalg.svdvals(W / math.sqrt(m * n)))
    last_fall = 0
    fallen_to = math.inf
    floor = FLOOR * tol
    iteration = 0
    while True:
        iteration += 1
        scale = _metric(c, P)
        target = scale * X
        step = _soft_threshold(target + V / rho, rho)
        V = step.multiplier
        left = step.left / c.sqrt()[..., None]
        right = step.right / P.sqrt()[..., None, :]
        checked = iteration % CHECK == 0
        if checked or iteration == max_iterations:
            U = scale * V
            best.raise_(which, W, alpha, U, c, P)
            best.cut(which, W, alpha, left, right)
            gap = float(best.gap()[which].max())
            stalled = iteration - last_fall > PATIENCE
            if gap <= tol or iteration >= max_iterations or stalled:
                return iteration, (left, right, U, c, P)
            if gap < PROGRESS * fallen_to:
                fallen_to = gap
                last_fall = iteration
        product = scale * (left @ right)
        relaxed = RELAX * product + (1 - RELAX) * target
        last = X
        X = _within(W, (relaxed - V / rho) / scale, alpha)
        if checked:
            primal = torch.linalg.matrix_norm(product - scale * X)
            dual = rho[:, 0, 0] * torch.linalg.matrix_norm(scale * (X - last))
            rho = _balance(rho, primal, dual, 5.0)
            rho = rho.minimum(STIFFEST / step.largest)
        row_factor = left.square().sum(-1) / step.trace
        column_factor = right.square().sum(-2) / step.trace
        c = simplex(c * row_factor.clamp_min(LEAST_FACTOR), floor / m)
        P = simplex(P * column_factor.clamp_min(LEAST_FACTOR), floor / n)


class _SoftThreshold(NamedTuple):
    """Of M = Y S B^T: left right = Y max(S - 1/rho, 0) B^T, and Y min(rho S, 1) B^T."""

    left: Tensor
    right: Tensor
    multiplier: Tensor
    trace: Tensor  # norm of left right, (b, 1)
    largest: Tensor  # singular value of M, (b, 1, 1)


def _soft_threshold(M: Tensor, rho: Tensor) -> _SoftThreshold:
    """By the eigenvectors of M^T M."""
    squares, B = torch.linalg.eigh(M.mT @ M)
    S = squares.clamp_min(0).sqrt()[:, None, :]
    positive = S.clamp_min(TINY)
    MB = M @ B
    kept = (S - 1 / rho).clamp_min(0)
    half = kept.sqrt()
    return _SoftThreshold(
        left=MB * (half / positive),
        right=half.mT * B.mT,
        multiplier=(MB * torch.minimum(rho, 1 / positive)) @ B.mT,
        trace=kept.sum(-1).clamp_min(TINY),
        largest=positive[..., -1:],
    )


def _first_penalty(spectrum: Tensor) -> Tensor:
    """Three over the mean singular value, of those that are not rounding; 1 for W = 0."""
    rank = (spectrum > RESOLVED * spectrum[:, :1]).sum(-1)
    rho = 3 * rank / spectrum.sum(-1).clamp_min(TINY)
    return torch.where(rho > 0, rho, 1.0)[:, None, None]


def conic(
    W: Tensor,
    alpha: Tensor,
    best: Best,
    which: Tensor,
    start: tuple[Tensor, ...],
    tol: float,
    max_iterations: int,
) -> int:
    """Alternating directions on the semidefinite program: slower, but sure whatever the weights.

    minimise t over Z = [[A, X], [X^T, B]] >= 0 with diagonal at most t, abs(X - W) <= alpha. One
    step projects on the semidefinite matrices, of side m + n; the other is separable: X is clipped,
    and the diagonal cut off at the t whose cut weighs 1 / rho. The negative part N of the projected
    matrix is the multiplier: U = -2 rho N_12, and the row sums of abs(N_11) and abs(N_22) are
    weights for it: with them on the diagonal and N_12 beside it the matrix stays semidefinite,
    since what replaces N_11 and N_22 exceeds them by a diagonally dominant matrix.

    Args:
        W: problems ``which`` of ``best``.
        which: (b,), indices.
        start: (left, right, U, c, P) to begin from.
        tol: relative gap at which each problem stops.
        max_iterations: at least 1.

    Returns:
        The iterations.
    """
    m = W.shape[1]
    rho = W.new_full((len(W), 1, 1), 0.1)
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
            if iteration >= max_iterations or not bool(going.any()):
                return iteration
            W = W[going]
            alpha = alpha[going]
            which = which[going]
            Z = Z[going]
            dual = dual[going]
            rho = rho[going]
            positive = positive[going]
        relaxed = RELAX * positive + (1 - RELAX) * Z
        last = Z
        Z = _separable(relaxed + dual, W, alpha, rho)
        dual = dual + relaxed - Z
        if iteration % (4 * CHECK) == 0 and iteration <= SETTLED:
            primal = _relative_norm(positive - Z, Z)
            moved = _relative_norm(Z - last, dual)
            scaled = _balance(rho, primal, moved, 3.0)
            dual = dual * (rho / scaled)
            rho = scaled


def _beginning(
    left: Tensor, right: Tensor, U: Tensor, c: Tensor, P: Tensor
) -> tuple[Tensor, Tensor]:
    """Z of the factors and the multiplier of the witness, (b, m + n, m + n)."""
    m = left.shape[1]
    stacked = torch.cat([left, right.mT], -2)
    Z = stacked @ stacked.mT
    dual = torch.zeros_like(Z)
    dual[:, :m, m:] = -U / 2
    dual[:, m:, :m] = -U.mT / 2
    dual.diagonal(dim1=-2, dim2=-1).copy_(torch.cat([c, P], -1) / 2)
    return Z, dual


def _proof(negative: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """U with gamma_2*(U) <= 1, c and P from the negative part of the projected matrix."""
    c = _dominating(negative[:, :m, :m])
    P = _dominating(negative[:, m:, m:])
    U = -negative[:, :m, m:]
    # Divided by what the weights prove: rounding and the scale of the multiplier do not matter.
    size = torch.linalg.matrix_norm(U / _metric(c, P), 2)
    return U / size.clamp_min(TINY)[:, None, None], c, P


def _dominating(block: Tensor) -> Tensor:
    """The row sums of abs(block), scaled to sum 1."""
    sums = block.abs().sum(-1)
    return simplex(sums.clamp_min(TINY), 1e-12 / sums.shape[-1])


def _separable(wanted: Tensor, W: Tensor, alpha: Tensor, rho: Tensor) -> Tensor:
    """The Z nearest to ``wanted`` at the price of t: X within alpha of W, its diagonal cut off."""
    m = W.shape[1]
    Z = wanted.clone()
    X = _within(W, wanted[:, :m, m:], alpha)
    Z[:, :m, m:] = X
    Z[:, m:, :m] = X.mT
    diagonal = wanted.diagonal(dim1=-2, dim2=-1)
    # t solves sum_i max(diagonal_i - t, 0) = 1 / rho: the largest of what k largest entries give.
    ordered = diagonal.sort(-1, descending=True).values
    ranks = torch.arange(1, ordered.shape[-1] + 1, dtype=W.dtype, device=W.device)
    levels = (ordered.cumsum(-1) - 1 / rho[:, 0]) / ranks
    t = levels.amax(-1, keepdim=True)
    Z.diagonal(dim1=-2, dim2=-1).copy_(diagonal.minimum(t))
    return Z


def _metric(c: Tensor, P: Tensor) -> Tensor:
    """(c_i P_j)^{1/2}."""
    return c.sqrt()[..., None] * P.sqrt()[..., None, :]


def _norms(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The largest row norm of left and the largest column norm of right, (*batch)."""
    return left.norm(dim=-1).amax(-1), right.norm(dim=-2).amax(-1)


def _within(W: Tensor, X: Tensor, alpha: Tensor) -> Tensor:
    """The entries of X, clipped to alpha around those of W."""
    return W + (X - W).clamp(-alpha, alpha)


def compress(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same product with n inner columns: no row or column gets longer.

    Args:
        left: (*batch, m, r).
        right: (*batch, r, n).

    Returns:
        left (*batch, m, n) and right (*batch, n, n).
    """
    lacking = right.shape[-1] - right.shape[-2]
    if lacking > 0:
        left = torch.nn.functional.pad(left, (0, lacking))
        right = torch.nn.functional.pad(right, (0, 0, 0, lacking))
    Q, triangle = torch.linalg.qr(right)
    return left @ Q, triangle


def _relative_norm(change: Tensor, whole: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(change) / torch.linalg.matrix_norm(whole).clamp_min(TINY)


def _balance(rho: Tensor, primal: Tensor, dual: Tensor, ratio: float) -> Tensor:
    """rho grows where the primal residual is above ``ratio`` times the dual one; or falls."""
    falls = torch.where(dual > ratio * primal, 1 / BALANCE, 1.0)
    factor = torch.where(primal > ratio * dual, BALANCE, falls)
    return rho * factor[:, None, None]
