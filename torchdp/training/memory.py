"""What Python code remembers between two calls: found by walking its objects, compared afterwards, and put back."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LIBRARY = set(sys.stdlib_module_names) | {"torch", "numpy"}
CONTAINERS = ("functools", "types", "collections", "queue", "weakref", "_thread")  # of the library, looked into
LARGEST = 2**22  # numbers; of a larger tensor only the count of its changes in place is kept
TABLES = ("_parameters", "_buffers", "_modules")  # of a module: they are no part of a name
HOOKS = {name for name in vars(nn.Module()) if "hooks" in name}  # of a module: mostly empty, and left out then
EMPTY = object()  # in a slot
OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"}
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)


class Memory:
    """Everything that the named objects hold now: tensors, arrays, attributes, containers, closures and globals.

    The walk follows attributes, items, closures, defaults, methods' owners, and the globals and classes that a function
    names, outside of the standard library, torch and numpy. It does not see what only C code holds (iterators, files).
    """

    def __init__(self, **roots: object) -> None:
        self._notes: list[tuple[str, Any, Callable[[], Any], Callable[[Any], object]]] = []
        self._seen: dict[int, object] = {}
        self._there: list[
            tuple[Tensor, Tensor]
        ] = []  # tensors of another device, which only it compares; what they held
        left: deque[tuple[str, object]] = deque(roots.items())
        while left:
            path, value = left.popleft()
            if id(value) not in self._seen and not isinstance(value, (*PLAIN, ModuleType, BuiltinFunctionType)):
                self._seen[id(value)] = value  # kept, so that no number is given to two objects
                left.extend(self._note(path, value))

    def changed(self) -> str | None:
        """The name of something that is not as it was, or None."""
        for path, before, read, _ in self._notes:
            now = read()
            if not _same(before, now):
                return path + _where(before, now)
        return None

    def unless_changed(self, total: Tensor) -> Tensor:
        """``total``, or NaN where tensors of another device are not as they were, which are put back.

        The host does not wait for the answer; ``changed`` speaks of all else.
        """
        for device in {value.device for value, _ in self._there}:
            pairs = [pair for pair in self._there if pair[0].device == device]
            now, before = (torch.cat([_bits(each) for each in side]) for side in zip(*pairs, strict=True))
            total = torch.where((now != before).any().to(total.device), torch.nan, total)
        self._put_back()
        return total

    def _put_back(self) -> None:
        with torch.no_grad():
            for value, before in self._there:
                value.data.copy_(before)

    def restore(self) -> None:
        """Puts back what has changed."""
        self._put_back()
        with torch.no_grad():
            for _, before, read, write in self._notes:
                if not _same(before, read()):
                    write(before)

    def _note(self, path: str, value: Any) -> Iterable[tuple[str, object]]:
        """Keeps what ``value`` holds itself; returns what it leads to, by name."""
        if isinstance(value, Tensor):
            if isinstance(
                local := getattr(value, "_local_tensor", None), Tensor
            ):  # a shard: nobody is asked for more
                return [(path, local), (f"{path}.grad", value.grad)]
            if value.numel() > LARGEST or value.is_meta:
                self._keep(path, lambda: value._version, lambda _: None)
            elif value.device.type != "cpu" and value.layout == torch.strided:
                self._there.append((value, value.detach().clone()))
                self._keep(path, lambda: (value.shape, str(value.dtype), _wrapped(value)), lambda _: None)
            else:
                self._keep(path, lambda: value.detach().clone(), lambda old: value.data.copy_(old))
            if not value.is_leaf:
                return [(path, vars(value))]
            self._keep(f"{path}.grad", lambda: value.grad, lambda old: setattr(value, "grad", old))
            return [(path, vars(value)), (f"{path}.grad", value.grad)]
        if isinstance(value, np.ndarray):
            self._keep(path, value.copy, lambda old: np.copyto(value, old))
            return []
        if isinstance(value, torch.Generator):
            self._keep(path, value.get_state, value.set_state)
            return []
        if isinstance(value, dict):
            return self._table(path, value)
        if isinstance(value, list | set | deque | bytearray):
            self._keep(path, lambda: list(value), lambda old: _refill(value, old))
        if isinstance(value, list | tuple | set | frozenset | deque):
            return [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        if isinstance(value, MethodType):
            return [(f"{path}.__self__", value.__self__), (path, value.__func__)]
        if isinstance(value, CellType):
            try:
                found = value.cell_contents
            except ValueError:  # not filled yet
                return []
            self._keep(path, lambda: value.cell_contents, lambda old: setattr(value, "cell_contents", old))
            return [(path, found)]
        if isinstance(value, FunctionType):
            return self._function(path, value)
        if isinstance(value, type):
            return self._class(path, value)
        return self._object(path, value)

    def _table(
        self, path: str, table: dict[Any, Any], names: Iterable[Any] | None = None
    ) -> list[tuple[str, object]]:
        """Notes the entries of these names, there or not; all entries for None."""
        names = None if names is None else list(names)

        def read() -> dict[Any, Any]:
            return dict(table) if names is None else {name: table[name] for name in names if name in table}

        def write(old: dict[Any, Any]) -> None:
            for name in read().keys() - old.keys():
                del table[name]
            table.update(old)

        self._keep(path, read, write)
        items = [(name, value) for name, value in read().items() if name not in HOOKS or value]
        return [(path if name in TABLES else f"{path}.{name}", value) for name, value in items]

    def _function(self, path: str, function: FunctionType) -> list[tuple[str, object]]:
        if _library(function):
            return []
        found: list[tuple[str, object]] = [(path, function.__dict__), (path, function.__defaults__)]
        found.append((path, function.__kwdefaults__))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        found += [(f"{path}, {name}", cell) for name, cell in cells]
        names = _names(function.__code__)
        for name, module in _modules(function, names):
            found += self._table(f"{path}, {name}", vars(module), names)
        return found + self._table(f"{path}, global", function.__globals__, names)

    def _class(self, path: str, kind: type) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        for part in (part for part in kind.__mro__ if not _library(part)):

            def read(part: type = part) -> dict[str, Any]:
                return {name: value for name, value in vars(part).items() if name not in OF_CLASSES}

            def write(old: dict[str, Any], part: type = part) -> None:
                for name in vars(part).keys() - OF_CLASSES - old.keys():
                    delattr(part, name)
                for name, value in old.items():
                    if vars(part).get(name) is not value:
                        setattr(part, name, value)

            self._keep(f"{path}, class {part.__name__}", read, write)
            found += [(f"{path}.{name}", getattr(value, "__func__", value)) for name, value in read().items()]
        return found

    def _object(self, path: str, value: object) -> list[tuple[str, object]]:
        if _spends(type(value)):
            return []
        if _library(type(value)) and not isinstance(value, nn.Module):
            own = ("func", "args", "keywords", "__dict__") if type(value).__module__ in CONTAINERS else ()
            return [(path, getattr(value, name)) for name in own if hasattr(value, name)]
        found: list[tuple[str, object]] = [(path, type(value))]
        if hasattr(value, "__dict__"):
            found.append((path, value.__dict__))
        if isinstance(value, nn.Module):
            self._no_hooks(path, [table for name in HOOKS if isinstance(table := vars(value).get(name), dict)])
        for name in (name for part in type(value).__mro__ for name in _slots(part)):
            self._slot(f"{path}.{name}", value, name)
            found.append((f"{path}.{name}", getattr(value, name, None)))
        return found

    def _no_hooks(self, path: str, tables: list[dict[Any, Any]]) -> None:
        """Of a module's tables of hooks those that are empty, as one note: one of each would take too long."""
        empty = [table for table in tables if not table]

        def write(old: int) -> None:
            for table in empty:
                table.clear()

        self._keep(f"{path}, a hook", lambda: sum(map(len, empty)), write)

    def _slot(self, path: str, owner: object, name: str) -> None:
        def write(old: Any) -> None:
            object.__delattr__(owner, name) if old is EMPTY else object.__setattr__(owner, name, old)

        self._keep(path, lambda: getattr(owner, name, EMPTY), write)

    def _keep(self, path: str, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self._notes.append((path, read(), read, write))


def _same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, Tensor):
        if _wrapped(now) or before.shape != now.shape or before.dtype != now.dtype:
            return False
        return bool(torch.equal(before, now) or ((before == now) | (before.isnan() & now.isnan())).all())
    if isinstance(before, np.ndarray):
        return before.shape == now.shape and before.tobytes() == now.tobytes()
    if isinstance(before, dict):
        return before.keys() == now.keys() and all(_same(value, now[name]) for name, value in before.items())
    if isinstance(before, list | tuple):
        return len(before) == len(now) and all(map(_same, before, now))
    return isinstance(before, PLAIN) and repr(before) == repr(now)


