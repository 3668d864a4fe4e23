"""A sweep in one process, and spread over worker processes: seconds, and what a block costs beside its trials.

Command:  OMP_NUM_THREADS=1 python experiments/bench/sweep_devices.py [--devices cuda:0 cuda:1 ...]
What: a part of the grid of experiments/pairwise/error_vs_n.py, in this process on the first device, then with one
    worker process for each device (default: cpu cpu), alternately; then blocks of one trivial trial each, whose time
    is the overhead: handing out, merging and fsync of the store. Start: what the first block waits for, the import of
    torch above all. On every device the rows must be the same bits.
Expected: wall near one over the number of devices, with as many idle cores and trials that outweigh the start;
    a block costs a few milliseconds at most, Dask's some more.
Output: results/bench/sweep_devices/*.csv: the least and the largest of the repetitions, on the wall and (where others
    use the machine) on the cores.
Artifact: - | speed of sweeps
Status: on a CPU; on a GPU not yet measured
Time: about three minutes; --smoke in 10 to 20 CPU-seconds.
"""

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from torchdp.cli.sweep import Script, load
from torchdp.simulate import Experiment, Report, Row, sweep
from torchdp.simulate.blocks import Sampler

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


@dataclass(frozen=True)
class Config:
    devices: tuple[str, ...] = ("cpu", "cpu")
    trials: int = 50_000
    block_size: int = 2_500
    blocks: tuple[int, ...] = (100, 1_100)  # of which the second less the first are timed
    repeats: int = 3
    grid: Literal["full", "smoke"] = "full"  # of error_vs_n.py
    dask: bool = True


FULL = Config()
SMOKE = Config(trials=200, block_size=100, blocks=(5, 25), repeats=1, grid="smoke", dask=False)


def real_trials(config: Config, report: Report) -> None:
    devices, smoke = list(config.devices), config.grid == "smoke"
    grid = [config for config in load(SCRIPT, smoke).grid if config["statistic"].startswith("gini")]
    there = [config for config in grid if (config["n"], config["epsilon"]) == (10**6, 1.0)]
    sizes = {"trials": config.trials, "block_size": config.block_size}
    work = {"make_trial": Script(SCRIPT, smoke), "grid": there, **sizes}
    walls: list[tuple[float, float]] = []
    cores: list[tuple[float, float]] = []
    for _ in range(config.repeats):
        one, one_cores, alone = timed(**work, device=devices[0])
        many, many_cores, shared = timed(**work, devices=devices)
        walls.append((one, many))
        cores.append((one_cores, many_cores))
        if [(row.config, row.moments) for row in alone] != [(row.config, row.moments) for row in shared]:
            raise SystemExit("the rows differ: set OMP_NUM_THREADS=1")
    report.say(f"{len(there)} configurations, {config.trials} trials each; the rows are the same bits")
    for name, seconds in (("wall", walls), ("cores", cores)):
        alone_seconds, shared_seconds = zip(*seconds, strict=True)
        ratios = [b / a for a, b in seconds]
        cells = {**span("alone", alone_seconds), **span("workers", shared_seconds), **span("ratio", ratios)}
        report.row("sweep", seconds=name, workers=len(devices), **cells)


def span(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_least": min(values), f"{name}_largest": max(values)}


def overhead(config: Config, report: Report) -> None:
    few, many = config.blocks
    with places(config) as found:
        for name, where in found.items():
            cost_of_a_block(name, where, few, many, config.repeats, report)


def cost_of_a_block(name: str, where: dict[str, Any], few: int, many: int, repeats: int, report: Report) -> None:
    blocks = []
    starts = []
    for _ in range(repeats):
        work: dict[str, Any] = {"make_trial": idle, "grid": [{}], "block_size": 1, **where}
        short = timed(trials=few, **work)[:2]
        long = timed(trials=many, **work)[:2]
        blocks.append([(b - a) / (many - few) * 1e3 for a, b in zip(short, long, strict=True)])
        starts.append(short[0] - few * blocks[-1][0] / 1e3)
    wall, cores = zip(*blocks, strict=True)
    cells = {**span("ms_a_block", wall), **span("ms_on_the_cores", cores), **span("start_s", starts)}
    report.row("overhead", where=name, **cells)


@contextmanager
def places(config: Config) -> Iterator[dict[str, dict[str, Any]]]:
    """Where a sweep runs, by name: here, in one worker process, and in one worker of Dask, where that is installed."""
    first = config.devices[0]
    found: dict[str, dict[str, Any]] = {"this process": {"device": first}, "one worker": {"devices": [first]}}
    if not config.dask or not find_spec("distributed"):
        yield found
        return
    import distributed

    settings: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as workers, distributed.Client(workers) as client:
        yield {**found, "one worker of Dask": {"executor": client, "device": first}}


def measure(config: Config, report: Report) -> None:
    real_trials(config, report)
    report.say()
    overhead(config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
