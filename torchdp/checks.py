"""Argument checks: every message names the argument, what it is, and what would be right."""

import dataclasses
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchdp.memory import numbers_that_fit

LARGEST = 1e150  # the square of a number up to here is finite, the square of its inverse is no zero
MOST = 2**53  # whole numbers up to here are exact in float64
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def positive(name: str, value: float) -> float:
    """``value`` as a finite float > 0. Raises ValueError."""
    return _that(name, value, lambda number: 0 < number < math.inf, "be a finite number > 0")


def non_negative(name: str, value: float) -> float:
    """``value`` as a finite float >= 0. Raises ValueError."""
    return _that(name, value, lambda number: 0 <= number < math.inf, "be a finite number >= 0")


def squarable(name: str, value: float, power: int = 2) -> float:
    """``value`` as a float whose power, the square, is one, and that of its inverse: a scale.
    Raises ValueError.
    """
    number, largest = positive(name, value), LARGEST ** (2 / power)
    if not 1 / largest <= number <= largest:
        raise ValueError(
            f"{name} must lie between {1 / largest:.0e} and {largest:.0e}, not be {value!r}: its powers are no floats; "
            "bring it nearer to 1, by another unit where it has one"
        )
    return number


def within(name: str, value: float, low: float, high: float, remedy: str = "") -> float:
    """``value`` as a float in [low, high]. Raises ValueError."""
    return _that(
        name, value, lambda number: low <= number <= high, f"lie in [{low:g}, {high:g}]", remedy
    )


def fraction(name: str, value: float) -> float:
    """``value`` as a float in (0, 1). Raises ValueError."""
    return _that(name, value, lambda number: 0 < number < 1, "lie strictly between 0 and 1")


def below_one(name: str, value: float) -> float:
    """``value`` as a float in [0, 1). Raises ValueError."""
    return _that(name, value, lambda number: 0 <= number < 1, "lie in [0, 1)")


def integer(name: str, value: int | Tensor, least: int, most: int = MOST) -> int:
    """``value`` as an int in [least, most]. Raises ValueError."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor with several entries
        number = None
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
    numbers = math.prod(sizes)
    largest = numbers_that_fit(copies) if most is None else most
    if numbers > largest:
        shape = " x ".join(map(str, sizes))
        of_copies = f", {copies} times" if copies > 1 else ""
        raise ValueError(f"{name} would hold {shape} numbers{of_copies}, over {largest}; {remedy}")


def shaped(
    name: str, value: Tensor, *sizes: int | str | EllipsisType, note: str = "", empty: bool = False
) -> Tensor:
    """``value``, if it has these sizes; after ``...``, if its last ones are these. Raises
    ValueError.

    A word stands for a size, one and the same wherever it is, of at least 1 unless ``empty``. note:
    on the message.
    """
    known: dict[str, int] = {}
    last, found = [size for size in sizes if size is not ...], tuple(value.shape)
    fits = len(found) == len(last) or (len(last) < len(sizes) and len(found) > len(last))
    for want, size in zip(reversed(last), reversed(found), strict=False):
        own = size == (known.setdefault(want, size) if isinstance(want, str) else want)
        fits = fits and own and (size > 0 or empty or not isinstance(want, str))
    if not fits:
        shown = ", ".join("..." if size is ... else str(size) for size in sizes) + "," * (
            len(sizes) == 1
        )
        raise ValueError(f"{name} must have shape ({shown}){note}, not {found}")
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
    return " or ".join("torch.Tensor" if each is Tensor else each.__name__ for each in kinds)


def several(name: str, value: object, kind: type[T]) -> list[T]:
    """``value``, a sequence of at least one object of this type, as a list. Raises TypeError,
    ValueError.
    """
    found = each_of(name, value, kind)
    if not found:
        raise ValueError(f"{name} must hold at least one {kind.__name__}")
    return found


def each_of(name: str, value: object, kind: type[T] | tuple[type[T], ...]) -> list[T]:
    """``value``, a sequence of such objects, if only an empty one, as a list. Raises TypeError."""
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
    """Imports inside that fail are said of ``what``, with these distributions as the remedy. Raises
    ImportError.
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
        found = torch.device(value)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = (
            "such as 'cuda:0'"
            if torch.cuda.is_available()
            else "'cpu', as torch sees no CUDA device here"
        )
        raise ValueError(
            f"{name} must be a device of this machine, {here}, not {value!r}"
        ) from error
    if found.type == "meta":
        raise ValueError(f"{name} must hold data, not be 'meta'")
    return found


