"""The least value of a convex function of one number, from lines below it: Kelley's cutting planes."""

from collections.abc import Callable

import torch
from torch import Tensor

MOST = 60  # looks at the function
MARGIN = 0.1  # share of the bracket that a new point keeps from its ends

Look = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def least(
    look: Look, x: Tensor, width: Tensor, ends: tuple[float, Tensor | float], tol: float, zero: Tensor
) -> Tensor:
    """Where a convex function between two ends is least, and its bounds: (3, *batch), of x, upper and lower.

    From x the search moves down the slope, by ``width`` and then twice as far each time, until the slope has changed
    its sign; then the next point is where the two innermost lines meet. Their height there, or that of a single line
    at the end, is a lower bound.

    Args:
        look: x to (value, height, slope), (*batch) each: height + slope (y - x) is at most the function at every y.
        x: where it starts, (*batch); width: of its first step; ends: of the interval.
        tol: relative gap at which it stops; zero: values up to it count as 0. Or after 60 looks.

    Source: Kelley (1960).
    """
    low, high = ends
    falling, rising = [torch.stack([x, x - torch.inf, x * 0])] * 2  # x, height and slope: no line yet
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
        x = torch.where(right, (x - width).clamp_min(low), torch.where(left, (x + width).clamp_max(high), inner))
        width = 2 * width
    return torch.stack([best, upper, lower])
