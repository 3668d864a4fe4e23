"""Sweeps over a grid of configurations that can be killed at any moment and resumed."""

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

from torchdp import checks
from torchdp.brief import Brief
from torchdp.simulate.blocks import Asked, Sampler, run_block
from torchdp.simulate.code import code_of, start
from torchdp.simulate.config_runs import (
    ConfigRun,
    Job,
    OnError,
    OtherCode,
    Row,
    Work,
    runs_of,
    same_facts,
)
from torchdp.simulate.moments import merge_all
from torchdp.simulate.store import Reader, Record, Run, load
from torchdp.simulate.streams import canonical, digest
from torchdp.simulate.workers import answers


@dataclass(frozen=True)
class Trial(Brief):
    """What one configuration runs, and what is known about it beforehand.

    sample: ``sample(generator, size)`` returns a tensor of shape (size,) of independent samples, or
    a mapping or named
        tuple of such by name, as in :func:`torchdp.simulate.run`.
    facts: fixed numbers and words that go into the store beside the samples, for example
    ``{"predicted_mse": 0.25}``; of the same kinds as a configuration.
    """

    sample: Sampler
    facts: Mapping[str, object] = field(default_factory=dict)


MakeTrial = Callable[[dict[str, Any]], Trial | Sampler]


def sweep(
    make_trial: MakeTrial,
    grid: Sequence[Mapping[str, object]],
    *,
    trials: int | None,
    seed: int,
    store: str | os.PathLike[str],
    block_size: int,
    target_relative_ci: float | None = None,
    device: torch.device | str | None = None,
    devices: Sequence[torch.device | str] | None = None,
    executor: Any = None,
    shard: tuple[int, int] | None = None,
    other_code: OtherCode = OtherCode.REFUSE,
    on_error: OnError = OnError.RAISE,
    progress: bool | None = None,
) -> list[Row]:
    """One row per configuration, in the order of ``grid``; blocks in ``store`` are not run again.

    Each finished block is on the disk before whoever ran it starts the next. On one model of device
    and one version of torch the moments are bit-identical however often the sweep was killed, in
    whatever order the grid was given, however many devices ran it, and however many processes
    shared the store; where bits depend on the number of CPU threads, as those of decompositions do,
    a worker of ``devices`` has one, this process may have more (OMP_NUM_THREADS). Over several
    models of GPU a row is as good, but depends on which of them ran which block. Blocks of another
    seed, block size, configuration or code (``code_of(make_trial)``) never enter a row.

    Args:
        make_trial: ``make_trial(config)`` returns a :class:`Trial` or a plain sampler; called only
            for a configuration that still has blocks to run, once in each process that runs some of
            them.
        grid: configurations, no two alike; see ``streams.canonical`` for what they may hold.
        trials: of each configuration; this and the next are as in :func:`torchdp.simulate.run`.
        seed: run seed, >= 0.
        block_size: samples in a block.
        target_relative_ci: where a configuration may stop.
        device: where the generators live, in this process; for None torch's default device.
        progress: show a bar; None shows one on a terminal only.
        devices: instead of ``device``: a worker process for each, such as ``["cuda:0", "cuda:1"]``,
            all of one kind; it is ``make_trial`` that is sent to them. One that dies is replaced,
            and its block is run again, once. A script sweeps under ``if __name__ == "__main__":``.
        executor: instead of ``devices``: any ``concurrent.futures.Executor``, a
            ``dask.distributed.Client`` or its ``get_executor()``. Its workers have torchdp and the
            modules of the trial; ``device`` is theirs (a GPU a worker: "cuda"). It stays open, and
            what dies in it is its own to do again.
        store: path of the JSON lines file; made, with its folder, if it is missing.
        shard: (i, n): run every n-th block alone, from block i on, into a store of its own;
            ``merge`` makes one of n stores, and ``sweep`` without a shard its rows. Sweeps that
            reach one store need none: they share its work.
        other_code: what to do with stored blocks that other code made; see :class:`OtherCode`.
        on_error: see :class:`OnError`; a row that failed holds the moments of the blocks before the
            error.

    Raises:
        TypeError, ValueError: two configurations alike, bad arguments or samples, facts that differ
            from those stored (numbers by more than rounding), blocks of other code, or a store that
            contradicts itself.
        OSError: the store cannot be read or written. ChildProcessError: two workers died in one
            block. MemoryError: one does not fit, though tried twice.
        RuntimeError: a trial in a worker raised something else. Finished blocks are kept, whatever
            is raised.
    """
    checks.function("make_trial", make_trial)
    checks.path("store", store)
    checks.each_of("grid", grid, Mapping)
    checks.instance("other_code", other_code, OtherCode)
    checks.instance("on_error", on_error, OnError)
    asked = Asked(trials, seed, block_size, target_relative_ci, shard)
    code = code_of(make_trial)
    reader = load(store) if os.path.exists(store) else Reader(store)
    # Refuses before any work: two configurations alike, blocks of other code, facts that differ.
    runs = runs_of(grid, asked, store, code, other_code, reader.runs)
    begun = start({**asked.facts(), **_grid(runs, reader), "code": code})
    work = Work(runs, store, reader, begun, on_error)
    runner = _Runner(make_trial, asked.block_size, code)
    records = answers(runner, work, device, devices, executor)
    work.finish(records, trials, progress)
    if asked.shard is None:
        return [run.row() for run in runs]
    # A shard's blocks have gaps, at which merging in order ends: here all that are stored count.
    stored = [reader.runs[run.key] for run in runs if run.key in reader.runs]
    return [_row(_longest(run)) for run in stored]


