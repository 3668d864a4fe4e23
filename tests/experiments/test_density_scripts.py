"""The scripts of shuffled kernel densities find what their docstrings promise."""

from dataclasses import replace

import pytest
import torch
from scripts import FOLDER, loaded

from torchdp.simulate.report import read_table

with loaded("density/classification.py") as module:
    PROTOCOLS = module.PROTOCOLS


@pytest.mark.slow
def test_bitsums(smoke):
    tables = smoke("density/bitsums.py").tables
    (row,) = tables["rmse"]
    assert (row["I"], row["eps"], row["n"]) == (768, 2, 100_000)
    for name, wanted in (("RR paper", 3919), ("RR", 62.1), ("Poisson", 62.1), ("central", 61.8)):
        assert abs(row[name] / wanted - 1) < 0.02
    assert 1 < row["RR/central"] < 1.03
    worst, composed = tables["summary"][0].values()
    assert worst <= 1.000001 and composed <= 1e-300


@pytest.mark.slow
def test_attack(smoke):
    rows = smoke("density/attack.py").tables["attack"]
    calibrated, planted = ([r["z"] for r in rows if r["noise"] == noise] for noise in ("calibrated", "planted"))
    assert len(calibrated) == len(planted) == 4
    assert max(calibrated) < 4 < min(planted)


@pytest.mark.slow
def test_digits(smoke):
    found = smoke("density/digits.py")
    rows = found.tables["digits"]
    assert found.drew("digits.png")
    assert rows and all(row["accuracy"] < 0.25 for row in rows if "paper" in row["line"])


def test_collect(smoke):
    assert smoke("density/collect.py").tables["gain"][0]["noise"] > 0


@pytest.mark.slow
def test_classification(smoke):
    found = smoke("density/classification.py", label_epsilon=5.0, protocols=PROTOCOLS)
    accuracy = {row["protocol"]: row["accuracy"] for row in found.tables["digits"]}
    assert accuracy["Poisson"] > 0.7 and accuracy["randomized response"] > 0.7
    assert accuracy["randomized response, paper"] < 0.3 and accuracy["local"] < 0.5
    assert found.drew("digits.png")


def noise_only_adds(rows):
    """Every protocol has the same draws of the features, so that no noise can seem to improve a density."""
    assert len({row["feature"] for row in rows}) == 1
    least = min(row["predicted"] for row in rows)
    assert all(row["predicted"] == least for row in rows if row["protocol"] == "no privacy")
    assert all(row["predicted"] > least for row in rows if row["protocol"] != "no privacy")


@pytest.mark.parametrize("name", ["error/error_digits", "error_agnews/error_agnews_rows"])
def test_noise_improves_no_density_of_the_pictures(name):
    noise_only_adds(read_table(FOLDER / f"papers/laptop/densities/density/{name}.csv"))


@pytest.mark.slow
def test_error(smoke, capsys):
    found = smoke("density/error.py", protocols=PROTOCOLS)
    rows = found.tables["error_digits"]
    assert len(rows) == 8 and all(abs(row["measured"] / row["predicted"] - 1) < 0.12 for row in rows)
    noise_only_adds(rows)
    assert found.drew("error_digits.png")
    (found.folder / "error_digits.png").unlink()
    with loaded("density/error.py") as module:  # as experiments/README.md shows it
        module.EXPERIMENT.main(["--draw-only", "--out", str(found.folder)])
        with pytest.raises(SystemExit, match="0"):
            module.EXPERIMENT.main(["--help"])
    assert found.drew("error_digits.png") and "--epsilons" in capsys.readouterr().out


@pytest.mark.slow
def test_decode(smoke):
    rows = smoke("density/decode.py", random=4000, protocols=("no privacy", "Poisson", "3NB")).tables["words"]
    assert len(rows) == 3 * 8 and all(row["words"].count(",") == 2 for row in rows)


def test_data(smoke):
    (row,) = smoke("density/data.py").tables["data"]
    assert row["package"] == "cvxpy" and row["paragraphs"] == row["training"] + row["queries"] > 0


def digits_of(data):
    """Every vector with its label, in an order of their own."""
    x, labels = torch.cat([data.x, data.queries]), torch.cat([data.labels, data.truth])
    return sorted(torch.cat([x, labels[:, None]], 1).tolist())


def test_digits_are_divided_anew_and_what_the_paper_divides_is_not(tmp_path):
    with loaded("density/data.py") as data:
        first = data.digits()
        second = first.again(torch.Generator().manual_seed(1))
        with pytest.raises(SystemExit, match="mhjabreel/CharCnn_Keras"):
            data.agnews_rows(tmp_path)
    assert first.x.shape == second.x.shape and not torch.equal(first.x, second.x)
    assert digits_of(first) == digits_of(second)
    fixed = replace(first, divided=False)
    assert fixed.again(torch.Generator()) is fixed


@pytest.mark.slow
def test_noise_of_shuffled_sums_beside_the_worst_pattern_found(smoke):
    rows = smoke("density/noise.py").tables["noise"]
    assert len(rows) == 3 and all(1 <= row["over_needed"] < 1.06 and row["over_known"] < 1.003 for row in rows)


@pytest.mark.slow
def test_messages(smoke):
    (row,) = smoke("density/messages.py").tables["messages"]
    assert 0.99 <= row["error"] <= 1.5 and row["messages"] <= row["messages_least"]


@pytest.mark.slow
def test_chosen(smoke):
    tables = smoke("density/chosen.py").tables
    (row,), (classes,) = tables["crescents"], tables["classes"]
    assert row["messages"] <= 60 and abs(row["simulated"] / row["predicted"] - 1) < 0.2
    assert classes["accuracy"] > 0.85 and len(tables["kernels"]) == 1
