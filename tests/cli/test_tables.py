"""Tables written by all manners of programs: every row is a user, or reported; every number is what
was written.
"""

import argparse
import csv
import gzip
import io
import math
import os
import random
import re
import statistics
from datetime import date

import pandas as pd
import pytest
from scipy.stats import kendalltau, spearmanr
from sklearn import datasets
from sklearn.metrics import roc_auc_score

from torchdp.cli import table
from torchdp.cli.table import read_users

NUMBERS = [
    "1.5",
    " 2",
    "-0.25 ",
    "1e-3",
    "7.",
    ".5",
    "1234567890123456789",
    "5e-324",
    "+3",
    "-0",
    '"4"',
    '"5\n"',
]
MISSING = ["", " ", "NA", '""', "null", "nan", "\t"]
REFUSED = ["inf", "1e999", "0x10", "1_75", "\uff11\uff17\uff15", "\u0663", '"1,5"', "1 5", "1d5", "true", "2\x0b5",
           "#1", "1\x00", "7" * 200_000, "\u221e", "1__0", "_1", "--1", "\xbd", "1e5.5"]  # fmt: skip
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")
pytestmark = pytest.mark.usefixtures("quick")


def messy(chance, columns):
    """A table's text."""
    end = chance.choice(["\n", "\r\n", "\r"])
    odd = chance.choice([0, 0.1, 0.3])
    bad = chance.choice([0, 0, 0.02])
    lines = [",".join(f" {name} " for name in "abc"[:columns])]
    for _ in range(chance.randrange(1, 12)):
        kinds = [MISSING if chance.random() < odd else NUMBERS for _ in range(columns)]
        row = [chance.choice(kind) for kind in kinds]
        row = [chance.choice(REFUSED) if chance.random() < bad else cell for cell in row]
        empty = [""] * (chance.random() < odd)
        lines += [",".join(row), *empty]
    return end.join(lines) + end * chance.choice([0, 1, 1, 1, 2])


def read(cell):
    """What a person reads: a number, None for a missing one; ValueError."""
    cell = cell.strip()
    if cell.lower() in ("", "na", "null", "nan"):
        return None
    if not NUMBER.fullmatch(cell) or math.isinf(float(cell)):
        raise ValueError
    return float(cell)


def asked(path, columns, missing, group=None):
    names = list("abc"[:columns])
    how = {
        "csv": str(path),
        "delimiter": ",",
        "encoding": "utf-8-sig",
        "decimal": ".",
        "missing": missing,
        "other": None,
    }
    return argparse.Namespace(columns=names, group=group, **how)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_every_row_is_a_user_or_reported(columns, tmp_path, monkeypatch):
    """Users and rows reported as missing are the rows that ``csv`` sees, blank lines too; and
    nothing else is read.
    """
    monkeypatch.setattr(table, "ROWS", 3)
    chance = random.Random(columns)
    path = tmp_path / "table"
    seen = dict.fromkeys(("whole", "part", "refused"), 0)
    for _ in range(100):
        text = messy(chance, columns)
        data = text.encode(chance.choice(["utf-8", "utf-8-sig"]))
        path.write_bytes(gzip.compress(data) if chance.random() < 0.3 else data)
        try:
            rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
            rows = [[read(cell) for cell in row or [""] * columns] for row in rows]
        except (ValueError, csv.Error):
            seen["refused"] += 1
            with pytest.raises(ValueError, match=r"not a finite number|not a readable CSV"):
                read_users(asked(path, columns, "drop"), {}, [])
            continue
        whole = [row for row in rows if None not in row]
        lost = len(rows) - len(whole)
        if lost:
            seen["part"] += 1
            with pytest.raises(
                ValueError, match=rf"row \d+: the cell is missing \({lost} such rows\)"
            ):
                read_users(asked(path, columns, "refuse"), {}, [])
        if whole:
            seen["whole"] += not lost
            notes = []
            users = read_users(asked(path, columns, "drop"), {}, notes)
            assert users.values.tolist() == whole
            assert len(notes) == bool(lost)
            assert not lost or notes[0].startswith(f"{lost} of {len(rows)} users are left out")
    assert min(seen.values()) > 3


