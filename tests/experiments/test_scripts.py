"""Every script is in the generated page and says how it is run; some as their users run them, each a process."""

import ast
import csv
import math
import re
import statistics
from dataclasses import replace

import pytest
import torch
from scripts import FOLDER, loaded

from torchdp.simulate.report import read_table

with loaded("readme.py") as readme:
    SCRIPTS = {str(path.relative_to(FOLDER)): readme.fields(path) for path in readme.scripts()}
    PAGE = readme.page()
with loaded("density/classification.py") as module:
    PROTOCOLS = module.PROTOCOLS


def test_docstrings_are_recipes():
    for name, said in SCRIPTS.items():
        assert {"title", "Command", "Expected", "Artifact", "Status", "Time"} <= set(said), name
        assert f"experiments/{name}" in said["Command"] and "--smoke" in said["Time"], name


def test_no_script_does_nothing():
    """Run by python it measures, sweeps, or says what to run, with a code other than 0."""
    for path in FOLDER.rglob("[!_]*.py"):
        *_, last = ast.parse(path.read_text()).body
        assert isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'", path
        done = ast.unparse(last.body[-1])
        called = re.search(r"main\(|exit\(|\.write_text\(|^for line in sys.stdin", done)
        said = re.fullmatch(r"raise SystemExit\('[^']*: (run python|python -m pytest) (\S+)[^']*'\)", done)
        assert called or (said and (FOLDER.parent / said[2]).is_file()), path


def test_the_page_is_current():
    assert (FOLDER / "README.md").read_text() == PAGE, "run: python experiments/readme.py"


def test_error_vs_n(command, tmp_path):
    """A sweep as its user runs it, as a script."""
    printed = command("pairwise/error_vs_n.py", "--out", tmp_path)
    assert str(tmp_path / "ratio.png") in printed.splitlines()
    with (tmp_path / "results.csv").open() as file:
        ratios = [float(row["ratio"]) for row in csv.DictReader(file) if row["statistic"] != "auc"]
    # 50 trials: 0.07 in standard errors
    assert len(ratios) == 12 and sum(ratios) / 12 == pytest.approx(1, abs=0.18)


def test_demo(command, tmp_path):
    """The demo as its user runs it."""
    printed = command("pairwise/demo.py", "--out", tmp_path)
    with (tmp_path / "demo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["statistic"] for row in rows] == ["auc", "kendall", "gini-mean-difference"]
    for row in rows:
        true, estimate, predicted, measured = (
            float(row[name]) for name in ("true", "estimate", "predicted_rmse", "measured_rmse")
        )
        assert abs(estimate - true) < 5 * predicted and measured == pytest.approx(predicted, rel=0.4)  # 100 trials
    assert (tmp_path / "error_vs_n.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "local differential privacy, at most epsilon = 1" in printed


def test_servers(command, tmp_path):
    printed = command("secure/servers.py", "--out", tmp_path)
    assert re.findall(r"identical.*\n(\w+) +True ", printed) == ["sketch", "gram"]


def test_the_story_of_training_says_the_means_of_its_own_runs():
    docs = FOLDER.parent / "docs"
    rows = read_table(docs / "pictures/accuracy.csv")
    story = " ".join((docs / "story_training.md").read_text().split())
    for plan, said in (("DP-SGD", "for DP-SGD"), ("best", "for the best plan"), ("no noise", "without noise")):
        runs = [row["accuracy"] for row in rows if row["plan"] == plan]
        mean, error = 100 * statistics.mean(runs), 100 * statistics.stdev(runs) / math.sqrt(len(runs))
        words = re.search(rf"({mean:.1f}) \+- ({error:.1f}) % {said}", story)
        assert words, (said, mean, error)


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
    """As experiments/README.md shows it."""
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


@pytest.mark.parametrize("model", ["linear", "MLP", "CNN", "attention"])
def test_lanes_clip_as_single_examples_do(model):
    with loaded("training/optimizers.py") as script:
        x, y, _ = script.data("digits", None)
        lanes = script.Lanes(script.shapes(model, 64, 10), 2, 2)
        index, kept = torch.arange(6).view(2, 3), torch.tensor([[1.0, 1, 1], [1, 0, 1]])
        for W in lanes.whole.values():
            W.mul_(1 + torch.arange(4.0).view(2, 2, 1, 1))
        sums, one = lanes.clipped(script.FORWARD[model], x[index], y[index], kept), script.Lanes({}, 1, 1)
        expected = {name: torch.zeros_like(W) for name, W in lanes.whole.items()}
        for rate, seed, i in torch.cartesian_prod(*map(torch.arange, (2, 2, 3))).tolist():
            one.whole = {k: W[rate, seed, None, None].clone().requires_grad_() for k, W in lanes.whole.items()}
            row = index[seed, i]
            loss = torch.nn.functional.cross_entropy(
                script.FORWARD[model](one, x[row, None, None])[0], y[row, None]
            )
            own = torch.autograd.grad(loss, list(one.whole.values()))
            norm = torch.cat([g.flatten() for g in own]).norm()
            for total, g in zip(expected.values(), own, strict=True):
                total[rate, seed] += kept[seed, i] * g[0, 0] / norm.clamp_min(1)
        torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5)
