"""What every side shares: it does rows that are named in its one argument and prints a line of JSON
for each.

A row is a function of settings that returns the work to be timed, a call without arguments, or that
and a second call, untimed, whose answer is used to check the guarantee. The timed work is done once
before, with ``warm`` settings: imports, compilation, tables.
"""

import ctypes
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def likely(k):
    """Shares of k types: few are common, most are rare."""
    chance = 1 / (np.arange(k) + 4.0)
    return chance / chance.sum()


def crowd(n, k):
    """The types of n users, in [0, k)."""
    return np.random.default_rng(1).choice(k, n, p=likely(k))


def counts(n, k):
    """How many of n users are of each type, where they are too many to list."""
    whole = np.floor(likely(k) * n).astype(np.int64)
    whole[0] += n - whole.sum()
    return whole


def table(n, d):
    """Rows of norm at most 1 and labels in [-1, 1]."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (n, d)) / d**0.5
    return X, np.clip(X @ np.linspace(-1, 1, d) + 0.1 * rng.standard_normal(n), -1, 1)


def spheres(n, d):
    """Vectors of norm 1, about a common direction."""
    x = np.random.default_rng(3).standard_normal((n, d)) + np.linspace(-1, 1, d)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


PAIRS = ((0, 1), (1, 2), (0, 2))  # attributes whose joint counts are asked
SUMMED = (2, 0, 1)  # the attribute that a pair lacks


def marginals(n, size, sigma):
    """Counts of n people in all pairs of three attributes: true, and with noise; (3, size^2)."""
    rng = np.random.default_rng(4)
    chance = rng.gamma(0.3, size=(size, size, size))
    cells = rng.multinomial(n, (chance / chance.sum()).ravel()).reshape(size, size, size)
    # an attribute outside of the pair is summed out
    true = np.stack([cells.sum(axis).ravel() for axis in SUMMED]).astype(float)
    return true, true + sigma * rng.standard_normal(true.shape)


def network(n, d, hidden, classes):
    """Weights and biases of two layers, float32, and n examples with labels."""
    rng = np.random.default_rng(5)
    shapes = ((hidden, d), (hidden,), (classes, hidden), (classes,))
    parameters = []
    for shape in shapes:
        values = rng.standard_normal(shape) / shape[-1] ** 0.5
        parameters.append(values.astype(np.float32))
    x = rng.standard_normal((n, d)).astype(np.float32)
    return parameters, x, rng.integers(classes, size=n)


def measured(work: Callable[[], object]):
    """Processor seconds of one call, MiB by which memory grew at most, and what it returned."""
    before = None
    marks = Path("/proc/self/clear_refs")
    if marks.exists():
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later would hide growth
        marks.write_text("5")  # the highest mark starts again from what is held now
        before = held("VmRSS")
    start = time.process_time()
    answer = work()
    seconds = time.process_time() - start
    grown = None if before is None else max(0.0, held("VmHWM") - before) / 1024
    return {"seconds": seconds, "MiB": grown, "answer": answer}


def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + ":"))


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else float(value)


def calls(made):
    return made if isinstance(made, tuple) else (made, lambda: None)


def longest(total, x, y):
    """Norms of the sums of eight examples, each alone."""

    def norms():
        sums = [total(x[i : i + 1], y[i : i + 1]) for i in range(8)]
        return [float(np.linalg.norm(gradient.astype(float))) for gradient in sums]

    return norms


def main(package, rows: dict[str, Callable]):
    """package: "" where it is not installed but a checkout."""
    version = importlib.metadata.version(package) if package else ""
    for name, settings, warm in json.loads(sys.argv[1]):
        try:
            calls(rows[name](**{**settings, **warm}))[0]()
            work, check = calls(rows[name](**settings))
            said = {**measured(work), "version": version, "check": check()}
        except Exception as error:  # another row of the same side may go well
            said = {"failed": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps({"row": name, **said}, default=plain), flush=True)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/run.py")
