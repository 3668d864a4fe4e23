"""The weighted spectral fixed point: one iteration that solves every finite factorization norm.

With s on the rows and P on the columns (each sums to 1), c = s^{(p-2)/p}, X = W - W P 1^T
(with shift) or W, and diag(c)^{1/2} X diag(P)^{1/2} = U S V^T (for m >= n; rows and columns trade
places for m < n):
    left = X diag(P)^{1/2} V S^{-1/2},  right = S^{1/2} V^T diag(P)^{-1/2},  left right = X,
    a_i = ||left_i||^2,  b_j = ||right_j||^2,
    P_j <- P_j (b_j / tr S)^STEP,  s_i <- s_i (a_i / tr S)^STEP (p = inf) or c_i a_i (p < inf),
each normalised. At a fixed point a and b are constant on the supports of s and P, and the value of
the factors equals tr S, which is a lower bound at every iterate. The best of both bounds is kept;
what the rounding of small singular values loses is put back into the factors at the end.
Where tr S falls, that problem's step moves halfway to 1, or to 1/2 with shift
(two points on a line: at step 1 the weights swap places for ever).

For p = 2 the norm depends on W^T W alone, and the iteration runs on a square root of it where m >
n.

Acceleration: the next logarithms of the weights are Anderson's combination of the last ``memory``
updates, the differences weighed by the square roots of the weights; where tr S falls after such a
move, the problem goes back, takes the plain update and forgets its history. memory = 0 is the plain
iteration.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import certify, divisor
from torchdp.factorization.solvers.iteration import Best, History, Schedule
from torchdp.factorization.solvers.spectrum import (
    RANK_TOLERANCE,
    Decomposed,
    Found,
    Mirrored,
    Problem,
    Spectrum,
    factors,
    maps,
    symmetry_of,
    triangle,
)

# Weights stay above FLOOR * tol / max(m, n), which costs the bounds about FLOOR * tol. A column of
# weight w adds a singular value of about w, and those below RANK_TOLERANCE of the largest are cut
# off: a floor that is too low loses small columns.
FLOOR = 0.1
SMALLEST_WEIGHT = 1e-12
TINY = torch.finfo(torch.float64).tiny
# A norm below this share of the largest entry is 0.
ROUNDING = 1e-14
# Exponent of the plain update; near 2 it needs half the iterations of 1.
STEP = 1.8


class Weights:
    """The weights s of the rows and P of the columns, (*batch, k, L), and how they move."""

    def __init__(self, problem: Problem, tol: float, memory: int) -> None:
        W = problem.W
        inside = problem.inside
        size = max(W.shape[-2:])
        floor = min(max(SMALLEST_WEIGHT, FLOOR * tol / size), 0.1 / size)
        self.problem = problem
        self.floor = floor * inside  # (k, L); 0 where there is no weight
        self.lowest = self.floor.clamp_min(TINY).log()
        self.masked = torch.where(inside > 0, 0.0, inside.new_tensor(-math.inf))
        self.slowest = 0.5 if problem.shift else 1.0
        even = inside / inside.sum(-1, keepdim=True)
        self.weights = even.expand(*W.shape[:-2], *inside.shape)
        self.steps = W.new_full(W.shape[:-2], STEP)
        self.previous = W.new_zeros(W.shape[:-2])  # trace norm
        self.history = History(memory)

    def move(self, found: Found) -> None:
        """The update for the norms and the trace norm of an iteration, extrapolated."""
        back = None
        self.previous = found.trace
        if not bool(found.steady.all()):
            fell = ~found.steady
            back = fell & self.history.extrapolated
            slower = (self.steps + self.slowest) / 2
            self.steps = torch.where(fell & ~back, slower, self.steps)
            self.previous = torch.where(back, 0.0, found.trace)
        unit = found.trace.clamp_min(TINY)[..., None, None]
        update = self.steps[..., None, None] * (found.norms / unit).log()
        if self.problem.p < math.inf:
            rows = self._row_update(found.norms[..., 0, :])
            update = torch.stack([rows, update[..., 1, :]], -2)
        x = self.weights.clamp_min(TINY).log()
        update = torch.maximum(update, self.lowest - x)  # at the floor: nowhere to fall
        measure = self.weights.flatten(-2)
        mixed = self.history.mix(x.flatten(-2), update.flatten(-2), measure, back)
        logarithms = mixed.view_as(x) + self.masked
        raised = torch.maximum(logarithms.softmax(-1), self.floor)
        self.weights = raised / raised.sum(-1, keepdim=True)

    def _row_update(self, a: Tensor) -> Tensor:
        """Of the rows' logarithms, for p < inf."""
        if self.problem.p == 2:
            return torch.zeros_like(a)
        share = self.problem.dual(self.weights)[..., 0, :] * a
        total = share.sum(-1, keepdim=True).clamp_min(TINY)
        return (share / total).log() - self.weights[..., 0, :].clamp_min(TINY).log()


@dataclass(frozen=True)
class Solution:
    """What a solver hands over: factors of W - shift 1^T, weights, and how it went.

    left: (*batch, m, r).
    right: (*batch, r, n).
    shift: (*batch, m), or None.
    row_weights: (*batch, m), and column_weights (*batch, n): of the best lower bound.
    primal_weights: (*batch, n), of the columns at the iterate that the factors come from.
    """

    left: Tensor
    right: Tensor
    shift: Tensor | None
    row_weights: Tensor
    column_weights: Tensor
    primal_weights: Tensor
    iterations: int

    def turned(self) -> "Solution":
        """Of W with its columns reversed."""
        return replace(
            self,
            right=self.right.flip(-1),
            column_weights=self.column_weights.flip(-1),
            primal_weights=self.primal_weights.flip(-1),
        )


