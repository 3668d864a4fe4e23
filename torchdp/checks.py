"""Argument checks: every message names the argument, what it is, and what would be right."""

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor


def positive(name: str, value: float) -> float:
    """``value`` as a finite float > 0. Raises ValueError."""
    number = _number(name, value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be a finite number > 0, not {value!r}")
    return number


def non_negative(name: str, value: float) -> float:
    """``value`` as a finite float >= 0. Raises ValueError."""
    number = _number(name, value)
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be a finite number >= 0, not {value!r}")
    return number


def fraction(name: str, value: float) -> float:
    """``value`` as a float in (0, 1). Raises ValueError."""
    number = _number(name, value)
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, not {value!r}")
    return number


def integer(name: str, value: int, least: int) -> int:
    """``value`` as an int >= ``least``. Raises ValueError."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor with several entries
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} must be an integer >= {least}, not {value!r}")
    return number


def matrix(name: str, value: Tensor) -> Tensor:
    """``value`` as a finite, non-empty floating tensor of shape (..., m, n). Raises TypeError, ValueError."""
    value = floating(name, value)
    if value.ndim < 2 or 0 in value.shape:
        raise ValueError(f"{name} must be a non-empty (..., m, n) tensor, not of shape {tuple(value.shape)}")
    return value


def floating(name: str, value: Tensor) -> Tensor:
    """``value`` as a finite real floating tensor (integers become float64). Raises TypeError, ValueError."""
    value = real(name, value)
    if not torch.isfinite(value).all():
        raise ValueError(f"{name} holds NaN or infinite entries; remove them before the call")
    return value


def real(name: str, value: Tensor) -> Tensor:
    """``value`` as a real floating tensor (integers become float64), its entries unread. Raises TypeError."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    if value.is_complex():
        raise TypeError(f"{name} must be real, not {value.dtype}")
    if value.layout != torch.strided or value.device.type == "meta":
        raise TypeError(f"{name} must be a dense tensor with data; call .to_dense() or materialise it first")
    return value if value.is_floating_point() else value.to(torch.float64)


def indices(name: str, value: Tensor, k: int) -> Tensor:
    """``value`` as int64 entries in [0, k). Raises TypeError, ValueError."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, not {value.dtype}")
    if value.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch does not compare them
        raise TypeError(
            f"{name} must be a signed integer or uint8 tensor, not {value.dtype}; call .to(torch.int64)"
        )
    if value.numel() and not (0 <= int(value.min()) and int(value.max()) < k):
        raise ValueError(f"{name} must lie in [0, {k}); it holds values outside")
    return value.to(torch.int64)


def counts(name: str, value: Tensor, k: int) -> Tensor:
    """``value`` as int64 counts of shape (k,), each >= 0. Raises TypeError, ValueError."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    if value.shape != (k,):
        raise ValueError(f"{name} must have shape ({k},), one count for each type, not {tuple(value.shape)}")
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must hold whole numbers, not {value.dtype}")
    if value.is_floating_point() and not (torch.isfinite(value).all() and (value == value.round()).all()):
        raise ValueError(f"{name} must hold whole numbers of users")
    if (value < 0).any():
        raise ValueError(f"{name} must hold no negative counts")
    return value.to(torch.int64)


def random_source(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator that lives on ``device``. Raises TypeError, ValueError."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, not {type(generator).__name__}; "
            "make one with torch.Generator(device).manual_seed(seed)"
        )
    if generator.device.type != device.type:
        raise ValueError(
            f"generator is on {generator.device}, the data on {device}; make the generator on {device}"
        )
    return generator


def sample_shape(value: Sequence[int]) -> tuple[int, ...]:
    """The leading shape of independent repetitions. Raises ValueError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"sample_shape must be a tuple of integers, such as (1000,) or (), not {value!r}")
    return tuple(integer("sample_shape", size, 0) for size in value)


def _number(name: str, value: float) -> float:
    if isinstance(value, bool | str | bytes | None):
        raise ValueError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{name} must be a number, not {type(value).__name__}") from error
