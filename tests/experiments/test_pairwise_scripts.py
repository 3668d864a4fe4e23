"""The scripts of pairwise statistics, beyond the first ones, print what their docstrings promise."""

import re

import pytest

PNG = b"\x89PNG"


@pytest.mark.slow
def test_separation(command, tmp_path):
    printed = command("pairwise/separation.py", "--out", tmp_path)
    last = {
        name: float(value)
        for name, value in re.findall(
            r"^  (one-message|two-round|three-round) +\S+ +(\S+)$", printed, re.MULTILINE
        )
    }
    assert last["two-round"] < last["three-round"] < last["one-message"]
    crossings = re.findall(r"^  .*?(\S+) +\S+ +(\S+) +(\S+) +\S+ +(\S+) +(\S+)$", printed, re.MULTILINE)
    crossings = crossings[-4:]  # the lines before are headings
    for _, before, z_before, after, z_after in crossings:
        assert float(after) < 1 and float(after) < float(before)
        assert abs(float(z_before)) < 4.5 and abs(float(z_after)) < 4.5
    assert (tmp_path / "separation.png").read_bytes().startswith(PNG)


def test_coverage(command):
    line = command("pairwise/coverage.py").splitlines()[-1]
    cells, low, high = re.match(r"marked \*: (\d+) of 78 cells, coverage (\S+) to (\S+),", line).groups()
    assert int(cells) > 50 and float(low) > 0.93 and float(high) < 0.97


def test_groups(command):
    line = command("pairwise/groups.py").splitlines()[-1]
    low, high = re.match(r"coverage of the differences: (\S+) to (\S+) over", line).groups()
    assert float(low) > 0.91 and float(high) < 0.985


@pytest.mark.slow
def test_choose(command, tmp_path):
    printed = command("pairwise/choose.py", "--out", tmp_path)
    off = re.search(r"measured over predicted at most (\S+) standard errors from 1", printed).group(1)
    beaten = re.search(r"any other candidate measured better by: (\S+) standard errors", printed).group(1)
    assert float(off) < 4.5 and float(beaten) < 4
    assert (tmp_path / "choose.csv").stat().st_size > 0


def test_tables(command, tmp_path):
    printed = command("pairwise/tables.py", "--out", tmp_path)
    off = re.search(r"measured over predicted MSE of the messages at most (\S+) from 1", printed).group(1)
    assert float(off) < 0.6  # 100 trials: 0.14 in standard errors; a factor of two shows
    two, one = map(
        float, re.search(r"^AUC .*two messages (\S+) .*one message (\S+) ", printed, re.MULTILINE).groups()
    )
    assert one < two


def test_pictures(command, tmp_path):
    printed = command("pairwise/pictures.py", "--out", tmp_path)
    rows = re.findall(r"^(\S.*?) +\d+ +(\d+) +(\d+) +(\S+) +\S+ +(\d\S+e-\d+)$", printed, re.MULTILINE)
    signs = {name: (int(positive), int(negative)) for name, positive, negative, _, _ in rows}
    assert len(rows) == 4 and signs["abs(i - j)/(k - 1)"][0] == 0 < signs["abs(i - j)/(k - 1)"][1]
    assert signs["Kendall's tau"][0] == signs["Kendall's tau"][1]
    assert all(float(off) < 1e-6 for *_, off in rows)
    assert (tmp_path / "pictures.png").read_bytes().startswith(PNG)