def device_or_best(name: str, value: torch.device | str | None) -> torch.device:
    """As :func:`device`; for None the first CUDA device, or the CPU where there is none."""
    return device(
        name, ("cuda:0" if torch.cuda.is_available() else "cpu") if value is None else value
    )


def matrix(name: str, value: Tensor, most: float = math.inf) -> Tensor:
    """``floating``, as a non-empty tensor of shape (..., m, n). Raises TypeError, ValueError."""
    value = floating(name, value, most)
    if value.ndim < 2 or 0 in value.shape:
        raise ValueError(
            f"{name} must be a non-empty (..., m, n) tensor, not of shape {tuple(value.shape)}"
        )
    return value


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor itself; an array, a list or a table of numbers as a tensor of its own. Raises
    TypeError.
    """
    if isinstance(value, Tensor):
        return value
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a tensor, an array or lists of numbers, not {type(value).__name__}"
        ) from error


def one_matrix(name: str, value: Tensor) -> Tensor:
    """``value`` as one finite matrix (m, n) of float64, without its history. Raises TypeError,
    ValueError.
    """
    value = matrix(name, value)
    if value.ndim != 2:
        raise ValueError(f"{name} must be one matrix, not of shape {tuple(value.shape)}")
    return value.detach().double()


def floating(name: str, value: Tensor, most: float = math.inf) -> Tensor:
    """``value`` as a finite real floating tensor (integers become float64). Raises TypeError,
    ValueError.

    most: of the entries in size; squares of larger ones than ``LARGEST`` may be no floats.
    """
    value = real(name, value)
    if max(map(abs, finite(**{name: value})[0])) > most:
        raise ValueError(f"{name} must hold numbers of at most {most:g} in size; change the unit")
    return value


def read(*numbers: Tensor) -> list[float]:
    """These numbers, each a tensor () of one device, as floats: the device is waited for once."""
    return torch.stack([number.double() for number in numbers]).cpu().tolist() if numbers else []


def ends(*values: Tensor) -> list[tuple[float, float]]:
    """(least, largest) entry of each real tensor, as floats, NaN where one is; (0, 0) of an empty
    one. One ``read``.
    """
    held = [value.detach() for value in values if value.numel()]
    numbers = read(*(end for value in held for end in value.aminmax()))
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [next(pairs) if value.numel() else (0.0, 0.0) for value in values]


def finite(**values: Tensor) -> list[tuple[float, float]]:
    """``ends`` of these real tensors, by their names. Raises ValueError where an entry is not
    finite.
    """
    found = ends(*values.values())
    for name, (low, high) in zip(values, found, strict=True):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name} holds NaN or infinite entries; remove them before the call")
    return found


def real(name: str, value: Tensor) -> Tensor:
    """``value`` as a real floating tensor (integers become float64), its entries unread. Raises
    TypeError.
    """
    value = dense(name, value)
    if value.is_complex():
        raise TypeError(f"{name} must be real, not {value.dtype}")
    return value if value.is_floating_point() else value.to(torch.float64)


def precise(name: str, value: Tensor) -> Tensor:
    """``real``, if users' numbers are float32 or float64: fewer digits move them over a bound.
    Raises TypeError.
    """
    value = real(name, value)
    if value.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, not {value.dtype}; call .float()")
    return value


def typed(name: str, value: object, *dtypes: torch.dtype, note: str = "") -> Tensor:
    """``value``, if it is a dense tensor of one of these types. note: on the message. Raises
    TypeError.
    """
    if not isinstance(value, Tensor) or value.dtype not in dtypes:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        found = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a tensor of {kinds}{note}, not {found}")
    return dense(name, value)


def validated(made: object, *names: str) -> None:
    """Computes these properties of an object, such as "a" or "a.b", so that what they refuse is
    refused here.
    """
    for name in names:
        operator.attrgetter(name)(made)


def own(made: Any) -> None:
    """A frozen dataclass's tensors become copies: whoever gave them may change theirs, and moves no
    guarantee.
    """
    for field in dataclasses.fields(made):
        value = getattr(made, field.name, None)
        if isinstance(value, Tensor):
            object.__setattr__(made, field.name, value.clone())
        elif isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
            parts = tuple(part.clone() if isinstance(part, Tensor) else part for part in value)
            object.__setattr__(made, field.name, parts)


def keep(made: Any, **checked: Callable[[str, Any], Any]) -> None:
    """Each field named of a frozen dataclass becomes what its check, called with the name and the
    value, returns.
    """
    for name, check in checked.items():
        object.__setattr__(made, name, check(name, getattr(made, name)))


def dense(name: str, value: Tensor) -> Tensor:
    """``value``, if it is a strided tensor with data, of a type that torch computes with. Raises
    TypeError.
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
    """``value``, (n,) types below k, n >= 1; int64, or of any width. Raises TypeError,
    ValueError.
    """
    value = indices(name, value, k) if widen else whole_below(name, value, k)
    return shaped(name, value, "n", note=" with n >= 1, one type for each user")


