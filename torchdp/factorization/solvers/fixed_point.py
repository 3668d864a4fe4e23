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
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import certify
from torchdp.factorization.solvers.acceleration import History, pick
from torchdp.factorization.solvers.spectrum import RANK_TOLERANCE, Spectrum, Step, choose, factors, triangle
from torchdp.factorization.solvers.stopping import Looks
from torchdp.factorization.solvers.symmetry import Symmetry, symmetry_of

# Weights stay above FLOOR * tol / max(m, n), which costs the bounds about FLOOR * tol. A column of weight w adds
# a singular value of about w, and those below RANK_TOLERANCE of the largest are cut off: a floor that is too low
# loses small columns.
FLOOR = 0.1
SMALLEST_WEIGHT = 1e-12
TINY = torch.finfo(torch.float64).tiny
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
    plain = spectrum is not None or W is not whole
    symmetry = Symmetry((W.shape[-2], W.shape[-1])) if plain else symmetry_of(W, p, shift)
    if symmetry.turned:
        W = whole = whole.flip(-1)
    problem = _Problem(W, symmetry, p, shift, spectrum)
    weights, best, looks = _Weights(problem, tol, memory), _Best(W), Looks(tol)
    for iterations in range(1, max_iterations + 1):
        found = problem.look(weights, best, looks.within)
        finished = best.gap_within
        due = looks.due(iterations, finished) or iterations == max_iterations
        if problem.spectrum.rough and due:  # the bounds of float32 do not count: once more
            problem.spectrum.refine()
            best.forget()
            found = problem.look(weights, best, looks.within)
            finished = best.gap_within
            due = looks.due(iterations, finished) or iterations == max_iterations
        if due:
            yield _solution(whole, problem, scale, best, iterations)
            if not looks.go_on(iterations, best.gap, finished):
                return
            if finished and problem.spectrum.refine():  # bounds so far may be wrong by the rounding that it saves
                best.forget()
                weights.forget()
        weights.move(found)


class _Found(NamedTuple):
    """One iteration's numbers: primal and dual are what gives factors and the lower bound, norms (*batch, k, L)."""

    value: Tensor
    trace: Tensor
    primal: tuple[Tensor, ...]
    maps: Callable[..., tuple[Tensor, Tensor]]
    norms: Tensor
    fell: Tensor | None


