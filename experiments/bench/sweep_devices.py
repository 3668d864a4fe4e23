"""A sweep in one process, and spread over worker processes: seconds, and what a block costs beside its trials.

Command:  OMP_NUM_THREADS=1 python experiments/bench/sweep_devices.py [--devices cuda:0,cuda:1,...]
What: a part of the grid of experiments/pairwise/error_vs_n.py, in this process on the first device, then with one
    worker process for each device (default: cpu,cpu), alternately; then blocks of one trivial trial each, whose time
    is the overhead: handing out, merging and fsync of the store. Start: what the first block waits for, the import of
    torch above all. On every device the rows must be the same bits.
Expected: wall near one over the number of devices, with as many idle cores and trials that outweigh the start;
    a block costs a few milliseconds at most.
Output: the least and the largest of the repetitions, on the wall and (where others use the machine) on the cores.
Time: about three minutes; --smoke in seconds.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdp.cli.sweep import Script, load
from torchdp.simulate import Row, Sampler, sweep

SCRIPT = str(Path(__file__).parents[1] / "pairwise" / "error_vs_n.py")


def nothing(generator: torch.Generator, size: int) -> Tensor:
    return torch.zeros(size)


def idle(config: dict[str, Any]) -> Sampler:
    return nothing


def used() -> tuple[float, float]:
    """Seconds on the wall, and on the cores: of this process and of its children that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(part.ru_utime + part.ru_stime for part in spent)


def timed(**settings: Any) -> tuple[float, float, list[Row]]:
    """Seconds of a sweep with an empty store, on the wall and on the cores, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        start = used()
        rows = sweep(store=Path(folder) / "store.jsonl", seed=0, progress=False, **settings)
        wall, cores = (b - a for a, b in zip(start, used(), strict=True))
        return wall, cores, rows


def span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.3g} to {max(seconds):.3g}"


def real_trials(devices: list[str], smoke: bool, repeats: int) -> None:
    there = [config for config in load(SCRIPT, smoke).grid if (config["n"], config["epsilon"]) == (10**6, 1.0)]
    work = {
        "make_trial": Script(SCRIPT, smoke),
        "grid": there,
        "trials": 200 if smoke else 50_000,
        "block_size": 100 if smoke else 2_500,
    }
    walls: list[tuple[float, float]] = []
    cores: list[tuple[float, float]] = []
    for _ in range(repeats):
        one, one_cores, alone = timed(**work, device=devices[0])
        many, many_cores, shared = timed(**work, devices=devices)
        walls.append((one, many))
        cores.append((one_cores, many_cores))
        if [(row.config, row.moments) for row in alone] != [(row.config, row.moments) for row in shared]:
            raise SystemExit("the rows differ: set OMP_NUM_THREADS=1")
    print(f"{len(there)} configurations, {work['trials']} trials each; the rows are the same bits")
    for name, seconds in (("wall", walls), ("cores", cores)):
        alone_seconds, shared_seconds = zip(*seconds, strict=True)
        ratio = span([b / a for a, b in seconds])
        print(
            f"{name}: this process on {devices[0]} {span(alone_seconds)} s, {len(devices)} workers with their start "
            f"{span(shared_seconds)} s, ratio {ratio}"
        )


def overhead(devices: list[str], smoke: bool, repeats: int) -> None:
    few, many = (5, 25) if smoke else (100, 1_100)
    for name, where in (("this process", {"device": devices[0]}), ("one worker", {"devices": devices[:1]})):
        blocks, starts = [], []
        for _ in range(repeats):
            short, long = (
                timed(make_trial=idle, grid=[{}], trials=count, block_size=1, **where)[:2] for count in (few, many)
            )
            blocks.append([(b - a) / (many - few) * 1e3 for a, b in zip(short, long, strict=True)])
            starts.append(short[0] - few * blocks[-1][0] / 1e3)
        wall, cores = zip(*blocks, strict=True)
        print(f"{name}: a block costs {span(wall)} ms, on the cores {span(cores)} ms; start {span(starts)} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu,cpu")
    parser.add_argument("--smoke", action="store_true", help="a few blocks, in seconds")
    options = parser.parse_args()
    devices, repeats = options.devices.split(","), 1 if options.smoke else 3
    real_trials(devices, options.smoke, repeats)
    overhead(devices, options.smoke, repeats)


if __name__ == "__main__":
    main()