def whole_below(name: str, value: Tensor, k: int) -> Tensor:
    """``value`` itself, integers of any width in [0, k). Raises TypeError, ValueError."""
    value = integers(name, value)
    if value.numel():
        least, most = torch.stack(value.aminmax()).cpu().tolist()
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
        remedy = "call .to(torch.int64) if it holds whole numbers, else torch.bucketize with public edges"
        raise TypeError(f"{name} must be an integer tensor, not {value.dtype}; {remedy}")
    return value


def counts(name: str, value: Tensor, k: int, most: int = MOST, fewest: int = 0) -> Tensor:
    """``value`` as int64 counts (*batch, k), each >= 0, of fewest to most users. Raises TypeError,
    ValueError.
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
    totals = value.detach().sum(-1, dtype=torch.float64)
    parts = [*value.detach().aminmax(), *(totals.aminmax() if totals.ndim else (totals, totals))]
    if value.is_floating_point():
        parts.append((value != value.round()).any())
    least, largest, smallest, total, *broken = read(*parts)
    if not math.isfinite(largest - least) or any(broken):
        wrong = ((value != value.round()) | ~value.isfinite()).any(-1)
        raise ValueError(f"{name} must hold whole numbers of users{at(wrong)}")
    if least < 0:
        raise ValueError(f"{name} must hold no negative counts{at((value < 0).any(-1))}")
    if total > most:
        raise ValueError(
            f"{name} must add up to at most {most} users{at(totals > most)}; draw more in parts"
        )
    if smallest < fewest:
        raise ValueError(f"{name} must count at least one user{at(totals < fewest)}")
    return value.to(torch.int64)


def people(name: str, value: int | Tensor, least: int, most: int = MOST) -> int | Tensor:
    """``value``, a number of users, or (*batch) int64 of them, each in [least, most]. Raises
    ValueError.
    """
    if not isinstance(value, Tensor) or not value.ndim:
        return integer(name, value, least, most)
    wrong = (integers(name, value) < least) | (value > most)
    if not value.numel() or bool(wrong.any()):
        where = at(wrong) if value.numel() else f", not a batch {tuple(value.shape)} of none"
        raise ValueError(f"{name} must be an integer >= {least}, at most {most}{where}")
    return value.to(torch.int64)


def at(wrong: Tensor) -> str:
    """Where a batch is wrong, by its mask (*batch): " at batch index (i, j)" of the first; "" of no
    batch.
    """
    return f" at batch index {tuple(wrong.nonzero()[0].tolist())}" if wrong.ndim else ""


def users(name: str, value: Tensor, k: int, most: float = MOST) -> Tensor:
    """``value`` as numbers of users (*batch, k) in [0, most], float64, not all 0; real numbers will
    do.

    Raises TypeError, ValueError.
    """
    if dense(name, value).dtype == torch.bool:
        raise TypeError(f"{name} must hold numbers of users, not {value.dtype}")
    value = shaped(name, real(name, value), ..., k)
    (low, high), (fullest, _) = finite(**{name: value, f"rows of {name}": value.amax(-1)})
    if low < 0 or high > most or not fullest:
        wrong = ((value < 0) | (value > most)).any(-1) | ~value.any(-1)
        raise ValueError(
            f"{name} must count users: no negative number, none above {most:g}, not all 0{at(wrong)}"
        )
    return value.double()


def shares(name: str, value: Tensor, k: int, positive: bool = False) -> Tensor:
    """``value`` (k,), no negative entry (or no zero), scaled to sum 1, float64. Raises TypeError,
    ValueError.
    """
    value = real(name, value).double()
    ((low, high),) = finite(**{name: value})
    if value.shape != (k,) or low < 0 or not high or (positive and not low):
        kind = "positive" if positive else "not negative, with a positive sum"
        raise ValueError(f"{name} must be ({k},), {kind}, not of shape {tuple(value.shape)}")
    return value / value.sum()


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


def _that(
    name: str, value: float, holds: Callable[[float], bool], words: str, remedy: str = ""
) -> float:
    """``value`` as a float of which this holds. Raises ValueError with these words."""
    if isinstance(value, bool | str | bytes | None):
        raise ValueError(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{name} must be a number, not {type(value).__name__}") from error
    if not holds(number):
        raise ValueError(f"{name} must {words}, not {value!r}{remedy}")
    return number
