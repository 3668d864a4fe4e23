"""Users' data and their groups as tensors, and estimates as a pandas table.

What users may hold (``Held``) decides how an array, a list or a table is read.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Shape

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = Union[Tensor, np.ndarray, Sequence[Any], "pd.Series", "pd.DataFrame"]
"""Users' data: a row for each."""

Held: TypeAlias = int | Shape
"""What one user holds: one of so many types, or numbers of this shape."""

# Kinds of a column's dtype, and the dtypes that they become.
KINDS = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}
# Remedies. Those for arrays and lists too are calls, since these have no such methods.
TEXT = (
    "state its public values, pandas.Series(x, dtype=pandas.CategoricalDtype([...])), or make "
    "numbers of it by pandas.to_numeric"
)
DATES = "subtract a public day and divide by a public unit, such as pandas.Timedelta(days=1)"
NOT_WHOLE = (
    "numpy.asarray(x, 'int64') takes whole numbers, numpy.digitize(x, edges) others by public edges"
)
PLACES = ".astype('float64') where the categories are numbers, else .cat.codes for their places"
PRODUCT = ".astype(pandas.CategoricalDtype(range(k))) states those of whole numbers below k"


def rows_of(x: Any, held: Held, name: str = "x") -> Tensor:
    """Users' rows as the tensor that those who hold this have.

    Args:
        x: a row for each user: a tensor, a numpy array, a list, or a pandas Series, DataFrame,
            Categorical or Index, or what makes one by ``to_pandas``. A tensor is returned as it is,
            but for booleans that are types.
        held: as ``protocol.held``. Types are whole numbers, booleans (0 and 1), or categories in
            their order; several columns of categories or booleans make product types, the first
            column the slowest. They must be public: state them, since those that pandas reads from the data
            reveal who is there. Where users hold numbers, fractions become float64, and (n,)
            becomes (n, 1) where each holds a row of one.
        name: of x, in messages.

    Raises TypeError for text, objects and dates, ValueError where a value is missing, or where
    categories make another number of types.
    """
    if isinstance(x, Tensor):
        return x.long() if isinstance(held, int) and x.dtype is torch.bool else x
    if hasattr(x, "to_pandas"):  # tables of polars and pyarrow
        x = x.to_pandas()
    pandas = sys.modules.get("pandas")  # whoever holds a table has loaded it
    if pandas is not None and isinstance(x, pandas.Index | pandas.Categorical):
        x = pandas.Series(x)
    if pandas is not None and isinstance(x, pandas.Series | pandas.DataFrame):
        rows = _types(x, held, name) if isinstance(held, int) else _numbers(x, name)
    elif isinstance(x, np.ndarray | list | tuple | range):
        rows = _array(x, name)
    else:
        raise TypeError(
            f"{name} must be a tensor, an array, a list or a pandas table, not {type(x).__name__}"
        )
    if isinstance(held, int):
        if rows.dtype.kind == "f" and rows.size:
            raise TypeError(
                f"{name} must hold whole numbers, booleans or categories, not fractions; "
                f"{NOT_WHOLE}"
            )
        if rows.ndim == 2 and rows.shape[1] == 1:
            rows = rows[:, 0]
        if rows.ndim == 2:
            raise ValueError(
                f"{name} must hold one type for each user, not {rows.shape[1]} numbers; make one "
                "of several by numpy.ravel_multi_index(numpy.transpose(x), sizes)"
            )
        rows = rows.astype(np.int64)
    elif held == (1,) and rows.ndim == 1:
        rows = rows[:, None]
    elif held == () and rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    return torch.from_numpy(rows)


def columns_of(x: Any, names: Any) -> Any:
    """These columns of a DataFrame, one by its name, several by a list; all of x where None.

    Raises ValueError that names the nearest column.
    """
    if names is None:
        return x
    if not hasattr(x, "columns"):
        raise ValueError(f"columns must be None for data that are no DataFrame, not {names!r}")
    for name in names if isinstance(names, list) else [names]:
        if name not in x.columns:
            known = list(map(str, x.columns))
            near = ", ".join(get_close_matches(str(name), known, 1) or known)
            raise ValueError(f"columns must be of the data, which lack {name!r}; there is {near}")
    return x[names]


