"""``torchdp sweep``: the grid of an experiment script; ``report``, ``merge``: of its stores."""

import argparse
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch

from torchdp import checks, simulate
from torchdp.simulate import OnError, OtherCode, Row, Sweep, Trial
from torchdp.simulate.blocks import Sampler
from torchdp.simulate.code import code_of
from torchdp.simulate.page import write_page
from torchdp.simulate.plots import write_csv
from torchdp.simulate.streams import canonical
from torchdp.simulate.sweep import MakeTrial
from torchdp.simulate.workers import STOPS
from torchdp.text import integer, say

# The first that is set counts: a task of a SLURM array has SLURM_PROCID as well, its rank inside of
# that task.
RANKS = (  # the number of this process among its kin, their count, their first number
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("RANK", "WORLD_SIZE", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)


def sweep(options: argparse.Namespace) -> int:
    """Measures what the store lacks; writes the table and the figures from the store's rows."""
    # The script may have been edited since this process ran it last.
    _loaded.cache_clear()
    script = Script(str(Path(options.experiment).resolve()), options.smoke)
    experiment = _loaded(script.path, script.smoke)
    # Before hours of work, not after them.
    missing = [name for name in experiment.needs if find_spec(name) is None]
    if missing and not options.measure_only:
        names = " ".join(missing)
        raise ImportError(
            f"the figures need {names}: pip install {names}, or add --measure-only for the table"
        )
    folder = Path(options.out or f"results/{experiment.name}")
    store = folder / "results.jsonl"
    trials = experiment.trials
    if options.trials is not None:
        trials = checks.integer("--trials", options.trials, 1)
    if options.draw_only:
        rows = _stored(store, experiment, options.seed, code_of(script))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        rows = _measured(script, experiment, trials, store, options)
    if not rows and options.shard is None:
        raise ValueError(f"{options.experiment}: its grid is empty, nothing was measured")
    if not rows:
        say(
            f"torchdp sweep: shard {options.shard} has no block of any configuration; "
            "the other shards have all"
        )
        return 0
    failed = [row for row in rows if row.error]
    good = [row for row in rows if not row.error]
    if not good:
        raise ValueError(f"every configuration failed; the first with {failed[0].error}")
    table = folder / "results.csv"
    # Failed rows too: the table says why, the figures below leave them out.
    write_csv(rows, table)
    drawn: list[Path] = []
    if not options.measure_only:
        page = write_page(store, store.with_name("report.html"), experiment.name)
        with explained(options.experiment):
            drawn = [*experiment.draw(good, folder), page]
    say(store, table, *drawn)
    for row in failed:
        say(f"torchdp sweep: {row.config} failed: {' '.join(str(row.error).split())}", error=True)
    return 1 if failed else 0


def places(device: str | None, devices: str | None, cluster: str | None) -> dict[str, Any]:
    """Where trials run: as named, else on each CUDA device, else the CPU. Raises ValueError."""
    if devices is not None:
        return {"devices": devices.split(",")}
    count = torch.cuda.device_count()
    # A single device needs no worker: its trials run in this process.
    if count > 1 and device is None and cluster is None:
        return {"devices": [f"cuda:{index}" for index in range(count)]}
    return {"device": checks.device_or_best("--device", device)}


def _measured(
    script: "Script",
    experiment: Sweep,
    trials: int | None,
    store: Path,
    options: argparse.Namespace,
) -> list[Row]:
    on_error = OnError.RAISE if options.stop_on_error else OnError.GO_ON
    with stopped_cleanly(), cluster(options.cluster) as client:
        seed = checks.integer("--seed", options.seed, 0)
        where = places(options.device, options.devices, options.cluster)
        return simulate.sweep(
            script,
            experiment.grid,
            trials=trials,
            seed=seed,
            store=store,
            block_size=experiment.block_size,
            target_relative_ci=options.target_relative_ci,
            **where,
            executor=client,
            shard=shard(options.shard),
            other_code=OtherCode(options.other_code),
            on_error=on_error,
        )


@contextmanager
def stopped_cleanly() -> Iterator[None]:
    """A cluster's signals, sent before it takes a machine away, stop a sweep as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number))

    before = {}
    # Python lets no other thread set handlers.
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def shard(text: str | None) -> tuple[int, int] | None:
    """``i/n``, or for ``env`` what a SLURM array, srun or torchrun says. Raises ValueError."""
    if text is None:
        return None
    first = "0"
    if text == "env":
        for rank, size, least in RANKS:
            if rank in os.environ and size in os.environ:
                text = f"{os.environ[rank]}/{os.environ[size]}"
                first = os.environ.get(least, "0")
                break
        else:
            ranks = ", ".join(rank for rank, *_ in RANKS)
            raise ValueError(f"--shard env found none of {ranks} in the environment")
    with suppress(ValueError):
        index, count = map(integer, text.split("/"))
        # An array's numbers may begin anywhere.
        index -= integer(first)
        if 0 <= index < count:
            return index, count
    raise ValueError(f"--shard must be I/N with 0 <= I < N, such as 0/4, or env, not {text!r}")


def cluster(address: str | None) -> AbstractContextManager[Any]:
    """A Dask client of the scheduler at ``address``, None for None. Closed at the end."""
    if address is None:
        return nullcontext()
    with checks.needing("--cluster", "distributed"):
        import distributed
    if "://" not in address:
        raise ValueError(
            f"--cluster must be a scheduler's address such as tcp://host:8786, not {address!r}"
        )
    client: AbstractContextManager[Any] = distributed.Client(address)
    return client


def _stored(store: Path, experiment: Sweep, seed: int, code: str) -> list[Row]:
    """The stored rows of the grid, each of the present code if there is one, else the last."""
    stored: dict[str, Row] = {}
    wanted = {canonical(config) for config in experiment.grid}
    for row in simulate.read(store):
        key = canonical(row.config)
        same = (row.seed, row.block_size) == (seed, experiment.block_size)
        # A row of the present code is not replaced; of others the last one stays.
        if same and key in wanted and (key not in stored or stored[key].code != code):
            stored[key] = row
    if not stored:
        raise ValueError(
            f"{store} holds no row of this grid and seed; run without --draw-only first"
        )
    others = sorted({row.code for row in stored.values()} - {code})
    if others:
        say(f"torchdp sweep: drawn from blocks by other code: {'; '.join(others)}", error=True)
    lacking = len(wanted) - len(stored)
    if lacking:
        say(
            f"torchdp sweep: {lacking} of {len(wanted)} configurations are not yet measured, "
            "nor drawn",
            error=True,
        )
    return list(stored.values())


@contextmanager
def explained(path: str) -> Iterator[None]:
    """What goes wrong inside, as a ValueError that names the script and its last line."""
    try:
        yield
    except Exception as error:
        here = str(Path(path).resolve())
        frames = extract_tb(error.__traceback__)
        # The last of them is the innermost line of the script: deeper frames are of what it calls.
        lines = [frame.lineno for frame in frames if frame.filename == here]
        at = f", line {lines[-1]}" if lines else ""
        raise ValueError(f"{path}{at}: {type(error).__name__}: {error}") from error


def load(path: str, smoke: bool) -> Sweep:
    """``experiment(smoke)`` of the script at ``path``. Raises ValueError, OSError."""
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(
            f"{path} is not a Python script; name your own, or one under experiments/ of a checkout "
            "of torchdp's repository"
        )
    spec = importlib.util.spec_from_file_location(f"experiment_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be loaded as a Python script")
    module = importlib.util.module_from_spec(spec)
    with explained(path):
        spec.loader.exec_module(module)
        define = getattr(module, "experiment", None)
        experiment = define(smoke) if callable(define) else None
    if experiment is None:
        raise ValueError(
            f"{path} defines no experiment(smoke); see experiments/pairwise/error_vs_n.py"
        )
    if not isinstance(experiment, Sweep):
        raise ValueError(f"{path}: experiment(smoke) must return a torchdp.simulate.Sweep")
    return experiment


@dataclass(frozen=True)
class Script:
    """``make_trial`` of a script that each process loads for itself, once; ``__wrapped__``: it."""

    path: str
    smoke: bool

    @property
    def __wrapped__(self) -> MakeTrial:
        return _loaded(self.path, self.smoke).make_trial

    def __call__(self, config: dict[str, Any]) -> Trial | Sampler:
        return self.__wrapped__(config)


@cache
def _loaded(path: str, smoke: bool) -> Sweep:
    return load(path, smoke)


def report(options: argparse.Namespace) -> int:
    """Writes the page; prints its files."""
    store = Path(options.store)
    if store.is_dir():
        store /= "results.jsonl"
    out = Path(options.out) if options.out else store.with_name("report.html")
    say(write_page(store, out, options.title or ""))
    return 0


def merge(options: argparse.Namespace) -> int:
    """Adds stores to one; prints how many blocks were new."""
    say(f"{simulate.merge(options.stores, options.into)} new blocks in {options.into}")
    return 0
