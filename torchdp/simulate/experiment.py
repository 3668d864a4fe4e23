"""An experiment: a frozen configuration, what is measured with it, and how its tables are drawn."""

import argparse
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from torchdp import checks
from torchdp.brief import Brief
from torchdp.simulate.config_runs import Row
from torchdp.simulate.report import Report, Rows, read_table
from torchdp.simulate.sweep import MakeTrial
from torchdp.text import integer, number, until_closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

C = TypeVar("C")  # a frozen dataclass: its fields are the command's options


@dataclass(frozen=True)
class Experiment(Brief, Generic[C]):
    """A script under ``experiments/``: its module's docstring is the recipe, ``main()`` its command.

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

        device: torch's default while it measures, and so that of every tensor and generator that names none.
        """
        report = Report(folder, device)
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
        path = Path(module.__file__ or "")
        as_it_is = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=module.__doc__, formatter_class=as_it_is)
        parser.add_argument("--smoke", action="store_true", help="small sizes: seconds on a CPU, a minute at most")
        out = Path("results", path.parent.name, path.stem)
        parser.add_argument("--out", type=Path, default=out, help="default: %(default)s")
        parser.add_argument("--device", help="such as cuda:1 or cpu (default: the first CUDA device, or the CPU)")
        parser.add_argument("--draw-only", action="store_true", help="draw from what an earlier run wrote")
        add_options(parser, self.full)
        given = vars(parser.parse_args(arguments))
        smoke, out, device, draw_only = (given.pop(name) for name in ("smoke", "out", "device", "draw_only"))
        if not draw_only:
            try:
                device = checks.device_or_best("--device", device)
            except ValueError as error:
                parser.error(str(error))
            self.run(replace(self.smoke if smoke else self.full, **given), out, device)  # type: ignore[type-var]
        elif any(out.glob("*.csv")):
            self.drawn(out)
        else:
            parser.error(f"{out} holds no table to draw from; run without --draw-only first")


def add_options(parser: argparse.ArgumentParser, config: Any) -> None:
    """An option for each field of a dataclass; those not given are absent from the namespace."""
    kinds = typing.get_type_hints(type(config))
    for each in fields(config):
        default = getattr(config, each.name)
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": f"default: {_shown(default)}"}
        kind = kinds[each.name]
        if isinstance(kind, types.UnionType):  # X | None
            kind = next(one for one in typing.get_args(kind) if one is not type(None))
        if kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is tuple:
            settings |= {"type": _read(typing.get_args(kind)[0]), "nargs": "+", "action": _Tuple}
        elif typing.get_origin(kind) is typing.Literal:
            settings["choices"] = typing.get_args(kind)
        else:
            settings["type"] = _read(kind)
        parser.add_argument("--" + each.name.replace("_", "-"), **settings)


def _read(kind: Any) -> Any:
    """How an option's text becomes a value of this type."""
    return {int: integer, float: number}.get(kind, kind)


class _Tuple(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, tuple(values))


def _shown(value: Any) -> str:
    return (" ".join(map(str, value)) if isinstance(value, tuple) else str(value)).replace("%", "%%")


@dataclass(frozen=True)
class Sweep(Brief):
    """A grid, what one trial of it is, and how its rows are drawn: what a script hands to ``torchdp sweep``.

    name: of the results' folder. grid, make_trial, trials, block_size: as in :func:`torchdp.simulate.sweep`.
    draw: ``draw(rows, folder)`` writes figures beside those of the report, from the rows alone; returns their files.
    needs: modules that ``draw`` imports, looked for before the work begins.
    """

    name: str
    grid: Sequence[Mapping[str, object]]
    make_trial: MakeTrial
    trials: int | None
    block_size: int
    draw: Callable[[Sequence[Row], Path], Sequence[Path]] = lambda rows, folder: []
    needs: Sequence[str] = ()
