"""What is published: one version everywhere, and a wheel and an sdist that work where nothing else
is.
"""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from laws import executed

import torchdp

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_platforms_are_those_of_the_project():
    page = (ROOT / "docs/versions.md").read_text()
    said = PROJECT["project"]["classifiers"]
    pythons = [one.split(" :: ")[-1] for one in said if re.search(r"Python :: 3\.", one)]
    assert f"| Python | {pythons[0]} to {pythons[-1]} |" in page
    needed = PROJECT["project"]["dependencies"]
    oldest = next(one for one in needed if one.startswith("torch")).partition(">=")[2]
    assert (
        f"torch | {oldest} or newer; tested with {PROJECT['tool']['torchdp']['tested-torch']}"
        in page
    )


@pytest.mark.slow
def test_the_checklist_of_a_release_is_kept(tmp_path):
    """From a copy of what is tracked: sdist, the wheel from it, a new environment, the README's
    block, two extras.
    """
    command = [
        sys.executable,
        "docs/publish.py",
        "--out",
        str(tmp_path / "dist"),
        "--extras",
        "plot",
        "sklearn",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok  ") == 4
    assert f"git tag v{torchdp.__version__}" in done.stdout
    assert len(list((tmp_path / "dist").iterdir())) == 2


def test_one_version_is_stated_everywhere():
    one_version = runpy.run_path(str(ROOT / "docs/publish.py"))["one_version"]
    assert one_version(ROOT)[0] == torchdp.__version__


@pytest.fixture
def run():
    return executed(ROOT / "run.py")


@pytest.fixture
def commands(run, monkeypatch):
    """The commands that run.py would start; `torch` says whether the new environment can
    import it.
    """

    class Commands(list):
        torch = True

    started = Commands()

    def call(command, **_):
        started.append(command)
        return ("import torch" in command[-1]) * (not started.torch)

    monkeypatch.setattr(run.subprocess, "call", call)
    monkeypatch.setattr(run.subprocess, "check_call", lambda c, **_: started.append(c) or 0)
    monkeypatch.setattr(run.subprocess, "check_output", lambda c, **_: "2.99.0+local\n")
    return started


def test_an_importable_torch_is_never_replaced(run, commands, tmp_path):
    run.install(str(tmp_path / "python"), "demo")
    pip = [c for c in commands if "pip" in c]
    assert len(pip) == 1
    assert not any(word.startswith("torch==") for word in pip[0])
    place = pip[0].index("-c") + 1
    constraint = Path(pip[0][place])
    assert constraint.read_text() == "torch==2.99.0+local\n"
    assert pip[0][-1] == f"{ROOT}[demo]"


def test_a_missing_torch_is_installed_at_the_tested_version(run, commands, tmp_path, monkeypatch):
    commands.torch = False
    monkeypatch.delenv("TORCHDP_TORCH", raising=False)
    run.install(str(tmp_path / "python"), "test")
    tested = PROJECT["tool"]["torchdp"]["tested-torch"]
    assert f"torch=={tested}" in commands[1]
    commands.clear()
    monkeypatch.setenv("TORCHDP_TORCH", "torch==2.7.0")
    run.install(str(tmp_path / "python"), "test")
    assert "torch==2.7.0" in commands[1]
