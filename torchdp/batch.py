"""Numbers in batches: functions of tensors, of which one number is the batch of one.

A formula that is often asked for one number is written over ``functions(x)``: torch's for a tensor,
for a float those of ``math`` and ``scipy.special``, which take a hundredth of the time. There is
one formula, and no branch in it.
"""

import inspect
import itertools
import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Protocol, overload

import numpy as np
import torch
from scipy import special
from torch import Tensor

from torchdp import checks

# of a name and one number; passes what lies between two numbers that it passes
Check = Callable[..., float]
# in a signature: a number, or a batch of them
Numbers = Any
# what a batch may be given as
MANY = (Tensor, np.ndarray, list, tuple)
# answers to numbers that are not computed again: calibrations ask for the same ones
KEPT = 2**10
# entries of a batch: the many temporaries of a formula are of this size, not of the batch's
AT_ONCE = 2**16


class Entrywise(Protocol):
    """Takes numbers, or batches that broadcast.

    Returns a float where all are numbers, else a float64 tensor.
    """

    @overload
    def __call__(self, *values: float, **named: float) -> float: ...

    @overload
    def __call__(self, *values: Any, **named: Any) -> Tensor: ...


def entrywise(
    at_once: int = AT_ONCE, /, *, of_floats: bool = False, **checked: Check
) -> Callable[[Callable[..., Tensor]], Entrywise]:
    """Makes a function of float64 tensors (entries,) one of numbers and batches that broadcast.

    The function answers each entry by itself, with NaN where there is no answer. Refusals name the
    index of the first entry that is refused. What is made raises TypeError, ValueError.

    Args:
        at_once: entries, at most.
        of_floats: whether the function also takes floats and returns one, written over
            ``functions``.
        checked: the function's arguments in order, and the check of one number.
    """

    def decorate(function: Callable[..., Tensor]) -> Entrywise:
        signature = inspect.signature(function)
        names = ", ".join(checked)

        def of_batch(*values: Any) -> Tensor:
            entries = [
                each(check, name, value)
                for (name, check), value in zip(checked.items(), values, strict=True)
            ]
            shape, flat = _broadcast(names, entries)
            parts = zip(*(entry.split(at_once) for entry in flat), strict=True)
            answers = [function(**dict(zip(checked, part, strict=True))) for part in parts]
            answer = torch.cat(answers).view(shape)
            # One question to the device, after all parts are under way.
            missing = answer.isnan()
            if bool(missing.any()):
                index = missing.nonzero()[0].tolist()
                raise ValueError(f"{names}: no answer is found at index {index}")
            return answer

        # typed: 1, 1.0 and True are equal, but a check may take one of them alone.
        @lru_cache(KEPT, typed=True)
        def of_numbers(*values: Any) -> float:
            if not of_floats:
                return float(of_batch(*values))
            numbers = {
                name: check(name, value)
                for (name, check), value in zip(checked.items(), values, strict=True)
            }
            answer = float(function(**numbers))
            if math.isnan(answer):
                raise ValueError(f"{names}: no answer is found for {[*numbers.values()]}")
            return answer

        defaults = tuple(parameter.default for parameter in signature.parameters.values())

        def arguments(values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
            """In order, defaults included."""
            left = defaults[len(values) :]
            # The usual call, of positions alone: a signature would take longer than the formula.
            if not named and len(values) <= len(defaults) and inspect.Parameter.empty not in left:
                return values + left
            bound = signature.bind(*values, **named)
            bound.apply_defaults()
            return tuple(bound.arguments.values())

        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            values = arguments(values, named)
            if all(isinstance(value, int | float) for value in values):
                return of_numbers(*values)
            answer = of_batch(*values)
            return answer if any(isinstance(value, MANY) for value in values) else float(answer)

        return call

    return decorate


def _broadcast(names: str, entries: list[Tensor]) -> tuple[tuple[int, ...], list[Tensor]]:
    """The shape to which tensors broadcast, and them in one dimension, on one device."""
    shapes = [tuple(entry.shape) for entry in entries]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ValueError(f"{names} must have shapes that broadcast, not {shapes}") from error
    # Numbers lie on the CPU: where a tensor is elsewhere, they go to it.
    devices = [entry.device for entry in entries if entry.device.type != "cpu"]
    device = devices[0] if devices else torch.device("cpu")
    return shape, [entry.to(device).expand(shape).reshape(-1) for entry in entries]


def each(check: Check, name: str, value: Any) -> Tensor:
    """``value``, a number or a batch of them, as float64, each one checked.

    Raises TypeError, ValueError.
    """
    if not isinstance(value, MANY):
        return torch.tensor(check(name, value), dtype=torch.float64, device="cpu")
    try:
        given = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
        if given.dtype == torch.bool:
            raise TypeError("no numbers")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a number or hold numbers, in rows of one length"
        ) from error
    entries = checks.real(name, given).detach().double()
    try:
        # a check passes what lies between two numbers that it passes
        for end in checks.ends(entries)[0] if entries.numel() else ():
            check(name, end)
    except ValueError:
        # One by one only now, to name the first that is refused.
        for index in itertools.product(*map(range, entries.shape)):
            check(f"{name}{list(index)}" if index else name, float(entries[index]))
    return entries


