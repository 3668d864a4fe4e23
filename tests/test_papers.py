"""The map of the papers: every name of the package and every file that it gives is there, and no
result is left out.
"""

import csv
import functools
import importlib.util
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from papers_base import FAILURES, database, load

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("pages_of_papers", ROOT / "docs/papers.py")
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)
ROWS = list(csv.DictReader(pages.WHERE.open(newline="", encoding="utf-8")))
NUMBERED = {
    "pairwise": "Definition 1 to 3, Theorem 4 to 6, 8, 9, 14, 19, 23, 24, Corollary 7, 16, Fact 15, Lemma 10 to 13, "
    "17, 18, 20 to 22",
    "factorization": "Theorem 1, 7, 10, 22 to 25, 28, 30, Corollary 4 to 6, 31, Definition 16, Lemma 9, 11 to 15, "
    "17 to 21, 26, 27, 29",
    "gaussian": "Theorem 3, 4, 6, 7, 15, 17, 20, 23, 26, 30, 32, 42, 43, 51 to 53, 55, 58, 59, 64 to 66, Lemma 11 "
    "to 14, 19, 21, 27, 28, 31, 33, 35 to 41, 45 to 50, 54, 57, 60, 62, 63, 67, Corollary 16, Definition 2, 29, 61, "
    "Claim 68",
    "sketching": "Table 1 to 8, Figure 1 to 4, Algorithm 1, Definition 3.1, 4.1, 4.2, Theorem 4.4, 4.8, 5.4, 5.7, 5.8, "
    "Corollary 4.7, 4.10, 4.11, Lemma 3.3 to 3.5, 4.3, 4.5, 4.6, 4.9, 5.1 to 5.3, 5.5, 5.6",
    "densities": "Table 1 to 8, Figure 1 to 8, Theorem 3.1, 3.2, Algorithm 1",
}
RESULTS = list(csv.DictReader((ROOT / "docs/results.csv").open()))
AGAINST = {"false as printed", "range missing", "misprint", "step of a proof"}
RUNS = ROOT / "experiments/papers/laptop"
NAMES = ("pairwise", "factorization", "gaussian", "sketching", "densities")
ACCEPTED = {"holds", "agrees", "ties"}


@functools.cache
def findings(name):
    return list(pages.judged(load(ROOT / "experiments/papers", name)))


@pytest.mark.parametrize("name", pages.NAMES)
def test_no_result_is_left_out(name):
    wanted = pages.covered(NUMBERED[name])
    rows = [row["result"] for row in ROWS if row["paper"] == name]
    own = [row["result"] for row in RESULTS if row["paper"] == name]
    for listed in rows, own:
        assert wanted and not wanted - set().union(*map(pages.covered, listed))
    assert not [
        f.result
        for _, f in findings(name)
        if f.verdict != "not checkable" and not reached(rows, f.result)
    ]


def test_a_verdict_against_a_paper_stands_beside_its_words():
    assert all(row["quotation"] for row in RESULTS if row["verdict"] in AGAINST)
    for name in NAMES:
        for script, found in findings(name):
            # a theorem's statement is the claim itself
            spoken = found.quotation or script.endswith("theorems.py")
            assert spoken or found.verdict != "corrected", found


def reached(rows, result):
    return any(pages.about(row, result) for row in rows)


def test_a_missing_result_is_seen():
    covered = pages.covered("Lemmas 35 to 41, Theorem 42")
    assert ("Lemma", "36") in covered and ("Lemma", "42") not in covered
    assert not reached(["Theorem 66, Claim 68"], "Theorem 6") and reached(
        ["its noise: two"], "its noise"
    )


def test_the_page_is_what_the_committed_tables_make():
    assert pages.page() == pages.PAGE.read_text(encoding="utf-8"), (
        "python docs/papers.py writes the page anew"
    )


