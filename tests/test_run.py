"""run.py: what it would install and where; no test here installs anything."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def run():
    spec = importlib.util.spec_from_file_location("run_under_test", ROOT / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(run, monkeypatch):
    """The commands that run.py would start; `torch` says whether the new environment can import it."""

    class Commands(list):
        torch = True

    started = Commands()
    monkeypatch.setattr(
        run.subprocess, "call", lambda c, **_: started.append(c) or ("import torch" in c[-1]) * (not started.torch)
    )
    monkeypatch.setattr(run.subprocess, "check_call", lambda c, **_: started.append(c) or 0)
    monkeypatch.setattr(run.subprocess, "check_output", lambda c, **_: "2.99.0+local\n")
    return started


def test_an_importable_torch_is_never_replaced(run, commands, tmp_path):
    run.install(str(tmp_path / "python"), "demo")
    pip = [c for c in commands if "pip" in c]
    assert len(pip) == 1 and not any(word.startswith("torch==") for word in pip[0])
    constraint = Path(pip[0][pip[0].index("-c") + 1])
    assert constraint.read_text() == "torch==2.99.0+local\n" and pip[0][-1] == f"{ROOT}[demo]"


def test_the_demo_installs_little_and_the_tests_all(run, monkeypatch, tmp_path):
    made, asked = [], []
    monkeypatch.setattr(run, "environment", lambda: (sys.executable, tmp_path))
    monkeypatch.setattr(run, "install", lambda python, extra: made.append(extra))
    monkeypatch.setattr(run.subprocess, "call", lambda command, cwd: asked.append(command[1]))
    for command in ("demo", "demo", "test", "lint", "demo"):
        monkeypatch.setattr(run.sys, "argv", ["run.py", command])
        run.main()
    assert made == ["demo", "test"] and asked.count("experiments/pairwise/demo.py") == 3


def test_a_missing_torch_is_installed_at_the_tested_version(run, commands, tmp_path, monkeypatch):
    commands.torch = False
    monkeypatch.delenv("TORCHDP_TORCH", raising=False)
    run.install(str(tmp_path / "python"), "test")
    tested = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["torchdp"]["tested-torch"]
    assert f"torch=={tested}" in commands[1]
    commands.clear()
    monkeypatch.setenv("TORCHDP_TORCH", "torch==2.7.0")
    run.install(str(tmp_path / "python"), "test")
    assert "torch==2.7.0" in commands[1]


def test_an_active_environment_with_torch_is_used_as_it_is(run, commands, monkeypatch):
    monkeypatch.setattr(run.sys, "base_prefix", sys.prefix + "-base")
    assert run.environment() == (sys.executable, Path(sys.prefix))
    assert not commands


def test_otherwise_an_environment_is_made_that_sees_a_system_torch(run, commands, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run.sys, "base_prefix", sys.prefix)
    python, folder = run.environment()
    assert folder == tmp_path / ".venv" and python.startswith(str(folder))
    assert commands[-1][1:] == ["-m", "venv", "--clear", "--system-site-packages", str(folder)]


@pytest.mark.parametrize("arguments", [[], ["bogus"]])
def test_usage(arguments):
    done = subprocess.run([sys.executable, ROOT / "run.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("usage: python3 run.py demo|test|lint")


def test_an_old_python_gets_a_sentence(run, monkeypatch):
    monkeypatch.setattr(run.sys, "version_info", (3, 9))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11"):
        run.main()
