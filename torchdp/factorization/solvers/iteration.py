"""What iterations share: acceleration, when a certificate is good enough, and a search along a
line.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import Bounds
from torchdp.simplex import onto_simplex

TINY = torch.finfo(torch.float64).tiny
RIDGE = 1e-16  # of the least squares' normal equations, whose columns have length about 1 / d
# iteration of the first look at an unfinished solution; ratio of the next
FIRST_LOOK, NEXT_LOOK = 50, 1.5
REFUSALS = 6  # solutions, finished as the iteration sees it, that may be refused before it ends
# a gap below SMALL that falls by less than this in three looks is rounding
SMALL, STALLED = 1e-8, 0.98
MOST = 60  # looks at the function
MARGIN = 0.1  # share of the bracket that a new point keeps from its ends

Look = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Best:
    """Of each problem of a batch, what attains the least upper bound, and what proves the largest
    lower one.
    """

    upper: Tensor
    lower: Tensor
    primal: tuple[Tensor, ...]
    dual: tuple[Tensor, ...]
    steps: int = 0

    def and_(self, later: "Best") -> "Best":
        """The better bounds of the two."""
        return Best(
            upper=torch.minimum(self.upper, later.upper),
            lower=torch.maximum(self.lower, later.lower),
            primal=_chosen(later.upper < self.upper, later.primal, self.primal),
            dual=_chosen(later.lower > self.lower, later.dual, self.dual),
            steps=later.steps,
        )


def _chosen(mask: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if bool(mask.all()):
        return new
    return tuple(pick(mask, *pair) for pair in zip(new, old, strict=True))


class History:
    """The last updates of weights -> weights e^update, in place: the oldest gives way to the
    newest.
    """

    def __init__(self, memory: int) -> None:
        self.memory, self.count = memory, 0
        self.last: Tensor | None = None  # point and update, (*batch, 2 d)
        self.changes = torch.empty(0)  # differences of both, (*batch, memory, 2 d), scaled
        self.extrapolated: Tensor | bool = False  # the last move of which problems

    def mix(self, x: Tensor, update: Tensor, measure: Tensor, back: Tensor | None) -> Tensor:
        """The next point after x, whose plain successor is x + update; ``measure`` weighs the
        coordinates' squares.

        Problems marked ``back`` return to the last point's plain update, and forget. x, update,
        measure: (*batch, d).
        """
        if self.memory == 0:
            return x + update
        both, d = torch.cat([x, update], -1), x.shape[-1]
        if self.last is None:
            self.last, self.changes = both, both.new_zeros(*both.shape[:-1], self.memory, 2 * d)
            return x + update
        if back is not None:
            both = pick(back, self.last, both)
            self.changes = pick(back, torch.zeros_like(self.changes), self.changes)
        self.extrapolated = True if back is None else ~back
        change = both - self.last
        length = torch.linalg.vector_norm(change[..., d:], dim=-1, keepdim=True).clamp_min(TINY)
        self.changes[..., self.count % self.memory, :] = change / length
        self.count, self.last = self.count + 1, both
        changes = self.changes[..., d:]
        weighed = measure[..., None, :] * changes  # (*batch, memory, d)
        gram = weighed @ changes.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
        mixture = torch.linalg.solve_ex(gram, weighed @ both[..., d:, None])[0].nan_to_num(
            0.0, 0.0, 0.0
        )
        return (both - (mixture.mT @ self.changes)[..., 0, :]).unflatten(-1, (2, d)).sum(-2)


def simplex(weights: Tensor, floor: float) -> Tensor:
    """Weights >= 0 scaled to sum 1, those below ``floor`` raised to it."""
    weights = (weights / weights.sum(-1, keepdim=True)).clamp_min(floor)
    return weights / weights.sum(-1, keepdim=True)


def pick(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """``new`` for the problems of the batch in ``mask``, ``old`` for the others."""
    return torch.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


def descended(
    slope: Callable[[Tensor], Tensor], weights: Tensor, rate: Tensor | float, steps: int
) -> Tensor:
    """Accelerated projected gradients on the simplex from ``weights``, (n, k), for a gradient that
    ``rate`` bounds.

    Each row starts anew where momentum would lead uphill.
    """
    ahead, momentum = weights, torch.ones_like(weights[:, :1])
    for _ in range(steps):
        new = onto_simplex(ahead - slope(ahead) / rate)
        uphill = ((ahead - new) * (new - weights)).sum(1, keepdim=True) > 0
        faster = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum.square()).sqrt()) / 2)
        ahead = new + torch.where(uphill, 0.0, (momentum - 1) / faster) * (new - weights)
        weights, momentum = new, faster
    return weights


class Schedule:
    """When an iteration shows its solution to the caller, who judges it by its certificate, and
    when it gives up.

    within: the gap, as the iteration sees it, at which it believes to be finished; half of it after
    each refusal.
    """

    def __init__(self, tol: float) -> None:
        self.within = tol
        self.look, self.refusals, self.seen = FIRST_LOOK, 0, [math.inf] * 3

    def due(self, iteration: int, finished: bool) -> bool:
        """Whether to show the solution now."""
        return finished or iteration >= self.look

    def go_on(self, iteration: int, gap: float, finished: bool) -> bool:
        """Notes that the solution was refused. False where more iterations have nothing to
        offer.
        """
        if finished:
            self.refusals, self.within = self.refusals + 1, self.within / 2
            return self.refusals <= REFUSALS
        if iteration >= self.look:
            self.look = math.ceil(NEXT_LOOK * self.look)
            self.seen.append(gap)
            return not STALLED * self.seen[-4] < gap < SMALL
        return True


def closed(certificate: Bounds, tol: float, size: Tensor, dtype: torch.dtype) -> bool:
    """Whether each problem's certificate is closed, or its norm is 0 but for the rounding of
    factors in ``dtype``.

    size: largest absolute entry of each problem. A norm of 0 (a single point and a free shift) has
    no relative gap.
    """
    nothing = (
        torch.as_tensor(certificate.upper, dtype=torch.float64)
        <= 16 * torch.finfo(dtype).eps * size
    )
    return bool((certificate.closed(tol) | nothing).all())


def warn_where_open(
    certificate: Bounds,
    tol: float,
    size: Tensor,
    dtype: torch.dtype,
    iterations: int,
    max_iterations: int,
    *,
    stacklevel: int = 3,
    limit: str = "max_iterations",
) -> None:
    """RuntimeWarning, at the caller's caller, where :func:`closed` is false: more iterations help
    if they ran out.

    limit: the name of the argument that limits them.
    """
    if closed(certificate, tol, size, dtype):
        return
    if iterations >= max_iterations:
        remedy = f"raise {limit} or tol"
    elif dtype == torch.float64:
        remedy = "rounding is in the way: raise tol"
    else:
        remedy = "rounding is in the way (float32 factors stop near 1e-6): raise tol, or take W in float64"
    warnings.warn(
        f"stopped after {iterations} iterations at a certified gap of {float(certificate.gap.max()):.2e}, "
        f"above tol = {tol:.2e}; {remedy}",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def least(
    look: Look,
    x: Tensor,
    width: Tensor,
    ends: tuple[float, Tensor | float],
    tol: float,
    zero: Tensor,
) -> Tensor:
    """Where a convex function between two ends is least, and its bounds: (3, *batch), of x, upper
    and lower.

    From x the search moves down the slope, by ``width`` and then twice as far each time, until the
    slope has changed its sign; then the next point is where the two innermost lines meet. Their
    height there, or that of a single line at the end, is a lower bound.

    Args:
        look: x to (value, height, slope), (*batch) each: height + slope (y - x) is at most the
            function at every y.
        x: where it starts, (*batch); width: of its first step; ends: of the interval.
        tol: relative gap at which it stops; zero: values up to it count as 0. Or after 60 looks.

    Source: Kelley (1960).
    """
    low, high = ends
    # x, height and slope: no line yet
    falling, rising = [torch.stack([x, x - torch.inf, x * 0])] * 2
    best, upper, lower = x, torch.full_like(x, torch.inf), torch.full_like(x, -torch.inf)
    for _ in range(MOST):
        value, height, slope = look(x)
        best, upper = torch.where(value < upper, x, best), torch.minimum(value, upper)
        line, down = torch.stack([x, height, slope]), slope < 0
        falling, rising = torch.where(down, line, falling), torch.where(down, rising, line)
        (a, f, s), (b, r, t) = falling, rising
        right, left = f.isneginf(), r.isneginf()  # where one is missing
        meet = a + ((r - f - t * (b - a)) / (s - t))
        at = torch.where(right, low, torch.where(left, high, meet))
        floor = torch.where(right, r + t * (at - b), f + s * (at - a))
        lower = torch.maximum(lower, torch.where((t == 0) & ~left, r, floor))
        if bool(((upper <= lower * (1 + tol)) | (upper <= zero)).all()):
            break
        margin = MARGIN * (b - a)
        inner = torch.minimum(torch.maximum(meet, a + margin), b - margin)
        x = torch.where(
            right, (x - width).clamp_min(low), torch.where(left, (x + width).clamp_max(high), inner)
        )
        width = 2 * width
    return torch.stack([best, upper, lower])
