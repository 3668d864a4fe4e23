"""Smoke runs of scripts on the device that is not there, as ``--device`` makes them.

    cd tests/far && PYTHONPATH=../..:.. python smokes.py [NAME OR FOLDER ...]

Prints for each a line of JSON: what it raised, or "".
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

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
# Opacus's second backward pass ends the process there: torch's engine starts a thread for a device.
ENDED = {"training/accepted.py", "training/clipping.py"}


def every():
    """The scripts that have a command with ``--device``."""
    scripts = []
    for path in sorted(EXPERIMENTS.rglob("*.py")):
        name = str(path.relative_to(EXPERIMENTS))
        if "EXPERIMENT.main()" in path.read_text() and name not in ENDED:
            scripts.append(name)
    return scripts


def place(error):
    """The innermost lines of this repository on the way to an error."""
    root = str(EXPERIMENTS.parent)
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(root)]
    lines = [f for f in lines if "/tests/" not in f.filename and "site-packages" not in f.filename]
    return " <- ".join(
        f"{f.filename.removeprefix(root + '/')}:{f.lineno}" for f in reversed(lines[-3:])
    )


def run(name):
    """What it raised, or ""."""
    import device
    from scripts import loaded

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            with loaded(name) as module, device.counted():
                module.EXPERIMENT.run(module.EXPERIMENT.smoke, Path(folder), device.DEVICE)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {str(error)[:200]} at {place(error)}"
    return ""


# scripts start processes, which import this file
if __name__ == "__main__":
    import device

    device.register(True)
    import torch

    from torchdp.training import noise

    # the mode that counts is no trace
    noise._recorded = lambda total: False
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method("spawn")
    given = tuple(sys.argv[1:])
    for name in every():
        if not given or name.startswith(given):
            print(json.dumps({"script": name, "wrong": run(name)}), flush=True)
