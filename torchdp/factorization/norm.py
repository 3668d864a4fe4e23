"""The norms as differentiable functions of W, the free constant of a form, and the dual norm.

Notation: c, P: dual weights of the rows and columns, probability vectors; U: witness, the gradient
of the norm in W; gamma_2*(U): the largest <W, U> over gamma_2(W) <= 1.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Bounds,
    allowance,
    divisor,
    dual_size,
    fitting,
    magnitude,
)
from torchdp.factorization.factorize import factorize
from torchdp.factorization.solvers.iteration import TINY, least, simplex, warn_where_open
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread
from torchdp.workloads import RunningSums

# Of the largest entry of W.
ROUNDING = 1e-13

# Relative: the weight of a row that the vectors have not reached yet.
SMALLEST_WEIGHT = 1e-15

# Singular values below this share of the largest have no direction in a witness.
NEGLIGIBLE = 1e-12

# A fall of the objective by less, relative, is rounding.
FALL = 1e-15

# Iterations between two certificates grow by it: singular values cost as much as many steps.
NEXT_LOOK = 1.25


def witness(
    W: Tensor, row_weights: Tensor, column_weights: Tensor, *, shift: bool = False
) -> Tensor:
    """The dual witness U of weights c, P: <W, U> is their lower bound, and U its gradient in W.

    U = diag(c)^{1/2} A diag(P)^{1/2}, where diag(c)^{1/2} W diag(P)^{1/2} = A H, A a partial
    isometry and H >= 0 (polar decomposition). With shift W - W P 1^T takes W's place and U becomes
    U - U 1 P^T, whose rows sum to 0.

    Args:
        W: (*batch, m, n).
        row_weights: c, (*batch, m), not negative and of norm 1, as in :class:`Factorization`.
        column_weights: P, (*batch, n), likewise.
        shift: whether the bound is of W - v 1^T, v free.

    U has W's dtype. Raises ValueError or TypeError on other shapes and on entries that are not
    finite.

    Guarantees: <W', U> <= the norm of W' for every W' (gamma_2*(U) <= 1 for p = inf).
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13.
    """
    W = checks.matrix("W", W)
    c, P = fitting(W, row_weights=row_weights, column_weights=column_weights)
    P = P[..., None, :]
    rows = c.sqrt()[..., None]
    columns = P.sqrt()
    scaled = W.double() / magnitude(W.double())  # U is that of every multiple of W
    if shift:
        scaled = scaled - scaled @ P.mT
    A, S, Bh = torch.linalg.svd(rows * scaled * columns, full_matrices=False)
    kept = S > NEGLIGIBLE * S[..., :1]
    U = rows * ((A * kept[..., None, :]) @ Bh) * columns
    if shift:
        U = U - U.sum(-1, keepdim=True) * P
    return U.to(W.dtype)


def gamma(
    W: Tensor | RunningSums, p: float = math.inf, shift: bool = False, *, tol: float = 1e-6
) -> Tensor:
    """gamma_(p)(W), or min_v gamma_(p)(W + v 1^T) with ``shift``, differentiable in W.

    Args:
        W: (*batch, m, n), real, or :class:`RunningSums`, without a gradient.
        p: in [2, inf]; inf is gamma_2.
        shift: whether v is free.
        tol: relative.

    Returns the certified lower bound, within ``tol`` of the norm, of shape (*batch). Its gradient
    is the witness U of the weights found: a subgradient of the norm up to ``tol``, and the gradient
    where the optimum is unique. First order only. For errors that weigh w: gamma(w[:, None] * W).
    Warns and raises like :func:`factorize`.

    Guarantees: the value is a lower bound on the norm; gamma(W') >= <W', U> up to ``tol`` for every
    W'.
    Source: the envelope theorem on the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12.
    """
    if isinstance(W, RunningSums):
        return factorize(W, p, shift, tol).certificate.lower
    return _Gamma.apply(checks.matrix("W", W), p, shift, tol)


def gamma2(W: Tensor | RunningSums, *, tol: float = 1e-6) -> Tensor:
    """gamma_2(W) = :func:`gamma` (W, inf), differentiable: a loss for factorized queries."""
    return gamma(W, tol=tol)


def gamma_F(W: Tensor | RunningSums, *, tol: float = 1e-6) -> Tensor:
    """gamma_F(W) = :func:`gamma` (W, 2) / sqrt(m), differentiable: of m queries' mean squares.

    The root mean squared error of the m queries:
    min ||L||_F max_j ||R_j|| / sqrt(m) over W = L R, so gamma_F <= gamma_2. Nikolov and Tang's
    norms, Gamma_p, are not divided: Gamma_2 of the points +-w_1, ..., +-w_n, the columns of W, is
    gamma(W, 2) = sqrt(m) gamma_F(W).

    W, shape and errors as in :func:`gamma`.
    Guarantees: the value is a lower bound on gamma_F.
    Source: Edmonds, Nikolov, Ullman (2020), section 2; Nikolov, Tang (2023), Definition 2 and
    Theorem 23.
    """
    return gamma(W, 2, tol=tol) / math.sqrt(W.shape[-2])


class _Gamma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, W: Tensor, p: float, shift: bool, tol: float) -> Tensor:
        best = factorize(W, p, shift, tol)
        U = witness(W.detach().double(), best.row_weights, best.column_weights, shift=shift)
        ctx.save_for_backward(U.to(W.dtype))
        return best.certificate.lower.to(W.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (U,) = ctx.saved_tensors
        return gradients[0][..., None, None] * U, None, None, None


@dataclass(frozen=True)
class FreeConstant(Bounds):
    """min over c of gamma_2(W + c 1 1^T) lies in [lower, upper]; ``constant`` attains upper."""

    constant: float


def free_constant(W: Tensor, *, tol: float = 1e-3) -> FreeConstant:
    """The constant that, added to every entry of W, makes gamma_2 least, with bounds.

    gamma_2(W + c 1 1^T) is convex in c, and every witness U gives a line below it, <W, U> + c sum
    U: :func:`least` goes by them, from the middle of W's range.

    Args:
        W: (m, n), real.
        tol: relative gap at which it stops, or after 60 factorizations.

    Raises ValueError, TypeError.

    Guarantees: lower <= min over c of gamma_2(W + c 1 1^T) <= upper.
    Source: Edmonds, Nikolov, Ullman (2020), Lemma 12, for the lines; Kelley (1960) for the method.
    """
    W = checks.one_matrix("W", W)
    tol = checks.positive("tol", tol)
    low = W.min()
    high = W.max()

    def look(c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best = factorize(W + c, tol=tol / 4)
        U = witness(W + c, best.row_weights, best.column_weights)
        return best.certificate.upper, ((W + c) * U).sum(), U.sum()

    rounding = ROUNDING * W.abs().max()
    ends = (-math.inf, math.inf)
    bounds = least(look, -(high + low) / 2, high - low, ends, tol, rounding)
    constant, upper, lower = bounds.tolist()
    return FreeConstant(upper, lower, constant, rounding=float(rounding))


@dataclass(frozen=True)
class Gamma2Dual(Bounds):
    """gamma_2*(U) lies in [lower, upper], with the vectors and the weights that prove it.

    Args:
        upper: (*batch), float64, as lower and rounding are.
        left: (*batch, m, r), rows of norm 1 (of a row of U that is 0: of norm 1 or 0).
        right: (*batch, n, r), likewise of the columns.
        row_weights: c, (*batch, m), a probability vector.
        column_weights: P, (*batch, n), likewise.
        iterations: steps of block ascent.
    """

    upper: Tensor
    lower: Tensor
    left: Tensor
    right: Tensor
    row_weights: Tensor
    column_weights: Tensor
    iterations: int


def certify_dual(
    U: Tensor, left: Tensor, right: Tensor, row_weights: Tensor, column_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """(lower, upper) bounds on gamma_2*(U), from any vectors and any weights, in float64.

    lower = sum_ij U_ij <x_i, y_j>, x and y the rows of ``left`` and ``right`` scaled to norm 1
    (0 stays 0). upper = ||diag(c)^{-1/2} U diag(P)^{-1/2}||_op for weights scaled to sum 1; a row
    or column of U that is 0 needs no weight, any other of weight 0 makes it infinite.

    Args:
        U: (*batch, m, n).
        left: (*batch, m, r).
        right: (*batch, n, r).
        row_weights: (*batch, m), non-negative.
        column_weights: (*batch, n), non-negative.

    Returns float64 tensors of shape (*batch). Raises TypeError, ValueError.

    Guarantees: lower <= gamma_2*(U) <= upper for any vectors and any weights, good or bad.
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13 (Grothendieck 1953).
    """
    U = checks.matrix("U", U).detach().double()
    m, n = U.shape[-2:]
    r = checks.matrix("left", left).shape[-1]
    left, right, c, P = fitting(
        U,
        left=(left, (m, r)),
        right=(right, (n, r)),
        row_weights=row_weights,
        column_weights=column_weights,
    )
    size = magnitude(U)
    U = U / size  # sums of large entries are no floats
    cosines = _unit(left) @ _unit(right).mT
    lower = (U * cosines).sum((-2, -1))
    needed = U != 0
    c = torch.where(needed.any(-1), c, 0.0)
    P = torch.where(needed.any(-2), P, 0.0)
    upper, proved = dual_size(U, c, P)
    size = size[..., 0, 0]
    # Rows and columns of weight 0 are left out: only without them is it all of U.
    unproved = (proved != U).any(-1).any(-1)
    upper = torch.where(unproved, math.inf, size * upper)
    largest = torch.finfo(U.dtype).max
    return (size * lower).clamp(-largest, largest), upper


@one_thread
def gamma2_dual(U: Tensor, *, tol: float = 1e-6, max_iterations: int = 10_000) -> Gamma2Dual:
    """gamma_2*(U) = max of <W, U> over gamma_2(W) <= 1, with a certificate of relative gap ``tol``.

    gamma_2*(U) = max sum_ij U_ij <x_i, y_j> over unit vectors
                = min ||diag(c)^{-1/2} U diag(P)^{-1/2}||_op over probability vectors c, P.
    Block ascent on vectors of dimension r = ceil(sqrt(2 (m + n))) + 1 (the program has a solution
    of that rank): x_i <- normalise(sum_j U_ij y_j), y_j <- normalise(sum_i U_ij x_i), with momentum
    that starts again where the objective falls. The lengths s_i, t_j before normalising are the
    weights: c = s / sum s, P = t / sum t. The vectors start at random, from a fixed key.

    Args:
        U: (*batch, m, n), real.
        tol: relative gap at which it stops.
        max_iterations: steps, O(m n r) each.

    Computed in float64 on U's device, without gradients. Warns (RuntimeWarning) where the gap
    exceeds ``tol`` after ``max_iterations``; both bounds hold all the same. Raises
    ValueError or TypeError on bad arguments.

    Guarantees: lower <= gamma_2*(U) <= upper.
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13; Barvinok (1995) and Pataki (1998) for
    the rank; Burer, Monteiro (2003); Wang, Chang, Kolter (2017) for the block ascent; O'Donoghue,
    Candes (2015) for the restarts.
    """
    U = checks.matrix("U", U).detach().double()
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    scale = U.abs().amax((-2, -1), keepdim=True)
    scaled = U / divisor(scale)
    *batch, m, n = U.shape
    rank = math.ceil(math.sqrt(2 * (m + n))) + 1
    # A fixed key: the same U gives the same certificate. On the CPU: on every device.
    generator = keyed_generator(b"gamma2_dual", "cpu")
    start = torch.randn(n, rank, dtype=torch.float64, device="cpu", generator=generator)
    Y = _unit(start.to(U.device)).expand(*batch, n, rank)
    old = Y
    last_value = scaled.new_full(batch, -math.inf)
    age = scaled.new_zeros(batch)  # steps since momentum began
    look = 1
    iteration = 0
    while True:
        iteration += 1
        momentum = (age / (age + 3))[..., None, None]
        X = _unit(scaled @ _unit(Y + momentum * (Y - old)))
        T = scaled.mT @ X
        old = Y
        Y = _unit(T)
        value = torch.linalg.vector_norm(T, dim=-1).sum(-1)
        age = torch.where(value < last_value * (1 - FALL), 0.0, age + 1)
        last_value = value
        if iteration < look and iteration < max_iterations:
            continue
        look = math.ceil(NEXT_LOOK * iteration)
        S = scaled @ Y
        X = _unit(S)
        c = _weights(S)
        P = _weights(T)
        lower, upper = certify_dual(U, X, Y, c, P)
        rounding = allowance(upper, m + n + rank)
        result = Gamma2Dual(upper, lower, X, Y, c, P, iteration, rounding=rounding)
        if bool(result.closed(tol).all()) or iteration >= max_iterations:
            break
    warn_where_open(result, tol, scale[..., 0, 0], U.dtype, iteration, max_iterations)
    return result


def _weights(vectors: Tensor) -> Tensor:
    """Lengths of the rows, of sum 1, none 0."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1)
    return simplex(lengths.clamp_min(TINY), SMALLEST_WEIGHT)


def _unit(vectors: Tensor) -> Tensor:
    """Rows scaled to norm 1; 0 stays 0."""
    size = vectors.abs().amax(-1, keepdim=True)  # first to size 1, so that no square underflows
    vectors = vectors / divisor(size)
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / divisor(norm)
