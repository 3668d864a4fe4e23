"""A sweep in one process, and spread over worker processes: seconds, and what a block costs beside its trials.

Command:  OMP_NUM_THREADS=1 python experiments/bench/sweep_devices.py [--devices cuda:0 cuda:1 ...]
What: a part of the grid of experiments/pairwise/error_vs_n.py, and blocks of one trivial trial each, whose time is the
    overhead (handing out, merging and fsync of the store): in this process on the first device, in a worker process on
    it, in one for each device (default: cpu cpu), and in one worker of Dask, where that is installed. Start: what the
    first block waits for, the import of torch above all. The rows must be the same bits everywhere.
Expected: wall near one over the number of devices, with as many idle cores and trials that outweigh the start;
    a block costs a few milliseconds at most, Dask's some more.
Output: results/bench/sweep_devices/places.csv: the least of the repetitions.
Artifact: - | speed of sweeps
Status: on a CPU; on a GPU not yet measured
Time: about three minutes; --smoke in 10 to 20 CPU-seconds.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdp.cli.sweep import Script, load
from torchdp.simulate import Experiment, Report, Row, sweep
from torchdp.simulate.blocks import Sampler

SCRIPT = str(Path(__file__).parents[1] / "pairwise" / "error_vs_n.py")


@dataclass(frozen=True)
class Config:
    devices: tuple[str, ...] = ("cpu", "cpu")
    trials: int = 50_000
    block_size: int = 2_500
    few: int = 100  # trivial blocks
    many: int = 1_100
    repeats: int = 3
    small: bool = False  # the small grid of error_vs_n.py, and no Dask


FULL = Config()
SMOKE = Config(trials=200, block_size=100, few=5, many=25, repeats=1, small=True)


def nothing(generator: torch.Generator, size: int) -> Tensor:
    return torch.zeros(size)


def idle(config: dict[str, Any]) -> Sampler:
    return nothing


def timed(**settings: Any) -> tuple[float, list[Row]]:
    """Seconds of a sweep with an empty store, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        rows = sweep(store=Path(folder) / "store.jsonl", seed=0, progress=False, **settings)
        return time.perf_counter() - start, rows


@contextmanager
def places(config: Config) -> Iterator[dict[str, dict[str, Any]]]:
    """Where a sweep runs, by name."""
    devices = list(config.devices)
    found: dict[str, dict[str, Any]] = {
        "this process": {"device": devices[0]},
        "one worker": {"devices": devices[:1]},
        f"{len(devices)} workers": {"devices": devices},
    }
    if config.small or not find_spec("distributed"):
        yield found
        return
    import distributed

    settings: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as workers, distributed.Client(workers) as client:
        yield {**found, "one worker of Dask": {"executor": client, "device": devices[0]}}


def measure(config: Config, report: Report) -> None:
    grid = [
        each for each in load(SCRIPT, config.small).grid
        if each["statistic"].startswith("gini") and (each["n"], each["epsilon"]) == (10**6, 1.0)
    ]  # fmt: skip
    real: dict[str, Any] = {"make_trial": Script(SCRIPT, config.small), "grid": grid}
    real |= {"trials": config.trials, "block_size": config.block_size}
    trivial: dict[str, Any] = {"make_trial": idle, "grid": [{}], "block_size": 1}
    expected = None
    with places(config) as found:
        for name, where in found.items():
            seconds: list[tuple[float, float, float]] = []
            for _ in range(config.repeats):
                spent, rows = timed(**real, **where)
                short, _ = timed(**trivial, trials=config.few, **where)
                long, _ = timed(**trivial, trials=config.many, **where)
                seconds.append((spent, short, long))
                moments = [(row.config, row.moments) for row in rows]
                expected = expected or moments
                if moments != expected:
                    raise SystemExit("the rows differ: set OMP_NUM_THREADS=1")
            spent, short, long = (min(column) for column in zip(*seconds, strict=True))
            block = (long - short) / (config.many - config.few)
            start = short - config.few * block
            report.row("places", where=name, seconds=spent, ms_a_block=1e3 * block, start_s=start)
    report.say("the rows are the same bits")


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
