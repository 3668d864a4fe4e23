"""Reading a table of users: columns by name, numbers into bins on public bounds, who is left out.

Errors never show a value.
"""

import argparse
import codecs
import gzip
import io
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchdp.text import number

if TYPE_CHECKING:
    import pandas as pd

# A matrix of types by types takes 128 MiB of float64 at so many.
MOST_TYPES = 4096
# In small letters, as cells are before they are compared.
MISSING = {"", "na", "n/a", "nan", "null", "none", "-", ".", "?"}
# So that squares of squares of widths stay floating-point numbers.
WIDEST = 1e60
# Read at a time: text takes many times the memory of the numbers that are kept.
ROWS = 2**16
# Of a decimal comma. A point between thousands becomes a comma, and so stays wrong.
SWAPPED = str.maketrans(".,", ",.")
SEEN = "how many take part is not protected"
# Of dates: within 1678 to 2261, the whole years that pandas holds to the nanosecond.
YEARS = 1700, 2200


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
        # The last edge is ``high`` itself, which count * width could miss by rounding.
        return [self.low + i * self.width for i in range(self.count)] + [self.high]

    def place(self, values: Tensor) -> Tensor:
        """The bin of each value between the bounds, int64."""
        # ``high`` lies in the last bin, as what rounding carries up to it does.
        return ((values - self.low) / self.width).long().clamp(0, self.count - 1)

    def rounded(self, values: Tensor, uniform: Tensor) -> Tensor:
        """One of the two edges beside each value, 0, ..., count, at random, without bias."""
        position = ((values - self.low) / self.width).clamp(0, self.count)
        below = position.floor()
        # Up with probability position - below: the mean is the position.
        return below.long() + (uniform < position - below)


@dataclass(frozen=True)
class Axis:
    """A column as it is asked about: numbers in bins, or the stated labels."""

    name: str
    bins: Bins | None
    labels: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.labels) if self.bins is None else self.bins.count

    @property
    def cells(self) -> list[str]:
        """What its types are called."""
        if self.bins is None:
            return list(self.labels)
        edges = self.bins.edges
        return [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]


def read_parts(
    path: str, names: Sequence[str], delimiter: str, encoding: str
) -> Iterator["pd.DataFrame"]:
    """These columns as text, part by part, rows numbered from 1.

    A blank line is a row of empty cells. A file packed by gzip is read as what it holds. Raises
    ValueError (empty or damaged file, missing column, a row of another length than the header),
    OSError.
    """
    import pandas as pd

    path = "/dev/stdin" if path == "-" else path
    delimiter = "\t" if delimiter == "tab" else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(
            f"--delimiter must be one character, such as ';', or tab, not {delimiter!r}"
        )
    encoding = _known_encoding(encoding)
    how: dict[str, Any] = {"sep": delimiter, "encoding": encoding, "chunksize": ROWS}
    # As text: pandas must guess neither types nor what is missing, nor drop blank lines, which are
    # numbered too.
    how |= {"header": None, "dtype": object, "na_filter": False, "skip_blank_lines": False}
    try:
        with open(path, "rb") as raw:
            # A pipe is kept: it cannot be read again, which gzip's mark and short rows need.
            file = raw if raw.seekable() else io.BytesIO(raw.read())
            # Told by its first bytes, since stdin has no name.
            how["compression"] = "gzip" if file.read(2) == b"\x1f\x8b" else None
            file.seek(0)
            short = False
            with pd.read_csv(file, **how) as parts:
                header = parts.get_chunk(1)
                width = header.shape[1]
                where = places(path, header.iloc[0], names, delimiter)
                for part in parts:
                    short = short or bool((part.iloc[:, -1] == "").any())
                    yield part.iloc[:, where].set_axis(names, axis=1)
            if short and width > 1:
                # pandas' parser in C fills lacking cells up; the slow one in Python does not.
                file.seek(0)
                with pd.read_csv(file, engine="python", **how) as parts:
                    for part in parts:
                        _refuse_short(path, part, width)
    except pd.errors.EmptyDataError as error:
        raise ValueError(
            f"{path} is empty; it needs a header line and one row for each user"
        ) from error
    except UnicodeError as error:
        kind = "UTF-8" if encoding == "utf-8-sig" else encoding
        raise ValueError(
            f"{path} is not a {kind} text file; --encoding names another (such as latin-1); "
            "of packed files and spreadsheets only text packed by gzip is read"
        ) from error
    except pd.errors.ParserError as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file: {error}") from error


