"""Figures and tables, from rows alone."""

import csv
import math
import sys
from dataclasses import replace

import pytest

from torchdp.simulate import Moments, Row, error_curves
from torchdp.simulate.plots import write_csv


def row(n: int, name: str, mse: float, predicted: float | None = None) -> Row:
    facts = {} if predicted is None else {"predicted_mse": predicted}
    metrics = {"value": Moments(400, mse, 400 * mse**2, 0.0, 3 * mse)}
    return Row({"n": n, "name": name}, metrics, 1.5, facts, 1, 100)


ROWS = [row(n, name, c / n, 1.02 * c / n) for name, c in (("a", 1.0), ("b", 5.0)) for n in (1000, 10, 100)]
LABELS = {"x": "n", "lines": "name", "title": "local model, one user"}


def test_figure_is_a_png_of_the_stated_size(tmp_path):
    path = tmp_path / "figure.png"
    before = "matplotlib.pyplot" in sys.modules
    error_curves(ROWS, **LABELS).savefig(path, dpi=150)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert (width, height) == (1050, 675)  # 7 x 4.5 inches at 150 dpi
    assert ("matplotlib.pyplot" in sys.modules) == before  # no global figure state


def test_single_points_missing_predictions_and_one_sample_are_drawn():
    rows = [row(10, str(i), 1.0) for i in range(9)]
    rows.append(replace(rows[0], config={"n": 20, "name": "x"}, metrics={"value": Moments(1, 1.0, 0.0, 1.0, 1.0)}))
    (axes,) = error_curves(rows, **LABELS).axes
    assert len(axes.containers) == 10


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
    assert (second["predicted_mse"], second["ratio"], second["z"], second["seconds"]) == ("", "", "", "1.5")


def test_csv_refuses_ambiguous_columns(tmp_path):
    with pytest.raises(ValueError, match="seconds"):
        write_csv([replace(ROWS[0], config={"seconds": 1})], tmp_path / "table.csv")


def test_csv_says_which_rows_failed(tmp_path):
    path = tmp_path / "table.csv"
    write_csv([replace(ROWS[0], metrics={}, error="ValueError: no"), replace(ROWS[1], code="trial a")], path)
    first, second = csv.DictReader(path.open())
    assert (first["trials"], first["mse"], first["error"]) == ("0", "", "ValueError: no")
    assert (second["code"], second["error"]) == ("trial a", "") and float(second["mse"]) > 0
