"""The users of a table: the cells that are asked about, what becomes of missing ones and of numbers out of bounds."""

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchdp.cli.table import Bins, numbers, read_parts, texts

if TYPE_CHECKING:
    import pandas as pd

SEEN = "that they send nothing is seen"


def read_users(
    options: argparse.Namespace, labels: Mapping[str, Sequence[str]], notes: list[str]
) -> "pd.DataFrame":
    """The users of a table who are asked: a row of it each, numbered from 1, with numbers and places in the labels.

    A column of the name of ``--group`` holds each user's group. notes: to which words about who is left out are added.
    Raises ValueError, OSError.
    """
    import pandas as pd

    if options.group in options.columns:
        raise ValueError(f"--group {options.group} is one of --columns: a group is public, and not asked about")
    names = [*options.columns, *([] if options.group is None else [options.group])]

    def read(name: str, cells: "pd.Series[str]") -> object:
        if name in labels:
            return _places(name, labels[name], texts(cells))
        return texts(cells) if name == options.group else numbers(name, options.decimal, cells)

    parts = [
        pd.DataFrame({name: read(name, part[name]) for name in names}, index=part.index)
        for part in read_parts(options.csv, names, options.delimiter, options.encoding)
    ]
    if not parts:
        raise ValueError(f"{options.csv} holds 0 rows below its header; it needs one row for each user")
    return _without_missing(pd.concat(parts), options.missing, notes)


def _places(name: str, labels: Sequence[str], cells: "pd.Series[str]") -> "pd.Series[float]":
    """The place of each cell among the labels, NaN where it is missing. Raises ValueError that names another's row."""
    found = cells.map({label: place for place, label in enumerate(labels)})
    if (other := found.isna() & cells.notna()).any():
        raise ValueError(f"column {name!r}, row {other.idxmax()}: none of the stated values {', '.join(labels)}")
    return found.astype(float)


def _without_missing(users: "pd.DataFrame", policy: str, notes: list[str]) -> "pd.DataFrame":
    """Raises ValueError where missing cells are refused, or nobody is left."""
    absent = users.isna()
    lacking = absent.any(axis=1)
    if not (count := int(lacking.sum())):
        return users
    if policy == "refuse":
        name = absent.any().idxmax()
        raise ValueError(
            f"column {name!r}, row {absent[name].idxmax()}: the cell is missing ({count} such rows); "
            "--missing drop leaves them out"
        )
    if count == len(users):
        raise ValueError(f"--missing drop leaves nobody: all {count} rows lack a cell of {', '.join(users)}")
    notes.append(f"{count} of {len(users)} users are left out, a cell is missing: {SEEN}")
    return users[~lacking]


def bounded(users: "pd.DataFrame", name: str, bins: Bins, policy: str, notes: list[str]) -> "pd.DataFrame":
    """With numbers of a column between its bounds. Raises ValueError where others are refused, or nobody is left."""
    outside = ~users[name].between(bins.low, bins.high)
    count, stated = int(outside.sum()), f"the stated bounds {bins.low:g}:{bins.high:g}"
    if policy == "clip":
        notes.append(
            f"each {name} beyond {stated} is moved to the nearer bound before it is hidden; how many is not said"
        )
        return users.assign(**{name: users[name].clip(bins.low, bins.high)})
    if not count:
        return users
    if policy == "refuse":
        raise ValueError(
            f"column {name!r}, row {outside.idxmax()}: outside {stated} ({count} such rows); widen the bounds, or take "
            "--out-of-bounds clip or drop"
        )
    if count == len(users):
        raise ValueError(f"--out-of-bounds drop leaves nobody: all {count} numbers of {name} are beyond {stated}")
    notes.append(f"{count} of {len(users)} users are left out, {name} is beyond {stated}: {SEEN}")
    return users[~outside]


def range_of(users: "pd.DataFrame", name: str) -> tuple[float, float]:
    """Least and largest number of a column. Raises ValueError where these are one."""
    low, high = float(users[name].min()), float(users[name].max())
    if not low < high or not math.isfinite(high - low):
        raise ValueError(
            f"column {name!r} is constant: it gives no bounds; state them by --bounds {name}=LOW:HIGH"
        )
    return low, high