def _wrapped(value: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def _bits(value: Tensor) -> Tensor:
    """The bytes of a tensor's entries."""
    return value.detach().reshape(-1).view(torch.uint8)


def _where(before: Any, now: Any) -> str:
    """The entry that differs."""
    if isinstance(before, dict):
        for name in [*now, *before]:
            if name not in before or name not in now or not _same(before[name], now[name]):
                return f".{name}"
    return ""


def _names(code: Any) -> list[str]:
    """The names in a function's code and in that of the functions inside it."""
    inner = (name for part in code.co_consts if hasattr(part, "co_names") for name in _names(part))
    return [*code.co_names, *inner]


def _modules(function: FunctionType, names: list[str]) -> Iterator[tuple[str, ModuleType]]:
    """The modules of no library that a function names or imports, and those that it names inside of them."""
    known, cells = function.__globals__, function.__closure__ or ()
    left = [(name, found) for name in names for found in (known.get(name), sys.modules.get(name))]
    left.append(("its package", sys.modules.get(str(known.get("__package__")))))
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with suppress(ValueError):  # not filled yet
            left.append((name, cell.cell_contents))
    seen = set()
    while left:
        name, module = left.pop()
        if isinstance(module, ModuleType) and not _library(module, "__name__") and module not in seen:
            seen.add(module)
            yield name, module
            left += [(f"{name}.{inner}", vars(module).get(inner)) for inner in names]


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    return [name for name in ([names] if isinstance(names, str) else names) if not name.startswith("__")]


def _spends(kind: type) -> bool:
    """Noise, and runs that spend it, refuse copies: to put them back would draw the same numbers again."""
    return kind.__module__.startswith("torchdp.") and kind.__reduce_ex__ is not object.__reduce_ex__


def _library(value: Any, named: str = "__module__") -> bool:
    return str(getattr(value, named, None) or "builtins").split(".")[0] in LIBRARY


def _refill(value: Any, old: list[Any]) -> None:
    value.clear()
    (value.update if isinstance(value, set) else value.extend)(old)
