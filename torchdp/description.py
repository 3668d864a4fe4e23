"""A value written down as plain data: made again from it to the bit, and compared with another.

A tree is what JSON holds. To read: ``described`` writes it, ``made`` reads anybody's, with the
checks of ``_class`` and ``_admits``; ``difference`` compares two.
"""

import ast
import base64
import importlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent

# of a tensor's largest entry: what other hardware may change, far below any noise
ROUNDING = 1e-6


def described(value: object, classes: dict[str, type] | None = None, name: str = "protocol") -> Any:
    """A tree of a frozen dataclass: its class and the fields it is made from, tensors bit by bit.

    Args:
        value: the dataclass.
        classes: takes down the classes that occur, by their names.
        name: of the value, in messages.

    Raises TypeError for a field that is no tensor, number, text, Enum, class, None, tuple or
    dataclass of those.
    """
    classes = {} if classes is None else classes

    def named(kind: type) -> str:
        full = f"{kind.__module__}:{kind.__qualname__}"
        classes[full] = kind
        return full

    if isinstance(value, Tensor):
        # bytes, since numpy has no bfloat16
        flat = value.detach().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8)
        return {
            "tensor": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "data": base64.b64encode(raw.numpy().tobytes()).decode(),
        }
    # Before numbers and texts: members of an IntEnum or a StrEnum are these too.
    if isinstance(value, Enum):
        return {"enum": named(type(value)), "name": value.name}
    if isinstance(value, bool | int | str | None):
        return value
    # To the bit; and JSON has no infinity.
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return [described(item, classes, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, type):
        return {"class": named(value)}
    if is_dataclass(value):
        inner = {
            key: described(item, classes, f"{name}.{key}") for key, item in _given(value).items()
        }
        return {"made": named(type(value)), "of": inner}
    raise TypeError(f"{name} cannot be written down: it is a {type(value).__name__}")


def _given(value: Any) -> dict[str, object]:
    """What a dataclass was made from."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.init}


def made(
    tree: Any,
    root: Any,
    classes: Mapping[str, type] | None = None,
    device: torch.device | str = "cpu",
    rooms: tuple[str, ...] = ("torchdp",),
) -> Any:
    """The value that ``described`` wrote down, its tensors on ``device``. A tree may be anybody's.

    Args:
        tree: of JSON.
        root: the class that the value must have, or another annotation of a type.
        classes: of whoever calls, that may be used beside torchdp's own.
        device: of the tensors.
        rooms: packages whose classes may be made.

    A class is made only where the path written is its own module and name, so that no class of
    another package is reached through a module that imports it, and where ``root``, or the
    annotation of the field that is to hold it, admits it. Of modules that are not loaded yet only
    those of torchdp that define the class are imported. Raises ValueError for any other class,
    before it is made.
    """
    given = {} if classes is None else classes

    def inner(item: Any, annotation: Any) -> Any:
        return made(item, annotation, given, device, rooms)

    if isinstance(tree, list):
        return tuple(inner(item, _element(root, at)) for at, item in enumerate(tree))
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        data = np.frombuffer(bytearray(base64.b64decode(tree["data"])), dtype=np.uint8)
        kind = getattr(torch, tree["tensor"])
        return torch.from_numpy(data).view(kind).reshape(tree["shape"]).to(device)
    if "float" in tree:
        return float.fromhex(tree["float"])
    if "class" in tree:
        kind = _class(tree["class"], given, rooms)
        if not any(_admits(bound, kind) for bound in _class_bounds(root)):
            raise ValueError(f"{tree['class']} is not a class that belongs here: {root} does")
        return kind
    name = tree["enum"] if "enum" in tree else tree["made"]
    kind = _class(name, given, rooms)
    if not _admits(root, kind):
        raise ValueError(f"{name} does not belong here: {root} does")
    if "enum" in tree and issubclass(kind, Enum):
        return kind[tree["name"]]
    # others may do more than hold what they are made from
    if "__dataclass_fields__" not in vars(kind):
        raise ValueError(f"{name} is no dataclass")
    hints = _annotations(kind, known=name in given)
    return kind(**{key: inner(item, hints[key]) for key, item in tree["of"].items()})


def difference(one: Any, other: Any, name: str = "protocol") -> str | None:
    """Where two descriptions differ by more than rounding, in words; None where they do not."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        places = range(len(one))
        return _first((one[at], other[at], f"{name}[{at}]") for at in places)
    if not (isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()):
        # 1, 1.0 and True are equal, but do not make the same protocol.
        return None if type(one) is type(other) and one == other else name
    if "made" in one and one["made"] == other["made"] and one["of"].keys() == other["of"].keys():
        return _first((one["of"][key], other["of"][key], f"{name}.{key}") for key in one["of"])
    if one == other:
        return None
    if "float" in one:
        close = math.isclose(made(one, float), made(other, float), rel_tol=1e-9, abs_tol=1e-12)
        return None if close else name
    return _tensor_difference(one, other, name) if "tensor" in one else name


def _first(pairs: Iterable[tuple[Any, Any, str]]) -> str | None:
    """The first difference among pairs of descriptions and their names."""
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def same(one: object, other: object) -> bool:
    """Whether two values have the same classes and fields, numbers up to rounding."""
    return one is other or difference(described(one), described(other)) is None


def device_of(value: object) -> torch.device:
    """Where the first tensor of a frozen dataclass is; the CPU where it has none."""
    if isinstance(value, Tensor):
        return value.device
    inner = value if isinstance(value, tuple) else ()
    if is_dataclass(value) and not isinstance(value, type):  # a field may name a class
        inner = tuple(_given(value).values())
    host = torch.device("cpu")
    return next((place for place in map(device_of, inner) if place != host), host)


def _tensor_difference(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> str | None:
    if one["tensor"] != other["tensor"] or one["shape"] != other["shape"]:
        return f"{name} (of shape {one['shape']} and {other['shape']})"
    a = made(one, Tensor)
    b = made(other, Tensor)
    # Integers are not rounded, and equal descriptions did not come here.
    if not a.is_floating_point():
        return name
    distance = (a - b).abs().max()
    # Infinite where only zeros were, NaN where one entry is: both count as different.
    share = float(distance / a.abs().max())
    return None if share <= ROUNDING else f"{name} (by {share:.1e} of its largest entry)"


def _arms(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation joins by ``|``, itself where it joins none."""
    if isinstance(annotation, TypeVar):
        return _arms(annotation.__bound__ or Union[annotation.__constraints__ or Any])  # noqa: UP007
    if get_origin(annotation) in (Union, UnionType):
        return tuple(arm for each in get_args(annotation) for arm in _arms(each))
    return (annotation,)


def _admits(annotation: Any, kind: type) -> bool:
    """Whether a value of this class is one of the annotation's."""
    for arm in _arms(annotation):
        if arm is Any:
            return True
        plain = get_origin(arm) or arm
        if isinstance(plain, type) and issubclass(kind, plain):
            return True
    return False


def _class_bounds(annotation: Any) -> list[Any]:
    """What a class must be of, for each type of classes among the annotation's."""
    bounds = []
    for arm in _arms(annotation):
        if get_origin(arm) is type:
            bounds.append(get_args(arm)[0])
        elif arm in (type, Any, object):
            bounds.append(Any)
    return bounds


def _annotations(kind: type, known: bool) -> dict[str, Any]:
    """Of each field.

    known: the class is of whoever calls, who may write what only a type checker resolves.
    """
    try:
        return get_type_hints(kind)
    except NameError:
        # Names that are imported for a type checker alone do not exist at run time.
        if known:
            return {field.name: Any for field in fields(kind)}
        raise ValueError(f"{kind.__qualname__} has a field of no known type") from None


def _element(annotation: Any, at: int) -> Any:
    """The annotation of a tuple's item; a type without values where a tuple does not belong."""
    items = []
    for arm in _arms(annotation):
        inner = get_args(arm)
        if arm in (Any, object, tuple):
            items.append(Any)
        elif get_origin(arm) is tuple and inner[-1] is not ...:
            items.extend(inner[at : at + 1])
        elif get_origin(arm) in (tuple, Sequence):
            items.append(inner[0])
    return Union[tuple(items)] if items else type(None)  # noqa: UP007


def _class(full: str, classes: Mapping[str, type], rooms: tuple[str, ...]) -> Any:
    """The class that a module of these packages defines under this name."""
    if full in classes:
        return classes[full]
    module, _, name = full.partition(":")
    inside = f"{module}.".startswith(tuple(f"{room}." for room in rooms))
    if inside and (module in sys.modules or _defines(module, name)):
        found = vars(importlib.import_module(module)).get(name)  # looked up, nothing is computed
        if isinstance(found, type) and (found.__module__, found.__qualname__) == (module, name):
            return found
    past = " (another version may have had it: see CHANGELOG.md)" if inside else ""
    raise ValueError(f"the class {full} is not torchdp's{past}; give a protocol of this class")


def _defines(module: str, name: str) -> bool:
    """Whether the source of a module of torchdp, which is not run, has a class of this name."""
    parts = module.split(".")[1:]
    if not all(map(str.isidentifier, parts)):
        return False
    path = HERE.joinpath(*parts)
    source = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    if not source.is_file():
        return False
    # read, not imported: a module named in anybody's file may do anything when it is run
    body = ast.parse(source.read_text(encoding="utf-8")).body
    return name in [node.name for node in body if isinstance(node, ast.ClassDef)]
