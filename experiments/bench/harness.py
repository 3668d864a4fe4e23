"""What every bench is made of: cases, each timed beside its floor and its peers, in turns, on one
thread.

A bench is a file beside this one with ``cases(small) -> Iterator[Case]``. A case has a name and a
function that makes its ``Work``: a call of the package, what it may not be faster than
(floors: a copy, a product, the random numbers alone), and other ways to do the same (peers). A peer
whose package is not installed raises ImportError and is named as absent.
``python harness.py BENCH`` prints a bench's rows as JSON, one a line: how ``run.py`` measures in a
fresh process, with this package or with that of another checkout.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Run = Callable[[], object]
Row = dict[str, Any]
# turns at most; seconds of one turn at least, of a case's turns about
ROUNDS = 9
LEAST = 0.005
BUDGET = 1.0


@dataclass(frozen=True)
class Part:
    """A call that serves fewer units (users, matrices) than the case does, because it is slow."""

    run: Run
    units: float


@dataclass(frozen=True)
class Work:
    """``ours()`` serves ``units``; so does every floor and peer that is not a ``Part``. Peers are
    made when timed.
    """

    ours: Run
    units: float = 1
    floors: Mapping[str, Run | Part] = field(default_factory=dict)
    peers: Mapping[str, Callable[[], Run | Part]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Work]


def clock():
    """Processor seconds of this process and of its children that ended; on a GPU those of the wall,
    synchronised.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def turns(parts: Mapping[str, Part], rounds):
    """Seconds a unit of each part, over rounds in which all take turns; a slow machine slows them
    all.
    """
    # with tables, caches, compilation
    first = {name: _spent(part.run, 1) for name, part in parts.items()}
    first = {
        name: spent if spent > BUDGET else _spent(parts[name].run, 1)
        for name, spent in first.items()
    }
    repeats = {name: max(1, int(LEAST / max(spent, 1e-7))) for name, spent in first.items()}
    cost = sum(first[name] * repeats[name] for name in parts)
    found = {name: [] for name in parts}
    for _ in range(max(1, min(rounds, int(BUDGET / cost)))):
        for name, part in parts.items():
            found[name].append(_spent(part.run, repeats[name]) / repeats[name] / part.units)
    return found


def _spent(run, times):
    start = clock()
    for _ in range(times):
        run()
    return clock() - start


def rows(case, rounds=ROUNDS, memory_too=True, least=False):
    """A row for each floor and peer: nanoseconds a unit, and how many times as long as the other
    ours takes.

    least: the least time of each side is compared, not the median of the turns' ratios. Other
    processes only ever add to a time, and seldom to all turns of a side.
    """
    work = case.make()
    parts = {"ours": Part(work.ours, work.units)}
    kinds = {}
    absent = {}

    def add(name, kind, run):
        parts[name] = run if isinstance(run, Part) else Part(run, work.units)
        kinds[name] = kind

    for name, floor in work.floors.items():
        add(name, "floor", floor)
    for name, make in work.peers.items():
        try:
            peer = make()
        except ImportError as error:
            absent[name] = str(error.name)
            continue
        add(name, "peer", peer)
    found = turns(parts, rounds)
    ns = 1e9 * statistics.median(found["ours"])
    memory = grown(case.make) if memory_too and ns * work.units < 1e9 * BUDGET else None
    common = {"case": case.name, "ns": ns, "MiB": memory}
    for name, kind in kinds.items():
        if least:
            times = min(found["ours"]) / min(found[name])
        else:
            pairs = zip(found["ours"], found[name], strict=True)
            times = statistics.median(ours / theirs for ours, theirs in pairs)
        yield {**common, "kind": kind, "against": name, "times": times}
    for name, package in absent.items():
        yield {**common, "kind": "absent", "against": f"{name} ({package})"}


def grown(make: Callable[[], Work]):
    """MiB by which memory grows, at its highest, while a call works; None where nobody counts
    it.
    """
    if torch.cuda.is_available():
        run = make().ours
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if not Path("/proc/self/clear_refs").exists():
        return None
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with os.fdopen(read) as file:
            said = file.read()
        os.waitpid(child, 0)
        return float(said) if said else None
    try:
        signal.alarm(60)
        run = make().ours  # made here: a seed is not carried over a fork
        run()
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later would hide growth
        # the highest mark starts again from what is held now
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        run()
        os.write(write, str(max(0.0, _status("VmHWM") - before) / 1024).encode())
    finally:
        os._exit(0)


def _status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + ":"))


def load(bench):
    """``cases`` of a bench: a file's path, or its name here."""
    path = Path(bench) if bench.endswith(".py") else Path(__file__).with_name(f"{bench}.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.cases


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench")
    parser.add_argument("--small", action="store_true", help="sizes of the tests")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--times-only", action="store_true", help="memory is not measured")
    parser.add_argument(
        "--least", action="store_true", help="least times are compared: on a busy machine"
    )
    parser.add_argument("--cases", nargs="*", help="names; by default all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for case in load(given.bench)(given.small):
        if given.cases and case.name not in given.cases:
            continue
        try:
            for row in rows(case, given.rounds, not given.times_only, given.least):
                print(json.dumps(row), flush=True)
        # another checkout may lack what this case calls; the rest is measured
        except Exception as error:
            print(
                json.dumps({"case": case.name, "kind": "failed", "against": repr(error)[:200]}),
                flush=True,
            )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import harness  # the benches' own: a Part of this file run as a script would be another class

    harness.main()
