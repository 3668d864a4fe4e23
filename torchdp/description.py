"""A value written down as plain data: made again from it to the bit, and compared with another up to rounding."""

import base64
import importlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import reduce
from typing import Any

import torch
from torch import Tensor

ROUNDING = 1e-6  # of a tensor's largest entry: what other hardware may change, far below any noise


def described(value: object, classes: dict[str, type] | None = None, name: str = "protocol") -> Any:
    """A value of JSON that holds a frozen dataclass: its class and the fields it is made from, tensors bit by bit.

    classes: takes down the classes that occur, by their names.
    Raises TypeError for a field that is no tensor, number, text, Enum, class, None, tuple or dataclass of those.
    """
    classes = {} if classes is None else classes

    def named(kind: type) -> str:
        full = f"{kind.__module__}:{kind.__qualname__}"
        classes[full] = kind
        return full

    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = str(value.dtype).removeprefix("torch.")
        return {"tensor": kind, "shape": list(value.shape), "data": base64.b64encode(data).decode()}
    if isinstance(value, Enum):
        return {"enum": named(type(value)), "name": value.name}
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return [described(item, classes, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, type):
        return {"class": named(value)}
    if is_dataclass(value):
        given = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        inner = {key: described(item, classes, f"{name}.{key}") for key, item in given.items()}
        return {"made": named(type(value)), "of": inner}
    raise TypeError(f"{name} cannot be written down: it is a {type(value).__name__}")


def made(
    tree: Any,
    classes: Mapping[str, type],
    device: torch.device | str = "cpu",
    rooms: tuple[str, ...] = ("torchdp",),
) -> Any:
    """The value that ``described`` wrote down, its tensors on ``device``.

    classes: those that may be used beside torchdp's own, of these rooms. Raises ValueError for any other class.
    """
    if isinstance(tree, list):
        return tuple(made(item, classes, device, rooms) for item in tree)
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        data = bytearray(base64.b64decode(tree["data"]))
        raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return raw.view(getattr(torch, tree["tensor"])).reshape(tree["shape"]).to(device)
    if "float" in tree:
        return float.fromhex(tree["float"])
    if "enum" in tree:
        return _class(tree["enum"], classes, rooms)[tree["name"]]
    if "class" in tree:
        return _class(tree["class"], classes, rooms)
    kind = _class(tree["made"], classes, rooms)
    if "__dataclass_fields__" not in vars(kind):  # others may do more than hold what they are made from
        raise ValueError(f"{tree['made']} is no dataclass")
    return kind(**{key: made(item, classes, device, rooms) for key, item in tree["of"].items()})


def difference(one: Any, other: Any, name: str = "protocol") -> str | None:
    """Where two descriptions differ by more than rounding, in words; None where they do not."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(a, b, f"{name}[{index}]") for index, (a, b) in enumerate(zip(one, other, strict=True))]
    elif not (isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()):
        return None if type(one) is type(other) and one == other else name
    elif "float" in one:
        a, b = made(one, {}), made(other, {})
        return None if one == other or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) else name
    elif "tensor" in one:
        return None if one == other else _apart(one, other, name)
    elif "made" in one and one["made"] == other["made"] and one["of"].keys() == other["of"].keys():
        pairs = [(one["of"][key], other["of"][key], f"{name}.{key}") for key in one["of"]]
    else:
        return None if one == other else name
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def same(one: object, other: object) -> bool:
    """Whether two values have the same classes and fields, numbers up to rounding."""
    return one is other or difference(described(one), described(other)) is None


def device_of(value: object) -> torch.device:
    """Where the first tensor of a frozen dataclass is; the CPU where it has none."""
    found = value.device if isinstance(value, Tensor) else torch.device("cpu")
    inner = value if isinstance(value, tuple) else ()
    if is_dataclass(value) and not isinstance(value, type):  # a field may name a class
        inner = tuple(getattr(value, each.name) for each in fields(value) if each.init)
    return next((place for place in map(device_of, inner) if place != found), found)


def _apart(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> str | None:
    if one["tensor"] != other["tensor"] or one["shape"] != other["shape"]:
        return f"{name} (of shape {one['shape']} and {other['shape']})"
    a, b = made(one, {}), made(other, {})
    if not a.is_floating_point():
        return name
    share = float((a - b).abs().max() / a.abs().max())
    return None if share <= ROUNDING else f"{name} (by {share:.1e} of its largest entry)"


def _class(full: str, classes: Mapping[str, type], rooms: tuple[str, ...]) -> Any:
    module, _, path = full.partition(":")
    if full in classes:
        return classes[full]
    try:
        if not f"{module}.".startswith(tuple(f"{room}." for room in rooms)):
            raise ImportError
        found = reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        raise ValueError(f"the class {full} is not torchdp's; give a protocol of this class") from None
    if not isinstance(found, type):
        raise ValueError(f"{full} is not a class")
    return found
