"""Negative controls for the judges of papers: a stored number that is wrong by little moves a verdict."""

import copy
import math
from pathlib import Path

import pytest

from torchdp.cli.paper import load
from torchdp.simulate.paper import SIGMAS
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
