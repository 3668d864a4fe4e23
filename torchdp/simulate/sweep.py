"""Sweeps over a grid of configurations that can be killed at any moment and resumed."""

import copy
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import Any

import torch

from torchdp import checks
from torchdp.simulate.blocks import Block, Gathering, Sampler, check_target, run_block
from torchdp.simulate.code import code_of
from torchdp.simulate.engine import progress_bar
from torchdp.simulate.facts import same_facts
from torchdp.simulate.moments import Moments, merge
from torchdp.simulate.store import Record, Run, append, check_writable, load
from torchdp.simulate.streams import canonical, digest
from torchdp.simulate.workers import answers


@dataclass(frozen=True)
class Trial:
    """What one configuration runs, and what is known about it beforehand.

    sample: ``sample(generator, size)`` returns a tensor of shape (size,) of independent samples.
    facts: fixed numbers and words that go into the store beside the samples, for example
    ``{"predicted_mse": 0.25}``; of the same kinds as a configuration.
    """

    sample: Sampler
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One configuration with its merged moments.

    seconds: wall time of all its blocks, whoever ran them. code: what made every one of them; see ``code_of``.
    error: what ended it early, None where nothing did.
    """

    config: dict[str, Any]
    moments: Moments
    seconds: float
    facts: dict[str, Any]
    seed: int
    block_size: int
    code: str = ""
    error: str | None = None


class OtherCode(Enum):
    """What a sweep does with a configuration of which the store holds blocks by other code, and none by its own.

    REFUSE: raises ValueError, before any work. KEEP: takes the stored blocks of one other code where they are all that
    was asked for, and measures the rest anew. AGAIN: measures anew. Blocks of two codes are never merged.
    """

    REFUSE = "refuse"
    KEEP = "keep"
    AGAIN = "again"


class OnError(Enum):
    """What a sweep does when a configuration fails: RAISE, or GO_ON with the others and name it in its row's error."""

    RAISE = "raise"
    GO_ON = "go-on"


MakeTrial = Callable[[dict[str, Any]], Trial | Sampler]


def sweep(
    make_trial: MakeTrial,
    grid: Sequence[Mapping[str, object]],
    *,
    trials: int,
    seed: int,
    store: str | os.PathLike[str],
    block_size: int,
    target_relative_ci: float | None = None,
    device: torch.device | str = "cpu",
    devices: Sequence[torch.device | str] | None = None,
    other_code: OtherCode = OtherCode.REFUSE,
    on_error: OnError = OnError.RAISE,
    progress: bool | None = None,
) -> list[Row]:
    """One row per configuration, in the order of ``grid``; blocks found in ``store`` are not run again.

    Each finished block is on the disk before whoever ran it starts the next. On one model of device and one
    version of torch the moments are bit-identical however often the sweep was killed, in whatever order the grid
    was given, however many devices ran it, and however many processes shared the store; about the number of CPU
    threads see :func:`torchdp.simulate.run`. Over several models of GPU a row is as good, but depends on which of
    them ran which block. Blocks of another seed, block size, configuration or code (``code_of(make_trial)``) never
    enter a row.

    Args:
        make_trial: ``make_trial(config)`` returns a :class:`Trial` or a plain sampler; called only for a
            configuration that still has blocks to run, once in each process that runs some of them.
        grid: configurations, no two alike; see ``streams.canonical`` for what they may hold.
        trials, seed, block_size, target_relative_ci, device, progress: as in :func:`torchdp.simulate.run`.
        devices: as there; it is ``make_trial`` that the workers must be able to load, by its name.
        store: path of the JSON lines file; made, with its folder, if it is missing.
        other_code: what to do with stored blocks that other code made; see :class:`OtherCode`.
        on_error: see :class:`OnError`; a row that failed holds the moments of the blocks before the error.

    Raises:
        TypeError, ValueError: two configurations alike, bad arguments or samples, facts that differ from
            those stored (numbers by more than rounding), blocks of other code, or a store that contradicts itself.
        OSError: the store cannot be read or written. ChildProcessError: a worker was killed.
        RuntimeError: a trial in a worker raised something else. Finished blocks are kept, whatever is raised.
    """
    checks.function("make_trial", make_trial)
    checks.instance("other_code", other_code, OtherCode)
    checks.instance("on_error", on_error, OnError)
    asked = _Asked(trials, seed, block_size, target_relative_ci)
    code = code_of(make_trial)
    plans = _plans(grid, asked, store, code, other_code)
    work, runner = _Work(plans, store, on_error), _Runner(make_trial, asked.block_size, code)
    records = answers("make_trial", runner, _chooser(plans, asked.seed), device, devices, work.failed)
    work.finish(records, trials, progress)
    return [plan.row(asked) for plan in plans]