def test_groups_and_labels_lose_no_row_either(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "ROWS", 2)
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\n x ,1\n\ny,0\n,1\nx,\n y,1\r\n")
    notes = []
    users = read_users(
        asked(path, 1, "drop", group="b"),
        {"a": ["x", "y"]},
        notes,
    )
    assert users["a"].tolist() == [0, 1, 1]
    assert users["b"].tolist() == ["1", "0", "1"]
    assert users.index.tolist() == [1, 3, 6]
    assert notes[0].startswith("3 of 6 users")
    with pytest.raises(ValueError, match="column 'a', row 6: none of the stated values x, z"):
        path.write_bytes(path.read_bytes().replace(b"\ny", b"\nx"))
        read_users(
            asked(path, 1, "drop", group="b"),
            {"a": ["x", "z"]},
            [],
        )


@pytest.mark.parametrize("packed", [False, True])
def test_stdin_is_a_table(packed):
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as file:
        file.write(gzip.compress(b"a,b\n1,\n2,\n") if packed else b"a,b\n1,\n2,\n")
    before = os.dup(0)
    os.dup2(ours, 0)
    try:
        assert read_users(asked("-", 1, "refuse"), {}, [])["a"].tolist() == [1, 2]
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(ours)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:20] + b"0000" + data[24:]]
)
def test_a_damaged_gzip_file_is_no_table(damage, tmp_path):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(damage(gzip.compress(b"a\n" + b"".join(b"%d\n" % i for i in range(999)))))
    with pytest.raises(ValueError, match="damaged gzip file"):
        read_users(asked(path, 1, "drop"), {}, [])


@pytest.mark.parametrize(
    ("cell", "decimal", "remedy"),
    [
        ("12,345.67", ".", "take out marks between thousands such as ','$"),
        ("1,5", ".", "such as ','; or if it is the decimal mark: --decimal ,$"),
        ("1.5", ",", "such as '.'; or if it is the decimal mark: --decimal .$"),
        ("1.234,5", ",", "take out marks between thousands such as '.'$"),
        ("1x5", ".", "not a finite number; correct or leave out the row$"),
        ("2024-01-31", ".", "of dates state days: --bounds a=2024-01-01:2024-12-31$"),
    ],
)
def test_the_remedy_for_a_number_works(cell, decimal, remedy):
    with pytest.raises(ValueError, match=remedy):
        table.numbers("a", decimal, pd.Series([cell]))
    other = "," if decimal == "." else "."
    if f"--decimal {other}" in remedy:
        assert table.numbers("a", other, pd.Series([cell])).tolist() == [1.5]


def test_dates_are_days_since_the_first():
    cells = [
        "2024-01-01",
        " 2024-01-02T12:00 ",
        "2024-01-03 00:00:00+02:00",
        "NA",
        "2023-12-31",
        "2024-02-29",
    ]
    found = table.days("a", date(2024, 1, 1), pd.Series(cells))
    assert found.isna().tolist() == [cell == "NA" for cell in cells]
    assert found.dropna().tolist() == [0, 1.5, 2 - 2 / 24, -1, 59]
    assert table.ends("2024-01-01:2024-12-31") == (0, 366, date(2024, 1, 1))


def columns(load, *names, **more):
    """Columns of a table that ships with scikit-learn, by their places or "target"."""
    data = load(**more)
    return [
        data.target.tolist() if name == "target" else data.data[:, name].tolist() for name in names
    ]


def text(header, rows, delimiter=",", **how):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, **how)
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()


def decimal_comma(rows):
    return [[str(cell).replace(".", ",") for cell in row] for row in rows]


