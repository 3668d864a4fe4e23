"""The scripts of pairwise statistics find what their docstrings promise."""

import csv

import pytest


def test_error_vs_n(command, tmp_path):
    """A sweep as its user runs it, as a script."""
    printed = command("pairwise/error_vs_n.py", "--out", tmp_path)
    assert str(tmp_path / "ratio.png") in printed.splitlines()
    with (tmp_path / "results.csv").open() as file:
        ratios = [float(row["ratio"]) for row in csv.DictReader(file) if row["statistic"] != "auc"]
    # 50 trials: 0.07 in standard errors
    assert len(ratios) == 12 and sum(ratios) / 12 == pytest.approx(1, abs=0.18)


def test_demo(command, tmp_path):
    """The demo as its user runs it."""
    printed = command("pairwise/demo.py", "--out", tmp_path)
    with (tmp_path / "demo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["statistic"] for row in rows] == ["auc", "kendall", "gini-mean-difference"]
    for row in rows:
        true, estimate, predicted, measured = (
            float(row[name]) for name in ("true", "estimate", "predicted_rmse", "measured_rmse")
        )
        assert abs(estimate - true) < 5 * predicted and measured == pytest.approx(predicted, rel=0.4)  # 100 trials
    assert (tmp_path / "error_vs_n.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "local differential privacy, at most epsilon = 1" in printed


def test_large_domain(smoke):
    tables = smoke("pairwise/large_domain.py").tables
    (gain,) = tables["gain"]
    assert gain["predicted"] >= 1.8 and abs(gain["measured"] - gain["predicted"]) < 3 * gain["half_width"]
    assert tables["many"][0]["n"] == 1e9


def test_free_constant(smoke):
    rows = {row["kernel"]: row for row in smoke("pairwise/free_constant.py").tables["free_constant"]}
    assert all(row["least"] <= row["gamma_2"] * (1 + 2e-3) and row["rmse_gain"] > 0.99 for row in rows.values())
    assert rows["Gaussian"]["rmse_gain"] > 2 and abs(rows["absolute difference"]["least"] - 0.5) < 1e-3


def test_label_weight(smoke):
    rows = smoke("pairwise/label_weight.py", scores=64).tables["label_weight"]
    assert len(rows) == 6 and max(row["default_over_best"] for row in rows[:5]) <= 1.08
    assert rows[5]["default_over_best"] <= 1.15


@pytest.mark.slow
def test_separation(smoke):
    found = smoke("pairwise/separation.py")
    last = {row["protocol"]: row["scaled_mse"] for row in found.tables["predicted"] if row["n"] == 10**6}
    assert last["two-round"] < last["three-round"] < last["one-message"]
    crossings = found.tables["crossings"]
    assert len(crossings) == 4
    for row in crossings:
        assert row["ratio_above"] < 1 and row["ratio_above"] < row["ratio_below"]
        assert abs(row["z_below"]) < 4.5 and abs(row["z_above"]) < 4.5
    assert found.drew("separation.png")


def test_coverage(smoke):
    (marked,) = smoke("pairwise/coverage.py").tables["marked"]
    assert marked["cells"] == 78 and marked["marked"] > 50
    assert marked["least"] > 0.89 and marked["largest"] < 0.995  # 200 trials: 0.015 in standard errors


def test_random_kernels(smoke):
    found = smoke("pairwise/random_kernels.py")
    assert len(found.tables["cells"]) == 26 and len(found.tables["search"]) == 3
    assert min(row["coverage"] for row in found.tables["cells"]) > 0.82  # 50 trials: 0.03 in standard errors


def test_more_statistics(smoke):
    found = smoke("pairwise/more_statistics.py")
    (marked,) = found.tables["marked"]
    assert len(found.tables["cells"]) == 24 and marked["cells"] == 22
    assert 0.8 < marked["least_ratio"] <= marked["largest_ratio"] < 1.25  # 150 trials: 0.06 in standard errors
    assert marked["least_coverage"] > 0.88 and marked["largest_bias_z"] < 4.5


def test_groups(smoke):
    rows = smoke("pairwise/groups.py").tables["groups"]
    assert len(rows) == 5 * 3 and all(0.91 < row["covered"] < 0.985 for row in rows)


def test_tables(smoke):
    rows = smoke("pairwise/tables.py").tables["tables"]
    off = [abs(row["ratio"] - 1) for row in rows if row["ratio"] is not None and row["protocol"] != "hierarchical"]
    assert len(off) >= 6 and max(off) < 0.6  # 500 trials: a factor of two shows
    auc = {row["protocol"]: row["rmse"] for row in rows if row["statistic"] == "AUC"}
    assert auc["one message"] < auc["two messages"]


def test_pictures(smoke):
    found = smoke("pairwise/pictures.py")
    rows = {row["kernel"]: row for row in found.tables["pictures"]}
    assert len(rows) == 4 and rows["abs(i - j)/(k - 1)"]["positive"] == 0 < rows["abs(i - j)/(k - 1)"]["negative"]
    assert rows["Kendall's tau"]["positive"] == rows["Kendall's tau"]["negative"]
    assert all(row["rebuilt_to"] < 1e-6 for row in rows.values())
    assert found.drew("pictures.png")
