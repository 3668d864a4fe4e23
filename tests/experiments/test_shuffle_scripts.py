"""The script of crowds behind a shuffler finds what its docstring promises."""

from pytest import approx


def test_amplification(smoke):
    found = smoke("shuffle/amplification.py")
    by_name = {row["randomizer"]: row for row in found.tables["epsilons"]}
    wanted = {"randomized response 64": 0.2703, "clones": 0.4108, "closed": 0.958, "PrivUnit 32": 0.3654}
    assert {name: by_name[name]["10000"] for name in wanted} == approx(wanted, rel=0.01)
    assert all(row["10000"] <= by_name["clones"]["10000"] * 1.01 for row in by_name.values() if row["seconds"])
    errors = {(row["question"], row["protocol"]): row["error"] for row in found.tables["choice"]}
    histogram = {"RandomizedResponse": 73.3, "sums, BoundedSum": 33.2, "gamma_2": 35.1, "identity": 35.7}
    assert {name: errors["histogram", name] for name in histogram} == approx(histogram, rel=0.01)
    mean = {"PrivUnit": 0.000698, "BoundedSum": 0.000224, "a curator": 0.0000228}
    assert {name: errors["mean", name] for name in mean} == approx(mean, rel=0.01)
    assert found.drew("epsilons.png")
