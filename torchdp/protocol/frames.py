"""pandas in, pandas out: users' rows from a Series or a DataFrame, and estimates as a table."""

import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = Union[Tensor, "pd.Series", "pd.DataFrame"]
"""Users' data: a row for each."""

KINDS = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}  # of a column; what it becomes
TEXT = (
    "state its public values, .astype(pandas.CategoricalDtype([...])), or make numbers of it by pandas.to_numeric"
)
DATES = "subtract a public day and divide by a public unit, such as pandas.Timedelta(days=1)"


def rows_of(x: Any, name: str = "x") -> Any:
    """Users' rows as a tensor: (n,) of a Series, (n, columns) of a DataFrame; anything else is returned as it is.

    Categories become types 0, 1, ... in their order. They must be public: state them, since those that
    pandas reads from the data reveal who is there. Booleans and whole numbers stay so where no other
    column holds fractions; then all are float64.
    Raises TypeError for a column of text, objects or dates, ValueError where a value is missing.
    """
    pandas = sys.modules.get("pandas")  # whoever holds a table has loaded it
    if pandas is None or not isinstance(x, pandas.Series | pandas.DataFrame):
        return x
    if x.ndim == 1:
        return _column(x, name)
    columns = [_column(cells, f"column {label!r} of {name}") for label, cells in x.items()]
    if not columns:
        raise ValueError(f"{name} must have at least one column")
    floats = [column for column in columns if column.is_floating_point()]
    dtype = torch.float64 if floats else reduce(torch.promote_types, (column.dtype for column in columns))
    return torch.stack([column.to(dtype) for column in columns], 1)


def categories(x: Any) -> Any:
    """The categories of a Series of them, an Index; None of anything else."""
    return x.cat.categories if getattr(x, "ndim", 0) == 1 and hasattr(x, "cat") else None


def framed(columns: Mapping[str, Tensor], names: Sequence[Any]) -> "pd.DataFrame":
    """A row for each entry of these tensors of one shape; names: of the last dimensions. Raises ValueError."""
    import pandas as pd

    def labels(each: Any) -> "pd.Index":
        if isinstance(each, pd.DataFrame):
            return each.columns
        return pd.Index(list(each)) if (stated := categories(each)) is None else stated.rename(each.name)

    shape = tuple(next(iter(columns.values())).shape)
    levels = [*map(pd.RangeIndex, shape[: max(0, len(shape) - len(names))]), *map(labels, names)]
    if (sizes := tuple(map(len, levels))) != shape:
        raise ValueError(f"names must be as many as the entries of the last dimensions of {shape}, not {sizes}")
    index = pd.MultiIndex.from_product(levels) if len(levels) > 1 else (levels or [pd.RangeIndex(1)])[0]
    return pd.DataFrame({name: part.detach().cpu().flatten() for name, part in columns.items()}, index=index)


def _column(cells: "pd.Series", name: str) -> Tensor:
    dtype = cells.dtype
    if (labels := categories(cells)) is not None:
        made = "int64"
    elif dtype.kind in KINDS:  # int64 does not hold all of uint64
        made = "float64" if dtype.kind == "u" and dtype.itemsize == 8 else KINDS[dtype.kind]
    else:
        cure = DATES if dtype.kind in "mM" else TEXT
        raise TypeError(f"{name} must hold numbers, booleans or categories, not {dtype}; {cure}")
    if missing := int(cells.isna().sum()):
        raise ValueError(
            f"{name} lacks {missing} of {len(cells)} values (of categories those that are not stated); leave these "
            "rows out by .dropna(), or give them a public category"
        )
    cells = cells if labels is None else cells.cat.codes
    return torch.from_numpy(cells.to_numpy(made, copy=True))
