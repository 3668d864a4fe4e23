"""Which form of a kernel runs: Triton's on CUDA where it agrees with the reference on a public
call; else plain torch.

``TORCHDP_KERNELS``: auto (default), reference, or fused, which raises RuntimeError where the fused
form can not run. Both forms take the same key and counter, so that a fall-back makes the same
numbers, and no word is used twice.
"""

import os
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

VARIABLE = "TORCHDP_KERNELS"
MODES = ("auto", "fused", "reference")
Call = tuple[tuple[Any, ...], dict[str, Any]]

_lock = threading.RLock()  # of verdicts: threads that come at once try a kernel once


def _renew_lock() -> None:
    """In a forked child, whose parent may have held it in a thread that the child does not have."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def mode() -> str:
    """What TORCHDP_KERNELS says. Raises ValueError."""
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in MODES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(MODES)}, not {chosen!r}")
    return chosen


def keyed(device: torch.device | str) -> bool:
    """Whether sums over users are drawn from a key and a counter, by either form: on CUDA; where
    fused is asked for.
    """
    return torch.device(device).type == "cuda" or mode() == "fused"


class Kernel:
    """An operation in two forms of the same arguments and result: ``plain``, and ``operation`` in
    ``package``.fused.

    Before its first use on a device in a process the fused form meets ``example(device)``, a public
    call that passes its branches, and must agree with ``plain``. ``plain`` does the work of a form
    that differs or fails, with one warning. If an operation works in place, its fused form must
    write in its last launch, so that one which fails, or is not made, has written nothing.

    Args:
        package: the full name of the kernel's package.
        operation: the name of the fused form.
        plain: the reference.
        example: the public call on a device, of as many users, rows or numbers as are asked for.
        tolerance: of real numbers, as a share of the largest.
        slips: in all, of integers that rounding decides.
    """

    def __init__(
        self,
        package: str,
        operation: str,
        plain: Callable[..., Any],
        example: Callable[..., Call],
        tolerance: float = 0.0,
        slips: int = 0,
    ) -> None:
        self.package = package
        self.operation = operation
        self.plain = plain
        self.example = example
        self.tolerance = tolerance
        self.slips = slips
        self.name = f"{package.rpartition('.')[2]}.{operation}"
        self._faults: dict[torch.device, str | None] = {}
        self._told: set[torch.device] = set()

    def __call__(self, where: torch.device | str, /, *arguments: Any, **options: Any) -> Any:
        device = _numbered(where)
        if not self.runs(device):
            return self.plain(*arguments, **options)
        try:
            return self.fused(*arguments, **options)
        except torch.OutOfMemoryError:
            raise  # the reference takes more memory
        except Exception as error:
            fault = self._failure(device, error)
            if mode() == "fused":
                raise RuntimeError(self._refusal(device, fault)) from error
            # a mistake of the caller's raises here and says so
            result = self.plain(*arguments, **options)
            self._faults[device] = fault
            self._tell(device, fault)
            return result

    @property
    def fused(self) -> Callable[..., Any]:
        """The fused form. Raises what its import does."""
        return getattr(import_module(self.package + ".fused"), self.operation)

    def runs(self, device: torch.device) -> bool:
        """Whether the fused form does the work on this device. Raises RuntimeError, ValueError."""
        chosen = mode()
        if not _wanted(chosen, device):
            return False
        fault = self.fault(device)
        if fault is None:
            return True
        if chosen == "fused":
            raise RuntimeError(self._refusal(device, fault))
        self._tell(device, fault)
        return False

    def fault(self, device: torch.device) -> str | None:
        """Why the fused form is not used on this device; None: it is. Raises RuntimeError."""
        if device not in self._faults:
            with _lock:
                if device not in self._faults:
                    self._faults[device] = self._trial(device)
        return self._faults[device]

    def _trial(self, device: torch.device) -> str | None:
        """What is wrong with the fused form on the example; None: it agrees."""
        if _capturing(device):
            raise RuntimeError(f"{self.name} has not been tried on {device}; {_CAPTURED}")
        try:
            # A caller's autocast would round the reference; Triton's interpreter tells of infinite
            # numbers.
            with torch.autocast(device.type, enabled=False), np.errstate(all="ignore"):
                wanted = self.result(self.plain, device)
                # What is freed here is what the fused form's results may lie in: if it writes
                # nothing, it must not find the reference's own numbers there.
                overwritten = [torch.full_like(each, 77) for each in wanted]
                del overwritten
                found = self.result(self.fused, device)
            agrees = all(self.agrees(*pair) for pair in zip(found, wanted, strict=True))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return self._failure(device, error)
        return None if agrees else "does not agree with its reference"

    def result(self, form: Callable[..., Any], device: torch.device, *size: int) -> list[Tensor]:
        """Every tensor that the example (of this size) passes, and may have changed, or returns."""
        arguments, options = self.example(device, *size)
        returned = form(*arguments, **options)
        flat: list[Any] = []
        for each in (*arguments, returned):
            flat += each if isinstance(each, tuple) else [each]
        return [each for each in flat if isinstance(each, Tensor)]

    def agrees(self, found: Tensor, wanted: Tensor) -> bool:
        """Within the tolerance, everywhere; a number that is none does not."""
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return False
        apart = (found - wanted).double().abs()  # a sum of integers would wrap around
        if not found.is_floating_point():
            return float(apart.sum()) <= self.slips
        scale = float(wanted.abs().max())
        same = found == wanted  # infinite numbers too
        return bool((same | (apart <= self.tolerance * scale)).all())

    def _failure(self, device: torch.device, error: Exception) -> str:
        """What failed, if the device lives on. Raises RuntimeError where it does not, or can not be
        asked.
        """
        if _capturing(device):
            raise RuntimeError(f"{self.name} failed: {_said(error)}; {_CAPTURED}") from error
        if device.type == "cuda":
            try:
                torch.cuda.synchronize(device)
            except Exception as lost:
                raise RuntimeError(
                    f"{self.name} has killed the CUDA context of {device} ({_said(lost)}): no result of this process "
                    f"on it can be had any more; start again with {VARIABLE}=reference"
                ) from error
        return f"does not run: {_said(error)}"

    def _tell(self, device: torch.device, fault: str) -> None:
        """Once for each device."""
        with _lock:
            if device in self._told:
                return
            self._told.add(device)
        message = f"the fused {self.name} {fault}; its reference is used on {device} (torchdp doctor says more)"
        warnings.warn(message, RuntimeWarning, stacklevel=4)

    def _refusal(self, device: torch.device, fault: str) -> str:
        return (
            f"{VARIABLE}=fused, but the fused {self.name} can not run on {device}: it {fault} (on a CPU it needs "
            f"TRITON_INTERPRET=1 from the start)"
        )


_CAPTURED = "make the same call once before the CUDA graph is captured"


def contiguous(**tensors: Tensor) -> None:
    """Refuses what a launch would read or write by its address alone. Raises ValueError."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous, not have strides {tensor.stride()}: pass {name}.contiguous()"
            )


