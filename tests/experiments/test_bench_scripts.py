"""The benches report every row that their docstrings promise; no time is judged."""

import pytest
from scripts import FOLDER, loaded

PREFIX_64 = 2.1113667


def test_frequency_oracles(smoke):
    found = smoke("bench/frequency_oracles.py")
    each, whole = found.tables["per_user"], found.tables["aggregate"]
    assert len(whole) == 5 and all(row["users_per_s"] > 0 for row in each + whole)
    measured = [row["library"] for row in each]
    assert sum(name.startswith("torchdp, ") for name in measured) == 5
    for peer in ("numpy", "pure-ldp", "multi-freq-ldpy", "opendp"):  # measured, or said to be missing
        assert any(name.startswith(peer) for name in measured) or f"{peer}, " in found.printed


def test_randomizers(smoke):
    rows = {row["operation"]: row for row in smoke("bench/randomizers.py").tables["randomizers"]}
    assert len(rows) > 35 and all(row["users_per_s"] > 0 for row in rows.values())
    assert sum(row["time_over_floor"] is None for row in rows.values()) == 6  # aggregates have no floor


def test_factorization_by_products(smoke):
    rows = smoke("bench/factorization_gpu.py").tables["runs"]
    assert [row["path"] for row in rows] == ["Decomposed", "Iterated"]
    assert all(row["lower"] <= PREFIX_64 <= row["upper"] <= 1.001 * row["lower"] for row in rows)


def test_sketching(smoke):
    tables = smoke("bench/sketching.py").tables
    assert len(tables["settings"]) == 2
    assert all(row["MB"] == pytest.approx(row["paper_MB"]) for row in tables["settings"])
    assert len(tables["transform"]) == 2 * 6 and all(row["ms"] > 0 for row in tables["transform"])
    assert [round(row["variance_over_ideal"], 3) for row in tables["grid"]] == [1, 1]


slow = pytest.mark.slow  # these measure memory in fresh processes


@slow
def test_samplers(smoke):
    tables = smoke("bench/samplers.py").tables
    assert len(tables["draws"]) == 6 and all(row["draws"] > 0 and row["torch"] > 0 for row in tables["draws"])
    assert len(tables["memory"]) == 2 * 2


@slow
def test_vector_sums(smoke):
    tables = smoke("bench/vector_sums.py").tables
    memory = {row["path"]: row["MB"] for row in tables["memory"]}
    speed = {row["path"]: row["over_floor"] for row in tables["speed"]}
    for name in ("PrivUnitG collect", "PrivUnit collect"):
        assert memory[name] < 50 and speed[name] > 0


@slow
def test_secure_sketch(smoke):
    tables = smoke("bench/secure_sketch.py").tables
    memory = {row["path"]: row["MiB_beside_A"] for row in tables["memory"]}
    assert len(memory) == 4 and memory["one key"] < 40
    assert len(tables["sources"]) == 5 and len({row["path"] for row in tables["times"]}) >= 4
    assert all(row["ns_per_number"] > 0 for row in tables["times"])


@slow
def test_rounded_features(smoke):
    tables = smoke("bench/rounded_features.py").tables
    assert [row["n"] for row in tables["memory"]] == [2000, 8000]
    assert {row["path"] for row in tables["times"]} >= {"torchdp, Fourier", "torchdp, square waves", "numpy"}


@slow
def test_report_sums(smoke):
    rows = {row["path"]: row for row in smoke("bench/report_sums.py").tables["sums"]}
    paths = {f"{kind}_{path}" for kind in ("response", "unary") for path in ("collect", "plain", "numpy")}
    assert set(rows) == paths and all(row["users_per_s"] > 0 and row["MiB"] >= 0 for row in rows.values())


@slow
def test_sweep_devices(command, tmp_path):
    printed = command("bench/sweep_devices.py", "--out", tmp_path)
    assert "the rows are the same bits" in printed
    assert (tmp_path / "overhead.csv").read_text().count("\n") == 1 + 2


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