def solve(W: Tensor, *, p: float = math.inf, tol: float = 1e-3, **settings: Any) -> Solution:
    """The first of :func:`attempts` whose certificate is closed, or the last; settings as there."""
    for solution in attempts(W, p=p, tol=tol, **settings):
        weights = (solution.row_weights, solution.column_weights)
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
    """Factors and dual weights of gamma_(p)(W), by accelerated updates of the weights: see above.

    The iteration's own bounds are no proof: the factors it yields are completed first, its trace
    norm comes from a Gram matrix, and the caller may cast them. So the caller judges each solution
    and takes the next where the certificate is open; asked again, the iteration is stricter, and
    decomposes more accurately from there on.

    Args:
        W: (*batch, m, n) float64, of any scale; one call solves the batch.
        p: in [2, inf].
        shift: whether W - shift 1^T is factored, for the best shift.
        tol: relative gap.
        max_iterations: at least 1.
        memory: updates that are combined; 0 for the plain iteration.
        spectrum: finds a, b and tr S; None: what suits W.

    Yields where each problem's gap seems to be below ``tol``, at iterations 50, 75, 113, ..., and
    at ``max_iterations``; ends there, or where more iterations have nothing to offer. Memory
    O(memory (m + n)) beside W's.
    Source: the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12, and Nikolov, Tang (2023), Theorem
    26; the update is the multiplicative one of optimal design (Silvey, Titterington, Torsney 1978);
    Anderson (1965).
    """
    scale = divisor(W.abs().amax((-2, -1), keepdim=True))
    whole = W / scale
    W = triangle(whole) if p == 2 and W.shape[-2] > W.shape[-1] else whole
    symmetric = False
    turned = False
    if spectrum is None and W is whole:
        symmetric, turned = symmetry_of(W, p, shift)
    if turned:
        W = whole = whole.flip(-1)
    problem = Problem(W, symmetric, p, shift)
    weights = Weights(problem, tol, memory)
    looks = Schedule(tol)
    if spectrum is None:
        spectrum = Mirrored() if symmetric else Decomposed()
    unproved = Best(
        upper=torch.full_like(weights.previous, math.inf),
        lower=torch.full_like(weights.previous, ROUNDING),
        primal=(),
        dual=(problem.dual(weights.weights),),
    )
    best = unproved
    for iteration in range(1, max_iterations + 1):
        found = problem.look(weights.weights, weights.previous, spectrum)
        if not best.primal:  # a problem whose value is infinite chooses none
            best = replace(best, primal=found.primal)
        best = best.and_(Best(found.value, found.trace, found.primal, found.primal[-1:]))
        gap = float((best.upper / best.lower).amax()) - 1
        finished = gap <= looks.within
        if looks.due(iteration, finished) or iteration == max_iterations:
            solution = _solution(whole, problem, scale, best, iteration)
            yield solution.turned() if turned else solution
            if not looks.go_on(iteration, gap, finished):
                return
            # bounds so far may be wrong by the rounding that it saves
            if finished and spectrum.refine():
                best = replace(unproved, primal=best.primal, dual=best.dual)
        weights.move(found)


def _solution(
    whole: Tensor,
    problem: Problem,
    scale: Tensor,
    best: Best,
    iterations: int,
) -> Solution:
    """Factors of scale times ``whole``, from what was found for the problem's matrix.

    That is ``whole`` itself or its triangle.
    """
    V, S, dual = best.primal
    c, P = problem.split(dual)
    offset = whole @ P[..., None]
    X = whole - offset if problem.shift else whole
    short = P if problem.W.shape[-2] >= problem.W.shape[-1] else c
    left, right = factors(X, *maps(V, S, short))
    if float((X - left @ right).abs().max()) > ROUNDING * max(X.shape[-2:]):
        left, right = _complete(X, left, right)
    # Inner columns that no problem of the batch uses are dropped, but one.
    used = (right != 0).any(-1).reshape(-1, right.shape[-2]).any(0)
    used[0] = True
    if not bool(used.all()):
        left = left[..., used]
        right = right[..., used, :]
    half = scale.sqrt()
    row_weights, column_weights = problem.split(best.dual[0])
    return Solution(
        left=half * left,
        right=half * right,
        shift=(scale * offset)[..., 0] if problem.shift else None,
        row_weights=row_weights if problem.W is whole else torch.ones_like(whole[..., 0]),
        column_weights=column_weights,
        primal_weights=P,
        iterations=iterations,
    )


def _complete(X: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The factors, and beside them those of what cut singular values left out of X.

    These are U S^{1/2} and S^{1/2} V^T: the squared norms of rows and columns grow by at most the
    rest's largest singular value.
    """
    U, S, Vh = torch.linalg.svd(X - left @ right, full_matrices=False)
    root = torch.where(S > RANK_TOLERANCE, S, 0.0).sqrt()
    left = torch.cat([left, U * root[..., None, :]], -1)
    right = torch.cat([right, root[..., None] * Vh], -2)
    return left, right
