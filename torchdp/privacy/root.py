"""One safeguarded root for every calibration: of a number, or of each entry of a tensor; it ends on the safe side."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

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
        excess: elementwise, float64; a NaN of it counts as unsafe.
        low: a guess of the bracket's lower end, a float, or a float64 tensor for a batch.
        high: of its upper end, above ``low``, likewise.
        tolerance: of x, absolute.
        grow: whether the lower end may move, and the upper one.
        longest: of the steps by which they move.

    Guarantees: excess(x) <= 0 as evaluated; some x' >= x - max(tolerance, 4 ulp) below it has excess(x') > 0. Where
        ``low`` is safe and must not move: low itself. NaN where no safe point was found.
    Source: Chandrupatla (1997), hybrid of bisection and inverse quadratic interpolation.
    """
    by = _TENSORS if isinstance(low, Tensor) or isinstance(high, Tensor) else _FLOATS
    low, high = by.both(low, high)

    def f(x: Any) -> Any:
        return by.sound(excess(x))

    b, fb, a, fa = _enclosed(f, low, high, grow, longest, by)  # a is the newest point, b the other side
    found, alone = (fb > 0) & (fa <= 0), by.where(fb <= 0, b, math.nan)
    c, fc, t = b, fb, 0.5
    every = ASKED if isinstance(a, Tensor) and a.device.type != "cpu" else 1
    for turn in range(ROUNDS):
        room = by.over(by.larger(ULPS * abs(a), tolerance), abs(b - a))
        open_ = found & (room < 1)
        if turn % every == 0 and not by.any(open_):
            break
        x = by.where(open_, a + by.larger(by.smaller(1 - room / 2, t), room / 2) * (b - a), a)
        fx = f(x)
        same, crossed = open_ & ((fx > 0) == (fa > 0)), open_ & ((fx > 0) != (fa > 0))
        c, fc = by.where(same, a, by.where(crossed, b, c)), by.where(same, fa, by.where(crossed, fb, fc))
        b, fb = by.where(crossed, a, b), by.where(crossed, fa, fb)
        a, fa = by.where(open_, x, a), by.where(open_, fx, fa)
        xi, phi = by.over(a - b, c - b), by.over(fa - fb, fc - fb)
        step = by.over(fa, fb - fa) * by.over(fc, fb - fc)
        step = step + by.over(c - a, b - a) * by.over(fa, fc - fa) * by.over(fb, fc - fb)
        smooth = (phi * phi < xi) & ((1 - phi) * (1 - phi) < 1 - xi) & (abs(step) < math.inf)
        t = by.where(smooth, step, 0.5)
    return by.where(found, by.where(fa <= 0, a, b), alone)


def _enclosed(
    f: Callable[[Any], Any], low: Any, high: Any, grow: tuple[bool, bool], longest: float, by: "_Arithmetic"
) -> tuple[Any, Any, Any, Any]:
    """(low, f(low), high, f(high)) with f(low) > 0 >= f(high), where steps lead there."""
    at, value, first = [low, high], [f(low), f(high)], by.larger(high - low, 2.0**-10)
    for end, other, sign in ((0, 1, -1), (1, 0, 1)):
        step = first
        for _ in range(OUTWARD * grow[end]):
            wrong = (value[end] > 0) == (end == 1)
            if not by.any(wrong):
                break
            x = by.where(wrong, at[end] + sign * step, at[end])
            fx = f(x)
            growth = by.over(1.1 * fx, value[end] - fx)  # not finite where nothing falls
            growth = by.smaller(by.larger(by.where(abs(growth) < math.inf, growth, LEAST), LEAST), MOST)
            step = by.smaller(step * growth, longest)
            at[other], value[other] = (
                by.where(wrong, at[end], at[other]),
                by.where(wrong, value[end], value[other]),
            )
            at[end], value[end] = x, fx
    return at[0], value[0], at[1], value[1]


class _Arithmetic(NamedTuple):
    """What the method asks of numbers beside +, -, * and comparisons."""

    both: Callable[[Any, Any], tuple[Any, Any]]
    sound: Callable[[Any], Any]  # NaN is unsafe
    where: Callable[[Any, Any, Any], Any]
    larger: Callable[[Any, Any], Any]
    smaller: Callable[[Any, Any], Any]
    over: Callable[[Any, Any], Any]  # a quotient; by 0 it is not finite
    any: Callable[[Any], bool]


def _broadcast(low: Tensor | float, high: Tensor | float) -> tuple[Tensor, Tensor]:
    device = next(end.device for end in (low, high) if isinstance(end, Tensor))
    ends = (torch.as_tensor(end, dtype=torch.float64, device=device) for end in (low, high))
    one, other = torch.broadcast_tensors(*ends)
    return one, other


_FLOATS = _Arithmetic(
    lambda low, high: (float(low), float(high)),
    lambda value: math.inf if value != value else float(value),
    lambda which, yes, no: yes if which else no,
    max,
    min,
    lambda part, whole: part / whole if whole else math.nan,
    bool,
)
_TENSORS = _Arithmetic(
    _broadcast,
    lambda value: value.nan_to_num(math.inf, math.inf, -math.inf),
    torch.where,
    torch.clamp_min,
    torch.clamp_max,
    torch.divide,
    lambda which: bool(which.any()),
)
