"""Scripts as their users run them, each a process of its own."""

import csv
import re

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


def test_servers(command, tmp_path):
    printed = command("secure/servers.py", "--out", tmp_path)
    assert re.findall(r"identical.*\n(\w+) +True ", printed) == ["sketch", "gram"]
