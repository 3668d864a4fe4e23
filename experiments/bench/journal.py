"""A journal under threads, forked processes, two paths and kill -9: every acknowledged batch is
there, none twice.

Command:  python experiments/bench/journal.py [--threads 8] [--processes 4] [--batches 2000]
[--kills 50]
What: processes that were forked after the journal was opened add batches from several threads each,
by the file's path
    and by a symbolic link to it, and send every seventh batch again by the other path. At random
    moments one of them is killed and begins all its batches again. At the end the file is read
    anew.
Expected: acknowledged = batches = 2000, and sums that no missing or repeated batch would give; else
the script fails.
Output: results/bench/journal/journal.csv: kills, acknowledgements, batches in the file, bytes,
seconds.
Artifact: - | durability
Status: agrees
Time: about a minute and a half on two cores, most of it waiting for the disk; --smoke in seconds.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from torchdp.collection import Journal
from torchdp.protocol import Tally
from torchdp.randomizers import RandomizedResponse
from torchdp.simulate import Experiment


class Storm(NamedTuple):
    """acknowledged: different batches; told: acknowledgements with those of retries; batches: in
    the file.
    """

    acknowledged: int
    told: int
    batches: int
    bytes: int


def batch(index) -> tuple[str, Tally]:
    """Counts whose totals show a batch that is missing or counted twice."""
    reports = torch.tensor([1, index, index**2, 0])
    return str(index), Tally(1 + index + index**2, {"reports": reports})


def storm(folder, threads, processes, batches, kills) -> Storm:
    """Raises RuntimeError where a batch was acknowledged and is lost, or is counted twice."""
    path = folder / "votes.db"
    link = folder / "link"
    link.symlink_to(path)
    protocol = RandomizedResponse(4, 1.0)
    # before the forks: children take them over
    opened = [Journal(path, protocol), Journal(link, protocol)]
    told, write = os.pipe()

    def work(process, thread):
        mine = range(process, batches, processes)
        for index in mine[thread::threads]:
            opened[index % 2].add(*batch(index))
            os.write(write, b"%d\n" % index)
            if index % 7 == 0:
                opened[1 - index % 2].add(*batch(index))

    def start(process):
        child = os.fork()
        if child:
            return child
        try:
            threading.excepthook = lambda failure: (
                traceback.print_exception(failure.exc_value),
                os._exit(1),
            )
            team = [
                threading.Thread(target=work, args=(process, thread)) for thread in range(threads)
            ]
            for each in team:
                each.start()
            for each in team:
                each.join()
            os._exit(0)
        finally:
            os._exit(1)

    lines = []
    listener = threading.Thread(target=lambda: lines.extend(os.fdopen(told, "rb")))
    listener.start()
    draw = random.Random(1)
    alive = {start(process): process for process in range(processes)}
    try:
        for _ in range(kills):
            time.sleep(draw.random() * 0.1)
            child = draw.choice(list(alive))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            process = alive.pop(child)
            alive[start(process)] = process
    finally:
        codes = [os.waitpid(child, 0)[1] for child in alive]
        os.close(write)
        listener.join()
    if any(codes):
        raise RuntimeError("a process failed")
    found = Journal(path).collection
    acknowledged = {line.strip().decode() for line in lines}
    if not acknowledged <= found.batches.keys():
        raise RuntimeError(
            f"{len(acknowledged - found.batches.keys())} batches were acknowledged and are lost"
        )
    totals = [batches, sum(range(batches)), sum(index * index for index in range(batches)), 0]
    reports = found.tally["reports"].tolist()
    if len(found.batches) != batches or reports != totals or found.n != sum(totals):
        raise RuntimeError(f"{len(found.batches)} batches with totals {reports}, not {totals}")
    return Storm(len(acknowledged), len(lines), len(found.batches), path.stat().st_size)


@dataclass(frozen=True)
class Config:
    threads: int = 8
    processes: int = 4
    batches: int = 2000
    kills: int = 50


def measure(config, report):
    if not hasattr(os, "fork"):
        sys.exit("this bench forks processes: it runs on Linux and macOS")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        found = storm(Path(folder), config.threads, config.processes, config.batches, config.kills)
        seconds = time.perf_counter() - begun
    report.say("all acknowledged batches are in the file, none twice")
    report.row("journal", kills=config.kills, **found._asdict(), seconds=seconds)


EXPERIMENT = Experiment(measure, Config(), Config(batches=40, kills=3))

if __name__ == "__main__":
    EXPERIMENT.main()
