"""Tables read in parts, by rows and by pyarrow: the same tensors as cell by cell, or none where a cell is unusual."""

import random
import sys

import pytest
import torch

from torchdp import cli
from torchdp.cli import quick_table
from torchdp.cli.table import numbers, read_columns, to_categories

LABELS = ["0", "1"]
NUMBERS = [
    b"1.5",
    b" 2",
    b"-0.25 ",
    b"1e-3",
    b"7.",
    b".5",
    b"1234567890123456789",
    b"5e-324",
    b"0.1",
    b"+3",
    b"1_0",
    b"-0",
]
ODD = [
    b"",
    b"nan",
    b"inf",
    b"-Infinity",
    b"1e999",
    b"0x10",
    b"NA",
    b"null",
    b"1,5",
    b'"2"',
    b'"2',
    b"\xff",
    b"2 3",
]
ODD += [b"1d5", b"\xd9\xa3", b"1\x00", b"true", b"#1", b"7" * 200_000, b"\r2", b"2\x0b"]
WAYS = {"rows": quick_table._by_rows, "arrow": quick_table._by_arrow}


def ways():
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return ["rows"]
    return list(WAYS)


def slow(path):
    try:
        cells = read_columns(path, ["height", "label"])
        return numbers("height", cells["height"]), to_categories("label", cells["label"], LABELS)
    except ValueError as error:
        return str(error)


def tables(count):
    """Tables of all manners, most of them with something odd."""
    chance = random.Random(0)
    for i in range(count):
        end = chance.choice([b"\n", b"\n", b"\r\n"])
        rows = [[chance.choice(NUMBERS), b"a", chance.choice([b"0", b"1", b" 1 "])] for _ in range(2 + i % 9)]
        if i % 3:
            chance.choice(rows)[chance.randrange(3)] = chance.choice(ODD)
        if i % 7 == 0:
            chance.choice(rows).append(b"more")
        lines = [chance.choice([b"height,other,label", b" height , x,label ", b"\xef\xbb\xbfheight,other,label"])]
        lines += [b",".join(row) for row in rows]
        if i % 5 == 0:
            lines.insert(chance.randrange(len(lines) + 1), b"")
        yield end.join(lines) + chance.choice([b"", end])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_in_parts_is_what_is_read_cell_by_cell(way, tmp_path, monkeypatch):
    if way not in ways():
        pytest.skip("pyarrow is not installed")
    monkeypatch.setattr(quick_table, "ROWS", 3)
    monkeypatch.setattr(quick_table, "WAYS", (WAYS[way],))
    path, read = str(tmp_path / "table.csv"), 0
    for data in tables(400):
        (tmp_path / "table.csv").write_bytes(data)
        expected, found = slow(path), quick_table.quick_columns(path, ["height"], {"label": LABELS})
        if found is not None:
            assert not isinstance(expected, str), (data[:200], expected)
            assert torch.equal(found["height"], expected[0]) and torch.equal(found["label"], expected[1])
            assert found["height"].dtype == torch.float64 and found["label"].dtype == torch.int64
            read += 1
    assert read > 40


def test_a_large_table_is_read_once_and_in_parts(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("height,label\n" + "1.25,0\n2.5,1\n" * 20_000)
    monkeypatch.setattr("torchdp.cli.users.read_columns", None)  # would fail
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    options = "--statistic auc --columns height label --bounds height=0:5 --epsilon 1 --seed 1".split()
    assert cli.main(["estimate", "--csv", str(path), *options]) == 0
