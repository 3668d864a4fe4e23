"""What a store holds of the sweep that it was last used for: done, running, failed, and when it will end."""

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchdp import checks
from torchdp.simulate.blocks import Gathering
from torchdp.simulate.claims import Claims
from torchdp.simulate.moments import Moments
from torchdp.simulate.plans import Row
from torchdp.simulate.store import Reader, Record, RunKey, Start, load
from torchdp.simulate.streams import digest


@dataclass(frozen=True)
class Standing:
    """One configuration. state: "done", "failed" or "open"; seconds_left: of one worker, None where unknown."""

    config: dict[str, Any]
    moments: Moments
    facts: dict[str, Any]
    state: str
    error: str
    seconds: float
    seconds_left: float | None


@dataclass(frozen=True)
class Status:
    """Of the sweep that started last, and of those with its grid, seed, block size and code.

    running: processes that work on it now, as far as this machine can see. seconds_left: at the pace of these; None
    where nothing is running or known. starts: of all sweeps that the store has seen.
    """

    standings: Sequence[Standing]
    asked: dict[str, Any]
    running: int
    seconds_left: float | None
    starts: Sequence[Start]

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.standings)


def status(store: str | os.PathLike[str]) -> Status:
    """Where a sweep stands, from its store alone. Raises OSError; ValueError where the store says nothing."""
    reader = load(store)
    starts = list(reader.starts.values())
    if not starts:
        raise ValueError(f"{os.fspath(store)} does not say which sweep it is of; run torchdp sweep on it")
    last = max(starts, key=lambda start: start.facts["at"])
    kin = [start for start in starts if _same(start, last)]
    standings = [_standing(reader, last, config) for config in _grid(starts, last)]
    claims = Claims(store)
    alive = [start for start in kin if not _taken(claims, start.start)]
    claims.close()
    return Status(standings, last.facts, len(alive), _seconds_left(reader, alive, standings), starts)


def _same(a: Start, b: Start) -> bool:
    names = ("grid_digest", "seed", "block_size", "code")
    return all(a.facts.get(name) == b.facts.get(name) for name in names)


def _grid(starts: Sequence[Start], last: Start) -> list[dict[str, Any]]:
    for start in starts:
        if start.facts["grid_digest"] == last.facts["grid_digest"] and "grid" in start.facts:
            return start.facts["grid"]
    return []


def _taken(claims: Claims, name: str) -> bool:
    taken = claims.take(name)
    claims.free(name)
    return taken


def _standing(reader: Reader, last: Start, config: dict[str, Any]) -> Standing:
    asked = last.facts
    key = RunKey(digest(config), asked["seed"], asked["block_size"], asked["code"])
    run = reader.runs.get(key, {})
    blocks: Gathering[Record] = Gathering(asked["trials"], asked["block_size"], asked["target"], run)
    errors = [each for each in reader.failures if each.key == list(key) and each.start == last.start]
    state = "done" if blocks.finished else "failed" if errors else "open"
    spent = [record.seconds for record in run.values()]
    left = _blocks_left(blocks, asked) * sum(spent) / len(spent) if spent else None
    facts = next(iter(run.values())).facts if run else {}
    error = errors[-1].error if errors and state == "failed" else ""
    return Standing(config, blocks.moments, facts, state, error, sum(spent), 0.0 if state == "done" else left)


def _blocks_left(blocks: Gathering[Record], asked: dict[str, Any]) -> float:
    if asked["target"] is None or not blocks.blocks:
        return blocks.left
    needed = blocks.blocks * (blocks.moments.relative_half_width() / asked["target"]) ** 2
    return min(blocks.left, max(0.0, needed - blocks.blocks))


def _seconds_left(reader: Reader, alive: Sequence[Start], standings: Sequence[Standing]) -> float | None:
    if not alive:
        return None
    began = min(start.facts["at"] for start in alive)
    since = [record.seconds for run in reader.runs.values() for record in run.values() if record.at >= began]
    known = [each.seconds_left for each in standings if each.seconds_left is not None and each.state != "failed"]
    pace = sum(since) / max(time.time() - began, 1e-9)  # seconds of work in a second
    if not pace or not known:
        return None
    blind = sum(each.seconds_left is None for each in standings)  # as long as the others took on average
    mean = sum(each.seconds + (each.seconds_left or 0) for each in standings) / max(1, len(standings) - blind)
    return (sum(known) + blind * mean) / pace


def digest_of(rows: Sequence[Row]) -> str:
    """Sixteen letters that tell results apart: SHA-256 of each row's configuration, seed, block size and moments.

    Rows in any order give the same; wall time, devices, hosts and code do not enter.
    """
    lines = sorted(
        json.dumps([row.config, row.seed, row.block_size, _plain(row.moments)], sort_keys=True)
        for row in checks.each_of("rows", rows, Row)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _plain(moments: Moments) -> list[float | str]:
    values = (moments.count, moments.mean, moments.m2, moments.minimum, moments.maximum)
    return [value if math.isfinite(value) else str(value) for value in values]
