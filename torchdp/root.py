"""One safeguarded root for every calibration, which ends on the safe side.

Of a number, or of each entry of a tensor: one body for both, over ``where``.
Notation: f is the excess, a the newest point, b the end of the other sign, c the point before.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)

# of x, absolute; x is a logarithm where the answer shall be relative
TOLERANCE = 2.0**-46
# of |x|: two floats so near are not told apart further
ULPS = 2.0**-51
# rounds between two questions to a device; a CPU is asked each round
ASKED = 4
# steps that look for the other side
OUTWARD = 60
# how one such step grows to the next, at least
SHORTEST = 1.5
# and at most
LARGEST = 4.0
# Bisection alone makes a bracket 2^200 times shorter in so many.
ROUNDS = 200
# A number below it is 0 to a logarithm.
TINY = 1e-300


def root(
    excess: Callable[[Number], Number],
    low: Number,
    high: Number,
    tolerance: float = TOLERANCE,
    grow: tuple[bool, bool] = (True, True),
    longest: float = math.inf,
) -> Number:
    """The least x, to ``tolerance``, with excess(x) <= 0, where excess falls through 0.

    *Method.* An end that does not enclose the root moves out, each step 1.5 to 4 times as long as
    the last, as the secant says; what was one end becomes the other. From there on f(low) > 0 >=
    f(high) as evaluated: each step of Chandrupatla's method replaces the end of its own sign. It
    stays half the tolerance away from both ends, so that both come in; where rounding hides the
    root, each time four times as far. The answer is the end that is safe. So no monotonicity is
    used for safety, only for the word "least", and whoever evaluates to r subtracts r from its
    target. Each entry of a batch by itself.

    Args:
        excess: elementwise, float64, or of one float; a NaN of it counts as unsafe.
        low: a guess of the bracket's lower end, a float, or a float64 tensor for a batch.
        high: of its upper end, above ``low``, likewise.
        tolerance: of x, absolute.
        grow: whether the lower end may move, and the upper one.
        longest: of the steps by which they move.

    Guarantees: excess(x) <= 0 as evaluated; some x' >= x - max(tolerance, 4 ulp) below it has
    excess(x') > 0. Where ``low`` is safe and must not move: low itself. NaN where no safe point was
    found.
    Source: Chandrupatla (1997), hybrid of bisection and inverse quadratic interpolation.
    """
    function: Any = excess
    given: tuple[Any, Any] = (low, high)
    tensors = [end for end in given if isinstance(end, Tensor)]
    if not tensors:
        return _of_one(function, low, high, tolerance, grow, longest)
    device = tensors[0].device
    float64 = [torch.as_tensor(end, dtype=torch.float64, device=device) for end in given]
    ends = list(torch.broadcast_tensors(*float64))

    def f(x: Tensor) -> Tensor:
        # NaN counts as unsafe: no answer is where the function has no value.
        return function(x).nan_to_num(math.inf, math.inf, -math.inf)

    values = [f(end) for end in ends]
    like = values[0]
    if device.type != "cpu" or {value.numel() for value in values} != {1}:
        return _narrowed(f, torch.where, ends, values, tolerance, grow, longest)

    def of_float(x: float) -> float:
        return float(function(torch.full_like(like, x)))

    known = [np.float64(value) for value in values]
    answer = _of_one(of_float, ends[0], ends[1], tolerance, grow, longest, known)
    return torch.full_like(like, answer)  # type: ignore[return-value]


def between(
    excess: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor | float,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Where a function that falls is 0 between two ends, or the end that is nearest to that."""
    high = torch.as_tensor(high, dtype=low.dtype, device=low.device)
    x = root(excess, low, high, tolerance, (False, False))
    return torch.where(x.isnan(), high, x)


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
    """The least x >= floor with found(x) <= target: ``root`` in logarithms.

    Args:
        found: falls with x > 0.
        target: > 0.
        low: a guess of the bracket's lower end.
        high: of its upper end.
        tolerance: of x, relative.
        grow: as of ``root``.
        longest: as of ``root``, of log x.
        floor: below it x is unsafe.

    NaN where there is none.
    """

    def excess(log_x: float) -> float:
        x = math.exp(log_x)
        # Unsafe whatever ``found`` says, so it is not asked.
        if x < floor:
            return math.inf
        return math.log(max(found(x), TINY) / target)

    return math.exp(root(excess, math.log(low), math.log(high), tolerance, grow, longest))


def _of_one(
    excess: Callable[[float], float],
    low: Any,
    high: Any,
    tolerance: float,
    grow: tuple[bool, bool],
    longest: float,
    known: list[np.float64] | None = None,
) -> Any:
    """The same steps in floats, which cost less, of numpy, which divide by 0.

    known: the function's values at both ends, where they are known.
    """

    def f(x: np.float64) -> np.float64:
        value = float(excess(float(x)))
        return np.float64(math.inf if math.isnan(value) else value)

    def where(condition: bool, yes: Any, no: Any) -> Any:
        return yes if condition else no

    ends = [np.float64(low), np.float64(high)]
    values = known or [f(end) for end in ends]
    if values[0] > 0 >= values[1] and ends[1] - ends[0] <= tolerance:
        # Nothing is left to do: whoever calls with a good guess pays for two calls alone.
        return float(high)
    with np.errstate(all="ignore"):
        return float(_narrowed(f, where, ends, values, tolerance, grow, longest))


def _narrowed(
    f: Any,
    where: Any,
    ends: Any,
    values: Any,
    tolerance: float,
    grow: tuple[bool, bool],
    longest: float,
) -> Any:
    """The root of tensors, or of one float; values: f at the ends."""
    b, fb, a, fa = _enclosed(f, where, ends, values, grow, longest)
    every = ASKED if isinstance(a, Tensor) and a.device.type != "cpu" else 1
    enclosed = (fb > 0) & (fa <= 0)
    # The answer where no root is enclosed.
    unenclosed = where(fb <= 0, b, math.nan)
    c = b
    fc = fb
    t = 0.5
    push = 1.0
    for turn in range(ROUNDS):
        ulps = ULPS * abs(a)
        share = where(ulps > tolerance, ulps, tolerance) / abs(b - a)
        open_ = enclosed & (share < 1)
        if turn % every == 0 and not bool(open_.any()):
            break
        # Half the tolerance from both ends, so that the far end comes in too.
        short = where(share * push < 1, share * push, 1.0) / 2
        inner = where(t > short, where(t < 1 - short, t, 1 - short), short)
        # where rounding hides the root the next such step is longer
        push = where(inner == t, push, 4 * push)
        x = where(open_, a + inner * (b - a), a)
        fx = f(x)
        same = (fx > 0) == (fa > 0)
        crossed = open_ & ~same
        c = where(open_, where(same, a, b), c)
        fc = where(open_, where(same, fa, fb), fc)
        b = where(crossed, a, b)
        fb = where(crossed, fa, fb)
        a = where(open_, x, a)
        fa = where(open_, fx, fa)
        # Chandrupatla's condition: the inverse quadratic through a, b, c stays between a and b.
        xi = (a - b) / (c - b)
        phi = (fa - fb) / (fc - fb)
        through_b = fa / (fb - fa) * (fc / (fb - fc))
        through_c = (c - a) / (b - a) * (fa / (fc - fa)) * (fb / (fc - fb))
        step = through_b + through_c
        smooth = (phi * phi < xi) & ((1 - phi) * (1 - phi) < 1 - xi) & (abs(step) < math.inf)
        t = where(smooth, step, 0.5)
    return where(enclosed, where(fa <= 0, a, b), unenclosed)


def _enclosed(
    f: Any,
    where: Any,
    ends: list[Any],
    values: list[Any],
    grow: tuple[bool, bool],
    longest: float,
) -> Any:
    """(low, f(low), high, f(high)) with f(low) > 0 >= f(high), where steps lead there."""
    width = ends[1] - ends[0]
    first = where(width > 2.0**-10, width, 2.0**-10)
    for end, other, sign in ((0, 1, -1), (1, 0, 1)):
        step = first
        for _ in range(OUTWARD * grow[end]):
            wrong = (values[end] > 0) == (end == 1)
            if not bool(wrong.any()):
                break
            x = where(wrong, ends[end] + sign * step, ends[end])
            fx = f(x)
            # The secant's step and a tenth; not finite where nothing falls.
            growth = 1.1 * fx / (values[end] - fx)
            growth = where((growth > SHORTEST) & (growth < math.inf), growth, SHORTEST)
            step = step * where(growth < LARGEST, growth, LARGEST)
            step = where(step < longest, step, longest)
            ends[other] = where(wrong, ends[end], ends[other])
            values[other] = where(wrong, values[end], values[other])
            ends[end] = x
            values[end] = fx
    return ends[0], values[0], ends[1], values[1]
