"""The benches report every row that their docstrings promise; no time is judged."""

from dataclasses import replace

import pytest
from scripts import FOLDER, loaded

from torchdp import cli
from torchdp.simulate import status


def test_sketching(smoke):
    tables = smoke("bench/sketching.py").tables
    assert len(tables["settings"]) == 2
    assert all(row["MB"] == pytest.approx(row["paper_MB"]) for row in tables["settings"])
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
def test_sweep_devices(command, tmp_path):
    printed = command("bench/sweep_devices.py", "--out", tmp_path)
    assert "the rows are the same bits" in printed
    assert (tmp_path / "overhead.csv").read_text().count("\n") == 1 + 2


@slow
def test_six_mechanisms(tmp_path):
    """Its predictions hold."""
    assert cli.main(["sweep", str(FOLDER / "bench/six_mechanisms.py"), "--smoke", "--out", str(tmp_path)]) == 0
    rows = [each.row for each in status(tmp_path / "results.jsonl").progress]
    assert len(rows) == 12
    assert all(abs(each.moments.z_score(each.facts["predicted_mse"])) < 5 for each in rows)


@slow
def test_journal(command, tmp_path):
    """Threads of forked processes by two paths, and kills; the script fails where a batch is lost or counted twice."""
    command("bench/journal.py", "--out", tmp_path)
    assert (tmp_path / "journal.csv").read_text().splitlines()[1].split(",")[:2] == ["3", "40"]


def test_faults_are_of_the_code_as_it_is():
    """Each text is in its file once, what stands in its place is Python, and its tests are there."""
    with loaded("bench/mutations.py") as module:
        faults = module.read(module.FAULTS.read_text())
        for fault in faults:
            assert fault.code(module.ROOT) != (module.ROOT / fault.file).read_text()
            assert all((module.ROOT / "tests" / test.partition("::")[0]).is_file() for test in fault.tests)
        with pytest.raises(ValueError, match="0 times, not once"):
            replace(faults[0], right="no such text").code(module.ROOT)
        with pytest.raises(ValueError, match="a fault must have"):
            module.read("@ a file without tests\n- a\n+ b\n")
    assert len({(fault.file, fault.what) for fault in faults}) == len(faults)
    assert {fault.room for fault in faults} >= set(ROOMS)


@slow
def test_mutations(smoke, tmp_path):
    """Two faults are seen; what changes nothing is seen by nobody, and a copy is as it was afterwards."""
    rooms = smoke("bench/mutations.py").tables["rooms"]
    assert [(row["faults"], row["killed"]) for row in rooms] == [(2, 2)]
    with loaded("bench/mutations.py") as module:
        copy = module.Copy(tmp_path)
        fault = module.Fault(
            "torchdp/wire.py", "none", ("test_wire.py",), "torch.arange(8, ", "torch.arange(2 * 4, "
        )
        with module.planted(fault, copy.root):
            assert copy.failed(fault.tests) == ""
        assert (copy.root / fault.file).read_text() == (module.ROOT / fault.file).read_text()
        with pytest.raises(RuntimeError, match="no_such_test"):
            copy.failed(("no_such_test.py",))
        copy.close()


@slow
def test_lattice(smoke):
    rows = smoke("bench/lattice.py").tables["lattice"]
    assert [row["differ"] for row in rows] == [0] * 3 and all(row["error_over_bound"] < 0.25 for row in rows)


@slow
def test_mechanisms(smoke):
    """Each says of what it speaks; arithmetic costs integers nothing, and curators' whole numbers next to nothing."""
    rows = smoke("bench/mechanisms.py").tables["mechanisms"]
    kinds = {
        kind: {row["mechanism"] for row in rows if row["arithmetic"] == kind} for kind in ("INTEGER", "ROUNDED")
    }
    assert {"HadamardResponse", "ShiftStrategy"} <= kinds["INTEGER"]
    curators = {"CentralFactorization", "IntegerSums"}
    users = {
        "PrivUnit",
        "GaussianVector",
        "OneMessage of PrivUnit",
        "TwoRound",
        "BitSums of PoissonSum",
    }
    assert curators | users <= kinds["ROUNDED"]
    costs = [row["bits_delta"] for row in rows if row["arithmetic"] != "REAL"]
    assert all(float(cost) < 1e-20 for cost in costs)
    assert rows and all(row["users_a_second"] > 0 for row in rows)


@slow
def test_static_kernels(smoke):
    """What is held of the rows: tests/kernels/test_compiles.py."""
    pytest.importorskip("triton")
    rows = smoke("bench/static_kernels.py").tables["kernels"]
    assert len({row["kernel"] for row in rows}) == len(rows) == 15 and all(row["stack"] == 0 for row in rows)
