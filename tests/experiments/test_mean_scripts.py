"""The scripts of general Gaussian means find what their docstrings promise."""

import pytest


@pytest.mark.slow
def test_errors(smoke):
    found = smoke("mean/errors.py", every=1)
    boxes = found.tables["boxes"]
    assert len(boxes) >= 2 and all(box["round_over_shaped"] == pytest.approx(box["theory"]) for box in boxes)
    rows = found.tables["errors"]
    assert len(rows) > 20
    for row in rows:
        assert abs(row["measured"] - row["predicted"]) < 5 * row["standard_error"] + 0.01 * row["predicted"]
        assert row["ratio"] > 1  # above the lower bound
    best = {(row["domain"], row["p"]): row["predicted"] for row in rows if row["noise"] == "default"}
    assert len(best) == 24
    assert all(best[row["domain"], row["p"]] < row["predicted"] * 1.002 for row in rows)
    assert len(found.tables["pure"]) == 12 and all(1 < row["ratio"] < 4 for row in found.tables["pure"])
    assert found.drew("errors.png")


def test_covariance(smoke):
    found = smoke("mean/covariance.py")
    rows = found.tables["covariance"]
    joint = [row for row in rows if row["method"] == "joint release, unbiased"]
    bounds = [row["predicted"] for row in rows if row["method"].startswith("lower bound")]
    assert len(joint) == len(bounds) == 2
    for row, bound in zip(joint, bounds, strict=True):
        assert abs(row["measured"] / row["predicted"] - 1) < 0.06 and bound < row["measured"]
    assert found.drew("covariance.png")


def test_local_central(smoke):
    found = smoke("mean/local_central.py")
    predicted = {(row["method"], row["n"]): row["predicted"] for row in found.tables["local_central"]}
    assert len(predicted) == 2 * 7
    for (method, n), value in predicted.items():
        model = method.split(",")[0].split()[0]
        bound = next(
            value for (name, m), value in predicted.items() if m == n and name.startswith(f"{model} lower")
        )
        assert value >= bound
        if method == "central, shaped" or method == "local, shaped, PrivUnit":
            assert value < predicted[method.replace("shaped", "round"), n]
    assert found.drew("local_central.png")


def test_shapes(smoke):
    tables = smoke("mean/shapes.py").tables
    assert all(max(row["off"], row["gap"]) < 1e-4 for row in tables["closed_forms"])
    assert all(row["off"] < 1e-5 for row in tables["program"])
    rows = [row for row in tables["relaxations"] if row["theory"] is not None]
    assert len(rows) >= 4
    assert all(row["lower"] <= row["upper"] and row["gap"] <= row["theory"] for row in rows)
