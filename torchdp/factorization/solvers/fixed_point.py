"""The weighted spectral fixed point: one iteration that solves every finite factorization norm.

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
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import certify
from torchdp.factorization.solvers.acceleration import History, pick, simplex
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


class Settings(TypedDict, total=False):
    """How :func:`attempts` runs, by name."""

    p: float
    shift: bool
    tol: float
    max_iterations: int
    memory: int
    spectrum: Spectrum | None


def solve(W: Tensor, **settings: Unpack[Settings]) -> Solution:
    """The first of :func:`attempts` whose certificate is closed, or the last; settings as there."""
    p, tol = settings.get("p", math.inf), settings.get("tol", 1e-3)
    for solution in attempts(W, **settings):
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
    """Factors and dual weights of gamma_(p)(W), by multiplicative updates of the weights, accelerated: see above.

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
    spectrum = choose(W) if spectrum is None else spectrum
    weights, best, looks = _Weights(W, p, shift, tol, memory), _Best(W), Looks(tol)
    for iterations in range(1, max_iterations + 1):
        c, P = weights.dual()
        maps, a, b, trace, missing = spectrum.step(_centred(W, P, shift), c, P, best.gap)
        value = power_norm(a.sqrt(), p) * b.amax(-1).sqrt() + power_norm(missing, p)
        best.keep(value, (*maps, P), trace, (c, P))
        finished = best.within(looks.within)
        if looks.due(iterations, finished) or iterations == max_iterations:
            yield _solution(whole, W, scale, shift, best.primal, best.weights, iterations)
            if not looks.go_on(iterations, best.gap, finished):
                return
            if finished and spectrum.refine():  # bounds so far may be wrong by the rounding that it saves
                best.forget()
                weights.forget()
        weights.move(a, b, trace)


class _Best:
    """The best bounds so far of each problem of a batch, and what is behind them."""

    def __init__(self, W: Tensor) -> None:
        self.lower = W.new_zeros(W.shape[:-2])
        self.upper = torch.full_like(self.lower, math.inf)
        self.gap = math.inf
        self.primal: tuple[Tensor, ...] = ()  # maps and column weights behind `upper`
        self.weights: tuple[Tensor, ...] = ()  # weights of rows and columns behind `lower`

    def keep(self, value: Tensor, primal: tuple[Tensor, ...], trace: Tensor, weights: tuple[Tensor, ...]) -> None:
        """Takes over what is better, problem by problem."""
        better, tighter = value < self.upper, trace > self.lower
        self.upper, self.lower = torch.minimum(self.upper, value), torch.maximum(self.lower, trace)
        self.primal = _pick_each(better, primal, self.primal)
        self.weights = _pick_each(tighter, weights, self.weights)
        self.gap = float((self.upper / self.lower.clamp_min(torch.finfo(trace.dtype).tiny)).amax()) - 1

    def within(self, tol: float) -> bool:
        """Whether each problem's gap is at most ``tol``, or its norm 0."""
        return bool((self.upper <= self.lower * (1 + tol) + ROUNDING).all())

    def forget(self) -> None:
        """Drops the bounds, and keeps what was behind them until the next."""
        self.lower, self.upper = torch.zeros_like(self.lower), torch.full_like(self.upper, math.inf)


class _Weights:
    """The weights s of the rows and P of the columns, and how they move."""

    def __init__(self, W: Tensor, p: float, shift: bool, tol: float, memory: int) -> None:
        *batch, m, n = W.shape
        self.p, self.sides = p, [m, n]
        self.exponent = (
            0.0 if p == 2 else 1.0 if p == math.inf else (p - 2) / p
        )  # ||c||_q = 1 for q = 1 / exponent
        self.floor = min(max(SMALLEST_WEIGHT, FLOOR * tol / max(m, n)), 0.1 / max(m, n))
        self.slowest = 0.5 if shift else 1.0
        self.weights = torch.cat([W.new_full((*batch, side), 1 / side) for side in self.sides], -1)
        self.steps, self.previous = W.new_full(batch, STEP), W.new_zeros(batch)  # previous: trace norm
        self.history = History(memory)

    def dual(self) -> tuple[Tensor, Tensor]:
        """c and P."""
        s, P = self.weights.split(self.sides, -1)
        return s**self.exponent, P

    def forget(self) -> None:
        """The next trace norm counts as a rise."""
        self.previous = torch.zeros_like(self.previous)

    def move(self, a: Tensor, b: Tensor, trace: Tensor) -> None:
        """The update for squared norms a of left's rows, b of right's columns and this trace norm, extrapolated."""
        fell = trace < self.previous * (1 - 1e-12)
        back = fell & self.history.extrapolated
        self.steps = torch.where(fell & ~back, (self.steps + self.slowest) / 2, self.steps)
        self.previous = torch.where(back, 0.0, trace)
        unit = trace.clamp_min(torch.finfo(trace.dtype).tiny)[..., None]
        update = torch.cat([self._rows(a, unit), self.steps[..., None] * _log(b / unit)], -1)
        stuck = (self.weights <= 2 * self.floor) & (update < 0)  # at the floor: nowhere to fall
        logarithms = self.history.next(self.weights, torch.where(stuck, 0.0, update), back)
        parts = [part.softmax(-1) for part in logarithms.split(self.sides, -1)]
        self.weights = torch.cat([simplex(part, self.floor) for part in parts], -1)

    def _rows(self, a: Tensor, unit: Tensor) -> Tensor:
        """The update of the rows' logarithms."""
        if self.p == math.inf:
            return self.steps[..., None] * _log(a / unit)
        s, c = self.weights[..., : self.sides[0]], self.dual()[0]
        if self.p == 2:
            return torch.zeros_like(s)
        share = c * a / (c * a).sum(-1, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)
        return _log(share) - s.log()


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


def _pick_each(mask: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if not old or bool(mask.all()):
        return new
    return tuple(pick(mask, a, b) for a, b in zip(new, old, strict=True)) if bool(mask.any()) else old
