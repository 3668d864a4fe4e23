"""Smoke runs of scripts on the device that is not there, as ``--device`` makes them: python smokes.py [NAME ...].

Prints for each a line of JSON: what it raised, or "", and how many copies to and from the host it made.
"""

import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import device

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))


def every():
    """The scripts that have a command with ``--device``."""
    found = sorted(EXPERIMENTS.rglob("*.py"))
    return [str(path.relative_to(EXPERIMENTS)) for path in found if "EXPERIMENT.main()" in path.read_text()]


def place(error):
    """The innermost lines of this repository on the way to an error."""
    root = str(EXPERIMENTS.parent)
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(root)]
    lines = [f for f in lines if "/tests/" not in f.filename and "site-packages" not in f.filename]
    return " <- ".join(f"{f.filename.removeprefix(root + '/')}:{f.lineno}" for f in reversed(lines[-3:]))


def run(name):
    """(what it raised, copies between the devices)."""
    from scripts import loaded

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            with loaded(name) as module, device.counted() as counts:
                module.EXPERIMENT.run(module.EXPERIMENT.smoke, Path(folder), device.DEVICE)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]} at {place(error)}", 0
    return "", counts.copies


if __name__ == "__main__":  # scripts start processes, which import this file
    device.register(True)
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method("spawn")
    for name in sys.argv[1:] or every():
        wrong, copies = run(name)
        print(json.dumps({"script": name, "wrong": wrong, "copies": copies}), flush=True)
