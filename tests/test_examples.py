"""Every example in a docstring runs, and prints what it says."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(ROOT.glob("torchdp/**/*.py"))
    if re.search(r"^ *>>> ", path.read_text(), re.M)
]


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = importlib.import_module(module)
    found = doctest.testmod(there)
    source = Path(there.__file__).read_text()
    written = len(re.findall(r"^ *>>> ", source, re.M))
    # what doctest does not find would not be run
    assert found.attempted == written
    assert not found.failed


def test_no_example_is_skipped():
    assert EXAMPLES
    assert not any("doctest: +SKIP" in path.read_text() for path in ROOT.glob("torchdp/**/*.py"))
