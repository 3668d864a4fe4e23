"""The example that opens a room runs, and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = [path.parent.name for path in sorted(ROOT.glob("torchdp/*/__init__.py")) if ">>>" in path.read_text()]


@pytest.mark.parametrize("room", ROOMS)
def test_the_example_of_a_room_runs(room):
    found = doctest.testmod(importlib.import_module(f"torchdp.{room}"))
    assert found.attempted and not found.failed
