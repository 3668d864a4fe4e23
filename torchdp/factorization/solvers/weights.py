"""The weights of the fixed point, how they move, and the best bounds on the way."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from torchdp.factorization.solvers.acceleration import History, pick
from torchdp.factorization.solvers.spectrum import Spectrum, factors
from torchdp.factorization.solvers.symmetry import Found, Problem

# Weights stay above FLOOR * tol / max(m, n), which costs the bounds about FLOOR * tol. A column of weight w adds
# a singular value of about w, and those below RANK_TOLERANCE of the largest are cut off: a floor that is too low
# loses small columns.
FLOOR = 0.1
SMALLEST_WEIGHT = 1e-12
TINY = torch.finfo(torch.float64).tiny
ROUNDING = 1e-14  # a norm below this share of the largest entry is 0
STEP = 1.8  # exponent of the plain update; near 2 it needs half the iterations of 1


class Weights:
    """The weights s of the rows and P of the columns, (*batch, k, L), and how they move."""

    def __init__(self, problem: Problem, tol: float, memory: int) -> None:
        W, inside = problem.W, problem.inside
        self.problem, size = problem, max(W.shape[-2:])
        floor = min(max(SMALLEST_WEIGHT, FLOOR * tol / size), 0.1 / size)
        self.floor = floor * inside  # (k, L); 0 where there is no weight
        self.lowest = self.floor.clamp_min(TINY).log()
        masked = torch.where(inside > 0, 0.0, inside.new_tensor(-math.inf))
        self.masked = masked if W.shape[-2] != W.shape[-1] else None
        self.slowest = 0.5 if problem.shift else 1.0
        self.weights = (inside / inside.sum(-1, keepdim=True)).expand(*W.shape[:-2], *inside.shape)
        self.steps = W.new_full(W.shape[:-2], STEP)
        self.previous = W.new_zeros(W.shape[:-2])  # trace norm
        self.history = History(memory)

    def forget(self) -> None:
        """The next trace norm counts as a rise."""
        self.previous = torch.zeros_like(self.previous)

    def move(self, found: Found, steady: bool) -> None:
        """The update for the squared norms of left's rows and right's columns and the trace norm, extrapolated.

        steady: whether no problem's trace norm fell.
        """
        trace, back, self.previous = found.trace, None, found.trace
        if not steady:
            fell = ~found.steady
            back = fell & self.history.extrapolated
            self.steps = torch.where(fell & ~back, (self.steps + self.slowest) / 2, self.steps)
            self.previous = torch.where(back, 0.0, trace)
        unit = trace.clamp_min(TINY)[..., None, None]
        update = self.steps[..., None, None] * (found.norms / unit).log()
        if self.problem.p < math.inf:
            update = torch.stack([self._rows(found.norms[..., 0, :]), update[..., 1, :]], -2)
        x = (self.weights if self.masked is None else self.weights.clamp_min(TINY)).log()
        update = torch.maximum(update, self.lowest - x)  # at the floor: nowhere to fall
        logarithms = self.history.mix(x.flatten(-2), update.flatten(-2), self.weights.flatten(-2), back)
        logarithms = logarithms.view_as(x)
        logarithms = logarithms if self.masked is None else logarithms + self.masked
        raised = torch.maximum(logarithms.softmax(-1), self.floor)
        self.weights = raised / raised.sum(-1, keepdim=True)

    def _rows(self, a: Tensor) -> Tensor:
        """The update of the rows' logarithms for p < inf."""
        if self.problem.p == 2:
            return torch.zeros_like(a)
        weights = self.weights
        share = self.problem.dual(weights)[..., 0, :] * a
        total = share.sum(-1, keepdim=True).clamp_min(TINY)
        return (share / total).log() - weights[..., 0, :].clamp_min(TINY).log()


class Best:
    """The best bounds so far of each problem of a batch, and what is behind them."""

    def __init__(self, weights: Weights) -> None:
        self.lower = torch.full_like(weights.previous, ROUNDING)
        self.upper = torch.full_like(self.lower, math.inf)
        self.gap = math.inf
        self.primal: tuple[Tensor, ...] = ()  # parts of the maps and dual weights behind `upper`
        self.maps: Callable[..., tuple[Tensor, Tensor]] = factors  # until there are some
        self.dual = weights.problem.dual(weights.weights)  # behind `lower`
        self.seen: tuple[Found, bool] | None = None  # the latest, and whether no trace norm fell

    def look(self, weights: Weights, spectrum: Spectrum) -> None:
        """Moves the weights by what was seen of them, looks at the problem there, and keeps what is better."""
        if self.seen is not None:
            weights.move(*self.seen)
        while True:
            found = weights.problem.look(weights.weights, weights.previous, spectrum, self.gap)
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
        self.maps, self.seen = found.maps, (found, bool(told[2]))

    def forget(self) -> None:
        """Drops the bounds, and keeps what was behind them until the next."""
        self.lower, self.upper = torch.full_like(self.lower, ROUNDING), torch.full_like(self.upper, math.inf)
