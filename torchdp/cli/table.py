"""Reading a user's table: columns by name, numbers into bins on public bounds. Errors never show a value."""

import codecs
import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from torch import Tensor

from torchdp.text import number

MOST_TYPES = 4096
MISSING = {"", "na", "n/a", "nan", "null", "none", "-", ".", "?"}  # in small letters
WIDEST = 1e60  # squares of squares of widths stay floating-point numbers
ROWS = 2**9  # at a time: fewer than make the garbage collector look at them
SWAPPED = str.maketrans(".,", ",.")
Read = Callable[[list[str], int], np.ndarray]  # the cells of a part, and the number of its first row


@dataclass(frozen=True)
class Bins:
    """``count`` equal bins on [low, high]; the last one holds high itself."""

    low: float
    high: float
    count: int

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count

    @property
    def edges(self) -> list[float]:
        return [self.low + i * self.width for i in range(self.count)] + [self.high]

    def place(self, values: Tensor) -> Tensor:
        """The bin of each value between the bounds, int64."""
        return ((values - self.low) / self.width).long().clamp(0, self.count - 1)

    def rounded(self, values: Tensor, uniform: Tensor) -> Tensor:
        """One of the two edges beside each value, 0, ..., count, at random: in the mean the value itself."""
        position = ((values - self.low) / self.width).clamp(0, self.count)
        below = position.floor()
        return below.long() + (uniform < position - below)


@contextmanager
def opened(path: str, encoding: str = "utf-8-sig") -> Iterator[io.TextIOWrapper]:
    """The text of a file, of what it holds where it is packed by gzip. Raises ValueError for a damaged one, OSError."""
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding, newline="") as file:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file: {error}") from error


def read_columns(
    path: str, readers: Mapping[str, Read], delimiter: str = ",", encoding: str = "utf-8-sig"
) -> dict[str, np.ndarray]:
    """What these make of the cells of their columns, part by part; a blank line is a row of empty cells.

    Raises ValueError (empty file, missing column, short row, and what the readers refuse), OSError.
    """
    delimiter = "\t" if delimiter == "tab" else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"--delimiter must be one character, such as ';', or tab, not {delimiter!r}")
    try:
        encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
        "".encode(encoding)
    except (LookupError, UnicodeError) as error:
        raise ValueError(f"--encoding {encoding!r} is not known; take utf-8, latin-1, cp1252 or utf-16") from error
    found: dict[str, list[np.ndarray]] = {name: [] for name in readers}
    first = 1
    try:
        with opened(path, encoding) as file:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            where, width = places(path, next(lines, None), list(readers), delimiter)
            rows = _rows(path, lines, width)
            while part := list(islice(rows, ROWS)):
                for (name, read), place in zip(readers.items(), where, strict=True):
                    found[name].append(read(list(map(itemgetter(place), part)), first))
                first += len(part)
    except UnicodeError as error:
        kind = "UTF-8" if encoding == "utf-8-sig" else encoding
        raise ValueError(
            f"{path} is not a {kind} text file; --encoding names another (such as latin-1); of packed files and "
            "spreadsheets only text packed by gzip is read"
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    if first == 1:
        raise ValueError(f"{path} holds 0 rows below its header; it needs one row for each user")
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _rows(path: str, lines: Any, width: int) -> Iterator[list[str]]:
    for row in lines:
        if row and len(row) != width:
            raise ValueError(f"{path}, line {lines.line_num}: {len(row)} cells, the header has {width}")
        yield row or [""] * width


def places(
    path: str, header: Sequence[str] | None, names: Sequence[str], delimiter: str = ","
) -> tuple[list[int], int]:
    """Where these columns stand in the header, and its width. Raises ValueError."""
    if not header:
        raise ValueError(f"{path} is empty; it needs a header line and one row for each user")
    header = [name.strip() for name in header]
    for name in names:
        if header.count(name) != 1:
            found = "is missing" if name not in header else "occurs more than once"
            # Without a header line the first row would be a user's: its cells are not shown.
            other = next((each for each in ",;\t|" if len(header) == 1 and each in header[0]), None)
            hint = "" if other is None else f"; its delimiter may be {other!r}, not {delimiter!r}: see --delimiter"
            raise ValueError(f"column {name!r} {found} in the header of {path} ({len(header)} columns){hint}")
    return [header.index(name) for name in names], len(header)


def is_missing(cell: str) -> bool:
    """Whether a cell holds nothing, or one of the usual words for nothing."""
    return cell.lower() in MISSING


def texts(cells: Sequence[str], first: int) -> np.ndarray:
    """The cells as they are, without white space around them."""
    return np.array([cell.strip() for cell in cells], object)


def numbers(name: str, decimal: str, cells: Sequence[str], first: int = 1) -> np.ndarray:
    """The cells as float64, NaN where one is missing. Raises ValueError that names the row of any other text."""
    try:
        if decimal == "." and "_" not in (text := "".join(cells)) and text.isascii():
            found = np.fromiter(map(float, cells), np.float64, len(cells))
            if np.isfinite(found).all():
                return found
    except ValueError:
        pass
    values, other = [], "," if decimal == "." else "."
    for row, cell in enumerate(map(str.strip, cells), first):
        value = math.nan if is_missing(cell) else _finite(cell, decimal)
        if value is None:
            remedy = "correct or leave out the row"
            if other in cell:
                remedy = f"take out marks between thousands such as {other!r}"
                if _finite(cell, other) is not None:
                    remedy += f"; or if it is the decimal mark: --decimal {other}"
            raise ValueError(f"column {name!r}, row {row}: not a finite number; {remedy}")
        values.append(value)
    return np.array(values)


def _finite(cell: str, decimal: str) -> float | None:
    try:
        value = number(cell if decimal == "." else cell.translate(SWAPPED))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def to_categories(name: str, index: Mapping[str, int], cells: Sequence[str], first: int = 1) -> np.ndarray:
    """The index of each cell, -1 where it is missing. Raises ValueError that names another's row."""
    found = [index.get(cell, -1 if is_missing(cell) else -2) for cell in map(str.strip, cells)]
    if -2 in found:
        row = found.index(-2) + first
        raise ValueError(f"column {name!r}, row {row}: none of the stated values {', '.join(index)}")
    return np.array(found)


def parse_bounds(texts: Sequence[str], columns: Sequence[str]) -> dict[str, tuple[float, float]]:
    """NAME=LOW:HIGH of each text. Raises ValueError."""
    bounds = {}
    for text in texts:
        name, equals, interval = text.rpartition("=")
        try:
            low, high = map(number, interval.split(":"))
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
