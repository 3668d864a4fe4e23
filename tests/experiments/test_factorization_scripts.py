"""The scripts of factorization norms find what their docstrings promise."""

import pytest

PREFIX_64 = 2.111367


def test_prefix_constant(smoke):
    first, again = smoke("factorization/prefix_constant.py"), smoke("factorization/prefix_constant.py")
    assert first == again  # the second run reads what the first one wrote
    row = first.tables["prefix_constant"][-1]
    assert row["n"] == 64 and row["lower"] <= PREFIX_64 <= row["upper"] + 1e-6
    assert row["constant_low"] <= 0.78755 + 1e-4 <= row["constant_high"] + 2e-4
    assert first.drew("prefix_constant.png")


def test_solvers(smoke):
    rows = smoke("factorization/solvers.py").tables["solvers"]
    iterations = {row["solver"].strip(): row["iterations"] for row in rows}
    assert 2 * iterations["fixed point, to 1e-06"] <= iterations["without acceleration"]
    assert len(rows) >= 7 and all(row["lower"] <= 1.7044803 and row["upper"] >= 1.7044802 for row in rows)


def test_approximate(smoke):
    found = smoke("factorization/approximate.py")
    assert len(found.tables["norms"]) == 5 and all(row["gap"] <= 1e-3 for row in found.tables["norms"])
    (row,) = found.tables["least_error"]
    assert row["at_least"] <= row["best"] <= row["exact"] * 1.001
    assert found.drew("curves.png")


def test_lower_bounds(smoke):
    tables = smoke("factorization/lower_bounds.py").tables
    for row in tables["local"]:
        assert row["needed"] <= row["enough"]
        assert row["alpha"] > 0.001 or row["ratio"] < 2 < 8 < row["ratio_max"] < 12
    assert tables["central"] and all(2 < row["ratio"] < 5 for row in tables["central"])


def test_table(smoke):
    first, again = smoke("factorization/table.py"), smoke("factorization/table.py")
    assert first == again  # the second run reads what the first one wrote
    rows = first.tables["factorization_table"]
    assert len(rows) == 20 and all(row["lower"] <= row["upper"] * (1 + 1e-12) for row in rows)


def test_growth(smoke):
    found = smoke("factorization/growth.py")
    row = next(row for row in found.tables["growth"] if (row["workload"], row["k"]) == ("Kendall", 64))
    assert row["lower"] == pytest.approx(3.4142136, abs=1e-7) == row["upper"]
    assert found.drew("growth.png")


def test_structured(smoke):
    tables = smoke("factorization/structured.py").tables
    rows = tables["prefix_sums"]
    assert len(rows) == 6 and all(1 <= row[name] < 4 for row in rows for name in list(row)[-5:])
    products = tables["products"]
    assert len(products) == 4 and all(row["types"] == 256 for row in products)
    bounds = [row[name] for row in products for name in ("lower", "upper")]
    assert bounds == pytest.approx([5.23044250] * 8, abs=5e-9)


def test_running_sums(smoke):
    tables = smoke("factorization/running_sums.py").tables
    by = {(row["steps"], row["norm"], row["matrix"]): row for row in tables["bounds"]}
    for norm in ("gamma_2", "gamma_F"):
        path, dense = by[256, norm, "never formed"], by[256, norm, "dense"]
        assert path["lower"] <= dense["upper"] and dense["lower"] <= path["upper"] and path["gap"] < 1e-4
    assert len(tables["strategies"]) == 2 and all(0 < row["gap"] < 0.01 for row in tables["strategies"])


def test_rank(smoke):
    tables = smoke("factorization/rank.py").tables
    norms = {row["how"]: row["norm"] for row in tables["reductions"]}
    assert norms["trained, same distortion"] < norms["truncation, dual weights"] < norms["projection"]
    errors = [row["flat"] for row in tables["protocol"]]
    assert errors == sorted(errors, reverse=True)  # each step pays


def test_known_values(smoke):
    tables = smoke("factorization/known_values.py").tables
    row = tables["known_values"][0]
    assert row["workload"] == "prefix 64x64" and row["lower"] <= PREFIX_64
    assert abs(row["lower"] - 2.111366) < 1e-4 and abs(row["upper"] - 2.111366) < 1e-4
    assert tables["random"][0]["distance"] < 1e-4


def test_trained(smoke):
    found = smoke("factorization/trained.py")
    assert found.drew("trained.png") and len(found.tables["trained"]) == 8
    for row in found.tables["trained"]:
        assert row["lower"] <= row["trained"] <= row["other"] * 1.001
    (row,) = found.tables["marginals"]
    assert row["mean_ratio"] == pytest.approx(1, abs=0.05) and row["largest_z"] < 6


def test_relaxation(smoke):
    """The bounds of every solver of one instance agree, and training reaches what it is asked for."""
    found = smoke("factorization/relaxation.py")
    rows = found.tables["relaxation"]
    assert len(rows) >= 6 and found.drew("relaxation.png")
    for row in rows:
        assert row["solver"] != "relaxation" or row["gap"] <= row["setting"]
        for other in rows:
            assert row["instance"] != other["instance"] or row["lower"] <= other["upper"] * (1 + 1e-9)
    assert all(row["gap"] <= row["setting"] for row in found.tables["large"])
    named = [row for row in found.tables["named"] if row["solver"] == "fixed point"]
    assert len(named) == 2 and all(row["gap"] <= row["setting"] for row in named)
