"""Argument checks: every message names the argument, what it is, and what would be right."""

import dataclasses
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchdp.memory import numbers_that_fit

# The square of a number up to here is finite, the square of its inverse is no zero.
LARGEST = 1e150
# Whole numbers up to here are exact in float64.
MOST = 2**53
StrPath = str | os.PathLike[str]
"""The name of a file or folder."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def positive(name: str, value: float) -> float:
    """``value`` as a finite float > 0. Raises ValueError."""
    number = _number(name, value)
    # "not within", here and below: NaN fails every comparison.
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, not {value!r}")
    return number


def non_negative(name: str, value: float) -> float:
    """``value`` as a finite float >= 0. Raises ValueError."""
    number = _number(name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a finite number >= 0, not {value!r}")
    return number


def squarable(name: str, value: float, power: int = 2) -> float:
    """``value`` as a float whose power, the square, is one, and that of its inverse: a scale.

    Raises ValueError.
    """
    number = positive(name, value)
    # The power is then at most LARGEST^2, and that of the inverse at least its inverse.
    largest = LARGEST ** (2 / power)
    if not 1 / largest <= number <= largest:
        raise ValueError(
            f"{name} must lie between {1 / largest:.0e} and {largest:.0e}, not be {value!r}: "
            "its powers are no floats; "
            "bring it nearer to 1, by another unit where it has one"
        )
    return number


def within(name: str, value: float, low: float, high: float, remedy: str = "") -> float:
    """``value`` as a float in [low, high]. Raises ValueError."""
    number = _number(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], not {value!r}{remedy}")
    return number


def fraction(name: str, value: float) -> float:
    """``value`` as a float in (0, 1). Raises ValueError."""
    number = _number(name, value)
    if not 0 < number < 1:
        # What is written in per cent.
        meant = f": did you mean {number / 100:g}?" if 1 < number < 100 else ""
        raise ValueError(f"{name} must lie strictly between 0 and 1, not {value!r}{meant}")
    return number


def below_one(name: str, value: float) -> float:
    """``value`` as a float in [0, 1). Raises ValueError."""
    number = _number(name, value)
    if not 0 <= number < 1:
        raise ValueError(f"{name} must lie in [0, 1), not {value!r}")
    return number


def integer(name: str, value: int | Tensor, least: int, most: int = MOST) -> int:
    """``value`` as an int in [least, most]. Raises ValueError."""
    # __index__ is what whole numbers have: 3.0, or a text of digits, is a mistake.
    number = None
    if not isinstance(value, bool):
        # RuntimeError: a tensor with several entries
        with suppress(TypeError, ValueError, RuntimeError):
            number = operator.index(value)
    if number is None or number < least:
        # never data
        shown = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
        raise ValueError(f"{name} must be an integer >= {least}, not {shown}")
    if number > most:
        raise ValueError(f"{name} must be an integer of at most {most}, not {value!r}")
    return number


def count(name: str, value: int) -> int:
    """``value`` as an int of at least 1. Raises ValueError."""
    return integer(name, value, 1)


def fits(
    name: str, *sizes: int, most: int | None = None, copies: int = 1, remedy: str = "ask for less"
) -> None:
    """Refuses a tensor that is too large before it is asked for. Raises ValueError.

    Args:
        name: of the tensor, or of the argument that decides its size.
        sizes: of its dimensions.
        most: numbers that it may hold; None: as many as the free memory has room for
            (``memory.numbers_that_fit``).
        copies: of its size that the call holds at the same time.
        remedy: what to do instead.
    """
    # Of Python's integers, so that the product does not wrap around.
    numbers = math.prod(sizes)
    largest = numbers_that_fit(copies) if most is None else most
    if numbers > largest:
        shape = " x ".join(map(str, sizes))
        of_copies = f", {copies} times" if copies > 1 else ""
        raise ValueError(f"{name} would hold {shape} numbers{of_copies}, over {largest}; {remedy}")


def shaped(
    name: str, value: Tensor, *sizes: int | str | EllipsisType, note: str = "", empty: bool = False
) -> Tensor:
    """``value``, if it has these sizes. Raises ValueError.

    Args:
        name: of the argument.
        value: a tensor.
        sizes: a word stands for a size, one and the same wherever it is, of at least 1 unless
            ``empty``; after ``...`` they are the last ones.
        note: on the message.
        empty: whether a size that is a word may be 0.
    """
    actual = tuple(value.shape)
    known: dict[str, int] = {}
    wanted = [size for size in sizes if size is not ...]
    extra = len(actual) - len(wanted)
    fits = extra == 0 or (extra > 0 and ... in sizes)
    # From the last size on: what ``...`` stands for comes first.
    for want, size in zip(reversed(wanted), reversed(actual), strict=False):
        if isinstance(want, str):
            fits = fits and size == known.setdefault(want, size) and (size > 0 or empty)
        else:
            fits = fits and size == want
    if not fits:
        shown = ", ".join("..." if size is ... else str(size) for size in sizes)
        comma = "," if len(sizes) == 1 else ""
        raise ValueError(f"{name} must have shape ({shown}{comma}){note}, not {actual}")
    return value


T = TypeVar("T")


def instance(name: str, value: object, kind: type[T] | tuple[type[T], ...]) -> T:
    """``value``, if it is of one of these types. Raises TypeError."""
    if not isinstance(value, kind):
        remedy = "; torch.as_tensor makes one of an array or a list" if kind is Tensor else ""
        raise TypeError(f"{name} must be a {_named(kind)}, not {type(value).__name__}{remedy}")
    return value


def _named(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("torch.Tensor" if kind is Tensor else kind.__name__ for kind in kinds)


def several(name: str, value: object, kind: type[T]) -> list[T]:
    """``each_of``, at least one of them. Raises TypeError, ValueError."""
    parts = each_of(name, value, kind)
    if not parts:
        raise ValueError(f"{name} must hold at least one {kind.__name__}")
    return parts


def each_of(name: str, value: object, kind: type[T] | tuple[type[T], ...]) -> list[T]:
    """``value``, a sequence of such objects, if only an empty one, as a list. Raises TypeError."""
    # A str is a sequence too, of its characters.
    if isinstance(value, str | Tensor) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of {_named(kind)}, not {type(value).__name__}")
    return [instance(f"each of {name}", part, kind) for part in value]


def path(name: str, value: object) -> Path:
    """``value``, the name of a file or folder. Raises TypeError; an open file's number is none."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(
            f"{name} must be a path, a str or an os.PathLike, not {type(value).__name__}"
        )
    return Path(value)


