"""What is published: one version everywhere, and a wheel and an sdist that work where nothing else is."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import torchdp

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STATED = ("pyproject.toml", "torchdp/__init__.py", "CITATION.cff", "CHANGELOG.md", "docs/versions.md",
          "docs/conda/recipe.yaml")  # fmt: skip


def test_platforms_are_those_of_the_project():
    page, said = (ROOT / "docs/versions.md").read_text(), PROJECT["project"]["classifiers"]
    pythons = [one.split(" :: ")[-1] for one in said if re.search(r"Python :: 3\.", one)]
    assert f"| Python | {pythons[0]} to {pythons[-1]} |" in page
    oldest = next(one for one in PROJECT["project"]["dependencies"] if one.startswith("torch")).partition(">=")[2]
    assert f"torch | {oldest} or newer; tested with {PROJECT['tool']['torchdp']['tested-torch']}" in page


@pytest.mark.slow
def test_the_checklist_of_a_release_is_kept(tmp_path):
    """From a copy of what is tracked: sdist, the wheel from it, a new environment, the README's block, two extras."""
    command = [sys.executable, "docs/publish.py", "--out", str(tmp_path / "dist"), "--extras", "plot", "sklearn"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok  ") == 4 and f"git tag v{torchdp.__version__}" in done.stdout
    assert len(list((tmp_path / "dist").iterdir())) == 2


def planted(tmp_path, name, old, new):
    """A copy of the files that a version is stated in, with one change."""
    for each in STATED:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / each)
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("CITATION.cff", "version: 0", "version: 9", "CITATION.cff must name version"),
        ("docs/conda/recipe.yaml", "  version: 0", "  version: 9", "recipe.yaml must name version"),
        ("docs/conda/recipe.yaml", "scipy >=1.11", "scipy >=1.1", "requirements differ"),
        ("pyproject.toml", "reference =", "other =", "EXTRAS must name every extra"),
        ("docs/versions.md", "**The name.**", "", "must state the name's history"),
        ("CHANGELOG.md", "### Privacy", "### Other", "must have a heading Privacy"),
    ],
)
def test_what_differs_stops_a_release(name, old, new, said, tmp_path):
    one_version = runpy.run_path(str(ROOT / "docs/publish.py"))["one_version"]
    with pytest.raises(SystemExit, match=said):
        one_version(planted(tmp_path, name, old, new))
    assert one_version(ROOT)[0] == torchdp.__version__
