"""Which code made a number: a digest of a trial's functions and of the values that they read, and of this package."""

import enum
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ROOT = Path(__file__).resolve().parents[1]

_INSTALLED = [os.path.realpath(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")]
_INSTALLED.append(str(_ROOT))
_LIBRARIES = {"site-packages", "dist-packages"}  # of users, or of the system that an environment sees, too
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}


def code_of(make_trial: object) -> str:
    """What made the numbers of a trial, in words: its own code and values, torchdp, torch and Python.

    The first part is a digest of the function's byte code, its constants, defaults and closure, and of the global
    functions, classes and values that it names, and so on through its own modules; comments, file names and functions
    that it does not name change nothing. Libraries other than torchdp and torch, files that a trial reads and modules
    that it imports inside a function are not covered. ``__wrapped__`` stands for an object that has it.
    """
    own = hashlib.sha256()
    for part in _Walk().parts(make_trial):
        own.update(b"%d " % len(part))
        own.update(part)
    python = f"python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"trial {own.hexdigest()[:16]}, {package()}, torch {torch.__version__}, {python}"


@cache
def package() -> str:
    """torchdp's version, and a digest of its source files as they lie on the disk."""
    hashed, version = hashlib.sha256(), sys.modules[__name__.partition(".")[0]].__version__
    found = [Path(at, name) for at, _, names in os.walk(_ROOT, followlinks=True) for name in names]
    for path in sorted(path for path in found if path.suffix == ".py"):
        hashed.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"torchdp {version} ({hashed.hexdigest()[:12]})"


class _Walk:
    """Everything that a value is made of, each object once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # keeps the objects: a freed one's number may come again

    def parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, bool | int | float | complex | str | bytes | None | Path):
            yield f"{type(value).__name__} {value!r}".encode()
            return
        if not isinstance(value, type | types.ModuleType) and inspect.getattr_static(value, "__wrapped__", None):
            value = inspect.unwrap(value)
        if id(value) in self._seen:
            yield b"again %d" % self._seen[id(value)][0]
            return
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType | type):
            yield _name(value).encode()
            if isinstance(value, type) and not _installed(value):
                yield from self._mapping({k: v for k, v in vars(value).items() if k not in _OF_CLASSES})
                yield from self._all(value.__bases__)
        else:
            yield type(value).__qualname__.encode()
            yield from self._object(value)

    def _object(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, Tensor):
            yield repr((value.dtype, tuple(value.shape), value.device.type)).encode()
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(value, np.ndarray | np.generic):
            yield repr((value.dtype.str, value.shape)).encode() + value.tobytes()
        elif isinstance(value, enum.Enum):
            yield value.name.encode()
        elif isinstance(value, list | tuple):
            yield from self._all(value)
        elif isinstance(value, set | frozenset):
            yield from sorted(b"".join(_Walk().parts(item)) for item in value)
        elif isinstance(value, Mapping):
            yield from self._mapping(value)
        elif isinstance(value, functools.partial):
            yield from self._all((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield from self._all((value.__func__, value.__self__))
        elif isinstance(value, staticmethod | classmethod):
            yield from self.parts(value.__func__)
        elif isinstance(value, property):
            yield from self._all((value.fget, value.fset))
        else:
            yield from self.parts(type(value))
            yield from self._state(value)

    def _state(self, value: Any) -> Iterator[bytes]:
        """As pickle sees it; of what cannot be pickled (locks, files, noise) the class alone."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            return
        if isinstance(reduced, str):
            yield reduced.encode()
            return
        yield from self._all(reduced[:3])
        for items in reduced[3:5]:
            yield from self._all(list(items or ()))

    def _function(self, value: types.FunctionType) -> Iterator[bytes]:
        yield value.__qualname__.encode()
        if _installed(value):
            yield _name(value).encode()
            return
        yield from self._code(value.__code__, value.__globals__, value.__doc__)
        yield from self._all((value.__defaults__, value.__kwdefaults__))
        for cell in value.__closure__ or ():
            try:
                yield from self.parts(cell.cell_contents)
            except ValueError:  # not filled yet
                yield b"empty"

    def _code(self, code: types.CodeType, outside: dict[str, Any], doc: str | None = None) -> Iterator[bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from self._code(constant, outside)
            elif constant is not doc:
                yield from self.parts(constant)
        for name in code.co_names:
            if name in outside:
                found = outside[name]
                yield name.encode()
                yield from self.parts(found)
                if isinstance(found, types.ModuleType) and not _installed(found):
                    yield from self._all([vars(found)[each] for each in code.co_names if each in vars(found)])

    def _mapping(self, value: Mapping[Any, Any]) -> Iterator[bytes]:
        for key, item in value.items():
            yield from self.parts(key)
            yield from self.parts(item)

    def _all(self, values: Any) -> Iterator[bytes]:
        yield b"%d" % len(values)
        for value in values:
            yield from self.parts(value)


def _name(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__ if _installed(value) else "module"
    full = f"{value.__module__}.{value.__qualname__}"
    return full if _installed(value) else value.__qualname__


@cache
def _installed_module(name: str) -> bool:
    module = sys.modules.get(name)
    if name in sys.stdlib_module_names or name == "builtins":
        return name != "__main__"
    path = getattr(module, "__file__", None)
    if path is None:
        return False
    path = os.path.realpath(path)
    return not _LIBRARIES.isdisjoint(path.split(os.sep)) or any(path.startswith(at + os.sep) for at in _INSTALLED)


def _installed(value: Any) -> bool:
    """Whether it belongs to Python, torchdp or another library, whose code is named and not read."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return _installed_module(name) if isinstance(name, str) else True
