"""The benches report every row that their docstrings promise; no time is judged."""

import pytest
from scripts import FOLDER, loaded

from torchdp import cli
from torchdp.simulate import status


def test_sketching(smoke):
    tables = smoke("bench/sketching.py").tables
    assert len(tables["settings"]) == 2
    assert all(row["MB"] == pytest.approx(row["paper_MB"]) for row in tables["settings"])


slow = pytest.mark.slow


@slow
def test_sweep_devices(command, tmp_path):
    printed = command("bench/sweep_devices.py", "--out", tmp_path)
    assert "the rows are the same bits" in printed
    assert (tmp_path / "overhead.csv").read_text().count("\n") == 1 + 2


@slow
def test_six_mechanisms(tmp_path):
    """Its predictions hold."""
    assert cli.main(["sweep", str(FOLDER / "bench/six_mechanisms.py"), "--smoke", "--out", str(tmp_path)]) == 0
    standings = status(tmp_path / "results.jsonl").standings
    assert len(standings) == 12
    assert all(abs(each.moments.z_score(each.facts["predicted_mse"])) < 5 for each in standings)


@slow
def test_journal(command, tmp_path):
    """Threads of forked processes by two paths, and kills; the script fails where a batch is lost or counted twice."""
    command("bench/journal.py", "--out", tmp_path)
    assert (tmp_path / "journal.csv").read_text().splitlines()[1].split(",")[:2] == ["3", "40"]


def test_battery_s_mistakes_are_about_the_code_as_it_is(tmp_path):
    with loaded("bench/battery.py") as module:
        for mistake in module.MISTAKES:
            copy = tmp_path / "torchdp" / mistake.file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text((FOLDER.parent / "torchdp" / mistake.file).read_text())
            module.planted(mistake, tmp_path)
    assert len(module.MISTAKES) >= 30


@slow
def test_battery(smoke):
    assert all(row["seen"] == row["expected"] for row in smoke("bench/battery.py").tables["planted"])


@slow
def test_static_kernels(smoke):
    """What is held of the rows: tests/kernels/test_compiles.py."""
    pytest.importorskip("triton")
    rows = smoke("bench/static_kernels.py").tables["kernels"]
    assert len({row["kernel"] for row in rows}) == len(rows) == 15 and all(row["stack"] == 0 for row in rows)
