"""Negative controls for the judges of papers: a defect of ours that is planted in a stored table moves a verdict."""

import copy
import re
from pathlib import Path

import pytest
from papers_base import load

from torchdp.simulate.report import read_table

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "experiments/papers/laptop"
NAMES = ("pairwise", "factorization", "gaussian", "sketching", "densities")


def verdicts(part, tables):
    return [finding.verdict for finding in part.judge(tables)]


def stored(name, script):
    for part in load(ROOT / "experiments/papers", name).parts:
        tables = {path.stem: read_table(path) for path in sorted(part.at(RUNS / name).glob("*.csv"))}
        if part.script == script and tables:
            return part, tables
    raise LookupError(script)


@pytest.mark.parametrize(
    ("name", "script", "table", "column", "value"),
    [
        ("densities", "density/attack.py", "attack", "attack", 1.0),
        ("densities", "density/bitsums.py", "summary", "worst/delta", 3.0),
        ("sketching", "secure/grid.py", "attack", "attack", 100.0),
        ("factorization", "factorization/approximate.py", "norms", "gap", 0.05),
        ("factorization", "factorization/known_values.py", "random", "distance", 0.01),
        ("pairwise", "pairwise/error_vs_n.py", "results", "z", 30.0),
        ("pairwise", "pairwise/separation.py", "crossings", "z_below", 30.0),
        ("gaussian", "mean/errors.py", "errors", "worst_data", 1e9),
        ("gaussian", "theorems.py", "theorems", "worst", 1e9),
    ],
)
def test_a_defect_of_ours_is_never_called_the_papers(name, script, table, column, value):
    """Attacks above a certified delta, deltas above the target, gaps, wrong norms, errors and bounds: planted."""
    part, tables = stored(name, script)
    wrong = copy.deepcopy(tables)
    for row in wrong[table]:
        if isinstance(row[column], int | float) and not row.get("kind"):
            row[column] = value
    changed = [new for old, new in zip(verdicts(part, tables), verdicts(part, wrong), strict=True) if old != new]
    assert changed and set(changed) <= {"broken", "differs"}


def test_what_is_corrected_is_known_to_fail_and_explained():
    """Of the theorem checker: only with a kind of failure, and the corrections name the result."""
    said = (ROOT / "docs/corrections.md").read_text()
    for name in NAMES:
        part, tables = stored(name, "theorems.py")
        kinds = {(row["result"], row["statement"]): row["kind"] for row in tables["theorems"]}
        for found in part.judge(tables):
            assert (found.verdict == "corrected") == bool(kinds[found.result, found.claim]), found
            if found.verdict == "corrected":
                number = re.search(r"[\d.]+", found.result)[0]
                assert re.search(rf"\b{re.escape(number)}\b", said), found