def read(store: str | os.PathLike[str]) -> list[Row]:
    """One row per (configuration, seed, block size, code) in ``store``, in order of first appearance.

    All stored blocks count: also those past the boundary at which a sweep with a target would stop. Where a
    block was stored with two lengths, the longer one counts.

    Raises:
        OSError: the store cannot be read.
        ValueError: it contradicts itself.
    """
    rows = []
    for run in load(store).values():
        longest = {record.block: record for _, record in sorted(run.items())}
        rows.append(_row(longest.values()))
    return rows


class _Asked:
    """How much of each configuration."""

    def __init__(self, trials: int, seed: int, block_size: int, target: float | None) -> None:
        self.trials = checks.integer("trials", trials, 1)
        self.seed = checks.integer("seed", seed, 0, 2**256)
        self.block_size = checks.integer("block_size", block_size, 1)
        check_target(target)
        self.target = target

    def gathering(self, stored: Run) -> Gathering[Record]:
        return Gathering(self.trials, self.block_size, self.target, stored)


@dataclass(frozen=True)
class _Plan:
    config: dict[str, Any]
    blocks: Gathering[Record]
    facts: list[dict[str, Any]]  # of a block that is known, if there is one
    code: str
    error: list[str] = field(default_factory=list)

    def row(self, asked: _Asked) -> Row:
        blocks, facts, error = self.blocks, (self.facts or [{}])[0], self.error[0] if self.error else None
        return Row(
            self.config, blocks.moments, blocks.seconds, facts, asked.seed, asked.block_size, self.code, error
        )


def _plans(
    grid: Sequence[Mapping[str, object]],
    asked: _Asked,
    store: str | os.PathLike[str],
    code: str,
    other_code: OtherCode,
) -> list[_Plan]:
    """What is stored of each configuration, by which code."""
    configs: dict[str, dict[str, Any]] = {}
    for config in grid:
        if configs.setdefault(digest(config), copied := json.loads(canonical(config))) is not copied:
            raise ValueError(f"grid holds {copied} twice")
    known, plans = load(store) if os.path.exists(store) else {}, []
    for value, copied in configs.items():
        found = {key.code: run for key, run in known.items() if key[:3] == (value, asked.seed, asked.block_size)}
        if found and code not in found and other_code is OtherCode.REFUSE:
            raise ValueError(
                f"{os.fspath(store)} holds blocks of config {copied} by other code: "
                f"{'; '.join(found)}; this is {code}; "
                "take another store, or other_code=OtherCode.AGAIN to measure them anew, OtherCode.KEEP to use "
                "those that are complete (torchdp sweep: --other-code again or keep)"
            )
        made = code
        if code not in found and other_code is OtherCode.KEEP:
            made = next((each for each in reversed(found) if asked.gathering(found[each]).finished), code)
        stored = found.get(made, {})
        facts = [stored[key].facts for key in sorted(stored)]
        same_facts(copied, facts)
        plans.append(_Plan(copied, asked.gathering(stored), facts[:1], made))
    return plans


@dataclass(frozen=True)
class _Job:
    plan: int
    block: Block
    facts: list[dict[str, Any]]

    def __str__(self) -> str:
        return str(self.block)


