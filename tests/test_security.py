"""The page on security: tests that a page names exist; what is not covered is not."""

import ast
import functools
import math
import re
from pathlib import Path

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.shuffle import CentralGaussianSum

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/security.md").read_text()
NAMING = [path for path in sorted((ROOT / "docs").glob("*.md")) if "tests/" in path.read_text()]


@functools.cache
def defined(path):
    """Names of the functions and classes of a file."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def missing(text):
    """Tests that a page names and that are not there."""
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", text)
    return [f"{path}::{name}" for path, name in named if name not in defined(path)], len(named)


def test_every_threat_has_a_test_that_exists():
    assert missing(PAGE)[0] == []
    table = PAGE.split("## Threats")[1].split("## ")[0]
    rows = table.strip().splitlines()[2:]
    assert all(re.search(r"`tests/[\w/]+\.py::\w+` \|$", row) or missing(row)[1] for row in rows)
    assert rows
    assert missing("tests/test_security.py::test_of_nothing")[0]


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    assert not missing(page.read_text())[0]


def coarse(numbers):
    """How many numbers lie near 0, and how many of them are multiples of 2^-54."""
    near = numbers[numbers.abs() < 2**-6]
    scaled = near * 2**54
    return len(near), int((scaled == scaled.round()).sum())


def test_outside_the_promise_low_order_bits_of_floats_tell():
    """1 + noise near 0 keeps to the grid of 1; noise alone is finer (Mironov 2012)."""
    # enough of them near 0
    n = 600_000
    law = CentralGaussianSum(1, 4.0)
    chance = {}
    kind = Model.CENTRAL, Neighbours.REPLACE_ONE
    promise = gaussian_guarantee(law.sigma, 1e-9, 1.0, *kind)
    assert "over real numbers" in str(promise)
    for bit in (False, True):
        released = law.noised(torch.full((n,), float(bit)).double(), SeededNoise(1))
        near, grid = coarse(released)
        assert near > 100
        chance[bit] = grid / n
    assert chance[True] > 10 * (math.exp(promise.epsilon) * chance[False] + promise.delta)
