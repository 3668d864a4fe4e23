"""Users in parts, of a file and on Dask: rows a second, and the memory that grows with their number.

Command:  python experiments/bench/parts.py [--rows 1000000000]
What: a file of one byte a user, types of 16, is read by slices of ``numpy.memmap``: a curator's
    share of pairs that differ, and the same by randomized responses of as many users as the local
    model is given. Then by the threads of Dask, from chunks of the same file.
Expected: the answers are the truth within their errors (standard_errors); memory beyond that of the
    first slice is a few MiB for 1e9 users (grown).
Output: results/bench/parts/parts.csv: rows, seconds, rows a second, MiB beyond the way before.
Artifact: - | memory
Status: agrees
Time: half a minute of one core for 1e9 users, most of it to write the file; --smoke in seconds.
"""

import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import dask.array
import numpy as np
import torch

from torchdp import distributed, pairwise
from torchdp.queries import CentralAnswers, LocalOracle
from torchdp.randomizers import RandomizedResponse
from torchdp.simulate import Experiment

TYPES = 16
SLICE = 2**22


@dataclass(frozen=True)
class Config:
    rows: int = 10**9
    local: int = 10**8


def written(path: Path, rows: int) -> np.ndarray:
    """A file of so many types, and their counts."""
    generator = np.random.default_rng(0)
    counts = np.zeros(TYPES, np.int64)
    with path.open("wb") as file:
        for start in range(0, rows, SLICE):
            size = min(SLICE, rows - start)
            part = generator.integers(0, 256, size, np.uint8) // TYPES
            counts += np.bincount(part, minlength=TYPES)
            part.tofile(file)
    return counts


def peak() -> float:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(config, report):
    question = pairwise.unequal(TYPES)
    curator = CentralAnswers(question, 1.0)
    reports = LocalOracle.of(question, RandomizedResponse(TYPES, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "types.u8"
        counts = written(path, config.rows)
        table = np.memmap(path, np.uint8, "r")

        def slices(rows):
            for start in range(0, rows, SLICE):
                yield np.asarray(table[start : min(start + SLICE, rows)])

        chunks = dask.array.from_array(table, chunks=SLICE)
        ways = {
            "curator, first slice": (curator, slices(SLICE), min(SLICE, config.rows)),
            "curator": (curator, slices(config.rows), config.rows),
            "curator, Dask": (curator, chunks, config.rows),
            "randomized response": (reports, slices(config.local), config.local),
        }
        for name, (protocol, parts, rows) in ways.items():
            before = peak()
            begun = time.perf_counter()
            tally = distributed.collect(protocol, parts)
            seconds = time.perf_counter() - begun
            found = protocol.analyse(tally)
            error = (float(found.value) - float(question.exact(torch.from_numpy(counts)))) / float(
                found.standard_error
            )
            report.row(
                "parts",
                way=name,
                rows=rows,
                seconds=seconds,
                rate=rows / seconds,
                grown=peak() - before,
                standard_errors=error,
            )


EXPERIMENT = Experiment(measure, Config(), Config(10**6, 10**6))

if __name__ == "__main__":
    EXPERIMENT.main()