def _numbered(device: torch.device | str) -> torch.device:
    """With the number of the current device where none is given."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _wanted(chosen: str, device: torch.device) -> bool:
    return chosen == "fused" or (chosen == "auto" and device.type == "cuda")


def _capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, in which nothing can be tried and no failure looked
    into.
    """
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _said(error: BaseException) -> str:
    """Its kind and its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:160]}" if lines else type(error).__name__


class Launched:
    """A Triton kernel.

    Args:
        function: its code.
        numbers: the arguments whose values choose no machine code.
    """

    def __init__(self, function: Callable[..., None], numbers: tuple[str, ...]) -> None:
        import triton
        import triton.language as tl

        # Small numbers too are of 64 bits: else their size would choose machine code.
        function.__annotations__ = dict.fromkeys(numbers, tl.int64) | function.__annotations__
        self.kernel = triton.jit(function, do_not_specialize=list(numbers))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            # The default of fusion depends on Triton's version.
            return self.kernel[grid](*map(_signed, arguments), enable_fp_fusion=True, **options)

        return launch


def launched(*numbers: str) -> Callable[[Callable[..., None]], Launched]:
    """In place of ``triton.jit`` for what is launched. numbers: see ``Launched``."""
    return lambda function: Launched(function, numbers)


def _signed(value: Any) -> Any:
    """A key of 64 bits as a signed number of the same bits."""
    return value - 2**64 if type(value) is int and value >= 2**63 else value
