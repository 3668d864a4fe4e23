"""Gaussian paths that are observed: variances and draws of all their points in O(n), without a subtraction.

The path x_t = decay x_{t-1} + N(0, P_t), x_{-1} = 0, seen at each t through noise of precision leaks_t, has the
precision matrix of a resistor network: an edge (x_t - decay x_{t-1})^2 / P_t between neighbours, and a leak at each
point. To leave out every second point (star-mesh transform) gives such a network on the others, whose numbers are sums,
products and quotients of positive numbers: log2 n levels, each a few operations on whole tensors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.draws import Draws


@dataclass(frozen=True)
class _Level:
    """The points left out at one level: x = before x_left + after x_right + N(0, variance)."""

    points: int
    variance: Tensor
    before: Tensor
    after: Tensor


def eliminate(steps: Tensor, leaks: Tensor, decay: float) -> tuple[list[_Level], Tensor]:
    """The levels, the finest first, and the variance of the one point that is left, (batch, 1).

    steps: (n,), the variances P_t > 0; leaks: (batch, n), >= 0.

    Relative error of what follows from the levels: a level rounds each edge and leak by at most 10 eps, and a variance
    is a decreasing, homogeneous function of all edges and leaks of its level (Rayleigh), so it moves by as much; a
    covariance of neighbours by three times as much; decay^(2^k), rounded, by 2 eps times the level's points. In all at
    most (64 log2 n + 4 n) eps, n eps only with a decay; underflow apart.
    Source: Rayleigh's monotonicity law, see Doyle, Snell (1984), for resistances; homogeneity for the constants.
    """
    edges, leaks = (1 / steps[1:]).expand(len(leaks), -1), leaks.clone()
    leaks[:, 0] += 1 / steps[0]
    levels, span = [], 1
    while (points := leaks.shape[1]) > 1:
        ratio, kept, out = decay**span, (points + 1) // 2, points // 2
        left, leak = edges[:, 0::2].contiguous(), leaks[:, 1::2].contiguous()
        right = edges[:, 1::2].contiguous() if points % 2 else torch.nn.functional.pad(edges[:, 1::2], (0, 1))
        variance = 1 / (left + ratio**2 * right + leak)
        before, after = left * variance, right * variance
        levels.append(_Level(points, variance, ratio * before, ratio * after))
        edges, leaks = (before * right)[:, : kept - 1], leaks[:, 0::2].contiguous()
        leaks[:, :out] += ratio**2 * before * leak
        leaks[:, 1:] += (after * leak)[:, : kept - 1]
        span *= 2
    return levels, 1 / leaks


def variances(steps: Tensor, leaks: Tensor, decay: float) -> Tensor:
    """Of each point of the path, given what is seen: (n,), (batch, n) -> (batch, n), with :func:`eliminate`'s error."""
    levels, found = eliminate(steps, leaks, decay)
    between = found[:, :0]  # covariances of neighbours
    for level in reversed(levels):
        right, out = found[:, 1:], level.points // 2
        if level.points % 2 == 0:
            right, between = (torch.nn.functional.pad(x, (0, 1)) for x in (right, between))
        first = level.before * found[:, :out] + level.after * between
        last = level.before * between + level.after * right
        found = _merged(found, level.variance + level.before * first + level.after * last)
        between = _merged(first, last)[:, : level.points - 1]
    return found


def draw(steps: Tensor, leaks: Tensor, decay: float, size: int, draws: Draws) -> Tensor:
    """The path given that 0 was seen at every t: (n,), (n,) -> (n, size), independent columns; n size normals."""
    levels, last = eliminate(steps, leaks[None], decay)
    x = last.sqrt() * draws.normal((1, size))
    for level in reversed(levels):
        out = level.points // 2
        right = x[1:] if level.points % 2 else torch.nn.functional.pad(x[1:], (0, 0, 0, 1))
        before, after, variance = (y[0, :, None] for y in (level.before, level.after, level.variance))
        middle = before * x[:out] + after * right + variance.sqrt() * draws.normal((out, size))
        x = _merged(x.mT, middle.mT).mT
    return x


def _merged(even: Tensor, odd: Tensor) -> Tensor:
    """even_0, odd_0, even_1, ...: (batch, k), (batch, k or k - 1) -> one after the other."""
    merged = even.new_empty(len(even), even.shape[1] + odd.shape[1])
    merged[:, 0::2], merged[:, 1::2] = even, odd
    return merged
