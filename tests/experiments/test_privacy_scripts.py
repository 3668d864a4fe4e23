"""The script of batches finds what its docstring promises."""

from pytest import approx


def test_batches(smoke):
    found = smoke("privacy/batches.py")
    rows = {row["call"]: row for row in found.tables["calls"]}
    assert (
        all(row["apart"] <= (1e-4 if "flip" in name else 4e-12) for name, row in rows.items()) and len(rows) == 9
    )
    assert all(row["launches"] < 4 for row in rows.values())
    cells, sizes = found.tables["cells"], {"PrivUnit.unit_variance": 25, "gaussian_sigma": 25, "least_flip": 12}
    assert {row["call"]: row["cells"] for row in cells} == sizes
    assert [row["apart"] for row in cells] == approx([0, 0, 0], abs=1e-4)
    objects = {row["call"]: row["apart"] for row in found.tables["objects"]}
    assert objects.pop("factorize") < 2e-3 and max(objects.values()) < 1e-8