@pytest.mark.parametrize("name", pages.NAMES)
def test_every_claim_has_a_script_that_is_there(name):
    for script, finding in findings(name):
        assert (ROOT / script).is_file() if script else finding.verdict == "not checkable"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["result"])
def test_every_name_is_there(row):
    for path in re.findall(r"(?:experiments|tests)/[\w/]+\.py", " ".join(row.values())):
        assert (ROOT / path).exists(), path
    room = ""
    for name in re.findall(r"`([A-Za-z][\w.]*)`", row["code"]):
        parts = name.split(".")
        if parts[0] == "torchdp":
            room = parts.pop(1) if len(parts) > 1 else ""
            parts = parts[1:]
        assert there(f"torchdp.{room}", parts), name


def there(module, parts):
    """Whether an attribute, or a module of the room, has this name."""
    try:
        functools.reduce(getattr, parts, importlib.import_module(module))
    except AttributeError:
        return importlib.util.find_spec(".".join([module, *parts])) is not None
    return True


def test_a_wrong_name_is_seen():
    assert there("torchdp.sketching", ["paper"]) and not there("torchdp.sketching", ["papers"])


def stored(name, place):
    """A part whose script or folder ends so, and a database of its stored tables."""
    for part in load(ROOT / "experiments/papers", name).parts:
        folder = part.at(RUNS / name)
        if folder.is_dir() and folder.as_posix().endswith(place):
            return part, database(part.tables(RUNS / name))
    raise LookupError(place)


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_sees_the_mistake_that_it_names(name):
    """With that figure in the place of ours, whatever was accepted fails."""
    for part in load(ROOT / "experiments/papers", name).parts:
        tables = database(part.tables(RUNS / name))
        for claim in part.claims:
            accepted = ACCEPTED & {each.verdict for each in claim.findings(tables, part.of)}
            assert claim.test == "beside" or claim.mistake, claim
            wrong = replace(claim, rows=f"select *, wrong as ours from ({claim.rows})")
            if accepted and claim.test != "beside":
                found = {each.verdict for each in wrong.findings(tables, part.of)}
                assert found & {*FAILURES, "loses"} and not found & ACCEPTED, claim


DEFECTS = tomllib.loads((ROOT / "tests/papers_defects.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_ours_is_seen_and_never_called_the_papers(defect):
    """The judges can lose: what changes its verdict is broken, differs, loses or too noisy."""
    planted = DEFECTS[defect]
    part, tables = stored(planted["paper"], planted["place"])
    before = part.judge(tables)
    tables.executescript(planted["corruption"])
    after = part.judge(tables)
    changed = {
        new.verdict for old, new in zip(before, after, strict=True) if new.verdict != old.verdict
    }
    assert planted["verdict"] in changed
    assert changed <= {*FAILURES, "loses", "too noisy to tell", "too loose to tell"}


def test_the_stored_tables_have_no_failure_and_every_part():
    for name in NAMES:
        found = findings(name)
        assert not [each for _, each in found if each.verdict in FAILURES]
        assert all(
            part.at(RUNS / name).is_dir() for part in load(ROOT / "experiments/papers", name).parts
        )


def test_a_loss_to_a_baseline_is_printed_as_one():
    losses = {
        (found.result, found.where)
        for _, found in findings("sketching")
        if found.verdict == "loses"
    }
    assert ("Table 8", "diabetes") in losses


def test_what_is_corrected_is_known_to_fail_and_explained():
    """Of the theorem checker: only with a kind of failure, and the corrections name the result."""
    said = (ROOT / "docs/corrections.md").read_text()
    for name in NAMES:
        part, tables = stored(name, "theorems")
        kinds = dict(tables.execute("select result || statement, kind from theorems"))
        for found in part.judge(tables):
            kind = kinds[found.result + found.says]
            assert (found.verdict == "corrected") == bool(kind), found
            if found.verdict == "corrected":
                number = re.search(r"[\d.]+", found.result)[0]
                assert re.search(rf"\b{re.escape(number)}\b", said), found