def function(name: str, value: object) -> Callable[..., Any]:
    """``value``, if it can be called. Raises TypeError."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {type(value).__name__}")
    return value


@contextmanager
def needing(what: str, *packages: str) -> Iterator[None]:
    """Imports inside that fail are said of ``what``, with these distributions as the remedy.

    Raises ImportError.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} needs {packages[0]} ({error}): pip install {' '.join(packages)}"
        ) from error


def device(name: str, value: torch.device | str) -> torch.device:
    """``value`` as a device that exists here. Raises TypeError, ValueError."""
    if not isinstance(value, torch.device | str):
        raise TypeError(
            f"{name} must be a torch.device or a string such as 'cpu', not {type(value).__name__}"
        )
    try:
        place = torch.device(value)
        torch.empty(0, device=place)  # a name alone says nothing of this machine
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = "'cpu', as torch sees no CUDA device here"
        if torch.cuda.is_available():
            here = "such as 'cuda:0'"
        raise ValueError(
            f"{name} must be a device of this machine, {here}, not {value!r}"
        ) from error
    if place.type == "meta":
        raise ValueError(f"{name} must hold data, not be 'meta'")
    return place


def device_or_best(name: str, value: torch.device | str | None) -> torch.device:
    """As :func:`device`; for None the first CUDA device, or the CPU where there is none."""
    if value is None:
        value = "cuda:0" if torch.cuda.is_available() else "cpu"
    return device(name, value)


