"""What a store holds of the sweep that it was last used for: done, running, failed, and when it will end."""

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from typing import Any

from torchdp import checks
from torchdp.simulate.blocks import Asked
from torchdp.simulate.claims import Claims
from torchdp.simulate.config_runs import ConfigRun, Row
from torchdp.simulate.moments import Moments
from torchdp.simulate.store import Reader, Start, load


@dataclass(frozen=True)
class Progress:
    """One configuration's row; state: "done", "failed" or "open"; seconds_left: of one worker, None where unknown."""

    row: Row
    state: str
    seconds_left: float | None


@dataclass(frozen=True)
class Status:
    """Of the sweep that started last, and of those with its grid, seed, block size and code.

    running: processes that work on it now, as far as this machine can see. seconds_left: at the pace of these; None
    where nothing is running or known. starts: of all sweeps that the store has seen.
    """

    progress: Sequence[Progress]
    asked: dict[str, Any]
    running: int
    seconds_left: float | None
    starts: Sequence[Start]

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.progress)


def status(store: str | os.PathLike[str]) -> Status:
    """Where a sweep stands, from its store alone. Raises OSError; ValueError where the store says nothing."""
    reader = load(store)
    starts = list(reader.starts.values())
    if not starts:
        raise ValueError(f"{os.fspath(store)} does not say which sweep it is of; run torchdp sweep on it")
    last = max(starts, key=lambda start: start.facts["at"])
    kin = [start for start in starts if _same(start, last, "grid_digest", "seed", "block_size", "code")]
    grids = (start.facts.get("grid") for start in starts if _same(start, last, "grid_digest"))
    progress = [_progress(reader, last, config) for config in next(filter(None, grids), [])]
    with closing(Claims(store)) as claims:
        alive = [start for start in kin if not _taken(claims, start.start)]
    return Status(progress, last.facts, len(alive), _seconds_left(reader, alive, progress), starts)


def _same(a: Start, b: Start, *names: str) -> bool:
    return all(a.facts.get(name) == b.facts.get(name) for name in names)


def _taken(claims: Claims, name: str) -> bool:
    taken = claims.take(name)
    claims.free(name)
    return taken


def _progress(reader: Reader, last: Start, config: dict[str, Any]) -> Progress:
    asked = Asked(*(last.facts[name] for name in ("trials", "seed", "block_size", "target")))
    run = ConfigRun.known(config, asked, last.facts["code"], reader.runs)
    errors = [each for each in reader.failures if each.key == list(run.key) and each.start == last.start]
    row = run.row()
    if run.blocks.finished:
        return Progress(row, "done", 0.0)
    done, left = run.blocks.blocks, float(run.blocks.left)
    if asked.target is not None:
        needed = done * (run.blocks.moments.relative_half_width() / asked.target) ** 2 if done else math.inf
        left = min(left, max(0.0, needed - done))
    seconds = left * row.seconds / done if done else None
    if errors:
        return Progress(replace(row, error=errors[-1].error), "failed", seconds)
    return Progress(row, "open", seconds)


def _seconds_left(reader: Reader, alive: Sequence[Start], progress: Sequence[Progress]) -> float | None:
    if not alive:
        return None
    began = min(start.facts["at"] for start in alive)
    since = [record.seconds for run in reader.runs.values() for record in run.values() if record.at >= began]
    known = [each.seconds_left for each in progress if each.seconds_left is not None and each.state != "failed"]
    pace = sum(since) / max(time.time() - began, 1e-9)  # seconds of work in a second
    if not pace or not known:
        return None
    blind = sum(each.seconds_left is None for each in progress)  # as long as the others took on average
    mean = sum(each.row.seconds + (each.seconds_left or 0) for each in progress) / max(1, len(progress) - blind)
    return (sum(known) + blind * mean) / pace


def digest_of(rows: Sequence[Row]) -> str:
    """Sixteen letters that tell results apart: SHA-256 of each row's configuration, seed, block size and metrics.

    Rows in any order give the same; wall time, devices, hosts and code do not enter.
    """
    lines = sorted(
        json.dumps([row.config, row.seed, row.block_size, _plain(row.metrics)], sort_keys=True)
        for row in checks.each_of("rows", rows, Row)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _plain(metrics: Mapping[str, Moments]) -> list[list[float | str]]:
    return [
        [name, *(value if math.isfinite(value) else str(value) for value in astuple(each))]
        for name, each in metrics.items()
    ]