def _grid(runs: Sequence[ConfigRun], reader: Reader) -> dict[str, object]:
    """The configurations, written once into a store, and their digest."""
    configs = [run.config for run in runs]
    name = digest({"grid": [canonical(config) for config in configs]})
    # A sweep that is begun often writes its grid once.
    known = {begun.facts.get("grid_digest") for begun in reader.starts.values()}
    if name in known:
        return {"grid_digest": name}
    return {"grid_digest": name, "grid": configs}


def read(store: str | os.PathLike[str]) -> list[Row]:
    """One row per (configuration, seed, block size, code) in ``store``, in order of appearance.

    All stored blocks count: also those past the boundary at which a sweep with a target would stop.
    Where a block was stored with two lengths, the longer one counts.

    Raises:
        OSError: the store cannot be read.
        ValueError: it contradicts itself.
    """
    return [_row(_longest(run)) for run in load(store).runs.values()]


def _longest(run: Run) -> list[Record]:
    """In the order of the blocks: of two records of one block the longer one, which sorts last."""
    longest = {}
    for key in sorted(run):
        longest[run[key].block] = run[key]
    return list(longest.values())


@dataclass
class _Runner:
    """Runs blocks; keeps the trial of the configuration at hand."""

    make_trial: MakeTrial
    block_size: int
    code: str
    run: int = -1  # that the trial is of
    trial: Trial | None = None

    def __call__(self, job: Job, device: torch.device) -> Record:
        block = job.block
        config = dict(block.config)
        if self.trial is None or self.run != job.run:
            # Two trials at once might not fit into memory.
            self.trial = None
            self.trial = _open(self.make_trial, config)
            self.run = job.run
        trial = self.trial
        # Before the block is run: a trial that has changed costs no work.
        same_facts(config, [*job.facts, trial.facts])
        part = run_block(trial.sample, block, device)
        name = str(device)
        if device.type == "cuda":
            # The model, on which bits depend, not which of several devices it was.
            name = f"cuda ({torch.cuda.get_device_name(device)})"
        return Record(
            seed=block.seed,
            config=config,
            block=block.index,
            block_size=self.block_size,
            metrics=part.metrics,
            facts=dict(trial.facts),
            seconds=part.seconds,
            device=name,
            code=self.code,
        )


def _open(make_trial: MakeTrial, config: dict[str, Any]) -> Trial:
    # A copy: what a trial does to its configuration must not reach the record.
    returned = make_trial(copy.deepcopy(config))
    trial = returned if isinstance(returned, Trial) else Trial(returned)
    if not callable(trial.sample):
        raise TypeError(
            f"make_trial must return a Trial or a callable, not {type(trial.sample).__name__}"
        )
    # Facts as the store gives them back, to be compared with those.
    return Trial(trial.sample, json.loads(canonical(trial.facts, "facts")))


def _row(records: Sequence[Record]) -> Row:
    """Of one run, in the order of its blocks."""
    first = records[0]
    same_facts(first.config, [record.facts for record in records])
    return Row(
        config=first.config,
        metrics=reduce(merge_all, [record.metrics for record in records]),
        seconds=sum(record.seconds for record in records),
        facts=first.facts,
        seed=first.seed,
        block_size=first.block_size,
        code=first.code,
    )