def matrix(name: str, value: Tensor, most: float = math.inf) -> Tensor:
    """``floating``, as a non-empty tensor of shape (..., m, n). Raises TypeError, ValueError."""
    value = floating(name, value, most)
    if value.ndim < 2 or 0 in value.shape:
        raise ValueError(
            f"{name} must be a non-empty (..., m, n) tensor, not of shape {tuple(value.shape)}"
        )
    return value


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor itself; an array, lists or a table of numbers as a new tensor. Raises TypeError."""
    if isinstance(value, Tensor):
        return value
    try:
        # A copy, since torch takes no negative strides and warns of memory not to be written to.
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a tensor, an array or lists of numbers, not {type(value).__name__}"
        ) from error


def one_matrix(name: str, value: Tensor) -> Tensor:
    """``value`` as one finite matrix (m, n) of float64, without its history.

    Raises TypeError, ValueError.
    """
    value = matrix(name, value)
    if value.ndim != 2:
        raise ValueError(f"{name} must be one matrix, not of shape {tuple(value.shape)}")
    return value.detach().double()


def floating(name: str, value: Tensor, most: float = math.inf) -> Tensor:
    """``value`` as a finite real floating tensor (integers become float64).

    most: of the entries in size; squares of larger ones than ``LARGEST`` may be no floats. Raises
    TypeError, ValueError.
    """
    value = real(name, value)
    ((low, high),) = finite(**{name: value})
    if max(-low, high) > most:
        raise ValueError(f"{name} must hold numbers of at most {most:g} in size; change the unit")
    return value


def read(*numbers: Tensor) -> list[float]:
    """Numbers, each a tensor () of one device, as floats: the device is waited for once."""
    if not numbers:
        return []
    # Each read of a device waits for it: one for all.
    return torch.stack([number.double() for number in numbers]).tolist()


def ends(*values: Tensor) -> list[tuple[float, float]]:
    """(least, largest) entry of each real tensor, NaN where one is; (0, 0) of an empty one.

    One ``read``.
    """
    held = [value.detach().aminmax() for value in values if value.numel()]
    numbers = iter(read(*(end for pair in held for end in pair)))
    return [(next(numbers), next(numbers)) if value.numel() else (0.0, 0.0) for value in values]


def finite(**values: Tensor) -> list[tuple[float, float]]:
    """``ends`` of these real tensors. Raises ValueError, by their names, for NaN and infinity."""
    # The ends are NaN where one entry is.
    pairs = ends(*values.values())
    for name, (low, high) in zip(values, pairs, strict=True):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name} holds NaN or infinite entries; remove them before the call")
    return pairs


def real(name: str, value: Tensor) -> Tensor:
    """``value`` as a real floating tensor (integers become float64), its entries unread.

    Raises TypeError.
    """
    value = dense(name, value)
    if value.is_complex():
        raise TypeError(f"{name} must be real, not {value.dtype}")
    return value if value.is_floating_point() else value.to(torch.float64)


def precise(name: str, value: Tensor) -> Tensor:
    """``real``, if it is float32 or float64: fewer digits move users' numbers over a bound.

    Raises TypeError.
    """
    value = real(name, value)
    if value.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, not {value.dtype}; call .float()")
    return value


def typed(name: str, value: object, *dtypes: torch.dtype, note: str = "") -> Tensor:
    """``value``, if it is a dense tensor of one of these types; note: on the message.

    Raises TypeError.
    """
    if not isinstance(value, Tensor):
        actual = type(value).__name__
    elif value.dtype in dtypes:
        return dense(name, value)
    else:
        actual = str(value.dtype)
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    raise TypeError(f"{name} must be a tensor of {kinds}{note}, not {actual}")


def validated(record: object, *names: str) -> None:
    """Computes these properties of an object, so that what they refuse is refused here.

    names: such as "a" or "a.b".
    """
    for name in names:
        operator.attrgetter(name)(record)


def own(record: Any) -> None:
    """A frozen dataclass's tensors become copies.

    Whoever gave them may change theirs, and moves no guarantee.
    """
    for field in dataclasses.fields(record):
        value = getattr(record, field.name, None)
        if isinstance(value, Tensor):
            object.__setattr__(record, field.name, value.clone())
        elif isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
            parts = tuple(part.clone() if isinstance(part, Tensor) else part for part in value)
            object.__setattr__(record, field.name, parts)


def moved(record: T, device: torch.device | str) -> T:
    """A frozen dataclass with all that it holds on ``device``; itself where nothing has to move."""
    there = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        new = tuple(part.to(device) if hasattr(part, "to") else part for part in parts)
        if any(one is not other for one, other in zip(new, parts, strict=True)):
            there[field.name] = new if isinstance(value, tuple) else new[0]
    return dataclasses.replace(record, **there) if there else record  # type: ignore[type-var]


def keep(record: Any, **checked: Callable[[str, Any], Any]) -> None:
    """Each field named of a frozen dataclass becomes what its check returns.

    checked: called with the name and the value.
    """
    for name, check in checked.items():
        # The record is frozen: object's own __setattr__ writes to it, before anybody else has it.
        object.__setattr__(record, name, check(name, getattr(record, name)))


def dense(name: str, value: Tensor) -> Tensor:
    """``value``, if it is a strided tensor with data, of a type that torch computes with.

    Raises TypeError.
    """
    value = instance(name, value, Tensor)
    if value.layout != torch.strided or value.device.type == "meta" or value.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor with data; call .to_dense() or materialise it first"
        )
    if value.dtype not in FLOATS + INTEGERS + (torch.bool, torch.complex64, torch.complex128):
        raise TypeError(
            f"{name} must be of a type that torch computes with, not {value.dtype}; call .double()"
        )
    return value


def indices(name: str, value: Tensor, k: int) -> Tensor:
    """``value`` as int64 entries in [0, k). Raises TypeError, ValueError."""
    return whole_below(name, value, k).to(torch.int64)


def types(name: str, value: Tensor, k: int, widen: bool = True) -> Tensor:
    """``value``, (n,) types below k, n >= 1; int64, or of any width.

    Raises TypeError, ValueError.
    """
    value = whole_below(name, value, k)
    if widen:
        value = value.to(torch.int64)
    return shaped(name, value, "n", note=" with n >= 1, one type for each user")


def whole_below(name: str, value: Tensor, k: int) -> Tensor:
    """``value`` itself, integers of any width in [0, k). Raises TypeError, ValueError."""
    value = integers(name, value)
    if value.numel():
        # Both ends at once: each read waits for the device.
        least, most = torch.stack(value.aminmax()).tolist()
        if least < 0 or most >= k:
            raise ValueError(
                f"{name} must lie in [0, {k}), counted from 0; it holds values outside"
            )
    return value


def integers(name: str, value: Tensor) -> Tensor:
    """``value``, if it is a dense tensor of integers. Raises TypeError."""
    value = instance(name, value, Tensor)
    if value.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch does not compare them
        raise TypeError(
            f"{name} must be signed integers or uint8, not {value.dtype}; call .to(torch.int64)"
        )
    if dense(name, value).dtype not in INTEGERS:
        raise TypeError(
            f"{name} must be an integer tensor, not {value.dtype}; call .to(torch.int64) "
            "if it holds whole numbers, else torch.bucketize with public edges"
        )
    return value


def counts(name: str, value: Tensor, k: int, most: int = MOST, fewest: int = 0) -> Tensor:
    """``value`` as int64 counts (*batch, k), each >= 0, of fewest to most users.

    Raises TypeError, ValueError.
    """
    value = shaped(name, dense(name, value), ..., k, note=", one count for each type")
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must hold whole numbers, not {value.dtype}")
    if not value.numel():
        if k:
            raise ValueError(
                f"{name} must hold a batch of at least one, not shape {tuple(value.shape)}"
            )
        return value.to(torch.int64)
    # In float64: a sum of int64 could wrap around to a number that passes.
    totals = value.detach().sum(-1, dtype=torch.float64)
    # all that is looked at, in one question to the device
    least, largest = value.detach().aminmax()
    numbers = [least, largest, totals.amin(), totals.amax()]
    if value.is_floating_point():
        numbers.append((value != value.round()).any())
    low, high, smallest, total, *broken = read(*numbers)
    # The difference is no number where one end is infinite or NaN.
    if not math.isfinite(high - low) or any(broken):
        wrong = ((value != value.round()) | ~value.isfinite()).any(-1)
        raise ValueError(f"{name} must hold whole numbers of users{at(wrong)}")
    if low < 0:
        raise ValueError(f"{name} must hold no negative counts{at((value < 0).any(-1))}")
    if total > most:
        raise ValueError(
            f"{name} must add up to at most {most} users{at(totals > most)}; draw more in parts"
        )
    if smallest < fewest:
        raise ValueError(f"{name} must count at least one user{at(totals < fewest)}")
    return value.to(torch.int64)


def people(name: str, value: int | Tensor, least: int, most: int = MOST) -> int | Tensor:
    """``value``, a number of users, or (*batch) int64 of them, each in [least, most].

    Raises ValueError.
    """
    if not isinstance(value, Tensor) or not value.ndim:
        return integer(name, value, least, most)
    wrong = (integers(name, value) < least) | (value > most)
    if not value.numel() or bool(wrong.any()):
        where = at(wrong) if value.numel() else f", not a batch {tuple(value.shape)} of none"
        raise ValueError(f"{name} must be an integer >= {least}, at most {most}{where}")
    return value.to(torch.int64)


def at(wrong: Tensor) -> str:
    """Where a batch is wrong, by its mask (*batch): the first index; "" of no batch."""
    # The place alone: entries may be data.
    return f" at batch index {tuple(wrong.nonzero()[0].tolist())}" if wrong.ndim else ""


def users(name: str, value: Tensor, k: int, most: float = MOST) -> Tensor:
    """``value`` as numbers of users (*batch, k) in [0, most], float64, not all 0.

    Real numbers will do. Raises TypeError, ValueError.
    """
    if dense(name, value).dtype == torch.bool:
        raise TypeError(f"{name} must hold numbers of users, not {value.dtype}")
    value = shaped(name, real(name, value), ..., k)
    # A row whose largest number is 0 has no users.
    entries, fullest = finite(**{name: value, f"rows of {name}": value.amax(-1)})
    if entries[0] < 0 or entries[1] > most or not fullest[0]:
        wrong = ((value < 0) | (value > most)).any(-1) | ~value.any(-1)
        raise ValueError(
            f"{name} must count users: no negative number, none above {most:g}, "
            f"not all 0{at(wrong)}"
        )
    return value.double()


def shares(name: str, value: Tensor, k: int, positive: bool = False) -> Tensor:
    """``value`` (k,), no negative entry (or no zero), scaled to sum 1, float64.

    Raises TypeError, ValueError.
    """
    value = real(name, value).double()
    ((low, high),) = finite(**{name: value})
    # high = 0 means that all are, and no factor makes them add up to 1.
    if value.shape != (k,) or low < 0 or not high or (positive and not low):
        kind = "positive" if positive else "not negative, with a positive sum"
        raise ValueError(f"{name} must be ({k},), {kind}, not of shape {tuple(value.shape)}")
    return value / value.sum()


def beside(name: str, value: Tensor, other: str, device: torch.device) -> Tensor:
    """``value``, if it is on ``device``, that of ``other``. Raises ValueError."""
    if value.device != device:
        raise ValueError(
            f"{name} must be on {device}, where {other} is, not on {value.device}; move one of them"
        )
    return value


def random_source(
    generator: torch.Generator, device: torch.device | None = None
) -> torch.Generator:
    """A generator, on ``device`` where one is given. Raises TypeError, ValueError."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, not {type(generator).__name__}; "
            "make one with torch.Generator(device).manual_seed(seed)"
        )
    if device is not None and generator.device.type != device.type:
        raise ValueError(
            f"generator is on {generator.device}, the data on {device}; make it on {device}"
        )
    return generator


def sample_shape(value: Sequence[int]) -> tuple[int, ...]:
    """The leading shape of independent repetitions. Raises ValueError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(
            f"sample_shape must be a tuple of integers, such as (1000,) or (), not {value!r}"
        )
    return tuple(integer("sample_shape", size, 0) for size in value)


def _number(name: str, value: float) -> float:
    """``value`` as a float. Raises ValueError."""
    # float takes them, and who passes one has mixed up arguments
    if isinstance(value, bool | str | bytes | None):
        raise ValueError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{name} must be a number, not {type(value).__name__}") from error
