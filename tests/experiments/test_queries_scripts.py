"""The scripts of linear queries and randomizers find what their docstrings promise."""

import pytest


def test_error_vs_types(smoke):
    found = smoke("queries/error_vs_types.py")
    rows = found.tables["error_vs_types"]
    z = [(row["measured"] - row["predicted"]) / row["standard_error"] for row in rows]
    assert len(rows) == 14 and max(map(abs, z)) < 5
    assert found.drew("error_vs_types.png")


def test_fitted(smoke):
    found = smoke("queries/fitted.py")
    (row,) = found.tables["fitted"]
    assert row["strategy, fitted"] < row["consistent"] < row["unbiased"] and len(found.tables["shapes"]) == 10
    assert row["chosen, fitted"] < row["unbiased"] and row["worst"] > 0.5
    assert found.drew("fitted.png")


def test_grids(smoke):
    (row,) = smoke("queries/grids.py").tables["grids"]
    assert 1 <= row["chosen"] <= min(row["torus"], row["circle"]) * 1.001 and row["torus"] < 1.6


def test_strategies(smoke):
    (row,) = smoke("queries/strategies.py").tables["strategies"]
    assert row["at_least"] <= row["optimised"] < 0.8 * min(row["gamma_F"], row["oracle"])


def test_sequences(smoke):
    rows = smoke("randomizers/sequences.py").tables["sequences"]
    assert [row["oracle"] for row in rows[-2:]] == ["SubsetSelection", "HadamardResponse"]
    assert all(row["held"] >= 0.9 and 1.4 < row["width at 100"] < 4 for row in rows)


def test_relative_variance(smoke):
    rows = smoke("randomizers/relative_variance.py").tables["relative_variance"]
    assert max(abs(row["z"]) for row in rows if row["z"] is not None) < 5
    relative = [row["relative"] for row in rows if row["randomizer"] == "PrivUnit"]
    assert relative == pytest.approx([1.0019, 1.0021, 1.0063, 1.0172], abs=6e-5)


def test_learner(smoke):
    found = smoke("queries/learner.py")
    rows = found.tables["learner"]
    assert len(rows) == 4 and all(row["least"] <= row["loss"] < 0.6 for row in rows)
    assert "300 stumps" in found.printed and found.drew("learner.png")
