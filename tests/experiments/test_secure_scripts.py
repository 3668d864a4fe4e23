"""The scripts of sketches, secure sums and regression find what their docstrings promise."""

import re

import pytest


def test_noise(smoke):
    tables = smoke("sketching/noise.py").tables
    ratio = {(row["epsilon"], row["s"]): row["ratio"] for row in tables["entries"]}
    wanted = {(0.05, 1): 13.6, (0.1, 1): 12.4, (0.5, 1): 10.1, (0.05, 10): 15542}
    assert all(ratio[cell] == pytest.approx(value, rel=0.01) for cell, value in wanted.items())
    broken = [row for row in tables["true_epsilon"] if row["noise"].startswith("Corollary") and not row["kept"]]
    assert len(broken) == 2 and all(row["d"] == 1 for row in broken)  # of the corollary at d = s = 1
    exact, planted = ([row for row in tables["drawn"] if row["times"] == times] for times in (1, 0.9))
    assert len(exact) == len(planted) == 3 and all(row["flagged"] for row in planted)
    assert all(abs(row["z"]) < 4.5 for row in exact) and all(row["z"] > 8 for row in planted)


def test_ridge(smoke):
    found = smoke("regression/ridge.py")
    value = {row["method"]: row["phi"] for row in found.tables["phi"] if row["epsilon"] == 0.5}
    assert value["Gram"] < 1.02 < value["sketch"]
    assert found.drew("ridge.png") and found.drew("ridge_lambda.png")


def test_exponents(smoke):
    found = smoke("regression/exponents.py")
    for row in found.tables["slopes"]:  # of noise that has become small
        if (row["rows"], row["sums"]) in (("spectrum", "100 sums"), ("cut", "all rows")) and row["p"] < 0.8:
            assert abs(row["last"] - row["first_order"]) < 0.15, row
    sizes = {row["n"] for row in found.tables["errors"]}
    assert min(sizes) == 1000 and max(sizes) == 10**12
    assert found.drew("figure2.png") and found.drew("figure3.png") and found.drew("figure4.png")


def test_low_rank(smoke):
    found = smoke("regression/low_rank.py")
    gram = [row for row in found.tables["low_rank"] if row["method"] == "Gram"][-1]
    assert 0.6 < gram["psi"] / gram["predicted"] < 1.4
    assert found.drew("low_rank.png")


def test_moments(smoke):
    tables = smoke("regression/moments.py").tables
    assert len(tables["histogram"]) == 2
    for row in tables["histogram"]:
        assert all(abs(row[name] / row[f"{name}_predicted"] - 1) < 0.1 for name in ("Gaussian", "Laplace"))
    assert tables["paper"][-1]["D"] == 4 and tables["paper"][-1]["true_epsilon"] > 1.6


def test_tables(smoke):
    rows = {row["table"]: row for row in smoke("regression/tables.py").tables["phi"]}
    assert 1 <= rows["diabetes, rows repeated"]["Gram"] < 1.01


def test_servers(command, tmp_path):
    printed = command("secure/servers.py", "--out", tmp_path)
    assert re.findall(r"identical.*\n(\w+) +True ", printed) == ["sketch", "gram"]


def test_grid(smoke):
    found = smoke("secure/grid.py")
    assert all(row["factor"] < 1.05 for row in found.tables["grid"]) and len(found.tables["grid"]) == 6
    assert all(0.5 < row["attack"] <= 1 for row in found.tables["attack"])
    assert len(found.tables["noises"]) == 6
    assert all(0.999 < row["factor"] < 1.001 for row in found.tables["noises"])
    assert all(0.999 < row["ratio"] < 1 + 1e-9 and row["one_less"] > 1.1 for row in found.tables["ratios"])


def test_contest(smoke):
    rows = smoke("regression/contest.py", real=("diabetes",)).tables["contest"]
    assert len(rows) >= 6
    for row in rows:
        assert row["chosen"] < row["AdaSSP"] + 4 * (row["chosen_error"] + row["AdaSSP_error"])