def _known_encoding(encoding: str) -> str:
    """Of text; of UTF-8 the one that skips a byte order mark. Raises ValueError."""
    try:
        "".encode(encoding)  # refuses what is no encoding of text, such as hex
    except (LookupError, UnicodeError) as error:
        raise ValueError(
            f"--encoding {encoding!r} is not known; take utf-8, latin-1, cp1252 or utf-16"
        ) from error
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _refuse_short(path: str, part: "pd.DataFrame", width: int) -> None:
    cells = part.count(axis=1)
    # A blank line, of no cells, is a row whose cells are missing.
    lacking = cells[(cells > 0) & (cells < width)]
    if len(lacking):
        row = lacking.index[0]
        raise ValueError(f"{path}, row {row}: {lacking[row]} cells, the header has {width}")


def places(path: str, header: Sequence[str], names: Sequence[str], delimiter: str) -> list[int]:
    """Where these columns stand in the header. Raises ValueError."""
    header = [name.strip() for name in header]
    for name in names:
        if header.count(name) == 1:
            continue
        wrong = "occurs more than once" if name in header else "is missing"
        # Without a header line the first row is a user's: its cells are not shown, but for a name
        # that is nearly the one that was given.
        hint = ""
        near = get_close_matches(name, header, 1)
        if near and near[0] != name:
            hint = f"; did you mean {near[0]!r}?"
        if len(header) == 1:
            for other in ",;\t|":
                if other in header[0]:
                    hint = f"; its delimiter may be {other!r}, not {delimiter!r}: see --delimiter"
                    break
        raise ValueError(
            f"column {name!r} {wrong} in the header of {path} ({len(header)} columns){hint}"
        )
    return [header.index(name) for name in names]


def numbers(name: str, decimal: str, cells: "pd.Series[str]") -> np.ndarray:
    """The cells as float64, NaN where missing. Raises ValueError that names another text's row."""
    text = "".join(cells)
    # float also reads underscores and the digits of other scripts
    if decimal == "." and "_" not in text and text.isascii():
        with suppress(ValueError):
            quick = np.fromiter(map(float, cells), np.float64, len(cells))
            if np.isfinite(quick).all():
                return quick
    values = []
    # The slow way, which reads white space and missing cells, and knows the row to name.
    for row, cell in cells.str.strip().items():
        value = math.nan if cell.lower() in MISSING else _finite(cell, decimal)
        if value is None:
            # By the kind of its text: the cell itself is not shown.
            remedy = _remedy(name, cell, decimal)
            raise ValueError(f"column {name!r}, row {row}: not a finite number; {remedy}")
        values.append(value)
    return np.array(values)


def _remedy(name: str, cell: str, decimal: str) -> str:
    other = "," if decimal == "." else "."
    if other in cell:
        remedy = f"take out marks between thousands such as {other!r}"
        if _finite(cell, other) is not None:
            remedy += f"; or if it is the decimal mark: --decimal {other}"
        return remedy
    if cell[:10].count("-") == 2:
        return f"of dates state days: --bounds {name}=2024-01-01:2024-12-31"
    return "correct or leave out the row"


