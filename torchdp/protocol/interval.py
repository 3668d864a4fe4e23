"""Confidence intervals whose variance belongs to each end: score intervals, Fieller's for ratios,
sums of both.

And what they need: tails of quadratic forms of normal vectors, the largest variance of users of
unknown types.
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
from torchdp.root import between

Range = tuple[Any, Any]
"""What a truth can be, numbers or (*answer)."""
LARGEST = 40.0  # standard errors: of less than 1e-300
SECANTS, CLOSE = 12, 1e-4  # steps to the end of a ratio's interval, and the relative error of it
FEW = 100  # steps of the search for a saddlepoint; it stops where nothing moves
NEAR = 1e-7  # relative change at which a search stops
EVEN = 1e-3  # deviates below which the saddlepoint formula is replaced by its limit
TINY = 1e-300
MANY = 256  # rows, of which those that are done are put aside
# a saddlepoint beyond it is that of a value which cannot be told from the end of the range
ENDLESS = 1e15
MOST_SOUGHT = 512  # types up to which the histogram of largest variance is sought


def normal_deviate(x: Tensor, curved: Tensor, squares: Tensor) -> Tensor:
    """d with P[sum_i w_i (e_i^2 - 1) + 2 g_i e_i > x] = 1 - Phi(d) nearly, (*batch); curved: w,
    squares: g^2.

    With K(s) = sum_i -log(1 - 2 w_i s)/2 - w_i s + 2 g_i^2 s^2/(1 - 2 w_i s) and K'(s) = x: d = r +
    log(v/r)/r, r = sign(s) sqrt(2 (s x - K(s))), v = s sqrt(K''(s)).
    """
    size = (2 * curved.square() + 4 * squares).sum(-1).sqrt().clamp_min(TINY)
    w, g, x = (
        curved / size[..., None],
        squares / size[..., None].square(),
        (x / size).clamp(-LARGEST, LARGEST),
    )
    up, down = w.amax(-1).clamp_min(0), (-w.amin(-1)).clamp_min(0)
    p = _saddlepoint(
        *(each.reshape(-1, *each.shape[x.ndim :]) for each in (w, g, x, up, down))
    ).view_as(x)
    s = p / (1 + 2 * torch.where(p > 0, up * p, -down * p))
    d = 1 - 2 * w * s[..., None]
    K = (-torch.log(d) / 2 - w * s[..., None] + 2 * g * s[..., None].square() / d).sum(-1)
    r = s.sign() * (2 * (s * x - K)).clamp_min(0).sqrt()
    v = s * (2 * (w / d).square() + 4 * g / d**3).sum(-1).sqrt()
    even = (r.abs() < EVEN) | (v.abs() < EVEN)
    third = (8 * w**3 + 24 * w * g).sum(-1)
    far, ratio = torch.where(even, 1.0, r), torch.where(even, 1.0, v / r)
    return torch.where(even, x + third / 6, far + ratio.log() / far)


def _saddlepoint(w: Tensor, g: Tensor, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """p at which K'(s) = x, (rows); ENDLESS where there is none, since x is beyond all values.

    s runs from pole to pole, 1/(2 w), as p does over the line: Newton's steps in p never leave the
    range.
    """
    low, high = (
        torch.where(x.sign() == side, torch.zeros_like(x), -side * torch.inf) for side in (1, -1)
    )
    p, found, going = x, x.clone(), torch.ones_like(x, dtype=torch.bool)
    rows = torch.arange(len(x), device=x.device)
    for _ in range(FEW):
        s = p / (1 + 2 * torch.where(p > 0, up * p, -down * p))
        ws, gs = w * s[..., None], g * s[..., None]
        d = 1 - 2 * ws
        slope = (2 * w * ws / d + 4 * gs * (1 - ws) / d.square()).sum(-1)
        bend = (2 * (w / d).square() + 4 * g / d**3).sum(-1)
        low, high = torch.where(slope > x, low, p), torch.where(slope > x, p, high)
        inner = (s / torch.where(p == 0, 1.0, p)).where(p != 0, 1.0)
        step = p - (slope - x) / (bend * inner.square()).clamp_min(TINY)
        half = torch.where(
            high.isinf(), 8 * low + 1, torch.where(low.isinf(), 8 * high - 1, (low + high) / 2)
        )
        inside = (step >= low) & (step <= high) & (step.abs() <= 8 * p.abs() + 1)
        new = torch.where(inside, step, half)
        moves = going & ((new - p).abs() > NEAR * p.abs()) & (new.abs() < ENDLESS)
        # what is done stays as it is
        p, going, left = torch.where(going, new, p), moves, int(moves.sum())
        if len(p) > MANY and 2 * left < len(p):  # the others are done with
            found[rows] = p
            kept = (w, g, x, up, down, low, high, p, rows, going)
            w, g, x, up, down, low, high, p, rows, going = (each[moves] for each in kept)
        if not left:
            break
    found[rows] = p
    return found


class Error(ABC):
    """The error of an estimate, as intervals need it."""

    @abstractmethod
    def margins(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """How far below and above the estimate the interval at z standard errors ends, (*batch)
        each; may be inf.
        """

    @abstractmethod
    def gap(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """The ends of what the set of truths leaves out, from the estimate, (*batch) each; NaN
        where nothing.
        """

    def distance(self, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        """The least z whose interval, widened by ``bias``, holds 0; inf where none up to 40
        does.
        """

        def outside(z: Tensor) -> Tensor:
            below, above = self.margins(z)
            return torch.maximum(value - below, -value - above) - bias

        z = between(outside, torch.zeros_like(value), LARGEST, NEAR)
        z = torch.where(z > LARGEST - 0.01, torch.inf, z)
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
    ``variance + slope u + curvature u^2``. slope: as for shares of types, whose error grows with
    them. curvature: of a ratio, from the error of its denominator; of a sample, -1/n. A variance
    below 0 is a plug-in's whose value came out far below 0. step: half of what lies between two
    values that the part can have, where these are few: the normal approximation is taken in the
    middle.
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

    def margins(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """How far below and above the estimate the interval at z standard errors ends, (*batch)
        each; may be inf.

        Of each part all u with (abs(u) - step)^2 <= z^2 (variance + slope u + curvature u^2); inf
        where z^2 curvature >= 1. The ends of the sum lie the root of the sum of squares of the
        parts' ends away. z: (*batch) or a number.
        Source: Wilson (1927), the score interval; Yates (1934), the step; Fieller (1954), for
        ratios; Zou, Donner
            (2008), the sum.
        """
        return self._margin(z, -1), self._margin(z, 1)

    def _margin(self, z: float | Tensor, sign: int) -> Tensor:
        left, shift, square = self._quadratic(z, sign * self.step)
        end = (square.clamp_min(0).sqrt() + sign * shift).clamp_min(0) / left + self.step
        total = torch.where(left > 0, end, torch.inf).square().sum(-1).sqrt()
        return total.masked_fill(self.variance.isnan().any(-1), torch.nan)

    def gap(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """The ends of what Fieller's set leaves out where it goes on beyond, (*batch) each, from
        the estimate.

        So it is where z^2 curvature > 1 (a denominator that may be 0): no u between the two ends
        belongs to it. NaN where there is no such gap, or more than one part.
        """
        left, shift, square = (each[..., 0] for each in self._quadratic(z))
        some = (left < 0) & (square > 0) & (self.variance.shape[-1] == 1)
        half, left = square.clamp_min(0).sqrt(), torch.where(some, left, torch.nan)
        return (shift + half) / left, (shift - half) / left

    def _quadratic(
        self, z: float | Tensor, step: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """u = step + v belongs where left v^2 - 2 shift v <= z^2 (variance at step);
        (left v - shift)^2 at the ends.
        """
        square = (
            torch.as_tensor(z, dtype=torch.float64, device=self.variance.device)[..., None] ** 2
        )
        variance = self.variance + (self.slope + self.curvature * step) * step
        shift = square * (self.slope / 2 + self.curvature * step)
        left = 1 - square * self.curvature
        return left, shift, square * variance * left + shift.square()

    def scaled(self, factor: float | Tensor) -> "ErrorParts":
        each = torch.as_tensor(factor, dtype=self.slope.dtype, device=self.slope.device)[..., None]
        return ErrorParts(
            variance=each**2 * self.variance,
            slope=each * self.slope,
            curvature=self.curvature,
            step=each.abs() * self.step,
        )

    def joined(self, other: Error) -> Error:
        if not isinstance(other, ErrorParts):  # the others know how to join this
            return other.joined(self)
        both = []
        for name in ("variance", "slope", "curvature", "step"):
            one, two = getattr(self, name), getattr(other, name)
            batch = np.broadcast_shapes(one.shape[:-1], two.shape[:-1])
            both.append(torch.cat([one.expand(*batch, -1), two.to(one).expand(*batch, -1)], -1))
        return ErrorParts(*both)

    @property
    def total(self) -> Tensor:
        return self.variance.sum(-1)


@dataclass(frozen=True)
class RatioError(Error):
    """Of a ratio r = F/G of two estimates: intervals hold each t near r at which F - t G may be an
    estimate of 0.

    first: Fieller's account, by variances; second: the error of (F - r G)/G. at: u -> the error of
    (F - t G)/G at t = r + u, which has the value -u. Where Fieller's interval has no end, and where
    at is None, as of a sum with another error, ends are those of the wider of first and second;
    what is left out is what first leaves out.
    """

    first: Error
    second: Error
    at: Callable[[Tensor], Error] | None = None

    def margins(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        starts = self.second.margins(z)
        below, above = (
            torch.maximum(*both) for both in zip(self.first.margins(z), starts, strict=True)
        )
        if self.at is None:
            return below, above
        return self._end(self.at, z, 0, below, starts[0]), self._end(
            self.at, z, 1, above, starts[1]
        )

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
        first, second = (
            (other.first, other.second) if isinstance(other, RatioError) else (other, other)
        )
        return RatioError(self.first.joined(first), self.second.joined(second))

    @staticmethod
    def _end(
        at: Callable[[Tensor], Error], z: float | Tensor, side: int, widest: Tensor, start: Tensor
    ) -> Tensor:
        """u that equals its own margin at r - u (side 0) or r + u (side 1), by secants; ``widest``
        where none is found.

        start: the margin at 0.
        """
        before, missed, u = torch.zeros_like(start), start, start
        for _ in range(SECANTS):
            over = at(u if side else -u).margins(z)[side] - u
            found = over.abs() <= CLOSE * u
            if bool((found | over.isnan()).all()):
                break
            slope = ((over - missed) / (u - before)).nan_to_num(-1.0).clamp(-4.0, -0.2)
            before, missed, u = u, over, torch.where(found, u, (u - over / slope).clamp_min(0))
        return torch.where(found & widest.isfinite(), u, widest)


def quantile(level: float) -> float:
    """z of a two-sided interval at this level. Raises ValueError."""
    return float(ndtri((1 + checks.fraction("level", level)) / 2))


def laplace_stretch(level: float) -> float:
    """Half a Laplace variable's two-sided interval, -log(1 - level) / sqrt(2) deviations, over a
    normal variable's.

    At least 1: a sum of several such variables lies between the two.
    """
    z = quantile(level)
    return max(1.0, -math.log1p(-level) / (math.sqrt(2) * z)) if z else 1.0


def interval(
    value: Tensor,
    error: Error,
    level: float,
    limits: Range = (-torch.inf, torch.inf),
    bias: Tensor | float = 0.0,
    stretch: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Lower and upper end at this level, (*batch) each, inside ``limits``, what the true value can
    be.

    stretch: how far ends lie, over those of a normal error of this variance, (*batch) or a number.
    """
    return ends(value, error, quantile(level) * stretch, limits, bias)


