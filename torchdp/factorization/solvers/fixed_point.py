"""The weighted spectral fixed point: one iteration that solves every finite factorization norm."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import certify
from torchdp.factorization.solvers.acceleration import History, pick
from torchdp.factorization.solvers.spectrum import RANK_TOLERANCE, Spectrum, choose, factors, triangle
from torchdp.factorization.solvers.stopping import Looks

# Weights stay above FLOOR * tol / max(m, n), which costs the bounds about FLOOR * tol. A column of weight w adds
# a singular value of about w, and those below RANK_TOLERANCE of the largest are cut off: a floor that is too low
# loses small columns.
FLOOR = 0.1
SMALLEST_WEIGHT = 1e-12
ROUNDING = 1e-14  # a norm below this share of the largest entry is 0
STEP = 1.8  # exponent of the plain update; near 2 it needs half the iterations of 1


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
    memory: int = 8,
    spectrum: Spectrum | None = None,
) -> Solution:
    """The first of :func:`attempts` whose certificate is closed, or the last; settings as there."""
    found = attempts(W, p=p, shift=shift, tol=tol, max_iterations=max_iterations, memory=memory, spectrum=spectrum)
    for solution in found:
        weights = solution.row_weights, solution.column_weights
        certificate = certify(W, solution.left, solution.right, *weights, p=p, shift=solution.shift)
        if bool(certificate.closed(tol).all()):
            break
    return solution


def attempts(
    W: Tensor,
    *,
    p: float = math.inf,
    shift: bool = False,
    tol: float = 1e-3,
    max_iterations: int = 10_000,
    memory: int = 8,
    spectrum: Spectrum | None = None,
) -> Iterator[Solution]:
    """Factors and dual weights of gamma_(p)(W), by multiplicative updates of the weights, accelerated.

    With s on the rows and P on the columns (each sums to 1), c = s^{(p-2)/p}, X = W - W P 1^T (with shift) or W,
    and diag(c)^{1/2} X diag(P)^{1/2} = U S V^T (for m >= n; rows and columns trade places for m < n):
        left = X diag(P)^{1/2} V S^{-1/2},  right = S^{1/2} V^T diag(P)^{-1/2},  left right = X,
        a_i = ||left_i||^2,  b_j = ||right_j||^2,
        P_j <- P_j (b_j / tr S)^STEP,  s_i <- s_i (a_i / tr S)^STEP (p = inf) or c_i a_i (p < inf),
    each normalised. At a fixed point a and b are constant on the supports of s and P, and the value of the
    factors equals tr S, which is a lower bound at every iterate. The best of both bounds is kept; what
    the rounding of small singular values loses is put back into the factors at the end.
    Where tr S falls, that problem's step moves halfway to 1, or to 1/2 with shift (two points on a line: at step
    1 the weights swap places for ever).

    For p = 2 the norm depends on W^T W alone, and the iteration runs on a square root of it where m > n.

    Acceleration: the next logarithms of the weights are Anderson's combination of the last ``memory`` updates,
    the differences weighed by the square roots of the weights; where tr S falls after such a move, the problem
    goes back, takes the plain update and forgets its history. memory = 0 is the plain iteration.

    ``spectrum`` finds a, b and tr S, by decompositions or by matrix products; None: what suits W's size and device.
    Products stop where the gap allows, so that tr S above is a little less and the factors' norms a little more.

    The iteration's own bounds are no proof: the factors it yields are completed first, its trace norm comes from a
    Gram matrix, and the caller may cast them. So the caller judges each solution and takes the next where the
    certificate is open; asked again, the iteration is stricter, and decomposes more accurately from there on.

    W: (*batch, m, n) float64, of any scale; one call solves the batch. Yields where each problem's gap seems to be
    below ``tol``, at iterations 50, 75, 113, ..., and at ``max_iterations``; ends there, or where more iterations have
    nothing to offer. Memory O(memory (m + n)) beside W's.
    Source: the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12, and Nikolov, Tang (2023), Theorem 26; the
    update is the multiplicative one of optimal design (Silvey, Titterington, Torsney 1978); Anderson (1965).
    """
    low, high = W.flatten(-2).aminmax(dim=-1)
    scale = torch.maximum(-low, high)[..., None, None]  # (*batch, 1, 1)
    scale = torch.where(scale > 0, scale, 1.0)
    whole = W / scale
    W = triangle(whole) if p == 2 and W.shape[-2] > W.shape[-1] else whole
    *batch, m, n = W.shape
    floor = min(max(SMALLEST_WEIGHT, FLOOR * tol / max(m, n)), 0.1 / max(m, n))
    slowest = 0.5 if shift else 1.0
    exponent = 0.0 if p == 2 else 1.0 if p == math.inf else (p - 2) / p  # ||c||_q = 1 for q = 1 / exponent
    tiny = torch.finfo(W.dtype).tiny
    weights = torch.cat([W.new_full((*batch, m), 1 / m), W.new_full((*batch, n), 1 / n)], -1)
    steps = W.new_full(batch, STEP)
    history = History(memory)
    spectrum = choose(W) if spectrum is None else spectrum
    lower = previous = W.new_zeros(batch)
    upper = W.new_full(batch, math.inf)
    primal: tuple[Tensor, ...] = ()  # maps and weights behind `upper`
    dual: tuple[Tensor, ...] = ()  # weights behind `lower`
    gap, looks = math.inf, Looks(tol)
    for iterations in range(1, max_iterations + 1):
        s, P = weights.split([m, n], -1)
        c = s**exponent
        X = _centred(W, P, shift)
        maps, a, b, trace, missing = spectrum.step(X, c, P, gap)
        value = power_norm(a.sqrt(), p) * b.amax(-1).sqrt() + power_norm(missing, p)

        better, tighter = value < upper, trace > lower
        upper, lower = torch.minimum(upper, value), torch.maximum(lower, trace)
        primal = _pick_each(better, (*maps, P), primal)
        dual = _pick_each(tighter, (c, P), dual)
        finished = bool((upper <= lower * (1 + looks.within) + ROUNDING).all())
        gap = float((upper / lower.clamp_min(tiny)).amax()) - 1
        if looks.due(iterations, finished) or iterations == max_iterations:
            yield _solution(whole, W, scale, shift, primal, dual, iterations)
            if not looks.go_on(iterations, gap, finished):
                return
            if finished and spectrum.refine():  # bounds so far may be wrong by the rounding that it saves
                lower, previous = torch.zeros_like(lower), torch.zeros_like(lower)
                upper = torch.full_like(upper, math.inf)
        fell = trace < previous * (1 - 1e-12)
        back = fell & history.extrapolated
        steps = torch.where(fell & ~back, (steps + slowest) / 2, steps)
        previous = torch.where(back, 0.0, trace)
        unit = trace.clamp_min(tiny)[..., None]
        if p == math.inf:
            rows = steps[..., None] * _log(a / unit)
        else:
            share = c * a / (c * a).sum(-1, keepdim=True).clamp_min(tiny)
            rows = torch.zeros_like(s) if p == 2 else _log(share) - s.log()
        update = torch.cat([rows, steps[..., None] * _log(b / unit)], -1)
        update = torch.where((weights <= 2 * floor) & (update < 0), 0.0, update)  # at the floor: nowhere to fall
        logarithms = history.next(weights, update, back)
        weights = torch.cat([_simplex(part, floor) for part in logarithms.split([m, n], -1)], -1)


def _solution(
    whole: Tensor,
    W: Tensor,
    scale: Tensor,
    shift: bool,
    primal: tuple[Tensor, ...],
    dual: tuple[Tensor, ...],
    iterations: int,
) -> Solution:
    """Factors of scale times ``whole``, from the maps found for W, which is the same or its triangle."""
    inner, across, P = primal
    X = _centred(whole, P, shift)
    left, right = factors(X, inner, across)
    Y = X if W is whole else _centred(W, P, shift)
    if float((Y - factors(Y, inner, across)[0] @ right).abs().max()) > ROUNDING * max(W.shape[-2:]):
        left, right = _complete(X, left, right)
    used = (right != 0).any(-1).reshape(-1, right.shape[-2]).any(0)  # drop what no problem uses
    used[0] = True
    if not bool(used.all()):
        left, right = left[..., used], right[..., used, :]
    half = scale.sqrt()
    return Solution(
        left=half * left,
        right=half * right,
        shift=(scale * (whole @ P[..., None]))[..., 0] if shift else None,
        row_weights=dual[0] if W is whole else torch.ones_like(whole[..., 0]),
        column_weights=dual[1],
        primal_weights=P,
        iterations=iterations,
    )


def _centred(W: Tensor, P: Tensor, shift: bool) -> Tensor:
    return W - W @ P[..., None] if shift else W


def _complete(X: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The factors, and beside them the factors U S^{1/2}, S^{1/2} V^T of what cut singular values left out of X.

    The squared norms of rows and columns grow by at most the rest's largest singular value.
    """
    U, S, Vh = torch.linalg.svd(X - left @ right, full_matrices=False)
    root = torch.where(S > RANK_TOLERANCE, S, 0.0).sqrt()
    return torch.cat([left, U * root[..., None, :]], -1), torch.cat([right, root[..., None] * Vh], -2)


def power_norm(values: Tensor, p: float) -> Tensor:
    """l_p norm over the last dimension; large p neither overflows nor underflows."""
    top = values.amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return torch.linalg.vector_norm(values / top, ord=p, dim=-1) * top[..., 0]


def _log(values: Tensor) -> Tensor:
    return values.clamp_min(1e-20).log()  # a zero row or column has no logarithm


def _simplex(logarithms: Tensor, floor: float) -> Tensor:
    weights = logarithms.softmax(-1).clamp_min(floor)
    return weights / weights.sum(-1, keepdim=True)


def _pick_each(mask: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if not old or bool(mask.all()):
        return new
    return tuple(pick(mask, a, b) for a, b in zip(new, old, strict=True)) if bool(mask.any()) else old
