"""What every side shares: it does rows that are named in its one argument and prints a line of JSON for each.

A row is a function of settings that returns the work to be timed, a call without arguments, and optionally a second
call, untimed, whose answer is used to check the guarantee. The timed work is done once before, with ``warm`` settings:
imports, compilation, tables.
"""

import ctypes
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def crowd(n: int, k: int) -> np.ndarray:
    """The types of n users, in [0, k): few are common, most are rare."""
    chance = 1 / (np.arange(k) + 4.0)
    return np.random.default_rng(1).choice(k, n, p=chance / chance.sum())


def table(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm at most 1 and labels in [-1, 1]."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (n, d)) / d**0.5
    return X, np.clip(X @ np.linspace(-1, 1, d) + 0.1 * rng.standard_normal(n), -1, 1)


def measured(work: Callable[[], object]) -> dict:
    """Processor seconds of one call, MiB by which memory grew at its highest, and what it returned."""
    before, marks = None, Path("/proc/self/clear_refs")
    if marks.exists():
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later would hide growth
        marks.write_text("5")  # the highest mark starts again from what is held now
        before = held("VmRSS")
    start = time.process_time()
    answer = work()
    seconds = time.process_time() - start
    grown = None if before is None else max(0.0, held("VmHWM") - before) / 1024
    return {"seconds": seconds, "MiB": grown, "answer": answer}


def held(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + ":"))


def plain(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else float(value)  # type: ignore[arg-type]


def main(package: str, rows: dict[str, Callable]) -> None:
    version = importlib.metadata.version(package) if package else ""
    for name, settings, warm in json.loads(sys.argv[1]):
        try:
            rows[name](**{**settings, **warm})[0]()
            work, *check = rows[name](**settings)
            said = {**measured(work), "version": version, "check": check[0]() if check else None}
        except Exception as error:  # another row of the same side may go well
            said = {"failed": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps({"row": name, **said}, default=plain), flush=True)
