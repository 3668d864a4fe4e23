"""The users of a table: the cells that are asked about, what becomes of missing ones and of numbers out of bounds."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchdp.cli.table import Bins, Read, is_missing, numbers, read_columns, texts, to_categories

Labels = Mapping[str, Sequence[str]]
SEEN = "that they send nothing is seen"


@dataclass(frozen=True)
class Users:
    """columns: of each, numbers (float64) or places in the stated labels (int64); rows: of the table, from 1.

    notes: who was left out, in words.
    group: each user's place in ``groups``, the names of the public groups, in order of their names; None without any.
    """

    columns: dict[str, Tensor]
    rows: Tensor
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    group: Tensor | None = None

    @staticmethod
    def of(columns: dict[str, Tensor]) -> "Users":
        """All rows of the columns."""
        return Users(columns, torch.arange(1, len(next(iter(columns.values()))) + 1))

    @property
    def n(self) -> int:
        return len(self.rows)

    def only(self, kept: Tensor, note: str) -> "Users":
        """These users alone."""
        columns = {name: column[kept] for name, column in self.columns.items()}
        group = None if self.group is None else self.group[kept]
        return replace(self, columns=columns, rows=self.rows[kept], group=group, notes=(*self.notes, note))

    def split(self, types: Tensor) -> list[tuple[str, Tensor]]:
        """Each group's types by its name; everybody's where there is no group."""
        if self.group is None:
            return [("", types)]
        return [(name, types[self.group == place]) for place, name in enumerate(self.groups)]


def read_users(options: argparse.Namespace, labels: Labels) -> Users:
    """The users of a table who are asked, cells read and missing ones settled. Raises ValueError, OSError."""
    if options.group in options.columns:
        raise ValueError(f"--group {options.group} is one of --columns: a group is public, and not asked about")
    readers: dict[str, Read] = {
        name: partial(to_categories, name, {label: i for i, label in enumerate(labels[name])})
        if name in labels
        else partial(numbers, name, options.decimal)
        for name in options.columns
    }
    if options.group is not None:
        readers[options.group] = texts
    found = read_columns(options.csv, readers, options.delimiter, options.encoding)
    users = Users.of({name: torch.from_numpy(found[name]) for name in options.columns})
    if options.group is not None:
        names = tuple(sorted({cell for cell in found[options.group] if not is_missing(cell)}))
        place = {name: i for i, name in enumerate(names)}
        group = torch.tensor([place.get(cell, -1) for cell in found[options.group]], dtype=torch.int64)
        users = replace(users, groups=names, group=group)
    return _settled(users, options)


def _settled(users: Users, options: argparse.Namespace) -> Users:
    """Without missing cells. Raises ValueError where these are refused, or nobody is left."""
    absent = {
        name: column.isnan() if column.is_floating_point() else column < 0
        for name, column in users.columns.items()
    }
    if users.group is not None:
        absent[options.group] = users.group < 0
    lacking = torch.stack(list(absent.values())).any(0)
    count = int(lacking.sum())
    if not count:
        return users
    if options.missing == "refuse":
        name, first = next((name, each.nonzero()[:1]) for name, each in absent.items() if bool(each.any()))
        raise ValueError(
            f"column {name!r}, row {int(first) + 1}: the cell is missing ({count} such rows); "
            "--missing drop leaves them out"
        )
    if count == users.n:
        raise ValueError(f"--missing drop leaves nobody: all {count} rows lack a cell of {', '.join(absent)}")
    return users.only(~lacking, f"{count} of {users.n} users are left out, a cell is missing: {SEEN}")


def bounded(users: Users, name: str, bins: Bins, policy: str) -> Users:
    """With numbers of a column between its bounds. Raises ValueError where others are refused, or nobody is left."""
    values = users.columns[name]
    outside = (values < bins.low) | (values > bins.high)
    count, stated = int(outside.sum()), f"the stated bounds {bins.low:g}:{bins.high:g}"
    if policy == "clip":
        columns = users.columns | {name: values.clamp(bins.low, bins.high)}
        note = (
            f"each {name} beyond {stated} is moved to the nearer bound before it is hidden; how many is not said"
        )
        return replace(users, columns=columns, notes=(*users.notes, note))
    if not count:
        return users
    if policy == "refuse":
        row = int(users.rows[outside][0])
        raise ValueError(
            f"column {name!r}, row {row}: outside {stated} ({count} such rows); widen the bounds, or take "
            "--out-of-bounds clip or drop"
        )
    if count == users.n:
        raise ValueError(f"--out-of-bounds drop leaves nobody: all {count} numbers of {name} are beyond {stated}")
    return users.only(~outside, f"{count} of {users.n} users are left out, {name} is beyond {stated}: {SEEN}")


def range_of(users: Users, name: str) -> tuple[float, float]:
    """Least and largest number of a column. Raises ValueError where these are one."""
    low, high = (float(end) for end in users.columns[name].aminmax())
    if not low < high or not math.isfinite(high - low):
        raise ValueError(
            f"column {name!r} is constant: it gives no bounds; state them by --bounds {name}=LOW:HIGH"
        )
    return low, high
