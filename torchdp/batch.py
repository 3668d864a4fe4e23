"""Numbers in batches: functions of tensors, of which one number is the batch of one."""

import itertools
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks

Check = Callable[..., float]  # of a name and one number; passes what lies between two numbers that it passes
MANY = (Tensor, np.ndarray, list, tuple)  # what a batch may be given as
KEPT = 2**10  # answers to numbers that are not computed again
AT_ONCE = 2**16  # entries of a batch


def entrywise(
    at_once: int = AT_ONCE, /, **checked: Check
) -> Callable[[Callable[..., Tensor]], Callable[..., Any]]:
    """Makes a function of numbers and batches that broadcast of one of float64 tensors (entries,), at most ``at_once``.

    What is made returns a float where all are numbers, else a float64 tensor. The function answers each entry by
    itself, with NaN where there is no answer. checked: its arguments in order, and the check of one number of each.
    Refusals name the index of the first entry that is refused. What is made raises TypeError, ValueError.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Any]:
        def of_batch(*values: Any) -> Tensor:
            entries = [
                each(check, name, value) for (name, check), value in zip(checked.items(), values, strict=True)
            ]
            device = next((one.device for one in entries if one.device.type != "cpu"), torch.device("cpu"))
            names, shapes = ", ".join(checked), [tuple(one.shape) for one in entries]
            try:
                shape = torch.broadcast_shapes(*shapes)
            except RuntimeError as error:
                raise ValueError(f"{names} must have shapes that broadcast, not {shapes}") from error
            parts = zip(*(one.to(device).expand(shape).reshape(-1).split(at_once) for one in entries), strict=True)
            found = torch.cat([function(*part) for part in parts]).view(shape)
            if bool(found.isnan().any()):
                raise ValueError(f"{names}: no answer is found at index {found.isnan().nonzero()[0].tolist()}")
            return found

        @lru_cache(KEPT, typed=True)
        def of_numbers(*values: float) -> float:
            return float(of_batch(*values))

        @wraps(function)
        def call(*values: Any) -> Any:
            if all(isinstance(value, int | float) for value in values):
                return of_numbers(*values)
            found = of_batch(*values)
            return found if any(isinstance(value, MANY) for value in values) else float(found)

        return call

    return decorate


def each(check: Check, name: str, value: Any) -> Tensor:
    """``value``, a number or a batch of them, as float64, each one checked. Raises TypeError, ValueError."""
    if not isinstance(value, MANY):
        return torch.tensor(check(name, value), dtype=torch.float64, device="cpu")
    try:
        given = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
        if given.dtype == torch.bool:
            raise TypeError("no numbers")
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
