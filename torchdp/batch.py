"""Numbers in batches: functions of tensors, of which one number is the batch of one."""

import itertools
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks

Check = Callable[[str, Any], float]  # of one number; passes what lies between two numbers that it passes
MANY = (Tensor, np.ndarray, list, tuple)  # what a batch may be given as
KEPT = 2**10  # answers to numbers that are not computed again
AT_ONCE = 2**16  # entries of a batch


def entrywise(function: Callable[..., Tensor], at_once: int = AT_ONCE, /, **arguments: tuple[Any, Check]) -> Any:
    """``function`` of numbers and batches that broadcast: a float where all are numbers, else a float64 tensor.

    function: of float64 tensors (entries,) in this order, at most ``at_once`` entries; each is answered by itself, with
    NaN where there is no answer. arguments: each one, and the check of one number of it. Refusals name the index of the
    first entry that is refused. Raises TypeError, ValueError.
    """
    values = [value for value, _ in arguments.values()]
    checked = tuple((name, check) for name, (_, check) in arguments.items())
    if all(isinstance(value, int | float) for value in values) and _stands_alone(function):
        return _of_numbers(function, checked, *values)
    found = _of_batch(function, checked, *values, at_once=at_once)
    return found if any(isinstance(value, MANY) for value in values) else float(found)


def _stands_alone(function: Callable[..., Tensor]) -> bool:
    """Whether its answers hang on its arguments alone."""
    return isinstance(function, FunctionType) and function.__closure__ is None


@lru_cache(KEPT, typed=True)
def _of_numbers(function: Callable[..., Tensor], checked: tuple[tuple[str, Check], ...], *values: float) -> float:
    return float(_of_batch(function, checked, *values))


def _of_batch(
    function: Callable[..., Tensor], checked: tuple[tuple[str, Check], ...], *values: Any, at_once: int = AT_ONCE
) -> Tensor:
    entries = [each(check, name, value) for (name, check), value in zip(checked, values, strict=True)]
    device = next((one.device for one in entries if one.device.type != "cpu"), torch.device("cpu"))
    names, shapes = ", ".join(name for name, _ in checked), [tuple(one.shape) for one in entries]
    try:
        shape = torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        raise ValueError(f"{names} must have shapes that broadcast, not {shapes}") from error
    parts = zip(*(one.to(device).expand(shape).reshape(-1).split(at_once) for one in entries), strict=True)
    found = torch.cat([function(*part) for part in parts]).view(shape)
    if bool(found.isnan().any()):
        raise ValueError(f"{names}: no answer is found at index {found.isnan().nonzero()[0].tolist()}")
    return found


def each(check: Check, name: str, value: Any) -> Tensor:
    """``value``, a number or a batch of them, as float64, each one checked. Raises TypeError, ValueError."""
    if not isinstance(value, MANY):
        return torch.tensor(check(name, value), dtype=torch.float64, device="cpu")
    try:
        given = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number or hold numbers, in rows of one length") from error
    entries = checks.real(name, given).detach().double()
    try:
        for end in checks.ends(entries)[0] if entries.numel() else ():
            check(name, end)
    except ValueError:
        for index in itertools.product(*map(range, entries.shape)):
            check(f"{name}{list(index)}" if index else name, float(entries[index]))
    return entries


def added(terms: Tensor) -> Tensor:
    """The sum over the first dimension, halves added to halves: in one order, whatever the other dimensions are."""
    while len(terms) > 1:
        half = len(terms) // 2
        pairs, left = terms[:half] + terms[half : 2 * half], terms[2 * half :]
        terms = torch.cat([pairs, left]) if len(left) else pairs
    return terms[0]
