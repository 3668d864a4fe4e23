"""What made a number: a digest of a trial's functions and of the values that they read, command, place, versions."""

import hashlib
import inspect
import io
import os
import pickle
import platform
import shlex
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdp.simulate.store import Start

_ROOT = Path(__file__).resolve().parents[1]
_NAME = __name__.partition(".")[0]
_LIBRARIES = {"site-packages", "dist-packages"}  # of users, or of the system that an environment sees, too
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
_NAMED = types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type


def code_of(make_trial: object) -> str:
    """What made the numbers of a trial, in words: its own code and values, torchdp, torch and Python.

    The first part is a digest of the function's byte code, its constants, defaults and closure, and of the global
    functions, classes and values that it names, and so on through its own modules; comments, file names and functions
    that it does not name change nothing. Libraries other than torchdp and torch, files that a trial reads and modules
    that it imports inside a function are not covered. ``__wrapped__`` stands for an object that has it.
    """
    python = f"python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"trial {_digest(make_trial)[:16]}, {package()}, torch {torch.__version__}, {python}"


@cache
def package() -> str:
    """torchdp's version, and a digest of its source files as they lie on the disk."""
    hashed, version = hashlib.sha256(), sys.modules[_NAME].__version__
    found = [Path(at, name) for at, _, names in os.walk(_ROOT, followlinks=True) for name in names]
    for path in sorted(path for path in found if path.suffix == ".py"):
        hashed.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{_NAME} {version} ({hashed.hexdigest()[:12]})"


def _digest(value: object) -> str:
    written = io.BytesIO()
    _Parts(written, 4).dump(value)
    return hashlib.sha256(written.getvalue()).hexdigest()


class _Parts(pickle._Pickler):
    """Writes what a value is made of, the same in every process: libraries' objects by name, others by their parts."""

    def memoize(self, obj: Any) -> None:
        if not isinstance(obj, str | bytes | tuple):  # whether two equal ones are one object is chance
            super().memoize(obj)  # type: ignore[misc]

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        plain = isinstance(obj, str | bytes | int | float | list | tuple | dict | type | types.ModuleType)
        if not plain and inspect.getattr_static(obj, "__wrapped__", None):
            obj = inspect.unwrap(obj)
        super().save(obj, save_persistent_id)  # type: ignore[misc]

    def persistent_id(self, obj: Any) -> Any:
        """What stands for an object that is not written as pickle would; None for the others."""
        if isinstance(obj, _NAMED) and _installed(obj):
            return obj.__name__ if isinstance(obj, types.ModuleType) else f"{obj.__module__}.{obj.__qualname__}"
        if isinstance(obj, set | frozenset):
            return type(obj).__name__, sorted(map(_digest, obj))
        if isinstance(obj, Tensor):
            data = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return str(obj.dtype), tuple(obj.shape), obj.device.type, data
        return None

    def reducer_override(self, obj: Any) -> Any:
        """A name and the parts; of what cannot be pickled (locks, files, noise) the class alone."""
        if isinstance(obj, types.FunctionType):
            code = obj.__code__.replace(co_consts=tuple(c for c in obj.__code__.co_consts if c is not obj.__doc__))
            parts = code, _globals(obj), obj.__defaults__, obj.__kwdefaults__, obj.__closure__
            return str, (obj.__qualname__,), parts
        if isinstance(obj, type):
            own = {name: value for name, value in vars(obj).items() if name not in _OF_CLASSES}
            return str, (obj.__qualname__,), (obj.__bases__, own)
        if isinstance(obj, types.CodeType):
            names = obj.co_names, obj.co_varnames, obj.co_freevars, obj.co_cellvars
            return tuple, ((obj.co_code, names, obj.co_consts),)
        if isinstance(obj, types.CellType):
            try:
                return tuple, ((obj.cell_contents,),)
            except ValueError:  # not filled yet
                return str, ("empty",)
        if isinstance(obj, types.ModuleType):
            return str, ("module",)  # what functions read of it is among their globals
        if isinstance(obj, property):
            return tuple, ((obj.fget, obj.fset),)
        if type(obj) in self.dispatch:
            return NotImplemented
        try:
            reduced = obj.__reduce_ex__(4)
        except Exception:
            reduced = ""
        if isinstance(reduced, str):
            return tuple, ((type(obj), reduced),)
        make, given, *rest = reduced
        if rest and isinstance(rest[0], dict):  # without what it has computed and kept
            kept = {name for name in rest[0] if isinstance(getattr(type(obj), name, None), cached_property)}
            rest[0] = {name: value for name, value in rest[0].items() if name not in kept}
        return make, given, *rest


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function and those inside it name, and what they name of its own modules."""
    names = _names(function.__code__)
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, module in list(found.items()):
        if isinstance(module, types.ModuleType) and not _installed(module):
            found |= {f"{name}.{each}": vars(module)[each] for each in names if each in vars(module)}
    return found


def _names(code: types.CodeType) -> list[str]:
    inside = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names(each)]
    return [*code.co_names, *inside]


def _installed(value: Any) -> bool:
    """Whether it belongs to Python, torchdp or another library, whose code is named and not read."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] in (*sys.stdlib_module_names, _NAME):
        return True
    path = os.path.realpath(getattr(sys.modules.get(name), "__file__", None) or os.sep)
    return not _LIBRARIES.isdisjoint(path.split(os.sep))


def start(more: Mapping[str, Any]) -> Start:
    """A new number for a sweep that starts now, with the facts of this process beside those given."""
    return Start(uuid.uuid4().hex[:12], {**facts(), **more})


def facts() -> dict[str, Any]:
    """Of this process, now."""
    return {
        "at": time.time(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else "",
        "cpu": platform.processor() or platform.machine(),
        "git": _revision(),
        "host": platform.node(),
        "package": package(),
        "process": os.getpid(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _revision() -> str:
    """Of the repository around the working folder, with a + where files differ from it; "" where there is none."""
    asked = ("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno")
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10, "check": True}
    try:
        name, changed = (subprocess.run(["git", *each], **how).stdout.strip() for each in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return name + "+" * bool(changed)
