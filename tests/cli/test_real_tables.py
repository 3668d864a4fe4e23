"""``torchdp estimate`` on real tables, written as people write them: what a statistician reads, and every error."""

import csv
import io
import re
import statistics

import pytest
from scipy.stats import energy_distance, kendalltau, spearmanr
from sklearn import datasets
from sklearn.metrics import roc_auc_score

pytestmark = pytest.mark.usefixtures("quick")


def columns(load, *names, **more):
    """Columns of a table that ships with scikit-learn, by their places or "target"."""
    data = load(**more)
    return [data.target.tolist() if name == "target" else data.data[:, name].tolist() for name in names]


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
DIGITS = columns(datasets.load_digits, 36, "target")
LINNERUD = datasets.load_linnerud().data[:, 1].tolist()


def in_bins(values, low, high, bins):
    return [min(int((value - low) / (high - low) * bins), bins - 1) for value in values]


TABLES = {  # bytes, arguments, truth of the stated bins, and the largest error predicted
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
    "digits, two groups of which others are left out": (
        text(["ink", "digit"], [row for row in zip(*DIGITS, strict=True) if row[1] < 2]).encode(),
        "energy-distance --columns ink digit --bounds ink=0:16 --bins 4",
        energy_distance(
            *(
                [4 * x for x in in_bins([i for i, d in zip(*DIGITS, strict=True) if d == digit], 0, 16, 4)]
                for digit in (0, 1)
            )
        )
        ** 2,
        4.0,
    ),
    "linnerud, twenty people, cells with commas and line breaks": (
        text(["name", "situps"], [[f'Nr. {i},\n"{i}"', x] for i, x in enumerate(LINNERUD)]).encode(),
        "mean --columns situps --bounds situps=0:300", statistics.mean(LINNERUD), 80.0,
    ),
    "a column that is constant": (
        ("x\n" + "3.5\n" * 300).encode(), "gini-mean-difference --columns x --bounds x=0:8 --bins 4", 0.0, 1.0,
    ),
    "huge numbers": (
        ("x\n" + "".join(f"{i}e57\n" for i in range(500))).encode(),
        "mean --columns x --bounds x=0:1e60", 249.5e57, 1e59,
    ),
    "one person": (b"x\r\n7\r\n", "mean --columns x --bounds x=0:10", 7.0, 20.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_ten_tables(name, tmp_path, estimate):
    data, words, truth, most = TABLES[name]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    found = estimate("--csv", path, "--statistic", words, "--epsilon 6 --seed 1", "--json")
    assert abs(found["estimate"] - truth) < 4 * found["predicted_rmse"] < 4 * most, (found, truth)
    low, high = found["interval"]
    assert low <= found["estimate"] <= high or found["estimate"] < low  # an interval stays where the truth can be
    assert all(
        re.match(r"torchdp estimate: (noise from|\d+ of \d+ users)", line)
        for line in estimate.said.err.splitlines()
    )


def test_what_a_statistician_reads(tmp_path, estimate):
    path = tmp_path / "iris.csv"
    path.write_bytes(TABLES["iris, three groups in words"][0])
    words = "quantiles --columns petal --bounds petal=0:8 --bins 16 --quantiles .1 .5 --group kind"
    printed = estimate("--csv", path, "--statistic", words, "--epsilon 6").out.splitlines()
    number = r"-?[\d.]+(e[-+]\d+)?"
    lines = [
        "quantiles of petal +150 users, 16 bins of width 0.5: an interval ends where bins do",
        r"answer +estimate, 95 % interval, \+- predicted RMSE \(privacy noise\)",
    ]
    bound = "  lower bound +none known"  # of the column's unit
    for kind in KINDS:
        quantiles = (
            rf"  quantile {each} +{number} +\[{number}, {number}\]  \+- {number}" for each in ("0.1", "0.5")
        )
        lines += [f"{kind}: 50 users", *quantiles, bound]
    lines += [
        "protocol +randomized, 4 bits for each user",
        "guarantee +local .*, exactly epsilon = 6.*",
        "source +War.*",
    ]
    assert len(printed) == len(lines)
    for line, wanted in zip(printed, lines, strict=True):
        assert re.fullmatch(wanted, line), (line, wanted)


ERRORS = {  # a table, arguments, what the one line says: the option or the place, and what to do
    "decimal commas": ("wine, semicolons and decimal commas",
     "mean --columns colour --bounds colour=0:14 --delimiter ;",
     "row 1: not a finite number; take out marks between thousands such as ','; or if it is the decimal "
     "mark: --decimal ,"),
    "another encoding": ("cancer, a header in latin-1",
     "auc --columns Größe gutartig --bounds Größe=0:30 --encoding utf-16",
     "is not a utf-16 text file; --encoding names another"),
    "missing cells": ("diabetes, tabs and missing cells",
     "mean --columns bmi --bounds bmi=15:45 --delimiter tab --encoding utf-16",
     "column 'bmi', row 1: the cell is missing (45 such rows); --missing drop leaves them out"),
    "numbers beyond": ("iris, three groups in words", "mean --columns sepal --bounds sepal=5:8",
     "outside the stated bounds 5:8 (22 such rows); widen the bounds, or take --out-of-bounds clip or drop"),
    "a constant column's own bounds": ("a column that is constant", "mean --columns x --bounds-from-data",
     "column 'x' is constant: it gives no bounds; state them by --bounds x=LOW:HIGH"),
    "a group that is asked about": ("iris, three groups in words",
     "mean --columns sepal --bounds sepal=4:8 --group sepal",
     "--group sepal is one of --columns"),
    "no such group": ("iris, three groups in words", "mean --columns sepal --bounds sepal=4:8 --group colour",
     "column 'colour' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_option_and_the_remedy(name, tmp_path, estimate):
    table, words, message = ERRORS[name]
    path = tmp_path / "table.csv"
    path.write_bytes(TABLES[table][0])
    assert message in estimate("--csv", path, "--statistic", words, "--epsilon 1", code=2)