def _finite(cell: str, decimal: str) -> float | None:
    try:
        value = number(cell if decimal == "." else cell.translate(SWAPPED))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def days(name: str, first: date, cells: "pd.Series[str]") -> "pd.Series[float]":
    """Dates and times as days after this one's beginning, NaN where missing.

    In ISO 8601; UTC where no zone is written. Raises ValueError that names the row of any other
    text.
    """
    import pandas as pd

    stated = texts(cells)
    # Coerced, as the error of pandas would show the cell.
    times = pd.to_datetime(stated, format="ISO8601", errors="coerce", utc=True)
    other = times.isna() & stated.notna()
    if other.any():
        raise ValueError(
            f"column {name!r}, row {other.idxmax()}: "
            "not a date such as 2024-01-31 or 2024-01-31T18:30"
        )
    return (times - pd.Timestamp(first, tz="UTC")) / pd.Timedelta(days=1)


def texts(cells: "pd.Series[str]") -> "pd.Series[str]":
    """The cells without white space around them, None where one is missing."""
    stripped = cells.str.strip()
    return stripped.mask(stripped.str.lower().isin(MISSING), None)


def ends(interval: str) -> tuple[float, float, date | None]:
    """LOW:HIGH as numbers; of two days 0, the days to the end of the last, and the first.

    Raises ValueError.
    """
    try:
        low, high = map(number, interval.split(":"))
        return low, high, None
    except ValueError:
        first, last = map(date.fromisoformat, interval.split(":"))
        if not YEARS[0] <= first.year <= last.year <= YEARS[1]:
            raise ValueError("a year that pandas may not hold") from None
        # To the end of the last day, in which a time may lie.
        return 0.0, (last - first).days + 1.0, first


def parse_bounds(
    texts: Sequence[str], columns: Sequence[str]
) -> tuple[dict[str, tuple[float, float]], dict[str, date]]:
    """NAME=LOW:HIGH of each text, and the first day of columns of dates. Raises ValueError."""
    bounds: dict[str, tuple[float, float]] = {}
    since: dict[str, date] = {}
    for text in texts:
        # From the right, as a column's name may hold =.
        name, equals, interval = text.rpartition("=")
        try:
            low, high, first = ends(interval)
        except ValueError:
            low = high = math.nan
        if not equals or not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(
                f"--bounds {text!r} must read NAME=LOW:HIGH with two finite numbers, or two days "
                f"such as 2024-01-31 of the years {YEARS[0]} to {YEARS[1]}, the first one first"
            )
        if name not in columns:
            raise ValueError(
                f"--bounds names {name!r}, which is not one of --columns {' '.join(columns)}"
            )
        if name in bounds:
            raise ValueError(f"--bounds gives {name!r} twice")
        if not low < high:
            raise ValueError(f"--bounds {text!r}: the lower end must be below the upper one")
        if not 1 / WIDEST <= high - low <= WIDEST:
            raise ValueError(
                f"--bounds {text!r}: high - low must lie between {1 / WIDEST:g} and {WIDEST:g}"
            )
        bounds[name] = (low, high)
        if first is not None:
            since[name] = first
    return bounds, since


def read_users(
    options: argparse.Namespace,
    labels: Mapping[str, Sequence[str]],
    notes: list[str],
    since: Mapping[str, date] = MappingProxyType({}),
) -> "pd.DataFrame":
    """A row for each user who is asked, numbered from 1: numbers, and places in the labels.

    A column of the name of ``--group`` holds each user's group. notes: to which words about who is
    left out are added. since: the day from which those of a column of dates are counted.
    Raises ValueError, OSError.
    """
    import pandas as pd

    if options.group in options.columns:
        raise ValueError(
            f"--group {options.group} is one of --columns: a group is public, and not asked about"
        )
    names = list(options.columns)
    if options.group is not None:
        names.append(options.group)

    def read(name: str, cells: "pd.Series[str]") -> object:
        if name in labels:
            return _places(name, labels[name], texts(cells), options.other)
        if name in since:
            return days(name, since[name], cells)
        if name == options.group:
            return texts(cells)
        return numbers(name, options.decimal, cells)

    parts = []
    for part in read_parts(options.csv, names, options.delimiter, options.encoding):
        columns = {name: read(name, part[name]) for name in names}
        parts.append(pd.DataFrame(columns, index=part.index))
    if not parts:
        raise ValueError(
            f"{options.csv} holds 0 rows below its header; it needs one row for each user"
        )
    return _without_missing(pd.concat(parts), options.missing, notes)