def sampled_rows(table: "pd.DataFrame", user: str, most: int) -> "pd.DataFrame":
    """``most`` rows of each user, drawn at random with replacement: what one person adds is bounded.

    Each user then counts the same, and the number of rows is ``most`` times that of the users, who
    alone are public. What is released of the rows at a guarantee is private for users at
    ``privacy.for_groups(guarantee, most)``.

    Args:
        table: a row for each event.
        user: the column that says whose it is; a missing one is refused.
        most: rows of each, >= 1, public.

    Raises TypeError, ValueError.
    """
    most = checks.integer("most", most, 1)
    if user not in getattr(table, "columns", ()):
        raise ValueError(f"user must name a column of a DataFrame table, not {user!r}")
    _refuse_missing(table[user], f"column {user!r}")
    return table.groupby(user, observed=True).sample(
        most, replace=True, random_state=np.random.default_rng()
    )


def categories(x: Any) -> Any:
    """The categories of a Series of them, an Index; None of anything else."""
    return x.cat.categories if getattr(x, "ndim", 0) == 1 and hasattr(x, "cat") else None


def types_in(x: Any) -> int | None:
    """How many types a Series or a DataFrame of categories makes; None where a column has none.

    Of booleans there are two.
    """
    columns = [x]
    if getattr(x, "ndim", 0) == 2 and hasattr(x, "items"):
        columns = [cells for _, cells in x.items()]
    types = 1
    for cells in columns:
        size = _size(cells)
        if size is None:
            return None
        types *= size
    return types


def framed(columns: Mapping[str, Tensor], names: Sequence[Any]) -> "pd.DataFrame":
    """A row for each entry of these tensors of one shape; names: of the last dimensions.

    Raises ValueError.
    """
    import pandas as pd

    def labels(named: Any) -> "pd.Index":
        if isinstance(named, pd.DataFrame):
            return named.columns
        stated = categories(named)
        return pd.Index(list(named)) if stated is None else stated.rename(named.name)

    first = next(iter(columns.values()))
    shape = tuple(first.shape)
    numbered = shape[: max(0, len(shape) - len(names))]
    levels = [*map(pd.RangeIndex, numbered), *map(labels, names)]
    sizes = tuple(map(len, levels))
    if sizes != shape:
        raise ValueError(
            f"names must be as many as the entries of the last dimensions of {shape}, not {sizes}"
        )
    index = levels[0] if len(levels) == 1 else None  # of one number: a row 0
    if len(levels) > 1:
        index = pd.MultiIndex.from_product(levels)
    cells = {name: part.detach().cpu().flatten() for name, part in columns.items()}
    return pd.DataFrame(cells, index=index)


def _size(cells: Any) -> int | None:
    labels = categories(cells)
    if labels is not None:
        return len(labels)
    dtype = getattr(cells, "dtype", None)
    return 2 if getattr(dtype, "kind", "") == "b" else None


def _columns(x: Any, name: str) -> "dict[str, pd.Series]":
    """The columns of a Series or DataFrame, by what messages call them."""
    if x.ndim == 1:
        return {name: x}
    if not x.shape[1]:
        raise ValueError(f"{name} must have at least one column")
    columns = {}
    for index, label in enumerate(x.columns):
        columns[f"column {index} ({label!r}) of {name}"] = x.iloc[:, index]
    return columns


def _types(x: Any, held: int, name: str) -> np.ndarray:
    """One column of numbers or booleans as it is; of categories, of one or several, their types."""
    columns = _columns(x, name)
    first = next(iter(columns))
    if len(columns) == 1 and categories(columns[first]) is None:
        return _column(columns[first], first)
    sizes = []
    for label, cells in columns.items():
        size = _size(cells)
        if size is None:
            raise TypeError(
                f"{label} must hold categories, since the types are the columns' products; "
                f"{PRODUCT}"
            )
        sizes.append(size)
    if math.prod(sizes) != held:
        shown = " x ".join(map(str, sizes))
        raise ValueError(
            f"{name} must have categories for the {held} types that users may hold, not for {shown}"
        )
    # Codes are those of the stated categories, which are public: not of the values that occur.
    codes = []
    for label, cells in columns.items():
        _refuse_missing(cells, label)
        own = cells if categories(cells) is None else cells.cat.codes
        codes.append(own.to_numpy(np.int64))
    # The first column is the slowest.
    return np.ravel_multi_index(codes, sizes)


