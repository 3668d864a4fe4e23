"""The benches report every row that their docstrings promise; no time is judged."""

import re

import pytest
from scripts import loaded


def test_sketching(smoke):
    tables = smoke("bench/sketching.py").tables
    agrees = {
        name: [row[name] == pytest.approx(row["paper_MB"]) for row in tables["captions"]]
        for name in ("MB", "MB_as_stated")
    }
    # the caption of Table 5 is wrong
    assert agrees == {"MB": [True] * 16, "MB_as_stated": [True] * 10 + [False] * 6}


slow = pytest.mark.slow
ROOMS = (
    "privacy protocol collection factorization domains randomizers queries pairwise mean shuffle density sketching "
    "secure regression training simulate kernels"
).split()


@slow
def test_journal(command, tmp_path):
    """Threads of forked processes by two paths, and kills; the script fails where a batch is lost or counted twice."""
    command("bench/journal.py", "--out", tmp_path)
    assert (tmp_path / "journal.csv").read_text().splitlines()[1].split(",")[:2] == ["3", "40"]


def test_faults_are_of_the_code_as_it_is():
    """Each statement is in its function once, another stands in its place, and the tests named for it are there."""
    with loaded("bench/mutations.py") as module:
        faults = module.read(module.FAULTS.read_text())
        lost = []
        for fault in faults:
            try:
                fault.code(module.ROOT)
            except (LookupError, OSError, SyntaxError, ValueError) as error:
                lost.append(f"{error}")
            for test in fault.tests:
                file, _, name = test.partition("[")[0].partition("::")
                text = (module.ROOT / "tests" / file).read_text()
                assert not name or re.search(rf"(def|class) {name}\b", text), fault
        assert not lost, "\n".join(lost)
        with pytest.raises(ValueError, match="a fault must have"):
            module.read("@ a file without tests\n- a\n+ b\n")
    assert len({(fault.file, fault.what) for fault in faults}) == len(faults)
    assert {fault.room for fault in faults} >= set(ROOMS)


SOUND = """
def first(x):
    return [x + 1, x + 2]  # a comment

class A:
    def second(self, x):
        if x:
            x += 1
            return (x +
                2)
        return 3
"""


@pytest.mark.parametrize(
    ("function", "right", "wrong", "expected"),
    [
        ("A.second", "x + 2", "x - 2", "return ((x - 2))"),
        ("A.second", "x += 1\nreturn x + 2", "return x", "            return x\n        return 3"),
        ("A.second", "x += 1", "if x > 2:\n    x += 1", "            if x > 2:\n                x += 1\n"),
        ("first", "[x+1,x+2]", "[x]", "return ([x])  # a comment"),
        ("", "3", "4", "return (4)"),
    ],
)
def test_a_fault_is_found_whatever_the_form_of_its_lines(tmp_path, function, right, wrong, expected):
    with loaded("bench/mutations.py") as module:
        (tmp_path / "code.py").write_text(SOUND)
        assert expected in module.Fault("code.py", function, "fault", (), right, wrong).code(tmp_path)


@pytest.mark.parametrize(
    ("function", "right", "message"),
    [
        ("A.first", "x + 2", r"code.py::A.first \(fault\): no such function"),
        ("first", "x + 3", "0 times, not once"),
        ("", "x + 2", "2 times, not once"),
    ],
)
def test_a_fault_that_is_gone_is_named(tmp_path, function, right, message):
    with loaded("bench/mutations.py") as module:
        (tmp_path / "code.py").write_text(SOUND)
        with pytest.raises(LookupError, match=message):
            module.Fault("code.py", function, "fault", (), right, "x").code(tmp_path)


@slow
def test_mutations(smoke, tmp_path):
    """Two faults are seen; what changes nothing is seen by nobody, and a copy is as it was afterwards."""
    rooms = smoke("bench/mutations.py").tables["rooms"]
    assert [(row["faults"], row["killed"]) for row in rooms] == [(2, 2)]
    with loaded("bench/mutations.py") as module:
        copy = module.Copy(tmp_path)
        fault = module.Fault(
            "torchdp/wire.py", "pack", "none", ("test_wire.py",), "wide.flip(1)", "wide.flip(2 - 1)"
        )
        with module.planted(fault, copy.root):
            assert copy.failed(fault.tests) == ""
        assert (copy.root / fault.file).read_text() == (module.ROOT / fault.file).read_text()
        with pytest.raises(RuntimeError, match="no_such_test"):
            copy.failed(("no_such_test.py",))
        copy.close()


def test_first_day(smoke):
    """Every kernel beside its reference; without a GPU the reference alone, and it says so."""
    rows = smoke("bench/first_day.py").tables["kernels"]
    assert len({row["kernel"] for row in rows}) == len(rows) == 8
    assert all(row["reference"] > 0 and "CUDA" in row["fault"] for row in rows)
