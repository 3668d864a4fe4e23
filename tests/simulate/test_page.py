"""What people read of a store: its page, from the store alone."""

import csv
import math
import re
import sys
import xml.etree.ElementTree as xml
from dataclasses import replace

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, SETTINGS

from torchdp import cli
from torchdp.simulate import Moments, OnError, Row, error_curves, sweep, write_page
from torchdp.simulate.page import Page, digest_of
from torchdp.simulate.plots import write_csv


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "runs" / "results.jsonl"
    sweep(
        trials.failing,
        GRID,
        store=path,
        on_error=OnError.GO_ON,
        **SETTINGS,
    )
    return path


def test_the_digest_is_of_results_and_not_of_how_they_came(tmp_path):
    rows = [
        sweep(trials.make_trial, grid, store=tmp_path / f"{index}.jsonl", **SETTINGS)
        for index, grid in enumerate((GRID, GRID[::-1], GRID[:3]))
    ]
    assert digest_of(rows[0]) == digest_of(rows[1]) != digest_of(rows[2])
    assert digest_of(
        sweep(
            trials.make_trial,
            GRID,
            store=tmp_path / "s",
            **{**SETTINGS, "seed": 8},
        )
    ) != digest_of(rows[0])


def test_a_page_has_everything_inside(store, tmp_path):
    pytest.importorskip("matplotlib")
    written = write_page(store, tmp_path / "out.html", "A title & more").read_text()
    assert "<title>A title &amp; more</title>" in written
    assert written.count("<svg") == 2
    # nothing from elsewhere
    assert not re.search(r'(src|href)="(?!#)', written)
    for words in (
        "3 of 4 configurations done, 1 failed",
        "ZeroDivisionError: a planted error",
        "users",
        "z-scores",
    ):
        assert words in written
    for picture in re.findall(r"<svg.*?</svg>", written, re.DOTALL):
        xml.fromstring(picture)
    assert "slope" in written
    assert "predicted" in written
    # no heading over nothing
    assert "</h1><h2>" not in written
    assert "</h2><h2>" not in written


def test_cells_cannot_break_out(tmp_path):
    bad = "a|<b>\n\x1b[31m`[x](y)\u202e"
    page = Page(bad)
    page.heading(bad)
    page.say(bad)
    page.table([{bad: bad}, {bad: 0.5}])
    written = page.write(tmp_path / "x.html").read_text()
    assert "<b>" not in written
    assert written.replace("\n", "").isprintable()
    assert written.count("a|&lt;b&gt;\\n") == 6


def test_a_page_without_matplotlib(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", str(store)]) == 0
    said = capsys.readouterr()
    text = store.with_name("report.html").read_text()
    assert "pip install matplotlib" in said.err
    assert said.err.count("\n") == 1
    assert said.out.count("report.") == 1
    assert "need matplotlib" in text
    assert text.count("<tr") > 5


def test_a_page_tells_what_is_done_from_what_is_open(tmp_path):
    pytest.importorskip("matplotlib")
    store = tmp_path / "s.jsonl"
    sweep(
        trials.make_trial,
        GRID[:2],
        store=store,
        trials=200,
        seed=7,
        block_size=100,
    )
    # a half of it
    sweep(
        trials.make_trial,
        GRID,
        store=store,
        trials=200,
        seed=7,
        block_size=100,
        shard=(0, 2),
    )
    text = write_page(store, tmp_path / "out.html").read_text()
    assert "2 of 4 configurations done, 0 failed" in text
    assert [text.count(f"<td>{state}</td>") for state in ("done", "open", "failed")] == [2, 2, 0]


@pytest.mark.parametrize(("grid", "scale"), [
    ([{"n": n} for n in (1, 10)], 1.0), ([{"n": n} for n in (1, 10)], -1.0),
    ([{"n": 10, "name": name} for name in ("a$b", "$", "<b>&", "é" * 300)], 1.0),
    ([{"n": n, "list": [n, None], "none": None} for n in (1, 2)], 1.0),
])  # fmt: skip
def test_any_grid_has_a_page(grid, scale, tmp_path):
    """Words that are no formulas, one number alone, flags, lists; errors of 0 and below."""
    pytest.importorskip("matplotlib")
    make = lambda config: lambda generator, size: scale * torch.rand(size, generator=generator)  # noqa: E731
    sweep(
        make,
        grid,
        store=tmp_path / "s.jsonl",
        trials=20,
        seed=1,
        block_size=10,
    )
    text = write_page(tmp_path / "s.jsonl", tmp_path / "out.html").read_text()
    assert f"{len(grid)} of {len(grid)} configurations done" in text
    assert "<b>&" not in text


def row(
    n: int,
    name: str,
    mse: float,
    predicted: float | None = None,
) -> Row:
    facts = {} if predicted is None else {"predicted_mse": predicted}
    metrics = {"value": Moments(400, mse, 400 * mse**2, 0.0, 3 * mse)}
    return Row(
        {"n": n, "name": name},
        metrics,
        1.5,
        facts,
        1,
        100,
    )


ROWS = [
    row(n, name, c / n, 1.02 * c / n)
    for name, c in (("a", 1.0), ("b", 5.0))
    for n in (1000, 10, 100)
]
LABELS = {"x": "n", "lines": "name", "title": "local model, one user"}


def test_a_figure_touches_no_global_state_of_pyplot(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    error_curves(ROWS, **LABELS).savefig(tmp_path / "figure.png")
    assert ("matplotlib.pyplot" in sys.modules) == before


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ([], {}, "rows is empty"),
        (ROWS, {"x": "absent"}, "no key.*absent"),
        (ROWS, {"lines": "absent"}, "no key.*absent"),
        ([*ROWS, ROWS[0]], {}, "two rows at n=1000"),
        ([row(0, "a", 1.0)], {}, "n > 0"),
        ([row(1, "a", 0.0)], {}, "error > 0"),
        (ROWS, {"x": "name", "lines": "n"}, "name > 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, labels, message):
    with pytest.raises(ValueError, match=message):
        error_curves(rows, **{**LABELS, **labels})


def test_csv_holds_the_numbers(tmp_path):
    path = tmp_path / "table.csv"
    extra = replace(row(5, "c", 2.0), config={"k": 3})
    write_csv([ROWS[0], extra], path)
    first, second = csv.DictReader(path.open())
    measured = "trials,mse,mse_low,mse_high,rmse,predicted_mse,ratio,z,seconds,code,error"
    assert path.read_text().splitlines()[0] == f"n,name,k,{measured}"
    moments = ROWS[0].moments
    assert (first["n"], first["name"], first["k"], first["trials"]) == ("1000", "a", "", "400")
    assert (float(first["mse_low"]), float(first["mse_high"])) == moments.interval()
    assert float(first["rmse"]) == math.sqrt(moments.mean)
    assert float(first["ratio"]) == moments.mean / 0.00102
    assert float(first["z"]) == (moments.mean - 0.00102) / moments.standard_error
    assert (second["predicted_mse"], second["ratio"], second["z"], second["seconds"]) == (
        "",
        "",
        "",
        "1.5",
    )
