"""Every script's smoke run ends with tables and draws its figures; what attacks and papers say is
judged beside it.
"""

import pytest
from scripts import FOLDER, loaded

# over five CPU-seconds
SLOW = """bench/growth bench/journal collection/level density/attack density/bitsums density/chosen
    density/classification density/decode density/error density/messages density/noise factorization/relaxation
    factorization/trained league/run mean/errors mean/shapes queries/more_statistics pairwise/random_kernels
    pairwise/separation queries/fitted secure/servers shuffle/amplification stories/pictures training/accepted
    training/accounting training/choose training/clipping training/optimizers
    training/recalled""".split()
ELSEWHERE = "bench/mutations bench/run theorems".split()
# by script: what holds of the tables of its smoke run
CLAIMS = {}


def claim(name):
    return lambda judge: CLAIMS.setdefault(name, judge)


def scripts():
    with loaded("readme.py") as readme:
        for path in readme.scripts():
            name = str(path.relative_to(FOLDER).with_suffix(""))
            if "EXPERIMENT.main()" in path.read_text() and name not in ELSEWHERE:
                yield pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@claim("bench/journal")
def _(tables):
    """Threads of forked processes by two paths, and kills; the script fails where a batch is lost
    or counted twice.
    """
    (row,) = tables["journal"]
    assert list(row.values())[:2] == [3, 40]


@claim("collection/level")
def _(tables):
    rows = tables["level"]
    first = rows[:6]
    alone = rows[6:]
    rejected = sum(row["level"] for row in first) / len(first)
    assert rejected < 0.15 < sum(row["noise_alone"] for row in first) / len(first)
    assert all("alone" in row["statistic"] and row["level"] <= 0.1 for row in alone)


@claim("density/attack")
def _(tables):
    for row in tables["attack"]:
        assert (row["z"] < 4) == (row["noise"] == "calibrated")


@claim("league/local_accuracy")
def _(tables):
    for row in tables["cells"]:
        # few trials in a smoke run
        assert row["rmse"] == pytest.approx(row["predicted"], rel=0.25)
        assert row["z"] < 4.5


@claim("league/local_coverage")
def _(tables):
    # 95 %, give or take what few trials can tell
    assert all(0.91 < row["coverage"] < 0.985 for row in tables["coverage"])


@claim("league/run")
def _(tables):
    assert {row["holds"] for row in tables["league"]} == {None, True}


@claim("pairwise/demo")
def _(tables):
    assert [row["statistic"] for row in tables["demo"]] == [
        "auc",
        "kendall",
        "gini-mean-difference",
    ]
    for row in tables["demo"]:
        assert abs(row["estimate"] - row["true"]) < 5 * row["predicted_rmse"]
        assert row["measured_rmse"] == pytest.approx(row["predicted_rmse"], rel=0.4)  # 100 trials


@claim("secure/grid")
def _(tables):
    assert all(row["factor"] < 1.05 for row in tables["grid"])
    assert all(0.5 < row["attack"] <= 1 for row in tables["attack"])
    assert all(
        0.999 < row["ratio"] < 1 + 1e-9 and row["one_less"] > 1.1 for row in tables["ratios"]
    )


@claim("secure/servers")
def _(tables):
    assert [row["identical"] for row in tables["servers"]] == [True, True]


@claim("sketching/noise")
def _(tables):
    broken = [
        row
        for row in tables["true_epsilon"]
        if row["noise"].startswith("Corollary") and row["true"] > row["nominal"]
    ]
    # of the corollary at d = s = 1
    assert len(broken) == 2
    assert all(row["d"] == 1 for row in broken)
    for row in tables["drawn"]:
        assert abs(row["z"]) < 4.5 if row["times"] == 1 else row["z"] > 8 or row["times"] != 0.9


@claim("training/accepted")
def _(tables):
    assert all(row["torchdp"] == "equal" for row in tables["accepted"])


@claim("training/accounting")
def _(tables):
    for row in tables["epsilons"]:
        # the attack comes within 15 % of the promise
        assert 0.85 * row["torchdp"] < row["attack"] < row["torchdp"]
        assert row["dp_accounting"] is None or row["torchdp"] < 1.01 * row["dp_accounting"]


@pytest.mark.parametrize("name", list(scripts()))
def test_a_script_finds_what_it_promises(smoke, name):
    tables = smoke(f"{name}.py").tables
    assert tables
    assert all(tables.values())
    CLAIMS.get(name, lambda tables: None)(tables)


def test_claims_are_of_scripts_that_are_there():
    """A script that is renamed does not lose its claim."""
    there = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.py")}
    assert {*CLAIMS, *SLOW, *ELSEWHERE} <= there
