"""Confidence intervals whose variance belongs to each end: score intervals, Fieller's for ratios.

Here are also tails of quadratic forms of normal vectors and the largest variance of users of
unknown types.

Notation: an *error* is that of one estimate or of a batch of them. Its *margin* at z on a side, -1
below and 1 above, is how far from the estimate the interval at z standard errors ends there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from torchdp import checks
from torchdp.root import root

Range = tuple[Any, Any]
"""What a truth can be, numbers or (*answer)."""

# Standard errors: a normal variable is beyond them with probability below 1e-300.
LARGEST = 40.0

# Standard deviations: a squared normal variable is beyond them with probability below 1e-300.
FARTHEST_ERROR = 1e4

# Steps to the end of a ratio's interval, and its relative error where they stop.
SECANTS = 12
CLOSE = 1e-4

# Newton's steps to a saddlepoint; they stop where nothing moves.
NEWTON_STEPS = 100

# Relative change at which a search stops.
NEAR = 1e-7

# Deviates below which the saddlepoint formula is replaced by its limit.
EVEN = 1e-3

TINY = 1e-300

# Rows from which those that are done are put aside.
MANY = 256

# A saddlepoint beyond it is that of a value which cannot be told from the end of the range.
ENDLESS = 1e15

# Types up to which the histogram of largest variance is sought.
MOST_SOUGHT = 512

# Relative and absolute halves of the bracket in which the z of a distance is sought first.
WITHIN = 0.02


def part_sums(values: Tensor, row: Tensor, parts: int) -> Tensor:
    """Of each part, (parts), the sum of the values (coordinates) whose ``row`` it is."""
    return values.new_zeros(parts).index_add(0, row, values)


def part_maxima(values: Tensor, row: Tensor, parts: int) -> Tensor:
    """Of each part the largest of its values, and at least 0."""
    return values.new_zeros(parts).scatter_reduce(0, row, values, "amax")


def deviate_and_saddlepoint(
    x: Tensor, curved: Tensor, squares: Tensor, row: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """d with P[sum_i w_i (e_i^2 - 1) + 2 g_i e_i > x] = 1 - Phi(d) nearly, of each part, (parts).

    Also the saddlepoints, as starts for x nearby. With K(s) = sum_i -log(1 - 2 w_i s)/2 - w_i s +
    2 g_i^2 s^2/(1 - 2 w_i s) and K'(s) = x: d = r + log(v/r)/r, r = sign(s) sqrt(2 (s x - K(s))),
    v = s sqrt(K''(s)).

    Args:
        x: (parts).
        curved: w of the coordinates of all parts, one behind the other, (coordinates).
        squares: g^2, likewise.
        row: the part of each coordinate.
        start: saddlepoints of x nearby, (parts).
    """
    parts = len(x)
    variance = part_sums(2 * curved.square() + 4 * squares, row, parts)
    size = variance.sqrt().clamp_min(TINY)
    w = curved / size[row]
    g = squares / size[row].square()
    x = (x / size).clamp(-FARTHEST_ERROR, FARTHEST_ERROR)
    up = part_maxima(w, row, parts)
    down = part_maxima(-w, row, parts)
    if start is None:
        start = x
    # A start on the other side of 0, or one that stands for no saddlepoint, leads nowhere.
    start = torch.where((start * x > 0) & (start.abs() < ENDLESS), start, x)
    p = _saddlepoint(w, g, row, x, up, down, start)

    s = p / _stretch(p, up, down)
    s_of = s[row]
    d = 1 - 2 * w * s_of
    K = part_sums(-torch.log(d) / 2 - w * s_of + 2 * g * s_of.square() / d, row, parts)
    # The saddlepoint maximises s x - K(s), which is 0 at s = 0: less is rounding.
    rate = (s * x - K).clamp_min(0)
    r = s.sign() * (2 * rate).sqrt()
    bend = part_sums(2 * (w / d).square() + 4 * g / d**3, row, parts)
    v = s * bend.sqrt()

    # Near the mean r and v vanish, and d tends to x + (third derivative of K at 0)/6.
    even = (r.abs() < EVEN) | (v.abs() < EVEN)
    third = part_sums(8 * w**3 + 24 * w * g, row, parts)
    far = torch.where(even, 1.0, r)
    ratio = torch.where(even, 1.0, v / r)
    return torch.where(even, x + third / 6, far + ratio.log() / far), p


def _stretch(p: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """p/s: as p runs over the line, s runs from pole to pole, -1/(2 down) to 1/(2 up)."""
    return 1 + 2 * torch.maximum(up * p, -down * p)


def _saddlepoint(
    w: Tensor, g: Tensor, row: Tensor, x: Tensor, up: Tensor, down: Tensor, start: Tensor
) -> Tensor:
    """p at which K'(s) = x, (parts); ENDLESS where there is none, since x is beyond all values.

    Newton's steps in p never leave the range.
    """
    low = torch.where(x > 0, 0.0, -torch.inf).to(x)
    high = torch.where(x < 0, 0.0, torch.inf).to(x)
    p = start
    going = torch.ones_like(x, dtype=torch.bool)
    place = torch.arange(len(x), device=x.device)
    result = x.clone()
    for _ in range(NEWTON_STEPS):
        stretch = _stretch(p, up, down)
        s = (p / stretch)[row]
        d = 1 - 2 * w * s
        shift = 2 * w.square() * s / d + 4 * g * s * (1 - w * s) / d.square()
        slope = part_sums(shift, row, len(x))
        bend = part_sums(2 * (w / d).square() + 4 * g / d**3, row, len(x))
        low = torch.where(slope > x, low, p)
        high = torch.where(slope > x, p, high)

        # ds/dp = 1/stretch^2
        slope_of_p = (bend / stretch.square()).clamp_min(TINY)
        newton = p - (slope - x) / slope_of_p
        middle = (low + high) / 2
        middle = torch.where(low.isinf(), 8 * high - 1, middle)
        middle = torch.where(high.isinf(), 8 * low + 1, middle)
        inside = (newton >= low) & (newton <= high) & (newton.abs() <= 8 * p.abs() + 1)
        new = torch.where(inside, newton, middle)

        moved = (new - p).abs() > NEAR * p.abs()
        moves = going & moved & (new.abs() < ENDLESS)
        p = torch.where(going, new, p)  # what is done stays as it is
        going = moves
        left = int(moves.sum())
        if not left:
            break
        if len(p) > MANY and 2 * left < len(p):
            result[place] = p
            kept = moves[row]
            w = w[kept]
            g = g[kept]
            row = (moves.cumsum(0) - 1)[row[kept]]
            state = (x, up, down, low, high, p, place, going)
            x, up, down, low, high, p, place, going = (each[moves] for each in state)
    result[place] = p
    return result


class Error(ABC):
    """The error of an estimate, as intervals need it."""

    @abstractmethod
    def margin(self, z: float | Tensor, side: Tensor) -> Tensor:
        """How far from the estimate the interval at z standard errors ends; may be inf.

        Args:
            z: a number, or (*batch).
            side: -1 for the lower end, 1 for the upper one, broadcast against the batch.
        """

    def margins(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """The margins below and above the estimate, (*batch) each."""
        z = torch.as_tensor(z, dtype=torch.float64)
        total = self.total
        sides = total.new_tensor([-1.0, 1.0]).view(2, *(1,) * max(z.ndim, total.ndim))
        below, above = self.margin(z.to(total.device), sides)
        return below, above

    @abstractmethod
    def gap(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """The ends of what the set of truths leaves out, from the estimate; NaN where nothing."""

    def distance(self, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        """The least z whose interval, widened by ``bias``, holds 0; inf where none up to 40 does.

        The margin on 0's side is nearly z standard deviations: a secant finds z in a few steps.
        """
        side = -value.sign()
        known = self.total.isfinite()
        deviation = torch.where(known, self.total.clamp_min(TINY).sqrt(), 1.0)

        def outside(z: Tensor) -> Tensor:
            inside = z.clamp(0, LARGEST)
            short = value.abs() - self.margin(inside, side) - bias
            short = torch.where(known, short, -inside)  # an interval without end holds 0
            # It falls on beyond both ends, so that there always is a root.
            return short - deviation * (z - inside)

        guess = ((value.abs() - bias) / deviation).nan_to_num(0.0).clamp(0, LARGEST)
        width = WITHIN * (1 + guess)
        z = root(outside, guess - width, guess + width, NEAR).clamp_min(0)
        z = torch.where(z > LARGEST, torch.inf, z).where(known, 0.0)
        return torch.where(value.isnan() | self.total.isnan(), torch.nan, z)

    @abstractmethod
    def scaled(self, factor: float | Tensor) -> "Error":
        """Of ``factor`` times the estimate, a number or (*batch)."""

    @abstractmethod
    def joined(self, other: "Error") -> "Error":
        """Of the sum of this estimate and another, independent one."""

    @property
    @abstractmethod
    def total(self) -> Tensor:
        """Estimate of the error's variance, (*batch)."""


