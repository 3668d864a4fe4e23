"""The scripts of shuffled kernel densities print what their docstrings promise."""

import csv
import re

import pytest

PNG = b"\x89PNG"


@pytest.mark.slow
def test_bitsums(smoke):
    printed = smoke("density/bitsums.py")
    row = next(line.split() for line in printed.splitlines() if line.split()[:3] == ["768", "2", "1e+05"])
    published, exact, poisson, central, last = (float(row[i]) for i in (3, 4, 8, 10, 13))
    for found, wanted in ((published, 3919), (exact, 62.1), (poisson, 62.1), (central, 61.8)):
        assert abs(found / wanted - 1) < 0.02
    assert 1 < last < 1.03
    assert float(re.search(r"worst/delta (\S+)", printed).group(1)) <= 1.000001
    assert "delta 4.43e-05" in printed


@pytest.mark.slow
def test_attack(smoke):
    printed = smoke("density/attack.py")
    calibrated, planted = (
        [float(z) for z in re.findall(rf"{noise} +\S+ +\S+ +\S+ +(\S+)$", printed, re.MULTILINE)]
        for noise in ("calibrated", "planted")
    )
    assert len(calibrated) == len(planted) == 4
    assert max(calibrated) < 4 < min(planted)


def test_digits(smoke, tmp_path):
    printed = smoke("density/digits.py", "--out", tmp_path)
    assert printed.splitlines()[-1].endswith("digits.csv") and (tmp_path / "digits.png").read_bytes().startswith(
        PNG
    )
    with (tmp_path / "digits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(float(row["accuracy"]) < 0.25 for row in rows if "paper" in row["line"])


def test_collect(smoke):
    printed = smoke("density/collect.py")
    assert float(re.search(r"noise alone: (\S+) times", printed).group(1)) > 0


def test_classification(smoke, tmp_path):
    printed = smoke("density/classification.py", "--out", tmp_path)
    rows = re.findall(r"^Gaussian, orthogonal +(.*?) +4\.5 +(\S+) +\S+$", printed, re.MULTILINE)
    accuracy = {name: float(value) for name, value in rows}
    assert accuracy["Poisson"] > 0.7 and accuracy["randomized response"] > 0.7
    assert accuracy["randomized response, paper"] < 0.3 and accuracy["local"] < 0.5
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)


def test_error(smoke, tmp_path):
    printed = smoke("density/error.py", "--out", tmp_path)
    rows = re.findall(r"^Gaussian, orthogonal .* (\S+) +(\S+)$", printed, re.MULTILINE)
    assert len(rows) == 8
    for predicted, measured in rows:
        assert abs(float(measured) / float(predicted) - 1) < 0.12
    assert (tmp_path / "error_digits.png").read_bytes().startswith(PNG)


def test_decode(smoke):
    printed = smoke("density/decode.py").splitlines()
    assert len(printed) == 3 * 9 and all(line.count(",") == 2 for line in printed if line.startswith("    "))


def test_data(smoke):
    assert re.match(r"cvxpy +\d+ paragraphs, \d+ for training", smoke("density/data.py"))