IRIS = columns(datasets.load_iris, 0, 2, "target")
KINDS = ["setosa", "versicolor", "virginica"]
WINE = columns(datasets.load_wine, 0, 9)
CANCER = columns(datasets.load_breast_cancer, 0, "target")
BMI, PROGRESSION = columns(datasets.load_diabetes, 2, "target", scaled=False)


def in_bins(values, low, high, bins):
    shares = [(value - low) / (high - low) for value in values]
    return [min(int(share * bins), bins - 1) for share in shares]


# bytes, arguments, truth of the stated bins, and the largest error predicted
TABLES = {
    "iris, three groups in words": (
        text(["sepal", "petal", "kind"], zip(IRIS[0], IRIS[1], [KINDS[i] for i in IRIS[2]], strict=True)).encode(),
        "mean --columns sepal --bounds sepal=4:8",
        statistics.mean(IRIS[0]),
        0.5,
    ),
    "iris, a byte order mark and quotes everywhere": (
        b"\xef\xbb\xbf" + text(["sepal", "petal"], zip(*IRIS[:2], strict=True), quoting=csv.QUOTE_ALL).encode(),
        "kendall-b --columns sepal petal --bounds sepal=4:8 petal=0:8 --bins 4 --encoding utf-8",
        kendalltau(in_bins(IRIS[0], 4, 8, 4), in_bins(IRIS[1], 0, 8, 4)).statistic,
        0.6,
    ),
    "wine, semicolons and decimal commas": (
        text(["alcohol", "colour"], decimal_comma(zip(*WINE, strict=True)), ";").encode(),
        "gini --columns colour --bounds colour=0:14 --bins 7 --delimiter ; --decimal ,",
        sum(abs(a - b) for a in in_bins(WINE[1], 0, 14, 7) for b in in_bins(WINE[1], 0, 14, 7))
        / (178 * 177)
        / (2 * statistics.mean(x + 0.5 for x in in_bins(WINE[1], 0, 14, 7))),
        0.3,
    ),
    "cancer, a header in latin-1": (
        text(["Größe", "gutartig"], zip(*CANCER, strict=True)).encode("latin-1"),
        "auc --columns Größe gutartig --bounds Größe=0:30 --bins 6 --encoding latin-1",
        roc_auc_score(CANCER[1], in_bins(CANCER[0], 0, 30, 6)),
        0.3,
    ),
    "diabetes, tabs and missing cells": (
        text(
            ["bmi", "progression"], zip(
                (b if i % 10 else "NA" for i, b in enumerate(BMI)),
                (p if i % 7 else " " for i, p in enumerate(PROGRESSION)), strict=True), "\t",
        ).encode("utf-16"),
        "spearman --columns bmi progression --bounds bmi=15:45 progression=0:400 --bins 4 --delimiter tab "
        "--encoding utf-16 --missing drop",
        spearmanr(
            in_bins([b for i, b in enumerate(BMI) if i % 10 and i % 7], 15, 45, 4),
            in_bins([p for i, p in enumerate(PROGRESSION) if i % 10 and i % 7], 0, 400, 4),
        ).statistic,
        0.4,
    ),
    "a column that is constant": (
        ("x\n" + "3.5\n" * 300).encode(), "gini-mean-difference --columns x --bounds x=0:8 --bins 4", 0.0, 1.0,
    ),
    "one person": (b"x\r\n7\r\n", "mean --columns x --bounds x=0:10", 7.0, 20.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_as_people_write_them(name, tmp_path, estimate):
    data, words, truth, most = TABLES[name]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    found = estimate("--csv", path, "--statistic", words, "--epsilon 6 --seed 1", "--json")
    assert abs(found["estimate"] - truth) < 4 * found["predicted_rmse"] < 4 * most, (found, truth)
    low, high = found["interval"]
    # an interval stays where the truth can be
    assert low <= found["estimate"] <= high or found["estimate"] < low or high == 10
    assert all(
        re.match(r"torchdp estimate: (noise from|\d+ of \d+ users)", line)
        for line in estimate.said.err.splitlines()
    )