@dataclass(frozen=True)
class ErrorParts(Error):
    """Independent parts of an estimate's error; each tensor is (*batch, parts).

    A part whose true value lies u above its estimate has the variance
    ``variance + slope u + curvature u^2``.

    Args:
        variance: at u = 0. Below 0 it is a plug-in's whose value came out far below 0.
        slope: as for shares of types, whose error grows with them.
        curvature: of a ratio, from the error of its denominator; of a sample, -1/n.
        step: half of what lies between two values that the part can have, where these are few: the
            normal approximation is taken in the middle.
    """

    variance: Tensor
    slope: Tensor
    curvature: Tensor
    step: Tensor

    @staticmethod
    def normal(variance: Tensor) -> "ErrorParts":
        """One part (*batch) of this variance, wherever the truth is."""
        one = variance[..., None]
        zero = torch.zeros_like(one)
        return ErrorParts(one, zero, zero, zero)

    def margin(self, z: float | Tensor, side: Tensor) -> Tensor:
        """How far from the estimate the interval at z standard errors ends; may be inf.

        Of each part all u with (abs(u) - step)^2 <= z^2 (variance + slope u + curvature u^2); inf
        where z^2 curvature >= 1. The end of the sum lies the root of the sum of squares of the
        parts' ends away.

        Source: Wilson (1927), the score interval; Yates (1934), the step; Fieller (1954), for
        ratios; Zou, Donner (2008), the sum.
        """
        sign = side[..., None]
        left, shift, square = self._quadratic(z, sign * self.step)
        crossing = square.clamp_min(0).sqrt() + sign * shift
        end = crossing.clamp_min(0) / left + self.step
        end = torch.where(left > 0, end, torch.inf)
        total = end.square().sum(-1).sqrt()
        return total.masked_fill(self.variance.isnan().any(-1), torch.nan)

    def gap(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """The ends of what Fieller's set leaves out, from the estimate, (*batch) each.

        The set goes on beyond them where z^2 curvature > 1 (a denominator that may be 0): no u
        between the two belongs to it. NaN where there is no such gap, or more than one part.
        """
        left, shift, square = self._quadratic(z)
        is_gap = (left < 0) & (square > 0) & (self.variance.shape[-1] == 1)
        left = torch.where(is_gap, left, torch.nan)[..., 0]
        half = square.clamp_min(0).sqrt()[..., 0]
        shift = shift[..., 0]
        return (shift + half) / left, (shift - half) / left

    def _quadratic(
        self, z: float | Tensor, step: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(left, shift, square): u = step + v belongs where left v^2 - 2 shift v <= z^2 (variance
        at step); (left v - shift)^2 = square at the ends.
        """
        z = torch.as_tensor(z, dtype=torch.float64, device=self.variance.device)
        z_squared = z[..., None] ** 2
        variance = self.variance + (self.slope + self.curvature * step) * step
        shift = z_squared * (self.slope / 2 + self.curvature * step)
        left = 1 - z_squared * self.curvature
        return left, shift, z_squared * variance * left + shift.square()

    def scaled(self, factor: float | Tensor) -> "ErrorParts":
        factor = torch.as_tensor(factor, dtype=self.slope.dtype, device=self.slope.device)
        factor = factor[..., None]
        return ErrorParts(
            variance=factor**2 * self.variance,
            slope=factor * self.slope,
            curvature=self.curvature,
            step=factor.abs() * self.step,
        )

    def joined(self, other: Error) -> Error:
        if not isinstance(other, ErrorParts):  # the others know how to join this
            return other.joined(self)

        def both(name: str) -> Tensor:
            own = getattr(self, name)
            others = getattr(other, name).to(own)
            batch = np.broadcast_shapes(own.shape[:-1], others.shape[:-1])
            return torch.cat([own.expand(*batch, -1), others.expand(*batch, -1)], -1)

        return ErrorParts(both("variance"), both("slope"), both("curvature"), both("step"))

    @property
    def total(self) -> Tensor:
        return self.variance.sum(-1)


@dataclass(frozen=True)
class RatioError(Error):
    """Of a ratio r = F/G of two estimates.

    Intervals hold each t near r at which F - t G may be an estimate of 0. Where Fieller's interval
    has no end, and where ``at`` is None, as of a sum with another error, ends are those of the
    wider of first and second; what is left out is what first leaves out.

    Args:
        first: Fieller's account, by variances.
        second: the error of (F - r G)/G.
        at: u -> the error of (F - t G)/G at t = r + u, which has the value -u; u may have leading
            dimensions.
    """

    first: Error
    second: Error
    at: Callable[[Tensor], Error] | None = None

    def margin(self, z: float | Tensor, side: Tensor) -> Tensor:
        """u that equals its own margin at r + side u, by secants, where they find one."""
        start = self.second.margin(z, side)
        widest = torch.maximum(self.first.margin(z, side), start)
        if self.at is None:
            return widest

        before = torch.zeros_like(start)
        excess_before = start
        u = start
        settled = torch.zeros_like(start, dtype=torch.bool)
        for _ in range(SECANTS):
            excess = self.at(side * u).margin(z, side) - u
            settled = excess.abs() <= CLOSE * u
            if bool((settled | excess.isnan()).all()):
                break
            slope = ((excess - excess_before) / (u - before)).nan_to_num(-1.0).clamp(-4.0, -0.2)
            before = u
            excess_before = excess
            u = torch.where(settled, u, (u - excess / slope).clamp_min(0))
        return torch.where(settled & widest.isfinite(), u, widest)

    def gap(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        return self.first.gap(z)

    def distance(self, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        return torch.minimum(self.first.distance(value, bias), self.second.distance(value, bias))

    @property
    def total(self) -> Tensor:
        return self.second.total

    def scaled(self, factor: float | Tensor) -> "RatioError":
        return RatioError(self.first.scaled(factor), self.second.scaled(factor))

    def joined(self, other: Error) -> Error:
        first = other.first if isinstance(other, RatioError) else other
        second = other.second if isinstance(other, RatioError) else other
        return RatioError(self.first.joined(first), self.second.joined(second))


def quantile(level: float) -> float:
    """z of a two-sided interval at this level. Raises ValueError."""
    return float(ndtri((1 + checks.fraction("level", level)) / 2))


def laplace_stretch(level: float) -> float:
    """Half a Laplace variable's two-sided interval over a normal variable's of the same variance.

    -log(1 - level) / sqrt(2) over z, and at least 1: a sum of several such variables lies between
    the two.
    """
    z = quantile(level)
    if not z:
        return 1.0
    return max(1.0, -math.log1p(-level) / (math.sqrt(2) * z))


def ends(
    value: Tensor,
    error: Error,
    z: float | Tensor,
    limits: Range = (-torch.inf, torch.inf),
    bias: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Lower and upper end at z standard errors, (*batch) each.

    Args:
        value: the estimates, (*batch).
        error: their error.
        z: (*batch) or a number; ``quantile`` of a level.
        limits: what the true value can be.
        bias: that the estimate may have, at most.

    Where the denominator of a ratio may be 0, Fieller's set is all but a gap: if that reaches
    beyond one of the limits, the interval ends where the gap begins.
    """
    least, most = limits
    below, above = error.margins(z)
    low = value - below - bias
    high = value + above + bias
    gap_begins, gap_ends = error.gap(z)
    gap_begins = value + gap_begins + bias
    gap_ends = value + gap_ends - bias
    low = torch.where((gap_begins < least) & (gap_ends <= most), gap_ends, low)
    high = torch.where((gap_begins >= least) & (gap_ends > most), gap_begins, high)
    return low.clamp(*limits).to(value), high.clamp(*limits).to(value)


def largest_variance(points: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """The largest variance of values under a histogram whose mean of points is that of ``weights``.

    Beyond 512 types a bound, (max - m)(m - min).

    Args:
        points: (k, r).
        weights: a histogram, (k,).
        values: (k,).

    Source: Bhatia, Davis (2000), Theorem 1, the bound.
    """
    mean = weights @ values
    squares = (values - mean).square()
    if len(values) > MOST_SOUGHT:
        return (values.max() - mean) * (mean - values.min())
    from scipy.optimize import linprog  # here, because loading it takes long

    constraints = torch.cat([points.mT, torch.ones_like(values)[None]]).cpu()
    right = constraints @ weights.cpu()
    solved = linprog(-squares.cpu().numpy(), A_eq=constraints.numpy(), b_eq=right.numpy())
    own = weights @ squares
    return torch.maximum(own, own.new_tensor(-solved.fun)) if solved.success else own
