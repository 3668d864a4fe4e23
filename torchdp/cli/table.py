"""Reading a user's table: columns by name, numbers into bins on public bounds. Errors never show a value."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_TYPES = 4096
WIDEST = 1e60  # squares of squares of widths stay floating-point numbers


@dataclass(frozen=True)
class Bins:
    """``count`` equal bins on [low, high]; the last one holds high itself."""

    low: float
    high: float
    count: int

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count


def read_columns(path: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The cells of these columns, as text. Raises ValueError (empty file, missing column, short row), OSError."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            where, width = places(path, header, names)
            cells: dict[str, list[str]] = {name: [] for name in names}
            for row in reader:
                if not row:
                    continue
                if len(row) != width:
                    found = f"{len(row)} cells, the header has {width}"
                    raise ValueError(f"{path}, line {reader.line_num}: {found}")
                for name, index in zip(names, where, strict=True):
                    cells[name].append(row[index].strip())
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a UTF-8 text file") from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    users = len(cells[names[0]])
    if users < 2:
        raise ValueError(f"{path} holds {users} rows; a pairwise statistic needs at least 2 users")
    return cells


def places(path: str, header: Sequence[str] | None, names: Sequence[str]) -> tuple[list[int], int]:
    """Where these columns stand in the header, and its width. Raises ValueError."""
    if len(set(names)) != len(names):
        raise ValueError("--columns names a column twice")
    if not header:
        raise ValueError(f"{path} is empty; it needs a header line and one row for each user")
    header = [name.strip() for name in header]
    for name in names:
        if header.count(name) != 1:
            found = "is missing" if name not in header else "occurs more than once"
            # Without a header line the first row would be a user's: its cells are not shown.
            other = next((each for each in ";\t|" if len(header) == 1 and each in header[0]), None)
            hint = "" if other is None else f"; the delimiter must be a comma, not {other!r}"
            raise ValueError(f"column {name!r} {found} in the header of {path} ({len(header)} columns){hint}")
    return [header.index(name) for name in names], len(header)


def numbers(name: str, cells: Sequence[str]) -> Tensor:
    """The cells as float64. Raises ValueError that names the row of a cell that is not a finite number."""
    values = []
    for row, cell in enumerate(cells, start=1):
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"column {name!r}, row {row}: not a finite number; correct or leave out the row")
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)


def to_bins(name: str, values: Tensor, bins: Bins) -> Tensor:
    """The bin of each value, int64. Raises ValueError that names the first row outside the bounds."""
    outside = (values < bins.low) | (values > bins.high)
    if outside.any():
        row = int(outside.nonzero()[0]) + 1
        raise ValueError(
            f"column {name!r}, row {row}: outside the stated bounds {bins.low:g}:{bins.high:g} "
            f"({int(outside.sum())} such rows); widen the bounds or clip the column"
        )
    return ((values - bins.low) / bins.width).long().clamp(0, bins.count - 1)


def to_categories(name: str, cells: Sequence[str], categories: Sequence[str]) -> Tensor:
    """The index of each cell in ``categories``. Raises ValueError that names the first row with none of them."""
    index = {category: i for i, category in enumerate(categories)}
    for row, cell in enumerate(cells, start=1):
        if cell not in index:
            raise ValueError(f"column {name!r}, row {row}: none of the stated values {', '.join(categories)}")
    return torch.tensor([index[cell] for cell in cells])


def parse_bounds(texts: Sequence[str], columns: Sequence[str]) -> dict[str, tuple[float, float]]:
    """NAME=LOW:HIGH of each text. Raises ValueError."""
    bounds = {}
    for text in texts:
        name, equals, interval = text.rpartition("=")
        try:
            low, high = (float(end) for end in interval.split(":"))
        except ValueError:
            low = high = math.nan
        if not equals or not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"--bounds {text!r} must read NAME=LOW:HIGH with two finite numbers")
        if name not in columns:
            raise ValueError(f"--bounds names {name!r}, which is not one of --columns {' '.join(columns)}")
        if name in bounds:
            raise ValueError(f"--bounds gives {name!r} twice")
        if not low < high:
            raise ValueError(f"--bounds {text!r}: the lower end must be below the upper one")
        if not 1 / WIDEST <= high - low <= WIDEST:
            raise ValueError(f"--bounds {text!r}: high - low must lie between {1 / WIDEST:g} and {WIDEST:g}")
        bounds[name] = (low, high)
    return bounds
