"""What iterations share: acceleration, when a certificate is good enough, and a line search.

Best keeps the better bounds, History extrapolates weights (Anderson), Schedule says when the caller
judges a solution, descended and least minimise convex functions of a histogram and of a number.
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
# Of the least squares' normal equations, whose columns have length about 1 / d.
RIDGE = 1e-16
# Iteration of the first look at an unfinished solution; ratio of the next.
FIRST_LOOK = 50
NEXT_LOOK = 1.5
# Solutions, finished as the iteration sees it, that may be refused before it ends.
REFUSALS = 6
# A gap below SMALL that falls by less than to STALLED in three looks is rounding.
SMALL = 1e-8
STALLED = 0.98
# Looks at the function of a line search.
MOST = 60
# Share of the bracket that a new point keeps from its ends.
MARGIN = 0.1

Look = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Best:
    """Of each problem of a batch the least upper bound, the largest lower one, and what gives them.

    primal and dual: tensors that begin with the batch's dimensions.
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
    # Whatever shapes the old ones have: the first of them may be empty.
    if bool(mask.all()):
        return new
    return tuple(pick(mask, *pair) for pair in zip(new, old, strict=True))


class History:
    """The last updates of weights -> weights e^update, and Anderson's combination of them."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.count = 0
        # Point and update, (*batch, 2 d).
        self.last: Tensor | None = None
        # Differences of both, (*batch, memory, 2 d), scaled; the newest replaces the oldest.
        self.changes = torch.empty(0)
        # Of which problems the last move was.
        self.extrapolated: Tensor | bool = False

    def mix(self, x: Tensor, update: Tensor, measure: Tensor, back: Tensor | None) -> Tensor:
        """The next point after x, whose plain successor is x + update.

        Args:
            x: logarithms of the weights, (*batch, d).
            update: (*batch, d).
            measure: weighs the coordinates' squares, (*batch, d).
            back: (*batch), problems that return to the last point's plain update, and forget.
        """
        if self.memory == 0:
            return x + update
        d = x.shape[-1]
        both = torch.cat([x, update], -1)
        if self.last is None:
            self.last = both
            self.changes = both.new_zeros(*both.shape[:-1], self.memory, 2 * d)
            return x + update
        self.extrapolated = True
        if back is not None:
            self.extrapolated = ~back
            both = pick(back, self.last, both)
            self.changes = pick(back, torch.zeros_like(self.changes), self.changes)
        change = both - self.last
        length = torch.linalg.vector_norm(change[..., d:], dim=-1, keepdim=True)
        self.changes[..., self.count % self.memory, :] = change / length.clamp_min(TINY)
        self.count += 1
        self.last = both
        # The mixture of changes that takes most off the update, by weighted least squares.
        updates = self.changes[..., d:]
        weighed = measure[..., None, :] * updates
        gram = weighed @ updates.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
        solution, _ = torch.linalg.solve_ex(gram, weighed @ both[..., d:, None])
        mixture = solution.nan_to_num(0.0, 0.0, 0.0)
        mixed = both - (mixture.mT @ self.changes)[..., 0, :]
        return mixed.unflatten(-1, (2, d)).sum(-2)


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
    """Accelerated projected gradients on the simplex.

    Args:
        slope: the gradient, (n, k) to (n, k).
        weights: where each row starts, (n, k).
        rate: a bound on the gradient's Lipschitz constant.
        steps: how many.

    Source: Beck, Teboulle (2009); each row starts anew where momentum would lead uphill.
    """
    ahead = weights
    momentum = torch.ones_like(weights[:, :1])
    for _ in range(steps):
        new = onto_simplex(ahead - slope(ahead) / rate)
        uphill = ((ahead - new) * (new - weights)).sum(1, keepdim=True) > 0
        grown = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        grown = torch.where(uphill, 1.0, grown)
        ahead = new + torch.where(uphill, 0.0, (momentum - 1) / grown) * (new - weights)
        weights = new
        momentum = grown
    return weights


class Schedule:
    """When an iteration shows its solution to the caller, who judges it, and when it gives up.

    within: the gap, as the iteration sees it, at which it believes to be finished; half of it after
    each refusal.
    """

    def __init__(self, tol: float) -> None:
        self.within = tol
        self.look = FIRST_LOOK
        self.refusals = 0
        self.seen = [math.inf] * 3

    def due(self, iteration: int, finished: bool) -> bool:
        """Whether to show the solution now."""
        return finished or iteration >= self.look

    def go_on(self, iteration: int, gap: float, finished: bool) -> bool:
        """Notes a refusal. False where more iterations have nothing to offer."""
        if finished:
            self.refusals += 1
            self.within /= 2
            return self.refusals <= REFUSALS
        if iteration >= self.look:
            self.look = math.ceil(NEXT_LOOK * self.look)
            self.seen.append(gap)
            return not STALLED * self.seen[-4] < gap < SMALL
        return True


def closed(certificate: Bounds, tol: float, size: Tensor, dtype: torch.dtype) -> bool:
    """Whether each certificate is closed, or its norm is 0 but for the rounding of the factors.

    A norm of 0 (a single point and a free shift) has no relative gap.

    Args:
        certificate: of a batch of problems.
        tol: relative gap.
        size: largest absolute entry of each problem.
        dtype: of the factors.
    """
    upper = torch.as_tensor(certificate.upper, dtype=torch.float64)
    nothing = upper <= 16 * torch.finfo(dtype).eps * size
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
    """RuntimeWarning, at the caller's caller, where :func:`closed` is false, with a remedy.

    limit: the name of the argument that limits iterations; more of them help if they ran out.
    """
    if closed(certificate, tol, size, dtype):
        return
    if iterations >= max_iterations:
        remedy = f"raise {limit} or tol"
    elif dtype == torch.float64:
        remedy = "rounding is in the way: raise tol"
    else:
        remedy = (
            "rounding is in the way (float32 factors stop near 1e-6): raise tol, "
            "or take W in float64"
        )
    gap = float(certificate.gap.max())
    warnings.warn(
        f"stopped after {iterations} iterations at a certified gap of {gap:.2e}, "
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
    """Where a convex function between two ends is least, and its bounds.

    From x the search moves down the slope, by ``width`` and then twice as far each time, until the
    slope has changed its sign; then the next point is where the two innermost lines meet. Their
    height there, or that of a single line at the end, is a lower bound.

    Args:
        look: x to (value, height, slope), (*batch) each: height + slope (y - x) is at most the
            function at every y.
        x: where it starts, (*batch).
        width: of its first step, (*batch).
        ends: of the interval.
        tol: relative gap at which it stops, or after 60 looks.
        zero: values up to it count as 0.

    Returns:
        (3, *batch), of x, upper and lower bound.

    Source: Kelley (1960).
    """
    low, high = ends
    # The innermost lines, (x, height, slope); heights of -inf: no line yet.
    falling = torch.stack([x, x - torch.inf, x * 0])
    rising = falling
    best = x
    upper = torch.full_like(x, torch.inf)
    lower = torch.full_like(x, -torch.inf)
    for _ in range(MOST):
        value, height, slope = look(x)
        best = torch.where(value < upper, x, best)
        upper = torch.minimum(value, upper)
        line = torch.stack([x, height, slope])
        falling = torch.where(slope < 0, line, falling)
        rising = torch.where(slope < 0, rising, line)
        a, height_a, slope_a = falling
        b, height_b, slope_b = rising
        only_rising = height_a.isneginf()
        only_falling = height_b.isneginf()
        meet = a + (height_b - height_a - slope_b * (b - a)) / (slope_a - slope_b)
        lowest = torch.where(only_rising, low, torch.where(only_falling, high, meet))
        below = torch.where(
            only_rising,
            height_b + slope_b * (lowest - b),
            height_a + slope_a * (lowest - a),
        )
        # A line without slope is the bound itself: infinite ends times 0 are no number.
        below = torch.where((slope_b == 0) & ~only_falling, height_b, below)
        lower = torch.maximum(lower, below)
        if bool(((upper <= lower * (1 + tol)) | (upper <= zero)).all()):
            break
        margin = MARGIN * (b - a)
        inner = torch.minimum(torch.maximum(meet, a + margin), b - margin)
        left = (x - width).clamp_min(low)
        right = (x + width).clamp_max(high)
        x = torch.where(only_rising, left, torch.where(only_falling, right, inner))
        width = 2 * width
    return torch.stack([best, upper, lower])