def ends(
    value: Tensor,
    error: Error,
    z: float | Tensor,
    limits: Range = (-torch.inf, torch.inf),
    bias: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Lower and upper end at z standard errors, as :func:`interval`; z: (*batch) or a number.

    Where the denominator of a ratio may be 0, Fieller's set is all but a gap: if that reaches
    beyond one of the limits, the interval ends where the gap begins.
    """
    least, most = limits
    below, above = error.margins(z)
    low, high = value - below - bias, value + above + bias
    first, last = (
        value + end + sign * bias for end, sign in zip(error.gap(z), (1, -1), strict=True)
    )
    low, high = (
        torch.where((first < least) & (last <= most), last, low),
        torch.where((first >= least) & (last > most), first, high),
    )
    return low.clamp(*limits).to(value), high.clamp(*limits).to(value)


def largest_variance(points: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """The largest variance of values (k,) under a histogram whose mean of points (k, r) is that of
    ``weights`` (k,).

    Beyond 512 types a bound, (max - m)(m - min).
    Source: Bhatia, Davis (2000), Theorem 1, the bound.
    """
    middle = weights @ values
    squares = (values - middle).square()
    if len(values) > MOST_SOUGHT:
        return (values.max() - middle) * (middle - values.min())
    from scipy.optimize import linprog  # here, because loading it takes long

    lines = torch.cat([points.mT, torch.ones_like(values)[None]]).cpu()
    found = linprog(
        -squares.cpu().numpy(), A_eq=lines.numpy(), b_eq=(lines @ weights.cpu()).numpy()
    )
    own = weights @ squares
    return torch.maximum(own, own.new_tensor(-found.fun)) if found.success else own
