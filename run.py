#!/usr/bin/env python3
"""Set up torchdp and run it: ``python3 run.py demo``, ``test``, ``lint``, ``site``
(the pages, in site/), ``bench`` (fails where a call fell behind its floor; ``bench --quick``: one
of twenty-odd calls, in half a minute), ``paper NAME`` (its claims beside what comes out here) or
``release`` (a version's checklist, up to the upload).

The first call installs what its command needs (into .venv, or into the active virtual environment
if that has torch): the demo little, every other one all that tests take. Later calls start at once.
A torch that can be imported is used as it is, never replaced. Safe to kill and repeat.
TORCHDP_TORCH="torch==X.Y.Z" picks another version than the tested one where none is installed.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
COMMANDS = {
    "demo": [["experiments/pairwise/demo.py"]],
    "test": [["-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not slow and not gpu"]],
    "lint": [
        ["-m", "ruff", "check", "."],
        ["-m", "ruff", "format", "--check", "."],
        ["-m", "mypy"],
    ],
    "bench": [["experiments/bench/run.py", "--short"]],
    "site": [["-m", "mkdocs", "build", "--strict"]],
    "paper": [["experiments/papers/run.py"]],
    "release": [["docs/publish.py"]],
}


def environment():
    """The Python to use and the folder it lives in; the virtual environment is made where it is
    missing.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch and sys.prefix != sys.base_prefix:
        return sys.executable, Path(sys.prefix)
    folder = ROOT / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() or subprocess.call(
        [str(python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL
    ):
        options = ["--clear"] + (["--system-site-packages"] if has_torch else [])
        if subprocess.call([sys.executable, "-m", "venv", *options, str(folder)]):
            sys.exit(
                "run.py: cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"
            )
    return str(python), folder


def install(python, extra):
    """torch if it is missing, then torchdp with this extra of pyproject.toml."""
    import tomllib

    tested = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["torchdp"]["tested-torch"]
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    version = [python, "-c", "import torch; print(torch.__version__)"]
    if subprocess.call(version, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        subprocess.check_call([*pip, os.environ.get("TORCHDP_TORCH") or "torch==" + tested])
    keep = Path(python).parent / "torchdp-constraints.txt"
    keep.write_text("torch==" + subprocess.check_output(version, text=True))
    subprocess.check_call([*pip, "-c", str(keep), "-e", f"{ROOT}[{extra}]"])


def main():
    if sys.version_info < (3, 11):
        sys.exit("run.py: torchdp needs Python 3.11 or newer, this is " + sys.version.split()[0])
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit("usage: python3 run.py " + "|".join(COMMANDS) + " [arguments]")
    python, folder = environment()
    extra = "demo" if sys.argv[1] == "demo" else "test"
    facts = [
        str(ROOT),
        sys.version,
        (ROOT / "pyproject.toml").read_text(),
        Path(__file__).read_text(),
    ]
    wanted = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    # who has all has enough
    stamps = {each: folder / f"torchdp-{each}.stamp" for each in (extra, "test")}
    if not any(stamp.exists() and stamp.read_text() == wanted for stamp in stamps.values()):
        print("run.py: setting up in", folder, "(once)", flush=True)
        try:
            install(python, extra)
        except subprocess.CalledProcessError as error:
            sys.exit("run.py: set-up failed at: " + " ".join(map(str, error.cmd)))
        stamps[extra].write_text(wanted)
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # an advertisement
    # with it every process of the tests compiles all files anew
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for command in COMMANDS[sys.argv[1]]:
        code = subprocess.call([python, *command, *sys.argv[2:]], cwd=ROOT)
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
