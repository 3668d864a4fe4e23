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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import certify
from torchdp.factorization.solvers.acceleration import pick
from torchdp.factorization.solvers.beginning import begin
from torchdp.factorization.solvers.spectrum import RANK_TOLERANCE, Spectrum, choose, factors, triangle
from torchdp.factorization.solvers.stopping import Schedule
from torchdp.factorization.solvers.symmetry import Symmetry, symmetry_of
from torchdp.factorization.solvers.weights import Found, Problem, Weights
from torchdp.factorization.solvers.weights import power_norm as power_norm

ROUNDING = 1e-14  # a norm below this share of the largest entry is 0


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


def solve(W: Tensor, *, p: float = math.inf, tol: float = 1e-3, **settings: Any) -> Solution:
    """The first of :func:`attempts` whose certificate is closed, or the last; settings as there."""
    for solution in attempts(W, p=p, tol=tol, **settings):
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
    plain = spectrum is not None or W is not whole
    symmetry = Symmetry((W.shape[-2], W.shape[-1])) if plain else symmetry_of(W, p, shift)
    if symmetry.turned:
        W = whole = whole.flip(-1)
    problem = Problem(W, symmetry, p, shift)
    weights, looks = Weights(problem, tol, memory), Schedule(tol)
    begun = begin(weights, tol, max_iterations - 1) if spectrum is None and memory else 0
    spectrum = choose(problem.blocks[0], symmetry.mirrored) if spectrum is None else spectrum
    best = _Best(weights)
    for iterations in range(begun + 1, max_iterations + 1):
        found, steady = best.look(weights, spectrum)
        finished = best.gap <= looks.within
        if looks.due(iterations, finished) or iterations == max_iterations:
            yield _solution(whole, problem, scale, best, iterations)
            if not looks.go_on(iterations, best.gap, finished):
                return
            if finished and spectrum.refine():  # bounds so far may be wrong by the rounding that it saves
                best.forget()
                weights.forget()
        weights.move(found, steady)


class _Best:
    """The best bounds so far of each problem of a batch, and what is behind them."""

    def __init__(self, weights: Weights) -> None:
        self.lower = torch.full_like(weights.previous, ROUNDING)
        self.upper = torch.full_like(self.lower, math.inf)
        self.gap = math.inf
        self.primal: tuple[Tensor, ...] = ()  # parts of the maps and dual weights behind `upper`
        self.maps: Callable[..., tuple[Tensor, Tensor]] = factors  # until there are some
        self.dual = weights.problem.dual(weights.weights)  # behind `lower`

    def look(self, weights: Weights, spectrum: Spectrum) -> tuple[Found, bool]:
        """What the problem looks like at these weights, and whether no trace norm fell; keeps what is better."""
        while True:
            found = weights.problem.look(weights, spectrum, self.gap)
            better, tighter = found.value < self.upper, found.trace > self.lower
            upper, lower = torch.minimum(self.upper, found.value), torch.maximum(self.lower, found.trace)
            facts = torch.stack([better, tighter, found.steady]).reshape(3, -1).all(1)
            told = torch.cat([facts, (upper / lower).amax()[None], found.notes]).cpu().tolist()  # all that is read
            if spectrum.hear(told[4:], told[3] - 1):
                break
        self.upper, self.lower, self.gap = upper, lower, told[3] - 1
        new = bool(told[0]) or found.maps is not self.maps
        self.primal = found.primal if new else tuple(map(partial(pick, better), found.primal, self.primal))
        self.dual = found.primal[-1] if told[1] else pick(tighter, found.primal[-1], self.dual)
        self.maps = found.maps
        return found, bool(told[2])

    def forget(self) -> None:
        """Drops the bounds, and keeps what was behind them until the next."""
        self.lower, self.upper = torch.full_like(self.lower, ROUNDING), torch.full_like(self.upper, math.inf)


def _solution(whole: Tensor, problem: Problem, scale: Tensor, best: _Best, iterations: int) -> Solution:
    """Factors of scale times ``whole``, from the maps found for the problem's matrix, the same or its triangle."""
    symmetry, dual, same = problem.symmetry, best.primal[-1], problem.W is whole
    P = symmetry.whole(dual)[1]
    X = whole - whole @ P[..., None] if problem.shift else whole
    pairs = []
    for k, (Y, c, columns) in enumerate(problem.split(dual)):
        short = columns if Y.shape[-2] >= Y.shape[-1] else c
        pairs.append(factors(Y if same else X, *best.maps(best.primal[2 * k : 2 * k + 2], short)))
    left, right = symmetry.assembled(pairs)
    if symmetry.turned:
        X = X.flip(-1)
    if float((X - left @ right).abs().max()) > ROUNDING * max(X.shape[-2:]):
        left, right = _complete(X, left, right)
    used = (right != 0).any(-1).reshape(-1, right.shape[-2]).any(0)  # drop what no problem uses
    used[0] = True
    if not bool(used.all()):
        left, right = left[..., used], right[..., used, :]
    half = scale.sqrt()
    row_weights, column_weights = symmetry.whole(best.dual)
    return Solution(
        left=half * left,
        right=half * right,
        shift=(scale * (whole @ P[..., None]))[..., 0] if problem.shift else None,
        row_weights=row_weights if same else torch.ones_like(whole[..., 0]),
        column_weights=column_weights,
        primal_weights=P,
        iterations=iterations,
    )


def _complete(X: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The factors, and beside them the factors U S^{1/2}, S^{1/2} V^T of what cut singular values left out of X.

    The squared norms of rows and columns grow by at most the rest's largest singular value.
    """
    U, S, Vh = torch.linalg.svd(X - left @ right, full_matrices=False)
    root = torch.where(S > RANK_TOLERANCE, S, 0.0).sqrt()
    return torch.cat([left, U * root[..., None, :]], -1), torch.cat([right, root[..., None] * Vh], -2)
