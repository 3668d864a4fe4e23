"""What a sweep has still to do of each configuration, and what it does with the answers."""

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torchdp.simulate.blocks import Asked, Block, Gathering
from torchdp.simulate.engine import progress_bar
from torchdp.simulate.facts import same_facts
from torchdp.simulate.moments import Moments
from torchdp.simulate.store import Record, append, check_writable, load
from torchdp.simulate.streams import canonical, digest
from torchdp.simulate.workers import Jobs


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


@dataclass(frozen=True)
class Plan:
    config: dict[str, Any]
    blocks: Gathering[Record]
    facts: list[dict[str, Any]]  # of a block that is known, if there is one
    code: str
    error: list[str] = field(default_factory=list)

    def row(self, asked: Asked) -> Row:
        blocks, facts, error = self.blocks, (self.facts or [{}])[0], self.error[0] if self.error else None
        return Row(
            self.config, blocks.moments, blocks.seconds, facts, asked.seed, asked.block_size, self.code, error
        )


def plans_of(
    grid: Sequence[Mapping[str, object]],
    asked: Asked,
    store: str | os.PathLike[str],
    code: str,
    other_code: OtherCode,
) -> list[Plan]:
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
        plans.append(Plan(copied, asked.gathering(stored), facts[:1], made))
    return plans


@dataclass(frozen=True)
class Job:
    plan: int
    block: Block
    facts: list[dict[str, Any]]

    def __str__(self) -> str:
        return str(self.block)


class Work(Jobs[Job]):
    """What is left to do, and the store that keeps what was done."""

    def __init__(self, plans: Sequence[Plan], seed: int, store: str | os.PathLike[str], on_error: OnError) -> None:
        self._plans, self._seed, self._store, self._on_error = plans, seed, store, on_error
        self._open = {index for index, plan in enumerate(plans) if not plan.blocks.finished}
        self._fresh = iter(range(len(plans)))

    def next(self, previous: Job | None) -> Job | None:
        """Of the plan before, whose trial is made; of one that nobody has; of the one with the most left."""
        return next(filter(None, map(self._job, self._candidates(previous))), None)

    def wanted(self, job: Job) -> bool:
        return not self._plans[job.plan].blocks.finished

    def _candidates(self, previous: Job | None) -> Iterator[int]:
        if previous is not None:
            yield previous.plan
        yield from self._fresh
        yield from sorted(range(len(self._plans)), key=lambda index: -self._plans[index].blocks.left)

    def _job(self, index: int) -> Job | None:
        plan = self._plans[index]
        key = plan.blocks.hand_out()
        return None if key is None else Job(index, Block(self._seed, plan.config, *key), plan.facts[:])

    def finish(
        self, records: Generator[tuple[Job, Record], None, None], trials: int, progress: bool | None
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

    def failed(self, job: Job, error: Exception) -> bool:
        if self._on_error is OnError.RAISE:
            return False
        plan = self._plans[job.plan]
        plan.error.append(f"{type(error).__name__}: {error}")
        plan.blocks.give_up()
        self._open.discard(job.plan)
        return True

    def _take(self, job: Job, record: Record) -> int:
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
