"""The weighted spectral fixed point: one iteration that solves every finite factorization norm."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Weights stay above FLOOR * tol / max(m, n), which costs the bounds about FLOOR * tol. A column of weight w adds
# a singular value of about w, and those below RANK_TOLERANCE of the largest are cut off: a floor that is too low
# loses small columns.
FLOOR = 0.1
SMALLEST_WEIGHT = 1e-12
RANK_TOLERANCE = 1e-14


@dataclass(frozen=True)
class Solution:
    """What a solver hands over: factors of W - shift 1^T, the weights of the best lower bound, and how it went.

    left (*batch, m, r), right (*batch, r, n), shift (*batch, m) or None; row_weights (*batch, m) and
    column_weights (*batch, n) give the best lower bound; primal_weights (*batch, n) are the column weights
    at the iterate that the factors come from.
    """

    left: Tensor
    right: Tensor
    shift: Tensor | None
    row_weights: Tensor
    column_weights: Tensor
    primal_weights: Tensor
    iterations: int


def solve(
    W: Tensor,
    *,
    p: float = math.inf,
    shift: bool = False,
    tol: float = 1e-3,
    max_iterations: int = 10_000,
    step: float = 1.8,
) -> Solution:
    """Factors and dual weights of gamma_(p)(W), by multiplicative updates of the weights.

    With c on the rows (||c||_{p/(p-2)} = 1), P on the columns (sum 1), X = W - W P 1^T (with shift) or W, and
    diag(c)^{1/2} X diag(P)^{1/2} = U S V^T:
        left = X diag(P)^{1/2} V S^{-1/2},  right = S^{-1/2} U^T diag(c)^{1/2} X,  left right = X,
        a_i = ||left_i||^2,  b_j = ||right_j||^2,
        P_j <- P_j (b_j / tr S)^step,  c_i <- c_i (a_i / tr S)^step (p = inf) or (c_i a_i / sum)^{(p-2)/p},
    each normalised. At a fixed point a and b are constant on the supports of c and P, and the value of the
    factors equals tr S, which is a lower bound at every iterate. The best of both bounds is kept.
    Where tr S falls, that problem's step moves halfway to 1, or to 1/2 with shift (two points on a line: at step
    1 the weights swap places for ever). Singular values below RANK_TOLERANCE are cut off, so left right may miss
    X by a little; the norm of what is missing is added to the value.

    W: (*batch, m, n) float64, of any scale; one call solves the batch and stops when each problem's gap is
    below ``tol``.
    Source: the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12, and Nikolov, Tang (2023), Theorem 26; the
    update is the multiplicative one of optimal design (Silvey, Titterington, Torsney 1978).
    """
    *batch, m, n = W.shape
    scale = W.abs().amax((-2, -1), keepdim=True)  # (*batch, 1, 1)
    scale = torch.where(scale > 0, scale, 1.0)
    W = W / scale
    floor = min(max(SMALLEST_WEIGHT, FLOOR * tol / max(m, n)), 0.1 / max(m, n))
    slowest = 0.5 if shift else 1.0
    inner_exponent = 0.0 if p == 2 else 1.0 if p == math.inf else (p - 2) / p  # 1/q, with ||c||_q = 1
    c = W.new_full((*batch, m), float(m) ** -inner_exponent)
    P = W.new_full((*batch, n), 1 / n)
    steps = W.new_full(batch, step)
    lower = previous = W.new_zeros(batch)
    upper = W.new_full(batch, math.inf)
    best_left, best_right, best_shift = W[..., : min(m, n)], W[..., : min(m, n), :], W[..., 0]
    dual_c, dual_P, primal_P = c, P, P
    iterations = 0
    while iterations < max_iterations:
        iterations += 1
        mean = (W @ P[..., None])[..., 0]  # (*batch, m)
        X = W - mean[..., None] if shift else W
        U, S, Vh = torch.linalg.svd(c.sqrt()[..., None] * X * P.sqrt()[..., None, :], full_matrices=False)
        trace = S.sum(-1)
        root = torch.where(S > RANK_TOLERANCE * S[..., :1], S.rsqrt(), 0.0)  # (*batch, r)
        left = X @ (P.sqrt()[..., None] * Vh.mT * root[..., None, :])  # (*batch, m, r)
        right = (root[..., None] * U.mT * c.sqrt()[..., None, :]) @ X  # (*batch, r, n)
        a, b = left.square().sum(-1), right.square().sum(-2)
        missing = (X - left @ right).square().sum(-1).sqrt()  # (*batch, m)
        value = power_norm(a.sqrt(), p) * b.amax(-1).sqrt() + power_norm(missing, p)

        better, tighter = value < upper, trace > lower
        upper, lower = torch.minimum(upper, value), torch.maximum(lower, trace)
        best_left, best_right = _pick(better, left, best_left), _pick(better, right, best_right)
        best_shift, primal_P = _pick(better, mean, best_shift), _pick(better, P, primal_P)
        dual_c, dual_P = _pick(tighter, c, dual_c), _pick(tighter, P, dual_P)
        if bool((upper <= lower * (1 + tol)).all()):
            break
        steps = torch.where(trace < previous * (1 - 1e-12), (steps + slowest) / 2, steps)
        previous = trace
        unit = trace.clamp_min(torch.finfo(W.dtype).tiny)[..., None]
        P = _simplex(P * (b / unit) ** steps[..., None], floor)
        if p == math.inf:
            c = _simplex(c * (a / unit) ** steps[..., None], floor)
        elif p > 2:
            c = _simplex(c * a, floor) ** inner_exponent
    used = (best_right != 0).any(-1).reshape(-1, best_right.shape[-2]).any(0)  # drop what no problem uses
    used[0] = True
    half = scale.sqrt()
    return Solution(
        half * best_left[..., used],
        half * best_right[..., used, :],
        scale[..., 0] * best_shift if shift else None,
        dual_c,
        dual_P,
        primal_P,
        iterations,
    )


def power_norm(values: Tensor, p: float) -> Tensor:
    """l_p norm over the last dimension; large p neither overflows nor underflows."""
    top = values.amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return torch.linalg.vector_norm(values / top, ord=p, dim=-1) * top[..., 0]


def _simplex(weights: Tensor, floor: float) -> Tensor:
    weights = weights.clamp_min(floor)
    return weights / weights.sum(-1, keepdim=True)


def _pick(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)
