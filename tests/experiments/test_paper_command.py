"""The command of a paper: scripts run once, tables judged, one table; what fails is said and what
is killed goes on.
"""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from papers_base import Claim, database

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
PAPER = """
title = "A toy (2020): a | paper"
identifier = "arXiv:0000.00000"

[[claims.mean]]
result = "Table 1"
says = "the mean is 1"
measure = "mean"
owner = "paper"
mistake = "a mean of 2"
rows = "select value as ours, 1.0 as right, error as standard_error, 2 as wrong from found"

[[parts]]
script = "one.py"
claims = "mean"
figures = [{file = "found.png", caption = "The mean.", paper = "Figure 1: a mean."}]
full = ["--value", "2.0"]

[[parts]]
script = "two.py"
claims = "mean"
laptop = ["--value", "1.03"]
full = ["--value", "-1"]

[[parts]]
script = "one.py"
claims = "mean"
data = "--data"
holds = "means"
folder = "real"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiments = tmp_path / "experiments"
    (experiments / "papers").mkdir(parents=True)
    (experiments / "papers/toy.toml").write_text(PAPER)
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
    assert (claims[0]["right"], claims[0]["ours"], claims[0]["error"]) == (1, 1, 0.01)
    page = (out / "page.md").read_text()
    for said in ("arXiv:0000.00000", "![The mean.](one/found.png)", "Figure 1: a mean.", "2: a mean of 2",
                 "/docs/corrections.md#a-toy-2020", "| agrees | "):  # fmt: skip
        assert said in page, said
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
    path = folder / "experiments/papers/toy.toml"
    limit = PAPER.replace('owner = "paper"', 'owner = "{}"\ntest = "at most"').replace(
        "1.0 as", "0.5 as"
    )
    misprint = limit.replace("select", "select 'misprint' as kind,")
    noisy = limit.replace("0.5 as", "1.0 as").replace("error as", "1.0 as")
    for text, owner, code, verdict in (
        (limit, "ours", 1, "broken"),
        (limit, "paper", 1, "differs"),
        (misprint, "paper", 0, "corrected"),
        (noisy, "ours", 0, "too noisy to tell"),
    ):
        path.write_text(text.replace("{}", owner))
        assert paper() == code
        said = capsys.readouterr().out
        assert f"2 {verdict}" in said and f"{verdict}: " in said  # the legend


def test_what_is_known_of_a_paper_excuses_nothing_of_ours():
    row = {"right": 1.0, "ours": 2.0, "wrong": 3.0, "kind": "misprint"}
    for owner, verdict in (("paper", "corrected"), ("ours", "broken")):
        claim = Claim("", "", "", "", test="at most", owner=owner)
        assert claim.judge(row).verdict == verdict


def test_the_row_shown_is_the_worst_and_a_bound_is_tried_where_it_is_tightest():
    tables = database({"t": [{"x": 0.1, "n": 10}, {"x": 0.9, "n": 20}, {"x": math.nan, "n": 30}]})
    rows = "select *, x as ours, 1 as right, 2*x as wrong from t where n < "
    tight = Claim("", "", "", rows + "25", where="{n:.0f}", test="at most")
    for claim, verdicts in (
        (tight, [("holds", "20")]),
        (replace(tight, rows=rows + "35"), [("broken", "30")]),
        (replace(tight, each=["n"]), [("too loose to tell", "10"), ("holds", "20")]),
        (replace(tight, rows=rows + "5", optional=True), []),
    ):
        assert [(each.verdict, each.where) for each in claim.findings(tables, "")] == verdicts
    with pytest.raises(LookupError, match="no row"):
        replace(tight, rows=rows + "5").findings(tables, "")


NAN = None  # as SQL has it


@pytest.mark.parametrize(
    "test, right, ours, error, wrong, verdict",
    [
        ("equal", 1.0, 1.04, 0.01, 2.0, "holds"),
        ("equal", 1.0, 1.05, 0.01, 2.0, "broken"),
        ("equal", 1.0, 1.0, 0.01, 1.03, "too noisy to tell"),
        ("equal", 1.0, 1.0, 0.0, 1.0005, "too loose to tell"),
        ("equal", 1.0, NAN, 0.01, 2.0, "broken"),
        ("equal", 1.0, 1.0, NAN, 2.0, "broken"),
        ("equal", 1.0, 1.0, 0.01, NAN, "too loose to tell"),
        ("at most", 1.0, 1.0005, 0.0, 2.0, "holds"),
        ("at most", 1.0, 1.05, 0.0, 2.0, "broken"),
        ("at most", 1.0, 0.4, 0.0, 0.8, "too loose to tell"),
        ("at most", 1.0, 0.9, 0.3, 1.8, "too noisy to tell"),
        ("at most", 1.0, math.inf, 0.0, 2.0, "broken"),
        ("at most", 1.0, -math.inf, 0.0, 2.0, "broken"),
        ("against", 1.0, -math.inf, 0.0, 1.1, "broken"),
        ("against", 1.0, 0.96, 0.01, 1.1, "wins"),
        ("against", 1.0, 1.04, 0.01, 1.1, "loses"),
        ("against", 1.0, 1.02, 0.01, 1.1, "ties"),
        ("against", 1.0, 1.02, 0.04, 1.1, "too noisy to tell"),
        ("beside", 1.0, 7.0, 0.0, NAN, "compared"),
        ("beside", 1.0, NAN, 0.0, NAN, "broken"),
    ],
)
def test_a_verdict_is_computed(test, right, ours, error, wrong, verdict):
    row = {"right": right, "ours": ours, "standard_error": error, "wrong": wrong}
    claim = Claim("", "", "", "", test=test)
    assert claim.judge(row).verdict == verdict
    theirs = Claim("", "", "", "", test=test, owner="paper").judge(row).verdict
    assert theirs == {"broken": "differs", "holds": "agrees"}.get(verdict, verdict)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_paper_at_smoke_differs_nowhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert command.main([name, "--scale", "smoke", "--device", "cpu", "--out", str(tmp_path)]) == 0
