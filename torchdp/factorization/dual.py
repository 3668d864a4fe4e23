"""gamma_2*, the dual norm of gamma_2: the semidefinite program of Grothendieck's inequality, with a certificate."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Bounds, allowance, dual_size, fitting, magnitude
from torchdp.factorization.solvers.acceleration import TINY, simplex
from torchdp.factorization.solvers.stopping import warn_where_open
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread

SMALLEST_WEIGHT = 1e-15  # relative: the weight of a row that the vectors have not reached yet


@dataclass(frozen=True)
class Gamma2Dual(Bounds):
    """gamma_2*(U) lies in [lower, upper], with the vectors and the weights that prove it.

    lower, upper, rounding: (*batch), float64; left: (*batch, m, r) and right: (*batch, n, r), rows of norm 1 (of a row
    or column of U that is 0: of norm 1 or 0); row_weights c: (*batch, m) and column_weights P: (*batch, n), each a
    probability vector.
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
    """(lower, upper) bounds on gamma_2*(U), recomputed in float64 from any vectors and any weights.

    lower = sum_ij U_ij <x_i, y_j>, x and y the rows of ``left`` and ``right`` scaled to norm 1 (0 stays 0).
    upper = ||diag(c)^{-1/2} U diag(P)^{-1/2}||_op for weights scaled to sum 1; a row or column of U that is 0 needs no
    weight, any other of weight 0 makes it infinite.

    U: (*batch, m, n); left: (*batch, m, r); right: (*batch, n, r); row_weights: (*batch, m) and column_weights:
    (*batch, n), non-negative. Returns float64 tensors of shape (*batch). Raises TypeError, ValueError.

    Guarantees: lower <= gamma_2*(U) <= upper for any vectors and any weights, good or bad.
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13 (Grothendieck 1953).
    """
    U = checks.matrix("U", U).detach().double()
    (m, n), r = U.shape[-2:], checks.matrix("left", left).shape[-1]
    sides = {"left": (left, (m, r)), "right": (right, (n, r))}
    left, right, *given = fitting(U, **sides, row_weights=row_weights, column_weights=column_weights)
    size = magnitude(U)
    U = U / size  # sums of large entries are no floats
    lower = (U * (_unit(left) @ _unit(right).mT)).sum((-2, -1))
    needed = (U != 0).any(-1), (U != 0).any(-2)
    upper, proved = dual_size(U, *(torch.where(nonzero, w, 0.0) for w, nonzero in zip(given, needed, strict=True)))
    unproved = (proved != U).any(-1).any(-1)
    size, largest = size[..., 0, 0], torch.finfo(U.dtype).max
    return (size * lower).clamp(-largest, largest), torch.where(unproved, math.inf, size * upper)


@one_thread
def gamma2_dual(U: Tensor, *, tol: float = 1e-6, max_iterations: int = 10_000) -> Gamma2Dual:
    """gamma_2*(U) = max of <W, U> over gamma_2(W) <= 1, with a certificate of relative gap ``tol``.

    gamma_2*(U) = max sum_ij U_ij <x_i, y_j> over unit vectors
                = min ||diag(c)^{-1/2} U diag(P)^{-1/2}||_op over probability vectors c, P.
    Block ascent on vectors of dimension r = ceil(sqrt(2 (m + n))) + 1 (the program has a solution of that rank):
    x_i <- normalise(sum_j U_ij y_j), y_j <- normalise(sum_i U_ij x_i), with momentum that starts again where the
    objective falls. The lengths s_i, t_j before normalising are the weights: c = s / sum s, P = t / sum t. The
    vectors start at random, from a fixed key.

    U: (*batch, m, n), real. Computed in float64 on U's device, without gradients; a step costs O(m n r).
    Warns (RuntimeWarning) where the gap exceeds ``tol`` after ``max_iterations``; both bounds hold all the same.
    Raises ValueError or TypeError on bad arguments.

    Guarantees: lower <= gamma_2*(U) <= upper.
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13; Barvinok (1995) and Pataki (1998) for the rank; Burer,
    Monteiro (2003); Wang, Chang, Kolter (2017) for the block ascent; O'Donoghue, Candes (2015) for the restarts.
    """
    U = checks.matrix("U", U).detach().double()
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    scale = U.abs().amax((-2, -1), keepdim=True)
    scaled = U / torch.where(scale > 0, scale, 1.0)
    *batch, m, n = U.shape
    rank = math.ceil(math.sqrt(2 * (m + n))) + 1
    generator = keyed_generator(b"gamma2_dual", "cpu")
    start = torch.randn(n, rank, dtype=torch.float64, device="cpu", generator=generator)
    Y = _unit(start.to(U.device)).expand(*batch, n, rank)
    X = scaled.new_zeros(*batch, m, rank)
    old, last, age = Y, scaled.new_full(batch, -math.inf), scaled.new_zeros(batch)
    check, iteration = 1, 0
    while True:
        iteration += 1
        ahead = _unit(Y + (age / (age + 3))[..., None, None] * (Y - old))
        X = _unit(scaled @ ahead)
        T = scaled.mT @ X
        old, Y = Y, _unit(T)
        value = torch.linalg.vector_norm(T, dim=-1).sum(-1)
        age = torch.where(value < last * (1 - 1e-15), 0.0, age + 1)
        last = value
        if iteration < check and iteration < max_iterations:
            continue
        check = math.ceil(1.25 * iteration)  # the certificate's singular values cost many steps
        S = scaled @ Y
        weights = [simplex(torch.linalg.vector_norm(V, dim=-1).clamp_min(TINY), SMALLEST_WEIGHT) for V in (S, T)]
        lower, upper = certify_dual(U, _unit(S), Y, *weights)
        rounding = allowance(upper, m + n + rank)
        result = Gamma2Dual(upper, lower, _unit(S), Y, weights[0], weights[1], iteration, rounding=rounding)
        if bool(result.closed(tol).all()) or iteration >= max_iterations:
            break
    warn_where_open(result, tol, scale[..., 0, 0], U.dtype, iteration, max_iterations)
    return result


def _unit(vectors: Tensor) -> Tensor:
    """Rows scaled to norm 1; 0 stays 0."""
    size = vectors.abs().amax(-1, keepdim=True)  # first to size 1, so that no square underflows
    vectors = vectors / torch.where(size > 0, size, 1.0)
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1.0)