def chosen(condition: Tensor, yes: Callable[[], Tensor], no: Callable[[], Tensor]) -> Tensor:
    """``torch.where(condition, yes(), no())``; on a CPU without the one that no entry chooses."""
    # Elsewhere the host would have to wait for the device's answer to the question.
    if condition.device.type == "cpu":
        if bool(condition.all()):
            return yes()
        if not bool(condition.any()):
            return no()
    return torch.where(condition, yes(), no())


def added(terms: Tensor) -> Tensor:
    """The sum over the first dimension, in one order, whatever the other dimensions are.

    Halves are added to halves.
    """
    # torch.sum orders terms by the shape: an entry's bits would depend on its batch.
    while len(terms) > 1:
        half = len(terms) // 2
        odd = terms[2 * half :]
        terms = torch.cat([terms[:half] + terms[half : 2 * half], odd])
    return terms[0]


class OfTensors:
    """What formulas call, of float64 tensors: each entry by itself."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    sqrt = staticmethod(torch.sqrt)
    erfcx = staticmethod(torch.special.erfcx)
    log_ndtr = staticmethod(torch.special.log_ndtr)
    clip = staticmethod(torch.clamp)
    where = staticmethod(torch.where)
    maximum = staticmethod(torch.maximum)
    chosen = staticmethod(chosen)
    added = staticmethod(added)


class OfFloats:
    """The same of floats, with the values at the ends that tensors have: no overflow raises."""

    sqrt = staticmethod(math.sqrt)
    erfcx = staticmethod(special.erfcx)
    maximum = staticmethod(max)

    @staticmethod
    def exp(x: float) -> float:
        # e^709 is as good as infinite. Of NaN, NaN.
        return math.inf if x > 709.0 else math.exp(x)

    @staticmethod
    def log(x: float) -> float:
        if x > 0:
            return math.log(x)
        return -math.inf if x == 0 else math.nan

    @staticmethod
    def log1p(x: float) -> float:
        if x > -1:
            return math.log1p(x)
        return -math.inf if x == -1 else math.nan

    @staticmethod
    def log_ndtr(x: float) -> float:
        return float(special.log_ndtr(x))

    @staticmethod
    def clip(x: float, low: float | None = None, high: float | None = None) -> float:
        # Comparisons with NaN are false: it comes back as it is, as from torch.clamp.
        if low is not None and x < low:
            return low
        return high if high is not None and x > high else x

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no

    @staticmethod
    def chosen(condition: bool, yes: Callable[[], float], no: Callable[[], float]) -> float:
        return yes() if condition else no()

    @staticmethod
    def added(terms: Any) -> float:
        return float(terms.sum())


def functions(x: Any) -> Any:
    """Those of tensors where x is one, else those of floats."""
    return OfTensors if isinstance(x, Tensor) else OfFloats
