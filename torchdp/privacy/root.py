"""One safeguarded root for every calibration: of a number, or of each entry of a tensor; it ends on the safe side."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)

TOLERANCE = 2.0**-46  # of x, absolute; x is a logarithm where the answer shall be relative
ULPS = 2.0**-51  # of |x|: two floats so near are not told apart further
ASKED = 4  # rounds between two questions to a device; a CPU is asked each round
OUTWARD, LEAST, MOST = 60, 1.5, 4.0  # steps that look for the other side, and how one grows to the next
ROUNDS = 200


def root(
    excess: Callable[[Number], Number],
    low: Number,
    high: Number,
    tolerance: float = TOLERANCE,
    grow: tuple[bool, bool] = (True, True),
    longest: float = math.inf,
) -> Number:
    """The least x, to ``tolerance``, with excess(x) <= 0, where excess falls through 0; each entry by itself.

    *Method.* An end that does not enclose the root moves out, each step 1.5 to 4 times as long as the last, as the
    secant says; what was one end becomes the other. From there on f(low) > 0 >= f(high) as evaluated: each step of
    Chandrupatla's method replaces the end of its own sign. It stays half the tolerance away from both ends, so that
    both come in. The answer is the end that is safe. So no monotonicity is used for safety, only for the word "least",
    and whoever evaluates to r subtracts r from its target.

    Args:
        excess: elementwise, float64, or of one float; a NaN of it counts as unsafe.
        low: a guess of the bracket's lower end, a float, or a float64 tensor for a batch.
        high: of its upper end, above ``low``, likewise.
        tolerance: of x, absolute.
        grow: whether the lower end may move, and the upper one.
        longest: of the steps by which they move.

    Guarantees: excess(x) <= 0 as evaluated; some x' >= x - max(tolerance, 4 ulp) below it has excess(x') > 0. Where
        ``low`` is safe and must not move: low itself. NaN where no safe point was found.
    Source: Chandrupatla (1997), hybrid of bisection and inverse quadratic interpolation.
    """
    return _root(excess, low, high, tolerance, grow, longest)


def _root(excess: Any, low: Any, high: Any, tolerance: float, grow: tuple[bool, bool], longest: float) -> Any:
    device = next((end.device for end in (low, high) if isinstance(end, Tensor)), None)
    if device is None:
        alone = torch.tensor(low, dtype=torch.float64, device="cpu")
        return float(_root(lambda x: alone.new_tensor(excess(float(x))), alone, high, tolerance, grow, longest))
    low, high = torch.broadcast_tensors(
        *(torch.as_tensor(end, dtype=torch.float64, device=device) for end in (low, high))
    )

    def f(x: Tensor) -> Tensor:
        return excess(x).nan_to_num(math.inf, math.inf, -math.inf)

    b, fb, a, fa = _enclosed(f, low, high, grow, longest)  # a is the newest point, b the other side
    enclosed, nearest = (fb > 0) & (fa <= 0), torch.where(fb <= 0, b, math.nan)
    c, fc, t = b, fb, torch.full_like(a, 0.5)
    every = 1 if device.type == "cpu" else ASKED
    for turn in range(ROUNDS):
        room = (ULPS * a.abs()).clamp_min(tolerance) / (b - a).abs()
        open_ = enclosed & (room < 1)
        if turn % every == 0 and not bool(open_.any()):
            break
        x = torch.where(open_, a + t.minimum(1 - room / 2).maximum(room / 2) * (b - a), a)
        fx = f(x)
        same, crossed = open_ & ((fx > 0) == (fa > 0)), open_ & ((fx > 0) != (fa > 0))
        c, fc = (
            torch.where(same, a, torch.where(crossed, b, c)),
            torch.where(same, fa, torch.where(crossed, fb, fc)),
        )
        b, fb = torch.where(crossed, a, b), torch.where(crossed, fa, fb)
        a, fa = torch.where(open_, x, a), torch.where(open_, fx, fa)
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        step = fa / (fb - fa) * (fc / (fb - fc)) + (c - a) / (b - a) * (fa / (fc - fa)) * (fb / (fc - fb))
        smooth = (phi * phi < xi) & ((1 - phi) * (1 - phi) < 1 - xi) & (step.abs() < math.inf)
        t = torch.where(smooth, step, 0.5)
    return torch.where(enclosed, torch.where(fa <= 0, a, b), nearest)


def _enclosed(
    f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, grow: tuple[bool, bool], longest: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(low, f(low), high, f(high)) with f(low) > 0 >= f(high), where steps lead there."""
    at, value, first = [low, high], [f(low), f(high)], (high - low).clamp_min(2.0**-10)
    for end, other, sign in ((0, 1, -1), (1, 0, 1)):
        step = first
        for _ in range(OUTWARD * grow[end]):
            wrong = (value[end] > 0) == (end == 1)
            if not bool(wrong.any()):
                break
            x = torch.where(wrong, at[end] + sign * step, at[end])
            fx = f(x)
            growth = 1.1 * fx / (value[end] - fx)  # not finite where nothing falls
            growth = torch.where(growth.abs() < math.inf, growth, LEAST).clamp(LEAST, MOST)
            step = (step * growth).clamp_max(longest)
            at[other] = torch.where(wrong, at[end], at[other])
            value[other] = torch.where(wrong, value[end], value[other])
            at[end], value[end] = x, fx
    return at[0], value[0], at[1], value[1]
