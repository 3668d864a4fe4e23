"""What is published: one version everywhere, and a wheel and an sdist that work where nothing else is."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import torchdp

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SDIST = ("run.py", "mkdocs.yml", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "experiments/pairwise/demo.py",
         "experiments/bench/mutations.txt", "docs/index.md", "tests/contract.py", "torchdp/kernels/chacha/reference.py",
         "kernels/chacha/reference.py", ".ci/run")  # fmt: skip
BLOCK = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]


def test_one_version():
    assert f"\nversion: {torchdp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert torchdp.__version__ in changes and "\n### Privacy\n" in changes


def test_platforms_are_those_of_the_project():
    page, said = (ROOT / "docs/versions.md").read_text(), PROJECT["project"]["classifiers"]
    pythons = [one.split(" :: ")[-1] for one in said if re.search(r"Python :: 3\.", one)]
    assert f"| Python | {pythons[0]} to {pythons[-1]} |" in page
    oldest = next(one for one in PROJECT["project"]["dependencies"] if one.startswith("torch")).partition(">=")[2]
    assert f"torch | {oldest} or newer; tested with {PROJECT['tool']['torchdp']['tested-torch']}" in page


def run(*command, cwd):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_packages_work_where_nothing_else_is(tmp_path):
    """From a copy of what is tracked: sdist, the wheel from it, a new environment, the README's block."""
    source = tmp_path / "source"
    run("git", "clone", "-q", ROOT, source, cwd=tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*pip, *PROJECT["build-system"]["requires"], cwd=tmp_path)
    build = "import sys; from setuptools import build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"
    run(python, "-c", build, "sdist", tmp_path, cwd=source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert not set(SDIST) - held and not any("results/" in name or ".venv" in name for name in held)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    run(python, "-c", build, "wheel", tmp_path, cwd=unpacked)  # from the sdist alone
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "torchdp/kernels/chacha/reference.py" in names and "torchdp/py.typed" in names
    assert not any(
        name.split("/")[0] not in ("torchdp", wheel.name[: wheel.name.index("-py3")] + ".dist-info")
        for name in names
    )
    torch = "torch==" + PROJECT["tool"]["torchdp"]["tested-torch"]
    run(*pip, torch, wheel, cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(tmp_path / "venv/bin/torchdp", "--version", cwd=empty) == f"torchdp {torchdp.__version__}\n"
    assert "at most epsilon = 1" in run(python, "-c", BLOCK, cwd=empty)
    assert run(python, unpacked / "experiments/randomizers/relative_variance.py", "--smoke", cwd=empty)
