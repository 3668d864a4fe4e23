"""No check of the library disappears under ``python -O``: it holds no assert statement."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted({path.resolve() for folder in ("torchdp", "kernels") for path in (ROOT / folder).rglob("*.py")})


def asserts(source: str) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_assert(path):
    assert asserts(path.read_text()) == []


def test_the_search_sees_every_room_and_finds_what_it_looks_for():
    assert {"torchdp", "privacy", "randomizers", "privunitg"} <= {path.parent.name for path in FILES}
    assert asserts("def f(x):\n    assert x\n") == [2]