def _numbers(x: Any, name: str) -> np.ndarray:
    """Columns share one kind: float64 where one of them holds fractions."""
    columns = [_column(cells, label) for label, cells in _columns(x, name).items()]
    return columns[0] if x.ndim == 1 else np.stack(columns, 1)


def _column(cells: "pd.Series", name: str) -> np.ndarray:
    dtype = _made(cells.dtype, name)
    _refuse_missing(cells, name)
    return cells.to_numpy(dtype, copy=True)


def _refuse_missing(cells: "pd.Series", name: str) -> None:
    missing = int(cells.isna().sum())
    if missing:
        raise ValueError(
            f"{name} lacks {missing} of {len(cells)} values (of categories those that are not "
            "stated); leave these rows out by .dropna(), or give them a public category"
        )


def _array(x: Any, name: str) -> np.ndarray:
    """An array or lists, copied."""
    try:
        rows = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must hold rows of numbers, all of one length") from error
    missing = np.ma.getmask(x)
    if rows.dtype == object:
        missing = rows == None  # noqa: E711 (of each entry)
    if np.any(missing):
        raise ValueError(
            f"{name} lacks {np.sum(missing)} of {rows.size} values; leave these rows out"
        )
    return np.array(rows, _made(rows.dtype, name), order="C")


def _made(dtype: Any, name: str) -> str:
    """What numbers of this numpy or pandas dtype become."""
    if dtype.kind == "u" and dtype.itemsize == 8:  # int64 does not hold all of uint64
        return "float64"
    if dtype.kind in KINDS:
        return KINDS[dtype.kind]
    remedy = TEXT
    if dtype.kind in "mM":
        remedy = DATES
    elif dtype == "category":
        remedy = PLACES
    raise TypeError(f"{name} must hold numbers, not {dtype}; {remedy}")


def grouped(
    x: Rows, held: Held, groups: Rows | None, size: int | None
) -> tuple[Tensor, Tensor | None, Shape]:
    """Rows of users, the group of each, and the batch that the groups make; None, () of one group.

    Args:
        x: users' data; a tensor (*batch, n, ...) has groups of n users.
        held: by each user.
        groups: (n,) whole numbers below ``size``.
        size: by default all categories of ``groups``, or all up to the largest.

    Raises TypeError, ValueError.
    """
    if groups is None and size is not None:
        raise ValueError(f"size = {size!r} must come with groups, the number of each user's group")
    if groups is None:
        return _batched(x, held)
    rows = rows_of(x, held)
    # Stated categories are public, and one that nobody is in keeps its place.
    if size is None:
        size = types_in(groups)
    numbers = rows_of(groups, checks.MOST if size is None else size, "groups")
    if checks.integers("groups", numbers).shape != rows.shape[:1]:
        raise ValueError(
            f"groups must have shape (n,), a number for each user of x, not {tuple(numbers.shape)}"
        )
    if size is None:
        size = max(1, int(numbers.max()) + 1) if numbers.numel() else 1
    return rows, checks.indices("groups", numbers, checks.integer("size", size, 1)), (size,)


def _batched(x: Rows, held: Held) -> tuple[Tensor, Tensor | None, Shape]:
    rows = rows_of(x, held)
    own = 0 if isinstance(held, int) else len(held)
    batch = tuple(rows.shape[: max(0, rows.ndim - 1 - own)])
    if not batch or not isinstance(x, Tensor):
        return rows, None, ()
    numbers = torch.arange(math.prod(batch), device=rows.device)
    users = checks.dense("x", rows).flatten(0, len(batch))
    return users, numbers.repeat_interleave(rows.shape[len(batch)]), batch
