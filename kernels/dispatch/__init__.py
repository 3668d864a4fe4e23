"""Which form of a kernel runs: Triton's where it imports, compiles and agrees with the reference; else the reference.

``TORCHDP_KERNELS``: auto (default), reference, or fused, which raises RuntimeError where the fused form can not run.
Both forms take the same key and counter, so that a fall-back makes the same numbers, and no word is used twice.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

from torchdp.kernels.dispatch import verdicts
from torchdp.kernels.dispatch.cases import Case
from torchdp.kernels.dispatch.launches import Form, watched
from torchdp.kernels.dispatch.trials import Call

VARIABLE = "TORCHDP_KERNELS"
MODES = ("auto", "fused", "reference")
_changing = threading.RLock()  # modules that are loaded, their constants, and verdicts
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


class Captured(RuntimeError):
    """A CUDA graph is being captured, in which no form can be tried and no failure looked into."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}; make the same call once before the CUDA graph is captured")


class Untried(Exception):
    """Raised before a launch of a form that no trial has met."""


class Refused(Exception):
    """Raised before a launch of a form whose trial failed."""


class Kernel:
    """An operation in two forms of the same arguments and result: ``plain``, and ``operation`` in ``package``.fused.

    No launch meets anybody's data before one of its form (``launches.Launched``: all that chooses machine code) has met
    public numbers that pass each of its branches (``trials``) and agreed with ``plain``: once for each process, device
    and form, unless ``torchdp doctor`` has kept the verdict. ``plain`` does the work of a form that fails, with one
    warning. If an operation works in place, its fused form must write in one launch, so that one which fails, or is
    not made, has written nothing.
    """

    def __init__(self, package: str, operation: str, plain: Callable[..., Any], case: Case) -> None:
        self.package, self.operation, self.plain, self.case = package, operation, plain, case
        self.name = f"{package.rpartition('.')[2]}.{operation}"
        self._faults: dict[tuple[torch.device, Form | None], str | None] = {}  # None: of every form
        self._told: set[tuple[torch.device, str]] = set()

    def __call__(self, where: torch.device | str, /, *arguments: Any, **options: Any) -> Any:
        device = _placed(where)
        while self.runs(device):
            form = None
            try:
                try:
                    with watched(lambda form: self._meet(device, form)):
                        return self.fused(device)(*arguments, **options)
                except Untried as new:
                    form = new.args[0]  # which alone has no trial if none can be made
                    self._try(device, form, (arguments, options))
            except Refused as refused:
                if mode() == "fused":
                    raise RuntimeError(self._refusal(device, str(refused))) from None
                self._tell(device, str(refused))
                break
            except (torch.OutOfMemoryError, LostDevice, Captured):
                raise  # nobody's fault, and the reference takes more memory; or beyond help
            except Exception as error:
                fault = self.failed(device, error)
                if mode() == "fused":
                    raise RuntimeError(self._refusal(device, fault)) from error
                result = self.plain(*arguments, **options)  # a mistake of the caller's raises here and says so
                self._faults[device, form] = fault
                self._tell(device, fault)
                return result
        return self.plain(*arguments, **options)

    def runs(self, device: torch.device) -> bool:
        """Whether fused forms do any work on this device. Raises RuntimeError, ValueError."""
        chosen = mode()
        if not _wanted(chosen, device):
            return False
        if (device, None) not in self._faults:
            with _changing:
                if (device, None) not in self._faults:
                    self._faults[device, None] = self._kept(device).get("") or self.unfit(device)
        fault = self._faults[device, None]
        if fault is not None and chosen == "fused":
            raise RuntimeError(self._refusal(device, fault))
        if fault is not None:
            self._tell(device, fault)
        return fault is None

    def unfit(self, device: torch.device) -> str | None:
        """Why no fused form can run on this device; None: some may."""
        if device.type != "cuda" and not _interpreted():
            return "needs a CUDA device, or on a CPU TRITON_INTERPRET=1 from the start (Triton's interpreter)"
        try:
            self.fused(device)
        except Exception as error:
            return f"does not import: {_said(error)}"
        old = [int(part) for part in verdicts.version("triton").split(".")[:2]] < [3, 7]
        if device.type != "cuda" and old and [int(part) for part in np.__version__.split(".")[:2]] >= [2, 4]:
            return "needs Triton 3.7 or numpy below 2.4: older interpreters of Triton's fail on later versions of numpy"
        return None

    def fused(self, device: torch.device) -> Callable[..., Any]:
        """The fused form, with the tile sizes that were kept for the first device used. Raises what its import does."""
        with _changing:
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

    def set_tiles(self, device: torch.device, tiles: Mapping[str, int]) -> None:
        """For the whole package, in this process; while nothing else launches its kernels."""
        self.fused(device)
        for name, size in tiles.items():
            setattr(_loaded[self.package], name, size)

    def verdicts(self, device: torch.device) -> dict[str, str | None]:
        """What has been found in this process, by form; "": of every form."""
        found = self._faults.items()
        return {str(form) if form else "": fault for (where, form), fault in found if where == device}

    def trial(self, device: torch.device, call: Call | None = None, form: Form | None = None) -> str | None:
        """What is wrong with the fused form on public calls like this one, None: it agrees, in the form asked for.

        call: the public one for None. All forms that are met have the verdict. Raises LostDevice.
        """
        fault = self.unfit(device)
        if fault is not None:
            return fault
        met: set[Form] = set()
        calls = zip(
            self.public(device, call), self.public(device, call), strict=True
        )  # may refuse a caller's mistake
        with _changing, self._small_steps():
            try:
                for ours, theirs in calls:
                    wanted = self.result(self.plain, device, theirs)
                    _ = torch.full_like(
                        wanted, 77
                    )  # what is freed here is what the fused form's result may lie in
                    del _
                    with watched(met.add):
                        found = self.result(self.fused(device), device, ours)
                    if not self.case.agrees(found, wanted):
                        fault = "does not agree with its reference"
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                fault = self.failed(device, error)
        self._faults |= {(device, each): fault for each in met}
        return fault if fault or form is None or form in met else f"has no trial of the form {form}"

    def public(self, device: torch.device, call: Call | None = None) -> list[Call]:
        """The calls of a trial."""
        arguments, options = call or self.case.arguments(device, 100)
        return self.case.like(*arguments, **options)

    def result(self, form: Callable[..., Any], device: torch.device, call: Call | None = None) -> torch.Tensor:
        """Of a call, the first public one for None; an operation in place changes its first argument, or two."""
        arguments, options = call or self.public(device)[0]
        with (
            torch.autocast(device.type, enabled=False),
            np.errstate(all="ignore"),
        ):  # which would round the reference
            returned = form(*arguments, **options)
        if returned is None and isinstance(arguments[0], tuple):
            return torch.cat([each.flatten() for each in arguments[0]])
        if self.case.returns:
            both = torch.cat([arguments[0], returned])
            returned.fill_(77)  # a later form's result may lie in what is freed here
            return both
        return arguments[0] if returned is None else returned

    def failed(self, device: torch.device, error: Exception) -> str:
        """What failed, if the device lives on. Raises LostDevice, Captured."""
        if device.type == "cuda":
            try:
                capturing = torch.cuda.is_current_stream_capturing()
                if not capturing:
                    torch.cuda.synchronize(device)
            except Exception as lost:
                raise LostDevice(
                    f"{self.name} has killed the CUDA context of {device} ({_said(lost)}): no result of this process "
                    f"on it can be had any more; start again with {VARIABLE}=reference, and run torchdp doctor"
                ) from error
            if capturing:
                raise Captured(self.name, f"failed: {_said(error)}") from error
        return f"does not run: {_said(error)}"

    def _meet(self, device: torch.device, form: Form) -> None:
        if (device, form) not in self._faults:
            raise Untried(form)
        fault = self._faults[device, form]
        if fault is not None:
            raise Refused(fault)

    def _try(self, device: torch.device, form: Form, call: Call) -> None:
        with _changing:
            if (device, form) in self._faults:
                return
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise Captured(self.name, "has not been tried in the form of this call")
            kept = self._kept(device)
            fault = kept[str(form)] if str(form) in kept else self.trial(device, call, form)
            self._faults[device, form] = fault

    def _kept(self, device: torch.device) -> dict[str, str | None]:
        return verdicts.read(device).faults.get(self.name, {})

    def _tell(self, device: torch.device, fault: str) -> None:
        """Once."""
        with _changing:
            if (device, fault) in self._told:
                return
            self._told.add((device, fault))
        message = f"the fused {self.name} {fault}; its reference is used on {device} (torchdp doctor says more)"
        warnings.warn(message, RuntimeWarning, stacklevel=4)

    @contextmanager
    def _small_steps(self) -> Iterator[None]:
        """Constants of the package that no machine code depends on, such that few numbers pass every loop twice."""
        module = _loaded[self.package]
        before = {name: getattr(module, name) for name in self.case.few}
        for name, size in self.case.few.items():
            setattr(module, name, size)
        try:
            yield
        finally:
            for name, size in before.items():
                setattr(module, name, size)

    def _refusal(self, device: torch.device, fault: str) -> str:
        return f"{VARIABLE}=fused, but the fused {self.name} can not run on {device}: it {fault}"


def contiguous(**tensors: torch.Tensor) -> None:
    """Refuses what a launch would read or write by its address alone. Raises ValueError."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous, not have strides {tensor.stride()}: pass {name}.contiguous()"
            )


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
