"""One safeguarded root for every calibration: of a number, or of each entry of a tensor; it ends on
the safe side.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)

TOLERANCE = 2.0**-46  # of x, absolute; x is a logarithm where the answer shall be relative
ULPS = 2.0**-51  # of |x|: two floats so near are not told apart further
ASKED = 4  # rounds between two questions to a device; a CPU is asked each round
# steps that look for the other side, and how one grows to the next
OUTWARD, SHORTEST, LARGEST = 60, 1.5, 4.0
ROUNDS = 200
TINY = 1e-300  # a number below it is 0 to a logarithm


def root(
    excess: Callable[[Number], Number],
    low: Number,
    high: Number,
    tolerance: float = TOLERANCE,
    grow: tuple[bool, bool] = (True, True),
    longest: float = math.inf,
) -> Number:
    """The least x, to ``tolerance``, with excess(x) <= 0, where excess falls through 0; each entry
    by itself.

    *Method.* An end that does not enclose the root moves out, each step 1.5 to 4 times as long as
    the last, as the secant says; what was one end becomes the other. From there on f(low) > 0 >=
    f(high) as evaluated: each step of Chandrupatla's method replaces the end of its own sign. It
    stays half the tolerance away from both ends, so that both come in; where rounding hides the
    root, each time four times as far. The answer is the end that is safe. So no monotonicity is
    used for safety, only for the word "least", and whoever evaluates to r subtracts r from its
    target.

    Args:
        excess: elementwise, float64, or of one float; a NaN of it counts as unsafe.
        low: a guess of the bracket's lower end, a float, or a float64 tensor for a batch.
        high: of its upper end, above ``low``, likewise.
        tolerance: of x, absolute.
        grow: whether the lower end may move, and the upper one.
        longest: of the steps by which they move.

    Guarantees: excess(x) <= 0 as evaluated; some x' >= x - max(tolerance, 4 ulp) below it has
    excess(x') > 0. Where
        ``low`` is safe and must not move: low itself. NaN where no safe point was found.
    Source: Chandrupatla (1997), hybrid of bisection and inverse quadratic interpolation.
    """
    return _root(excess, low, high, tolerance, grow, longest)


def between(
    excess: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor | float,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Where a function that falls is 0 between two ends, or the end that is nearest to that."""
    high = torch.as_tensor(high, dtype=low.dtype, device=low.device)
    found = root(excess, low, high, tolerance, (False, False))
    return torch.where(found.isnan(), high, found)


def least(
    found: Callable[[float], float],
    target: float,
    low: float,
    high: float,
    tolerance: float,
    grow: tuple[bool, bool] = (True, True),
    *,
    longest: float = math.inf,
    floor: float = 0.0,
) -> float:
    """The least x >= floor with found(x) <= target, which falls with x > 0: ``root`` in logarithms.

    low, high: a guess of the bracket. tolerance: relative. The rest as of ``root``. NaN where there
    is none.
    """

    def excess(log_x: float) -> float:
        x = math.exp(log_x)
        return math.log(max(found(x), TINY) / target) if x >= floor else math.inf

    return math.exp(root(excess, math.log(low), math.log(high), tolerance, grow, longest))


def _root(
    excess: Any, low: Any, high: Any, tolerance: float, grow: tuple[bool, bool], longest: float
) -> Any:
    how = (grow, longest, tolerance)
    device = next((end.device for end in (low, high) if isinstance(end, Tensor)), None)
    if device is None:
        return _of_one(excess, low, high, how)
    ends = (torch.as_tensor(end, dtype=torch.float64, device=device) for end in (low, high))
    low, high = torch.broadcast_tensors(*ends)

    def f(x: Tensor) -> Tensor:
        return excess(x).nan_to_num(math.inf, math.inf, -math.inf)

    values = [f(low), f(high)]
    if device.type != "cpu" or {value.numel() for value in values} != {1}:
        return _found(f, torch.where, [low, high], values, *how)
    like = values[0]

    def of_one(x: float) -> float:
        return float(excess(torch.full_like(like, x)))

    known = [np.float64(value) for value in values]
    return torch.full_like(like, _of_one(of_one, low, high, how, known))


def _of_one(
    excess: Callable[[float], float],
    low: Any,
    high: Any,
    how: tuple[Any, ...],
    known: list[np.float64] | None = None,
) -> float:
    """The same steps in floats, which cost less, of numpy, which divide by 0.

    known: the function's values at both ends, where they are known.
    """

    def f(x: np.float64) -> np.float64:
        value = float(excess(float(x)))
        return np.float64(math.inf if math.isnan(value) else value)

    def where(condition: bool, yes: Any, no: Any) -> Any:
        return yes if condition else no

    at = [np.float64(low), np.float64(high)]
    value = known or [f(at[0]), f(at[1])]
    if value[0] > 0 >= value[1] and at[1] - at[0] <= how[-1]:
        # Nothing is left to do: whoever calls with a good guess pays for two calls alone.
        return float(high)
    with np.errstate(all="ignore"):
        return float(_found(f, where, at, value, *how))


def _found(
    f: Any, where: Any, at: Any, value: Any, grow: Any, longest: float, tolerance: float
) -> Any:
    """The root of tensors, or of one float; at, value: the ends and f there."""
    # a is the newest point, b the other side
    b, fb, a, fa = _enclosed(f, where, at, value, grow, longest)
    every = ASKED if isinstance(a, Tensor) and a.device.type != "cpu" else 1
    enclosed, nearest = (fb > 0) & (fa <= 0), where(fb <= 0, b, math.nan)
    c, fc, t, push = b, fb, 0.5, 1.0
    for turn in range(ROUNDS):
        ulps = ULPS * abs(a)
        room = where(ulps > tolerance, ulps, tolerance) / abs(b - a)
        open_ = enclosed & (room < 1)
        if turn % every == 0 and not bool(open_.any()):
            break
        short = where(room * push < 1, room * push, 1.0) / 2
        inner = where(t > short, where(t < 1 - short, t, 1 - short), short)
        # where rounding hides the root the next such step is longer
        push = where(inner == t, push, 4 * push)
        x = where(open_, a + inner * (b - a), a)
        fx = f(x)
        same = (fx > 0) == (fa > 0)
        c, fc = where(open_, where(same, a, b), c), where(open_, where(same, fa, fb), fc)
        crossed = open_ & ~same
        b, fb = where(crossed, a, b), where(crossed, fa, fb)
        a, fa = where(open_, x, a), where(open_, fx, fa)
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        step = fa / (fb - fa) * (fc / (fb - fc)) + (c - a) / (b - a) * (fa / (fc - fa)) * (
            fb / (fc - fb)
        )
        smooth = (phi * phi < xi) & ((1 - phi) * (1 - phi) < 1 - xi) & (abs(step) < math.inf)
        t = where(smooth, step, 0.5)
    return where(enclosed, where(fa <= 0, a, b), nearest)


def _enclosed(
    f: Any, where: Any, at: list[Any], value: list[Any], grow: tuple[bool, bool], longest: float
) -> Any:
    """(low, f(low), high, f(high)) with f(low) > 0 >= f(high), where steps lead there."""
    first = where(at[1] - at[0] > 2.0**-10, at[1] - at[0], 2.0**-10)
    for end, other, sign in ((0, 1, -1), (1, 0, 1)):
        step = first
        for _ in range(OUTWARD * grow[end]):
            wrong = (value[end] > 0) == (end == 1)
            if not bool(wrong.any()):
                break
            x = where(wrong, at[end] + sign * step, at[end])
            fx = f(x)
            growth = 1.1 * fx / (value[end] - fx)  # not finite where nothing falls
            growth = where((growth > SHORTEST) & (growth < math.inf), growth, SHORTEST)
            step = step * where(growth < LARGEST, growth, LARGEST)
            step = where(step < longest, step, longest)
            at[other] = where(wrong, at[end], at[other])
            value[other] = where(wrong, value[end], value[other])
            at[end], value[end] = x, fx
    return at[0], value[0], at[1], value[1]