class _Problem:
    """W, or its blocks where it has a symmetry, and how to look at them."""

    def __init__(self, W: Tensor, symmetry: Symmetry, p: float, shift: bool, spectrum: Spectrum | None) -> None:
        self.W, self.symmetry, self.p, self.shift = W, symmetry, p, shift
        self.blocks = symmetry.blocks(W)
        self.spectrum = spectrum or choose(self.blocks[0], symmetry.mirrored)
        self.counts = symmetry.counts.to(W.device)
        self.q = 0.0 if p == 2 else 1.0 if p == math.inf else (p - 2) / p  # exponent: ||c||_{1/q} = 1 for c = s^q

    def dual(self, weights: Tensor) -> Tensor:
        """c and P of the orbits from the weights s and P, (*batch, k, L)."""
        if self.q == 1.0:
            return weights
        return torch.stack([weights[..., 0, :] ** self.q, weights[..., 1, :]], -2)

    def split(self, dual: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(X, c, P) of each block."""
        blocks = self.blocks
        if self.shift:
            P = self.symmetry.whole(dual)[1]
            blocks = self.symmetry.blocks(self.W - self.W @ P[..., None])
        return [(X, c, P) for X, (c, P) in zip(blocks, self.symmetry.split(dual), strict=True)]

    def look(self, weights: "_Weights", best: "_Best", within: float) -> _Found:
        """One iteration, kept in ``best``; as often as the spectrum asks for."""
        dual = self.dual(weights.weights)
        while True:
            steps = [self.spectrum.step(X, c, P, best.gap) for X, c, P in self.split(dual)]
            norms = self.symmetry.joined([(step.a, step.b) for step in steps], self.counts)
            trace = steps[0].trace if len(steps) == 1 else torch.stack([s.trace for s in steps]).sum(0)
            primal = (*[part for step in steps for part in step.parts], dual)
            fell = trace < weights.previous * (1 - 1e-12)
            found = _Found(self._value(steps, norms), trace, primal, steps[0].maps, norms, fell)
            notes = steps[0].notes if len(steps) == 1 else torch.stack([s.notes for s in steps]).amin(0)
            heard, told = best.compare(found, notes, within)
            if self.spectrum.hear(told, heard.gap):
                best.keep(found, heard)
                return found if heard.fell else found._replace(fell=None)

    def _value(self, steps: list[Step], norms: Tensor) -> Tensor:
        if self.p == math.inf:
            value = norms.amax(-1).prod(-1).sqrt() if len(self.counts) == 2 else norms.amax((-2, -1))
        else:
            rows, columns = self.symmetry.whole(norms)
            value = power_norm(rows.sqrt(), self.p) * columns.amax(-1).sqrt()
        missing = [step.missing for step in steps]
        if any(rest is not None for rest in missing):
            squares = [(torch.zeros_like(s.a) if s.missing is None else s.missing.square(), s.b) for s in steps]
            rows = self.symmetry.whole(self.symmetry.joined(squares, self.counts))[0]
            value = value + power_norm(rows.sqrt(), self.p)
        return value


class _Heard(NamedTuple):
    """What is read back from the device in each iteration, at once."""

    better: bool
    tighter: bool
    fell: bool
    within: bool
    gap: float


class _Best:
    """The best bounds so far of each problem of a batch, and what is behind them."""

    def __init__(self, W: Tensor) -> None:
        self.lower = W.new_zeros(W.shape[:-2])
        self.upper = torch.full_like(self.lower, math.inf)
        self.gap, self.gap_within = math.inf, False
        self.primal: tuple[Tensor, ...] = ()  # parts of the maps and dual weights behind `upper`
        self.maps: Callable[..., tuple[Tensor, Tensor]] | None = None
        self.dual: tuple[Tensor, ...] = ()  # behind `lower`

    def compare(self, found: _Found, notes: Tensor, tol: float) -> tuple[_Heard, list[float]]:
        """How ``found`` compares with what is kept, and the spectrum's notes: the one synchronisation."""
        upper, lower = torch.minimum(self.upper, found.value), torch.maximum(self.lower, found.trace)
        facts = torch.stack([found.value < self.upper, found.trace > self.lower, ~found.fell, upper <= lower * (1 + tol) + ROUNDING])
        gap = (upper / lower.clamp_min(TINY)).amax()[None]
        told = torch.cat([facts.reshape(4, -1).all(1), gap, notes]).tolist()
        self._next = upper, lower
        better, tighter, steady, within = (bool(fact) for fact in told[:4])
        return _Heard(better, tighter, not steady, within, told[4] - 1), told[5:]

    def keep(self, found: _Found, heard: _Heard) -> None:
        """Takes over what is better, problem by problem."""
        changed = found.maps is not self.maps or self.primal[0].dtype != found.primal[0].dtype
        self.primal = _pick_each(found.value < self.upper, found.primal, self.primal, heard.better or changed)
        self.dual = _pick_each(found.trace > self.lower, found.primal[-1:], self.dual, heard.tighter)
        self.upper, self.lower = self._next
        self.maps, self.gap, self.gap_within = found.maps, heard.gap, heard.within

    def forget(self) -> None:
        """Drops the bounds, and keeps what was behind them until the next."""
        self.lower, self.upper = torch.zeros_like(self.lower), torch.full_like(self.upper, math.inf)


class _Weights:
    """The weights s of the rows and P of the columns, by orbits, and how they move."""

    def __init__(self, problem: _Problem, tol: float, memory: int) -> None:
        W, counts = problem.W, problem.counts
        sides = counts.sum(-1, keepdim=True)
        self.problem, self.counts, size = problem, counts, max(W.shape[-2:])
        floor = min(max(SMALLEST_WEIGHT, FLOOR * tol / size), 0.1 / size)
        self.floor = floor * counts  # of masses, (k, L); 0 where there is no orbit
        self.lowest = torch.where(counts > 0, self.floor, 1.0).log()
        self.masked = torch.where(counts > 0, 0.0, -math.inf) if bool((counts == 0).any()) else None
        self.slowest = 0.5 if problem.shift else 1.0
        self.masses = (counts / sides).expand(*W.shape[:-2], *counts.shape)
        self.shares = counts.clamp_min(1.0).reciprocal()
        self.steps, self.previous = W.new_full(W.shape[:-2], STEP), W.new_zeros(W.shape[:-2])  # previous: trace norm
        self.history = History(memory)

    @property
    def weights(self) -> Tensor:
        """Of each member of the orbits, (*batch, k, L); 1 where there is no orbit."""
        weights = self.masses * self.shares if self.problem.symmetry.sign else self.masses
        return weights if self.masked is None else weights + (self.counts == 0)

    def forget(self) -> None:
        """The next trace norm counts as a rise."""
        self.previous = torch.zeros_like(self.previous)

    def move(self, found: _Found) -> None:
        """The update for the squared norms of left's rows and right's columns and the trace norm, extrapolated."""
        trace, back, self.previous = found.trace, None, found.trace
        if found.fell is not None:
            back = found.fell & self.history.extrapolated
            self.steps = torch.where(found.fell & ~back, (self.steps + self.slowest) / 2, self.steps)
            self.previous = torch.where(back, 0.0, trace)
        unit = trace.clamp_min(TINY)[..., None, None]
        update = self.steps[..., None, None] * _log(found.norms / unit)
        if self.problem.p < math.inf:
            update = torch.stack([self._rows(found.norms[..., 0, :]), update[..., 1, :]], -2)
        x = self.masses.clamp_min(TINY).log()
        update = torch.maximum(update, self.lowest - x)  # at the floor: nowhere to fall
        logarithms = self.history.mix(x.flatten(-2), update.flatten(-2), self.masses.sqrt().flatten(-2), back)
        logarithms = logarithms.view_as(x)
        raised = torch.maximum((logarithms if self.masked is None else logarithms + self.masked).softmax(-1), self.floor)
        self.masses = raised / raised.sum(-1, keepdim=True)

    def _rows(self, a: Tensor) -> Tensor:
        """The update of the rows' logarithms for p < inf."""
        if self.problem.p == 2:
            return torch.zeros_like(a)
        weights = self.weights
        share = self.problem.dual(weights)[..., 0, :] * a
        total = (self.counts[0] * share).sum(-1, keepdim=True).clamp_min(TINY)
        return _log(share / total) - weights[..., 0, :].log()


def _solution(whole: Tensor, problem: _Problem, scale: Tensor, best: _Best, iterations: int) -> Solution:
    """Factors of scale times ``whole``, from the maps found for the problem's matrix, the same or its triangle."""
    symmetry, dual, same = problem.symmetry, best.primal[-1], problem.W is whole
    P = symmetry.whole(dual)[1]
    X = _centred(whole, P, problem.shift)
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
    row_weights, column_weights = symmetry.whole(best.dual[0])
    return Solution(
        left=half * left,
        right=half * right,
        shift=(scale * (whole @ P[..., None]))[..., 0] if problem.shift else None,
        row_weights=row_weights if same else torch.ones_like(whole[..., 0]),
        column_weights=column_weights,
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


def _pick_each(
    mask: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...], all_new: bool
) -> tuple[Tensor, ...]:
    return new if all_new or not old else tuple(pick(mask, a, b) for a, b in zip(new, old, strict=True))
