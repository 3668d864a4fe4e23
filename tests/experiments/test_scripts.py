"""Every script is in the generated page and says how it is run; some as their users run them, each
a process.
"""

import ast
import math
import re
import statistics

import pytest
from scripts import FOLDER, loaded

from torchdp import cli
from torchdp.simulate.report import read_table

with loaded("readme.py") as readme:
    SCRIPTS = {str(path.relative_to(FOLDER)): readme.fields(path) for path in readme.scripts()}
    PAGE = readme.page()


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
        said = re.fullmatch(
            r"raise SystemExit\('[^']*: (run python|python -m pytest) (\S+)[^']*'\)", done
        )
        assert called or (said and (FOLDER.parent / said[2]).is_file()), path


def test_the_page_is_current():
    assert (FOLDER / "README.md").read_text() == PAGE, "run: python experiments/readme.py"


@pytest.mark.slow
def test_error_vs_n(tmp_path):
    """A sweep, without its figures, which take seconds."""
    words = [
        "sweep",
        str(FOLDER / "pairwise/error_vs_n.py"),
        "--smoke",
        "--measure-only",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(words) == 0
    rows = read_table(tmp_path / "results.csv")
    ratios = [row["ratio"] for row in rows if row["statistic"] != "auc"]
    # 50 trials: 0.07 in standard errors
    assert len(ratios) == 12
    assert sum(ratios) / 12 == pytest.approx(1, abs=0.18)


def test_the_story_of_training_says_the_means_of_its_own_runs():
    docs = FOLDER.parent / "docs"
    rows = read_table(docs / "pictures/accuracy.csv")
    story = " ".join((docs / "story_training.md").read_text().split())
    for plan, said in (
        ("DP-SGD", "for DP-SGD"),
        ("best", "for the best plan"),
        ("no noise", "without noise"),
    ):
        runs = [row["accuracy"] for row in rows if row["plan"] == plan]
        mean = 100 * statistics.mean(runs)
        error = 100 * statistics.stdev(runs) / math.sqrt(len(runs))
        words = re.search(rf"({mean:.1f}) \+- ({error:.1f}) % {said}", story)
        assert words, (said, mean, error)
