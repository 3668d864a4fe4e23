"""Negative controls for the judges of papers: a stored number that is wrong by little moves a verdict."""

import copy
import math
import re
from pathlib import Path

import pytest
from papers_base import SIGMAS, load

from torchdp.simulate.report import read_table

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "experiments/papers/laptop"
NAMES = ("pairwise", "factorization", "gaussian", "sketching", "densities")

GOOD = {"agrees", "beaten"}


def margin(finding):
    return max((finding.granted or 1e-9) * abs(finding.paper), SIGMAS * (finding.error or 0), 1e-9)


def verdicts(part, tables):
    return [finding.verdict for finding in part.judge(tables)]


def cells(tables, value):
    """Where a number stands: as it is, as the rest to 1, or with the other sign."""
    for name, rows in tables.items():
        for at, row in enumerate(rows):
            for column, cell in row.items():
                if isinstance(cell, int | float) and not isinstance(cell, bool):
                    if cell == value:
                        yield name, at, column, lambda new: new
                    elif 1 - cell == value:
                        yield name, at, column, lambda new: 1 - new
                    elif -cell == value:
                        yield name, at, column, lambda new: -new


def moved(part, tables, index, finding, value):
    """Whether the verdict changes where the number's cell is replaced."""
    for name, at, column, back in cells(tables, finding.ours):
        changed = {**tables, name: copy.deepcopy(tables[name])}
        changed[name][at][column] = back(value)
        if verdicts(part, changed)[index] != finding.verdict:
            return True
    return False


def controls(name):
    for part in load(ROOT / "experiments/papers", name).parts:
        folder = part.at(RUNS / name)
        tables = {path.stem: read_table(path) for path in sorted(folder.glob("*.csv"))}
        if tables:
            for index, finding in enumerate(part.judge(tables)):
                if finding.ours is not None and any(cells(tables, finding.ours)):
                    yield part, tables, index, finding


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


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_wrong_by_a_little_more_than_is_granted_moves_the_verdict(name):
    seen = set()
    for part, tables, index, finding in controls(name):
        if "differ most" not in finding.measure:
            assert moved(part, tables, index, finding, math.nan), finding
            if finding.verdict in GOOD and "the best of" not in finding.measure:  # else another takes its place
                outside = [finding.paper + factor * margin(finding) for factor in (-1.05, 1.05)]
                assert any(moved(part, tables, index, finding, value) for value in outside), finding
                seen.add((part.at(Path()), finding.result))
    assert len(seen) > 2
