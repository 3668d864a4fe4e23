"""Which form of a kernel runs: Triton's where it imports, compiles and agrees with the reference; else the reference.

``TORCHDP_KERNELS``: auto (default), reference, or fused, which raises RuntimeError where the fused form can not run.
Both forms take the same key and counter, so that a fall-back makes the same numbers, and no word is used twice.
"""

import os
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from torchdp.kernels.dispatch import verdicts
from torchdp.kernels.dispatch.cases import Case

VARIABLE = "TORCHDP_KERNELS"
MODES = ("auto", "fused", "reference")
_loading = threading.RLock()
_loaded: dict[str, ModuleType] = {}


def mode() -> str:
    """What TORCHDP_KERNELS says. Raises ValueError."""
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in MODES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(MODES)}, not {chosen!r}")
    return chosen


def keyed(device: torch.device | str) -> bool:
    """Whether sums over users are drawn from a key and a counter, by either form: on CUDA; where fused is asked for."""
    return torch.device(device).type == "cuda" or mode() == "fused"


class LostDevice(RuntimeError):
    """A kernel has killed the CUDA context: nothing on this device answers this process any more."""


class Kernel:
    """An operation in two forms of the same arguments and result: ``plain``, and ``operation`` in ``package``.fused.

    Before it meets anybody's data, the fused form is tried on a public case, once for each process and device, unless
    ``torchdp doctor`` has kept its verdict. A form that fails is switched off with one warning. If an operation works
    in place, its fused form must write in one launch, so that one which fails has written nothing.
    """

    def __init__(self, package: str, operation: str, plain: Callable[..., Any], case: Case) -> None:
        self.package, self.operation, self.plain, self.case = package, operation, plain, case
        self.name = f"{package.rpartition('.')[2]}.{operation}"
        self._faults: dict[torch.device, str | None] = {}
        self._lock = threading.RLock()

    def __call__(self, where: torch.device | str, /, *arguments: Any, **options: Any) -> Any:
        device = _placed(where)
        if not self.runs(device):
            return self.plain(*arguments, **options)
        try:
            return self.fused(device)(*arguments, **options)
        except torch.OutOfMemoryError:
            raise  # nobody's fault; the reference takes more
        except Exception as error:
            fault = self.failed(device, error)
            if mode() == "fused":
                raise RuntimeError(self._refusal(device, fault)) from error
            result = self.plain(*arguments, **options)  # a mistake of the caller's raises here and says so
            self._switch_off(device, fault)
            return result

    def runs(self, device: torch.device) -> bool:
        """Whether the fused form does the work on this device. Raises RuntimeError, ValueError."""
        chosen = mode()
        if not _wanted(chosen, device):
            return False
        if device not in self._faults:
            with self._lock:
                if device not in self._faults:
                    fault = self._judged(device)
                    self._faults[device] = fault
                    if fault is not None and chosen == "auto":
                        self._switch_off(device, fault)
        found = self._faults[device]
        if found is not None and chosen == "fused":
            raise RuntimeError(self._refusal(device, found))
        return found is None

    def fused(self, device: torch.device) -> Callable[..., Any]:
        """The fused form, with the tile sizes that were kept for the first device used. Raises what its import does."""
        with _loading:
            if self.package not in _loaded:
                module = import_module(self.package + ".fused")
                for name, size in verdicts.read(device).tiles.get(self.package, {}).items():
                    if size in self.case.tiles.get(name, ()):
                        setattr(module, name, size)
                _loaded[self.package] = module
        return getattr(_loaded[self.package], self.operation)

    def tiles(self, device: torch.device) -> dict[str, int]:
        """The sizes in force, of those that may be chosen."""
        self.fused(device)
        return {name: getattr(_loaded[self.package], name) for name in self.case.tiles}

    def set_tiles(self, device: torch.device, tiles: dict[str, int]) -> None:
        """For the whole package, in this process; while nothing else launches its kernels."""
        self.fused(device)
        for name, size in tiles.items():
            setattr(_loaded[self.package], name, size)

    def trial(self, device: torch.device) -> str | None:
        """What is wrong with the fused form here; None: it agrees. Raises LostDevice."""
        if device.type != "cuda" and not _interpreted():
            return "needs a CUDA device, or on a CPU TRITON_INTERPRET=1 from the start (Triton's interpreter)"
        try:
            fused = self.fused(device)
        except Exception as error:
            return f"does not import: {_said(error)}"
        try:
            wanted = self.result(self.plain, device)
            _ = torch.full_like(wanted, 77)  # what is freed here is what the fused form's result may lie in
            del _
            found = self.result(fused, device)
            agrees = self.case.agrees(found, wanted)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return self.failed(device, error)
        return None if agrees else "does not agree with its reference"

    def result(self, form: Callable[..., Any], device: torch.device) -> torch.Tensor:
        """Of the public case; an operation that works in place returns None and changes its first argument, or two."""
        arguments, options = self.case.arguments(device, self.case.small)
        with torch.autocast(device.type, enabled=False):  # a caller's would round the reference
            returned = form(*arguments, **options)
        if returned is None and isinstance(arguments[0], tuple):
            return torch.cat([each.flatten() for each in arguments[0]])
        return arguments[0] if returned is None else returned

    def _judged(self, device: torch.device) -> str | None:
        kept = verdicts.read(device).faults
        return kept[self.name] if self.name in kept else self.trial(device)

    def failed(self, device: torch.device, error: Exception) -> str:
        """What failed, if the device lives on. Raises LostDevice."""
        if device.type == "cuda":
            try:
                torch.cuda.synchronize(device)
            except Exception as lost:
                raise LostDevice(
                    f"{self.name} has killed the CUDA context of {device} ({_said(lost)}): no result of this process "
                    f"on it can be had any more; start again with {VARIABLE}=reference, and run torchdp doctor"
                ) from error
        return f"does not run: {_said(error)}"

    def _switch_off(self, device: torch.device, fault: str) -> None:
        self._faults[device] = fault
        warnings.warn(
            f"the fused {self.name} {fault}; its reference is used on {device} (torchdp doctor says more)",
            RuntimeWarning,
            stacklevel=4,
        )

    def _refusal(self, device: torch.device, fault: str) -> str:
        return f"{VARIABLE}=fused, but the fused {self.name} can not run on {device}: it {fault}"


def _placed(device: torch.device | str) -> torch.device:
    """With the number of the current device where none is given."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _wanted(chosen: str, device: torch.device) -> bool:
    return chosen == "fused" or (chosen == "auto" and device.type == "cuda")


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _said(error: BaseException) -> str:
    """Its kind and its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:160]}" if lines else type(error).__name__
