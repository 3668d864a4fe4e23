"""An experiment: options from its configuration, tables printed and written, figures from what was
written.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch

from torchdp.simulate import Experiment, Report, columns


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (1, 2)
    rate: float = 0.5
    folder: Path | None = None
    kind: Literal["a", "b"] = "a"
    dense: bool = False
    # help of a default with a percent sign
    parts: tuple[str, ...] = ("5 % of all",)


SEEN = []


def measure(config, report):
    SEEN.append(config)
    for size in config.sizes:
        report.row(
            "table",
            name="x" * size,
            size=size,
            value=torch.tensor(size / 3, dtype=torch.float64),
            none=None,
        )


EXPERIMENT = Experiment(measure, Config(), Config(sizes=(3,)))


def test_fields_are_options(tmp_path, capsys):
    words = "--sizes 4 5 --rate inf --folder x --kind b --dense".split()
    EXPERIMENT.main([*words, "--out", str(tmp_path)])
    EXPERIMENT.main(["--smoke", "--out", str(tmp_path)])
    assert SEEN[-2:] == [Config((4, 5), math.inf, Path("x"), "b", True), Config((3,))]
    assert str(tmp_path / "table.csv") in capsys.readouterr().out
    for wrong in (
        ["--kind", "c"],
        ["--sizes", "x"],
        ["--sizes", "1_0"],
        ["--rate", "1_0"],
        ["--absent", "1"],
    ):
        with pytest.raises(SystemExit):
            EXPERIMENT.main(wrong)
    with pytest.raises(SystemExit):
        EXPERIMENT.main(["--draw-only", "--out", str(tmp_path / "empty")])
    assert "holds no table to draw from" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        EXPERIMENT.main(["--help"])
    assert "options from its configuration" in capsys.readouterr().out


def test_what_is_written_is_read_back_and_drawn(tmp_path, capsys):
    drawn = []
    each = Experiment(
        measure,
        Config(),
        Config(),
        lambda tables: drawn.append(tables) or {},
    )
    tables = each.run(Config(), tmp_path)
    rows = [{"name": "x" * size, "size": size, "value": size / 3, "none": None} for size in (1, 2)]
    assert tables == drawn[0] == {"table": rows}
    each.main(["--draw-only", "--out", str(tmp_path)])
    assert len(drawn) == 2
    assert drawn[1] == drawn[0]
    assert columns(rows, "size", "none", name="xx") == [[2], [None]]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "size", "value", "none"]
    assert lines[1].split() == [
        "x",
        "1",
        "0.333333",
    ]


def test_a_table_has_one_set_of_columns(tmp_path):
    report = Report(tmp_path)
    report.row("table", a=1)
    with pytest.raises(ValueError, match="must have cells"):
        report.row("table", b=1)


def test_a_killed_run_goes_on(tmp_path):
    calls = []

    def value(n):
        calls.append(n)
        return {"value": n / 7}

    for sizes in (
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
    ):
        report = Report(tmp_path)
        for n in sizes:
            report.once(
                "table",
                {"n": n, "word": "a, b"},
                lambda n=n: value(n),
            )
        with (tmp_path / "table.csv").open("a") as file:
            # killed while it wrote
            file.write('4,"a, b",0.57')
    assert calls == [1, 2, 3, 4]
    assert (tmp_path / "table.csv").read_text().splitlines()[1:5] == [
        f'{n},"a, b",{n / 7!r}' for n in (1, 2, 3, 4)
    ]
