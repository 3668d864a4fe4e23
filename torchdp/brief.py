"""How objects print themselves: one short line in a terminal, a table in a notebook."""

from collections.abc import Iterable, Sequence
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

# characters of an object
WIDE = 200
# characters of a string in it
NAMED = 40
# items of a sequence that are printed, not counted
FEW = 4


class Brief:
    """What prints itself in at most 200 characters: its fields, tensors as dtype and shape.

    _printed: the names of its fields; of a dataclass all of them where it says nothing else.
    """

    _printed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_repr(cls)

    def _fields(self) -> dict[str, object]:
        fields = getattr(self, "__dataclass_fields__", {})
        names = self._printed or [name for name, field in fields.items() if field.repr]
        return {name: getattr(self, name, None) for name in names}

    def _repr_html_(self) -> str:
        """A table in a notebook: each field in short, or in its own words where it has some."""
        return html_table((name, _said(value)) for name, value in self._fields().items())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_brief(value)}" for name, value in self._fields().items())
        text = f"{type(self).__name__}({fields})"
        return text if len(text) <= WIDE else text[: WIDE - 4] + "...)"


def keep_repr(cls: type) -> None:
    """``dataclass`` writes a class that has no ``__repr__`` of its own one that prints tables."""
    # a __repr__ in the class's own namespace is what ``dataclass`` leaves alone
    cls.__repr__ = cls.__repr__  # type: ignore[method-assign]


def _said(value: object) -> str:
    """A value in its own words, where its class has some."""
    if type(value).__str__ is object.__str__ or isinstance(value, str | Enum):
        return _brief(value)
    return str(value)


def _brief(value: object) -> str:
    # never a tensor's entries: they may be data
    if isinstance(value, Tensor):
        if not value.ndim and value.is_floating_point():
            return f"{float(value.detach()):.6g}"
        return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= NAMED else value[: NAMED - 3] + "...")
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list | dict) and len(value) > FEW:
        return f"<{len(value)} values>"
    if isinstance(value, dict):
        items = [f"{key}: {_brief(item)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_brief, value))})"
    if isinstance(value, int | torch.dtype | torch.device | None):
        return repr(value)
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return repr(name)
    return getattr(value, "__name__", type(value).__name__)


def html_table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table of texts, escaped; numbers with six digits."""
    lines = [_row(head, "th")] if head else []
    lines += [_row(cells, "td") for cells in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Iterable[object], tag: str) -> str:
    texts = [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells]
    columns = [f"<{tag}>{escape(text)}</{tag}>" for text in texts]
    return f"<tr>{''.join(columns)}</tr>"
