"""The script of batches finds what its docstring promises."""

from pytest import approx


def test_batches(smoke):
    found = smoke("privacy/batches.py")
    rows = {row["call"]: row for row in found.tables["calls"]}
    assert all(row["apart"] <= (1e-4 if "flip" in name else 0) for name, row in rows.items()) and len(rows) == 9
    assert all(row["launches"] < 4 for row in rows.values())
    cells = {row["call"]: row for row in found.tables["cells"]}
    assert {name: row["cells"] for name, row in cells.items()} == {
        "PrivUnit.unit_variance": 25,
        "gaussian_sigma": 25,
        "least_flip": 12,
    }
    assert [row["apart"] for row in cells.values()] == approx([0, 0, 0], abs=1e-4)
