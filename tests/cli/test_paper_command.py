"""``torchdp paper``: scripts run once, tables judged, one page; what fails is said and what is killed goes on."""

import json
import math
from pathlib import Path

import pytest

from torchdp import cli
from torchdp.cli.paper import load
from torchdp.simulate.paper import Finding

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "experiments/papers").glob("*.py") if path.stem != "papers_base")
SCRIPT = '''"""A mean."""
import sys
from dataclasses import dataclass
from torchdp.simulate import Experiment, subplots

@dataclass(frozen=True)
class Config:
    value: float = 1.0

def measure(config, report):
    open(report.folder / "runs.txt", "a").write("x")
    if config.value < 0:
        sys.exit("value must not be negative")
    report.row("found", value=config.value, error=0.01)

def draw(tables):
    figure, (axes,) = subplots()
    axes.plot([row["value"] for row in tables["found"]])
    return {"found.png": figure}

EXPERIMENT = Experiment(measure, Config(), Config(1.02), draw)
if __name__ == "__main__":
    EXPERIMENT.main()
'''
PAPER = """from torchdp.simulate.paper import Finding, Paper, Part

def judge(tables):
    row = tables["found"][0]
    yield Finding.equal("Table 1", "the mean is 1", "mean", 1.0, row["value"], row["error"])

PAPER = Paper("toy", "A toy | paper", (Part("one.py", judge, {"found.png": "The mean."}, full=("--value", "2.0")),
                                       Part("two.py", judge, laptop=("--value", "1.03"), full=("--value", "-1"))))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiments = tmp_path / "experiments"
    (experiments / "papers").mkdir(parents=True)
    (experiments / "papers/toy.py").write_text(PAPER)
    for name in ("one.py", "two.py"):
        (experiments / name).write_text(SCRIPT)
    return tmp_path


def test_a_page_is_written_once_and_goes_on_after_a_kill(folder, capsys):
    assert cli.main(["paper", "toy", "--device", "cpu"]) == 0
    out = folder / "results/papers/toy"
    text = (out / "index.md").read_text()
    assert "2 claims; 2 agrees" in text and "![The mean.](one/found.png)" in text and "A toy \\| paper" in text
    assert "data:image/png;base64," in (out / "index.html").read_text()
    (out / "two/finished.json").unlink()  # as a kill leaves it
    assert cli.main(["paper", "toy", "--device", "cpu"]) == 0
    assert [(out / name / "runs.txt").read_text() for name in ("one", "two")] == ["x", "xx"]
    assert json.loads((out / "one/finished.json").read_text())["device"] == "cpu"
    capsys.readouterr()


def test_what_differs_and_what_fails_end_with_one_and_say_so(folder, capsys):
    assert cli.main(["paper", "toy", "--device", "cpu", "--scale", "full"]) == 1
    said = capsys.readouterr()
    assert "two.py failed: value must not be negative" in said.err and "1 differs" in said.out
    assert "two.py failed: value must not be negative" in (folder / "results/papers/toy/index.md").read_text()


@pytest.mark.parametrize(
    "finding, verdict",
    [
        (Finding.equal("", "", "", 1.0, 1.039, 0.01), "agrees"),
        (Finding.equal("", "", "", 1.0, 1.05, 0.01), "differs"),
        (Finding.equal("", "", "", 1.0, 1.05, within=0.06), "agrees"),
        (Finding.equal("", "", "", 1.0, math.nan, 0.01), "differs"),
        (Finding.at_most("", "", "", 1.0, 1.0005), "agrees"),
        (Finding.at_most("", "", "", 1.0, 1.05), "corrected"),
        (Finding.at_most("", "", "", 1.0, math.nan), "differs"),
        (Finding.lower("", "", "", 1.0, 0.9, 0.01), "beaten"),
        (Finding.lower("", "", "", 1.0, 0.97, 0.01), "agrees"),
        (Finding.lower("", "", "", 1.0, 1.2, 0.01), "behind"),
        (Finding.lower("", "", "", 1.0, math.nan, 0.01), "differs"),
    ],
)
def test_a_verdict_is_computed(finding, verdict):
    assert finding.verdict == verdict


def test_bad_names(folder, capsys):
    assert cli.main(["paper", "other"]) == 2 and "toy" in capsys.readouterr().err
    assert cli.main(["paper", "toy", "--device", "mars"]) == 2 and "--device" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_the_five_papers_name_scripts_that_are_there(name):
    paper = load(ROOT / "experiments/papers", name)
    assert paper.name == name and len({part.script for part in paper.parts}) == len(paper.parts)
    for part in paper.parts:
        text = (ROOT / "experiments" / part.script).read_text()
        assert "Artifact:" in text and all(
            figure.split(".")[0] in text or "{name}" in text for figure in part.figures
        )
