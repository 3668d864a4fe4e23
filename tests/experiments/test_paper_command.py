"""The command of a paper: scripts run once, tables judged, one table; what fails is said and what
is killed goes on.
"""

import importlib.util
import json
import math
from pathlib import Path

import pytest
from papers_base import Finding

from torchdp.simulate.report import read_table

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "experiments/papers"
NAMES = ("pairwise", "factorization", "gaussian", "sketching", "densities")
spec = importlib.util.spec_from_file_location("run_of_papers", PAPERS / "run.py")
command = importlib.util.module_from_spec(spec)
spec.loader.exec_module(command)
SCRIPT = '''"""A mean, by a script that needs no torch."""
import argparse
import json
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--device")
parser.add_argument("--value", type=float, default=1.0)
parser.add_argument("--data", type=Path)
given = parser.parse_args()
with open(given.out / "runs.txt", "a") as file:
    file.write("x")
if given.value < 0:
    sys.exit("value must not be negative")
(given.out / "found.csv").write_text(f"value,error\\n{given.value},0.01\\n")
(given.out / "found.png").write_bytes(b"a picture")
(given.out / "runs.jsonl").write_text(json.dumps({"device": given.device}) + "\\n")
'''
PAPER = """from papers_base import Finding, Paper, Part

def judge(tables):
    row = tables["found"][0]
    yield Finding.equal("Table 1", "the mean is 1", "mean", 1.0, row["value"], row["error"])

PAPER = Paper("toy", "A toy | paper", (Part("one.py", judge, {"found.png": "The mean."}, full=("--value", "2.0")),
                                       Part("two.py", judge, laptop=("--value", "1.03"), full=("--value", "-1")),
                                       Part("one.py", judge, data="--data", holds="means", folder="real")))
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


def paper(*words):
    return command.main(["toy", "--device", "cpu", "--experiments", "experiments", *words])


def test_a_table_is_written_once_and_goes_on_after_a_kill(folder, capsys):
    assert paper() == 0
    out = folder / "results/papers/toy"
    claims = read_table(out / "claims.csv")
    assert [row["verdict"] for row in claims] == ["agrees", "agrees", "not checkable"]
    assert (claims[0]["paper"], claims[0]["ours"], claims[0]["error"]) == (1, 1, 0.01)
    (out / "two/finished.json").unlink()  # as a kill leaves it
    assert paper() == 0
    assert [(out / name / "runs.txt").read_text() for name in ("one", "two")] == ["x", "xx"]
    assert json.loads((out / "one/finished.json").read_text())["device"] == "cpu"
    capsys.readouterr()


def test_what_differs_and_what_fails_end_with_one_and_say_so(folder, capsys):
    assert paper("--scale", "full") == 1
    said = capsys.readouterr()
    assert "two.py failed: value must not be negative" in said.err and "1 differs" in said.out


def test_a_broken_promise_of_ours_ends_with_one_and_a_misprint_of_the_paper_does_not(
    folder, capsys
):
    path = folder / "experiments/papers/toy.py"
    for judge, code, verdict in (("at_most", 1, "broken"), ("as_printed", 0, "corrected")):
        path.write_text(
            PAPER.replace("Finding.equal", f"Finding.{judge}").replace(", 1.0, row", ", 0.5, row")
        )
        assert paper() == code
        said = capsys.readouterr().out
        assert f"2 {verdict}" in said and f"{verdict}: " in said  # the legend


@pytest.mark.parametrize(
    "finding, verdict",
    [
        (Finding.equal("", "", "", 1.0, 1.039, 0.01), "agrees"),
        (Finding.equal("", "", "", 1.0, 1.05, 0.01), "differs"),
        (Finding.at_most("", "", "", 1.0, 1.0005), "holds"),
        (Finding.at_most("", "", "", 1.0, 1.05), "broken"),
        (Finding.at_most("", "", "", 1.0, 1.05, 0.02), "holds"),
        (Finding.at_most("", "", "", 1.0, 0.9, 0.1), "not checkable"),  # 1.4 would agree as well
        (Finding.at_most("", "", "", 1.0, math.nan), "broken"),
        (Finding.as_printed("", "", "", 1.0, 1.05), "corrected"),
        (Finding.as_printed("", "", "", 1.0, 0.9), "agrees"),
        (Finding.as_printed("", "", "", 1.0, 1.05, known=False), "broken"),
        (Finding.compared("", "", "", 1.0, 7.0), "compared"),
        (Finding.lower("", "", "", 1.0, 0.9, 0.01), "beaten"),
        (Finding.lower("", "", "", 1.0, 1.2, 0.01), "behind"),
    ],
)
def test_a_verdict_is_computed(finding, verdict):
    assert finding.verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_paper_at_smoke_differs_nowhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert command.main([name, "--scale", "smoke", "--device", "cpu", "--out", str(tmp_path)]) == 0