class _Work:
    """What is left to do, and the store that keeps what was done."""

    def __init__(self, plans: Sequence[_Plan], store: str | os.PathLike[str], on_error: OnError) -> None:
        self._plans, self._store, self._on_error = plans, store, on_error
        self._open = {index for index, plan in enumerate(plans) if not plan.blocks.finished}

    def finish(
        self, records: Generator[tuple[_Job, Record], None, None], trials: int, progress: bool | None
    ) -> None:
        """Takes records until every plan is finished."""
        if self._open:
            check_writable(self._store)  # before an hour of work, not after it
        with progress_bar(trials * len(self._plans), progress) as bar, closing(records):
            bar.update(sum(plan.blocks.moments.count for plan in self._plans))
            for job, record in records:
                bar.update(self._take(job, record))
                if not self._open:
                    break

    def failed(self, job: _Job, error: Exception) -> bool:
        """Whether the others go on."""
        if self._on_error is OnError.RAISE:
            return False
        plan = self._plans[job.plan]
        plan.error.append(f"{type(error).__name__}: {error}")
        plan.blocks.give_up()
        self._open.discard(job.plan)
        return True

    def _take(self, job: _Job, record: Record) -> int:
        """How many samples more its plan has."""
        plan = self._plans[job.plan]
        try:
            same_facts(plan.config, [*plan.facts, record.facts])
        except ValueError as error:
            if not self.failed(job, error):
                raise
            return 0
        plan.facts[:] = [*plan.facts, record.facts][:1]
        append(self._store, record)
        before = plan.blocks.moments.count
        plan.blocks.take_back(job.block.index, job.block.size, record)
        if plan.blocks.finished:
            self._open.discard(job.plan)
        return plan.blocks.moments.count - before


def _chooser(plans: Sequence[_Plan], seed: int) -> Callable[[_Job | None], _Job | None]:
    fresh = iter(range(len(plans)))

    def job(index: int) -> _Job | None:
        plan = plans[index]
        key = plan.blocks.hand_out()
        return None if key is None else _Job(index, Block(seed, plan.config, *key), plan.facts[:])

    def candidates(previous: _Job | None) -> Iterator[int]:
        if previous is not None:
            yield previous.plan  # its trial is made
        yield from fresh
        yield from sorted(range(len(plans)), key=lambda index: -plans[index].blocks.left)

    return lambda previous: next(filter(None, map(job, candidates(previous))), None)


class _Runner:
    """Runs blocks; keeps the trial of the configuration at hand."""

    def __init__(self, make_trial: MakeTrial, block_size: int, code: str) -> None:
        self._make_trial = make_trial
        self._block_size = block_size
        self._code = code
        self._made: tuple[int, Trial] | None = None

    def __call__(self, job: _Job, device: torch.device) -> Record:
        config = dict(job.block.config)
        if self._made is None or self._made[0] != job.plan:
            self._made = None  # two at once might not fit into memory
            self._made = job.plan, _open(self._make_trial, config)
        trial = self._made[1]
        same_facts(config, [*job.facts, trial.facts])
        part = run_block(trial.sample, job.block, device)
        return Record(
            seed=job.block.seed,
            config=config,
            block=job.block.index,
            block_size=self._block_size,
            moments=part.moments,
            facts=dict(trial.facts),
            seconds=part.seconds,
            device=_device_name(device),
            code=self._code,
        )


def _open(make_trial: MakeTrial, config: dict[str, Any]) -> Trial:
    made = make_trial(copy.deepcopy(config))
    sample, facts = (made.sample, made.facts) if isinstance(made, Trial) else (made, {})
    if not callable(sample):
        raise TypeError(f"make_trial must return a Trial or a callable, not {type(sample).__name__}")
    return Trial(sample, json.loads(canonical(facts, "facts")))


def _row(records: Iterable[Record]) -> Row:
    records = list(records)  # in block order
    first = records[0]
    same_facts(first.config, [record.facts for record in records])
    moments = reduce(merge, (record.moments for record in records))
    seconds = sum(record.seconds for record in records)
    return Row(first.config, moments, seconds, first.facts, first.seed, first.block_size, first.code)


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
