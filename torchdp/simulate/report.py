"""An experiment: a frozen configuration, the tables measured with it, and how these are drawn.

Each row is printed and written to a CSV file at once, and read back for figures.
"""

import argparse
import csv
import io
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from torchdp import checks
from torchdp.brief import Brief
from torchdp.simulate.code import facts
from torchdp.simulate.config_runs import Row
from torchdp.simulate.sweep import MakeTrial
from torchdp.text import integer, number, until_closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]
C = TypeVar("C")  # a frozen dataclass: its fields are the command's options


class Report(Brief):
    """Where an experiment says what it finds: ``folder/<table>.csv``, all digits, and the terminal.

    device: where its tensors are. ``folder/runs.jsonl`` gets a line for each run: device, command,
    versions, time.
    """

    _printed = ("folder", "device")

    def __init__(self, folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> None:
        self.folder = checks.path("folder", folder)
        self.device = checks.device("device", device)
        self._columns: dict[str, list[str]] = {}  # of the tables that this run writes
        self._known: dict[str, Rows] = {}  # of those that an earlier run wrote
        self._last = ""  # the table whose header was printed last
        self.folder.mkdir(parents=True, exist_ok=True)
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        run = {**facts(), "device": str(self.device), "device_name": name}
        # At the start: a run that dies is on record as well.
        with open(self.folder / "runs.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")

    def say(self, text: object = "") -> None:
        """Prints a line."""
        self._last = ""
        print(text, flush=True)

    def row(self, table: str, /, **cells: object) -> None:
        """Adds a row; the first one of a table replaces what an earlier run wrote.

        Cells are words, numbers, tensors of one number, None. Raises ValueError for columns that
        the table lacks.
        """
        self._add(table, _plain(cells), [])

    def write(self, table: str, rows: Rows) -> None:
        """A whole table, not printed. Raises TypeError, ValueError for none."""
        rows = checks.several("rows", rows, dict)
        write_table(self._path(table), list(rows[0]), map(_plain, rows))

    def once(
        self, table: str, key: Mapping[str, object], measure: Callable[[], Mapping[str, object]]
    ) -> dict[str, Any]:
        """``row(table, **key, **measure())``, or an earlier run's row: killed runs go on."""
        checks.instance("key", key, Mapping)
        checks.function("measure", measure)
        # Read once, before the first new row replaces the file.
        if table not in self._known:
            path = self._path(table)
            self._known[table] = read_table(path) if path.exists() else []
        for row in self._known[table]:
            # As texts, which is all that a CSV file keeps of a value.
            if all(_text(row.get(name)) == _text(value) for name, value in key.items()):
                self._print(table, row)
                return row
        cells = _plain({**key, **measure()})
        # The new file begins with all that an earlier run wrote, so that a second kill loses
        # nothing.
        self._add(table, cells, self._known[table])
        return cells

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.csv"

    def _add(self, table: str, cells: dict[str, Any], before: Rows) -> None:
        path = self._path(table)
        names = list(cells)
        if table not in self._columns:
            self._columns[table] = names
            # Complete before it takes the old table's place: a kill loses neither.
            part = path.with_suffix(".part")
            write_table(part, names, before)
            os.replace(part, path)
        if names != self._columns[table]:
            raise ValueError(
                f"rows of table {table!r} must have cells {self._columns[table]}, not {names}"
            )
        # Closed after each row: a kill loses at most the one under way.
        with open(path, "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(cells.values())
        self._print(table, cells)

    def _print(self, table: str, cells: Mapping[str, Any]) -> None:
        if table != self._last:
            print(_line(cells, cells))
        self._last = table
        texts = [format(v, ".6g") if isinstance(v, float) else _text(v) for v in cells.values()]
        print(_line(cells, texts), flush=True)


def _line(cells: Mapping[str, Any], texts: Iterable[str]) -> str:
    """These texts in the columns of the cells: words to the left, numbers to the right."""
    line = ""
    for (name, value), text in zip(cells.items(), texts, strict=True):
        if isinstance(value, str):
            gap = "  " if line else ""
            line += gap + text.ljust(max(len(name), 24))
        else:
            line += text.rjust(max(len(name) + 2, 14))
    return line.rstrip()


def _plain(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of one number as this number. Raises ValueError for larger ones."""
    for value in cells.values():
        shape = tuple(getattr(value, "shape", ()))
        if shape not in ((), (1,)):
            raise ValueError(
                f"a cell must be a word, a number or a tensor of one, not of shape {shape}"
            )
    return {n: value.item() if hasattr(value, "item") else value for n, value in cells.items()}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def write_table(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """A CSV file with a header; floats keep all digits, None and what a row lacks are empty."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: str | os.PathLike[str]) -> Rows:
    """The complete rows of a CSV file: numbers as int or float, empty cells as None."""
    with open(path, newline="", encoding="utf-8") as file:
        text = file.read()
    whole = text[: text.rfind("\n") + 1]  # a line without its end was cut off
    rows = csv.DictReader(io.StringIO(whole, newline=""))
    return [{name: _value(cell) for name, cell in row.items()} for row in rows]


def _value(cell: str) -> object:
    # Integers first: a float loses their digits beyond 2^53.
    for kind in (integer, number):
        with suppress(ValueError):
            return kind(cell)
    return {"": None, "True": True, "False": False}.get(cell, cell)


def columns(rows: Iterable[Mapping[str, Any]], /, *names: str, **where: object) -> list[list[Any]]:
    """These columns of the rows whose cells equal ``where``: one list for each name.

    Raises TypeError, ValueError.
    """
    # An iterator could be read once, and rows are read for each name.
    given = list(rows) if isinstance(rows, Iterator) else rows
    rows = checks.each_of("rows", given, Mapping)
    for name in (*names, *where):
        checks.instance("each of names", name, str)
        missing = sum(name not in row for row in rows)
        if missing:
            raise ValueError(f"{missing} of {len(rows)} rows have no column {name!r}")
    chosen = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return [[row[name] for row in chosen] for name in names]


@dataclass(frozen=True)
class Experiment(Brief, Generic[C]):
    """A script under ``experiments/``: its docstring is the recipe, ``main()`` its command.

    measure: ``measure(config, report)`` computes and reports rows.
    full, smoke: configurations; with the second it takes under a minute of a CPU, mostly seconds.
    draw: ``draw(tables)`` makes the figures, by file name, from what was written.
    """

    measure: Callable[[C, Report], None]
    full: C
    smoke: C
    draw: Callable[[Mapping[str, Rows]], Mapping[str, "Figure"]] = lambda tables: {}

    def run(self, config: C, folder: Path, device: torch.device | str = "cpu") -> dict[str, Rows]:
        """Measures, then draws from the files; returns the tables as they were written.

        device: torch's default while it measures, and so that of every tensor and generator that
        names none.
        """
        report = Report(folder, device)
        # A torch.device as a context intercepts every call of torch; the CPU, torch's own default,
        # needs none.
        with nullcontext() if report.device.type == "cpu" else report.device:
            self.measure(config, report)
        return self.drawn(folder)

    def drawn(self, folder: Path) -> dict[str, Rows]:
        """Draws from the tables in ``folder``, and returns them; prints the files' names."""
        paths = sorted(folder.glob("*.csv"))
        tables = {path.stem: read_table(path) for path in paths}
        for name, figure in self.draw(tables).items():
            figure.savefig(folder / name, dpi=150)
            paths.append(folder / name)
        print(*(path.resolve() for path in paths), sep="\n")
        return tables

    @until_closed()
    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The command line: a field of the configuration is an option."""
        module = sys.modules[self.measure.__module__]
        parser = argparse.ArgumentParser(
            description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add = parser.add_argument
        add("--smoke", action="store_true", help="small sizes: seconds on a CPU, a minute at most")
        path = Path(module.__file__ or "")
        out = Path("results", path.parent.name, path.stem)
        add("--out", type=Path, default=out, help="default: %(default)s")
        add("--device", help="such as cuda:1 or cpu (default: the first CUDA device, or the CPU)")
        add("--draw-only", action="store_true", help="draw from what an earlier run wrote")
        add_options(parser, self.full)
        options = parser.parse_args(arguments)
        if options.draw_only:
            if not any(options.out.glob("*.csv")):
                lacking = f"{options.out} holds no table to draw from"
                parser.error(f"{lacking}; run without --draw-only first")
            self.drawn(options.out)
            return
        try:
            device = checks.device_or_best("--device", options.device)
        except ValueError as error:
            parser.error(str(error))
        config = self.smoke if options.smoke else self.full
        chosen = {}
        for field in fields(config):  # type: ignore[arg-type]
            # An option that is not given is absent, so that it does not put full sizes into a smoke
            # run.
            value = getattr(options, field.name, None)
            if value is not None:
                chosen[field.name] = tuple(value) if isinstance(value, list) else value
        self.run(replace(config, **chosen), options.out, device)  # type: ignore[type-var]


def add_options(parser: argparse.ArgumentParser, config: Any) -> None:
    """An option for each field of a dataclass; those not given are absent from the namespace."""
    kinds = typing.get_type_hints(type(config))
    for field in fields(config):
        default = getattr(config, field.name)
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        # argparse formats help by %.
        words = f"default: {shown}".replace("%", "%%")
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": words}
        kind = kinds[field.name]
        if isinstance(kind, types.UnionType):  # X | None
            kind = typing.get_args(kind)[0]
        if kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is typing.Literal:
            settings["choices"] = typing.get_args(kind)
        else:
            if typing.get_origin(kind) is tuple:
                kind = typing.get_args(kind)[0]
                settings["nargs"] = "+"
            settings["type"] = {int: integer, float: number}.get(kind, kind)
        parser.add_argument("--" + field.name.replace("_", "-"), **settings)


@dataclass(frozen=True)
class Sweep(Brief):
    """A grid, its trials and how rows are drawn: what a script hands to ``torchdp sweep``.

    name: of the results' folder. grid, make_trial, trials, block_size: as in
    :func:`torchdp.simulate.sweep`. draw: ``draw(rows, folder)`` writes figures beside those of the
    report, from the rows alone; returns their files. needs: modules that ``draw`` imports, looked
    for before the work begins.
    """

    name: str
    grid: Sequence[Mapping[str, object]]
    make_trial: MakeTrial
    trials: int | None
    block_size: int
    draw: Callable[[Sequence[Row], Path], Sequence[Path]] = lambda rows, folder: []
    needs: Sequence[str] = ()
