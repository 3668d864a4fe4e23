"""Sweeps over a grid of configurations that can be killed at any moment and resumed."""

import copy
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from tqdm.auto import tqdm

from torchdp.checks import integer
from torchdp.simulate.engine import Sampler, block_sizes, check_target, progress_bar, reached, run_block
from torchdp.simulate.moments import Moments, merge
from torchdp.simulate.store import Record, Run, RunKey, append, check_writable, load
from torchdp.simulate.streams import canonical, digest


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
    """One configuration with its merged moments. ``seconds``: wall time of all its blocks, whoever ran them."""

    config: dict[str, Any]
    moments: Moments
    seconds: float
    facts: dict[str, Any]
    seed: int
    block_size: int


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
    progress: bool | None = None,
) -> list[Row]:
    """One row per configuration, in the order of ``grid``; blocks found in ``store`` are not run again.

    Each finished block is on the disk before the next one starts. On one kind of device and one version of
    torch the moments are bit-identical however often the sweep was killed, in whatever order the grid was
    given, and however many processes shared the store. Blocks of another seed, block size or configuration
    never enter a row.

    Args:
        make_trial: ``make_trial(config)`` returns a :class:`Trial` or a plain sampler; called only for a
            configuration that still has blocks to run.
        grid: configurations, no two alike; see :func:`canonical` for what they may hold.
        trials, seed, block_size, target_relative_ci, device, progress: as in :func:`torchdp.simulate.run`.
        store: path of the JSON lines file; made, with its folder, if it is missing.

    Raises:
        TypeError, ValueError: two configurations alike, bad arguments or samples, facts that differ from
            those stored, or a store that contradicts itself.
        OSError: the store cannot be read or written.
    """
    configs: dict[str, dict[str, Any]] = {}
    for config in grid:
        if configs.setdefault(digest(config), copied := json.loads(canonical(config))) is not copied:
            raise ValueError(f"grid holds {copied} twice")
    trials, seed = integer("trials", trials, 1), integer("seed", seed, 0)
    block_size = integer("block_size", block_size, 1)
    check_target(target_relative_ci)
    known = load(store) if os.path.exists(store) else {}
    rows = []
    with progress_bar(trials * len(configs), progress) as bar:
        for value, copied in configs.items():
            stored = known.get(RunKey(value, seed, block_size), {})
            work = _Work(make_trial, copied, seed, block_size, store, device, stored)
            rows.append(_finish(work, trials, target_relative_ci, bar))
    return rows


def read(store: str | os.PathLike[str]) -> list[Row]:
    """One row per (configuration, seed, block size) in ``store``, in order of first appearance.

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


@dataclass(frozen=True)
class _Work:
    make_trial: MakeTrial
    config: dict[str, Any]
    seed: int
    block_size: int
    store: str | os.PathLike[str]
    device: torch.device | str
    stored: Run


def _finish(work: _Work, trials: int, target: float | None, bar: tqdm) -> Row:
    trial: Trial | None = None
    moments = Moments()
    used = []
    for block, size in block_sizes(trials, work.block_size):
        record = work.stored.get((block, size))
        if record is None:
            trial = trial or _open(work)
            record = _run(work, trial, block, size)
        used.append(record)
        moments = merge(moments, record.moments)
        bar.update(size)
        if reached(moments, target):
            break
    return _row(used)


def _open(work: _Work) -> Trial:
    check_writable(work.store)  # before an hour of work, not after it
    made = work.make_trial(copy.deepcopy(work.config))
    sample, facts = (made.sample, made.facts) if isinstance(made, Trial) else (made, {})
    if not callable(sample):
        raise TypeError(f"make_trial must return a Trial or a callable, not {type(sample).__name__}")
    facts = json.loads(canonical(facts, "facts"))
    _same_facts(work.config, [facts, *(record.facts for record in work.stored.values())])
    return Trial(sample, facts)


def _run(work: _Work, trial: Trial, block: int, size: int) -> Record:
    moments, seconds = run_block(trial.sample, work.seed, work.config, block, size, work.device)
    record = Record(
        seed=work.seed,
        config=work.config,
        block=block,
        block_size=work.block_size,
        moments=moments,
        facts=dict(trial.facts),
        seconds=seconds,
        device=_device_name(torch.device(work.device)),
        torch=str(torch.__version__),
    )
    append(work.store, record)
    return record


def _row(records: Iterable[Record]) -> Row:
    records = list(records)  # in block order
    first = records[0]
    _same_facts(first.config, [record.facts for record in records])
    moments = reduce(merge, (record.moments for record in records))
    seconds = sum(record.seconds for record in records)
    return Row(first.config, moments, seconds, first.facts, first.seed, first.block_size)


def _same_facts(config: dict[str, Any], facts: Sequence[Mapping[str, object]]) -> None:
    for other in facts[1:]:
        if other != facts[0]:
            raise ValueError(
                f"facts of config {config} differ between its blocks: {facts[0]} and {other}; the trial has "
                "changed since the store was begun, so it needs a new store"
            )


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
