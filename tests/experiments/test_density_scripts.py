"""The scripts of shuffled kernel densities find what their docstrings promise."""

from dataclasses import replace

import pytest
import torch
from scripts import FOLDER, loaded

from torchdp.simulate.report import read_table

with loaded("density/classification.py") as module:
    PROTOCOLS = module.PROTOCOLS


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