def _places(
    name: str, labels: Sequence[str], cells: "pd.Series[str]", other: str | None
) -> "pd.Series[float]":
    """The place of each cell among the labels, NaN where it is missing.

    other: the label of cells that are none of them. Without one raises ValueError that names the
    row of such a cell.
    """
    place = cells.map({label: number for number, label in enumerate(labels)})
    unknown = place.isna() & cells.notna()
    if other is not None:
        place = place.mask(unknown, labels.index(other))
    elif unknown.any():
        row = unknown.idxmax()
        # The stated value that is nearest, which is public; not the cell.
        near = get_close_matches(cells[row], labels, 1)
        hint = f", the nearest is {near[0]!r}" if near else ""
        raise ValueError(
            f"column {name!r}, row {row}: none of the stated values {', '.join(labels)}{hint} "
            f"({int(unknown.sum())} such rows); state its value too, count all such by --other "
            "NAME, or correct or leave out the rows"
        )
    return place.astype(float)


def _without_missing(users: "pd.DataFrame", policy: str, notes: list[str]) -> "pd.DataFrame":
    """Raises ValueError where missing cells are refused, or nobody is left."""
    absent = users.isna()
    lacking = absent.any(axis=1)
    count = int(lacking.sum())
    if not count:
        return users
    if policy == "refuse":
        name = absent.any().idxmax()
        raise ValueError(
            f"column {name!r}, row {absent[name].idxmax()}: the cell is missing ({count} such "
            "rows); --missing drop leaves them out"
        )
    if count == len(users):
        raise ValueError(
            f"--missing drop leaves no user: all {count} rows lack a cell of {', '.join(users)}"
        )
    notes.append(f"{count} of {len(users)} users are left out, because a cell is missing; {SEEN}")
    return users[~lacking]


def bounded(
    users: "pd.DataFrame", name: str, bins: Bins, policy: str, notes: list[str]
) -> "pd.DataFrame":
    """With numbers of a column between its bounds.

    Raises ValueError where others are refused, or nobody is left.
    """
    outside = ~users[name].between(bins.low, bins.high)
    count = int(outside.sum())
    stated = f"the stated bounds {bins.low:g}:{bins.high:g}"
    if policy == "clip":
        # Said whether there are any or not: their number is not protected here.
        notes.append(
            f"each {name} beyond {stated} is moved to the nearer bound before it is randomized; "
            "how many is not said"
        )
        return users.assign(**{name: users[name].clip(bins.low, bins.high)})
    if not count:
        return users
    if policy == "refuse":
        raise ValueError(
            f"column {name!r}, row {outside.idxmax()}: outside {stated} ({count} such rows); "
            "widen the bounds, or take --out-of-bounds clip or drop"
        )
    if count == len(users):
        raise ValueError(
            f"--out-of-bounds drop leaves no user: all {count} numbers of {name} "
            f"are beyond {stated}"
        )
    notes.append(f"{count} of {len(users)} users are left out, {name} is beyond {stated}; {SEEN}")
    return users[~outside]


def range_of(users: "pd.DataFrame", name: str) -> tuple[float, float]:
    """Least and largest number of a column. Raises ValueError where these are one."""
    low = float(users[name].min())
    high = float(users[name].max())
    if not low < high or not math.isfinite(high - low):
        raise ValueError(
            f"column {name!r} is constant: it gives no bounds; "
            f"state them by --bounds {name}=LOW:HIGH"
        )
    return low, high
