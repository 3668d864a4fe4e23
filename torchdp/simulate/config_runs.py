"""What a sweep has still to do of each configuration, and what it does with the answers."""

import json
import math
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from torchdp.simulate.blocks import Asked, Block, Gathering, progress_bar
from torchdp.simulate.moments import Measured, Moments
from torchdp.simulate.store import Claims, Failure, Reader, Record, Run, RunKey, Start, append
from torchdp.simulate.streams import canonical, digest

# Seconds between looks at a store whose last blocks others run: a look at a file that has not grown
# reads nothing.
PAUSE = 0.2
# Of facts, relative: another number of threads changes the last digits of what is computed.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Row(Measured):
    """One configuration with the merged moments of each number by name; ``moments``: of the first.

    seconds: wall time of all its blocks, whoever ran them. code: what made every one of them; see
    ``code_of``. error: what ended it early, None where nothing did.
    """

    config: dict[str, Any]
    metrics: Mapping[str, Moments]
    seconds: float
    facts: dict[str, Any]
    seed: int
    block_size: int
    code: str = ""
    error: str | None = None


class OtherCode(Enum):
    """What a sweep does with a configuration whose stored blocks are all by other code.

    REFUSE: raises ValueError, before any work. KEEP: takes the stored blocks of one other code
    where they are all that was asked for, and measures the rest anew. AGAIN: measures anew. Blocks
    of two codes are never merged.
    """

    REFUSE = "refuse"
    KEEP = "keep"
    AGAIN = "again"


class OnError(Enum):
    """When a configuration fails: RAISE, or GO_ON with the others and say so in its row."""

    RAISE = "raise"
    GO_ON = "go-on"


@dataclass(frozen=True)
class ConfigRun:
    """One configuration by one code. facts: of one known block, if there is one."""

    config: dict[str, Any]
    key: RunKey
    blocks: Gathering[Record]
    # Lists, since the record is frozen, and its first block's facts, or an error, come later.
    facts: list[dict[str, Any]]
    error: list[str] = field(default_factory=list)

    @staticmethod
    def known(
        config: dict[str, Any], asked: Asked, code: str, runs: Mapping[RunKey, Run]
    ) -> "ConfigRun":
        """With the stored blocks. Raises ValueError where their facts differ."""
        key = RunKey(digest(config), asked.seed, asked.block_size, code)
        stored = runs.get(key, {})
        facts = [stored[place].facts for place in sorted(stored)]
        same_facts(config, facts)
        return ConfigRun(config, key, asked.gathering(stored), facts[:1])

    def row(self) -> Row:
        return Row(
            config=self.config,
            metrics=self.blocks.metrics,
            seconds=self.blocks.seconds,
            facts=self.facts[0] if self.facts else {},
            seed=self.key.seed,
            block_size=self.key.block_size,
            code=self.key.code,
            error=self.error[0] if self.error else None,
        )


def runs_of(
    grid: Sequence[Mapping[str, object]],
    asked: Asked,
    store: str | os.PathLike[str],
    code: str,
    other_code: OtherCode,
    known: Mapping[RunKey, Run],
) -> list[ConfigRun]:
    """What is known of each configuration, by which code."""
    configs: dict[str, dict[str, Any]] = {}
    for config in grid:
        # As the store gives it back, and no longer the caller's to change.
        copied = json.loads(canonical(config))
        # Two alike would draw the same numbers, and each block would count for both.
        if digest(copied) in configs:
            raise ValueError(f"grid holds {copied} twice")
        configs[digest(copied)] = copied
    stored: dict[str, dict[str, Run]] = {name: {} for name in configs}  # by digest and code
    for key, run in known.items():
        if key.digest in stored and (key.seed, key.block_size) == (asked.seed, asked.block_size):
            stored[key.digest][key.code] = run
    runs = []
    for name, config in configs.items():
        codes = stored[name]
        chosen = code
        if codes and code not in codes:
            if other_code is OtherCode.REFUSE:
                raise ValueError(
                    f"{os.fspath(store)} holds blocks of config {config} by other code: "
                    f"{'; '.join(codes)}; this is {code}; "
                    "take another store, or other_code=OtherCode.AGAIN to measure them anew, "
                    "OtherCode.KEEP to use those that are complete "
                    "(torchdp sweep: --other-code again or keep)"
                )
            if other_code is OtherCode.KEEP:
                complete = [other for other in codes if asked.gathering(codes[other]).finished]
                # Of several the one that came last into the store.
                chosen = complete[-1] if complete else code
        runs.append(ConfigRun.known(config, asked, chosen, known))
    return runs


def same_facts(config: Mapping[str, object], facts: Sequence[Mapping[str, object]]) -> None:
    """Raises ValueError where facts of one configuration's blocks differ beyond rounding."""
    for other in facts[1:]:
        if not _equal(other, facts[0]):
            raise ValueError(
                f"facts of config {config} differ between its blocks: {facts[0]} and {other}; "
                "the trial has changed since the store was begun, so it needs a new store"
            )


def _equal(a: object, b: object) -> bool:
    """Whether two values of JSON are equal, floats up to rounding."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=ROUNDING)
    return a == b


@dataclass(frozen=True)
class Job:
    run: int
    block: Block
    facts: list[dict[str, Any]]

    def __str__(self) -> str:
        return str(self.block)


class Work:
    """What is left to do, and the store of what was done, which other sweeps may share.

    It is asked as it goes, since what is needed may depend on the records.
    """

    def __init__(
        self,
        runs: Sequence[ConfigRun],
        store: str | os.PathLike[str],
        reader: Reader,
        begun: Start,
        on_error: OnError,
    ) -> None:
        self._runs = runs
        self._store = store
        self._reader = reader
        self._begun = begun
        self._on_error = on_error
        self._open = {index for index, run in enumerate(runs) if not run.blocks.finished}
        self._run_of = {run.key: index for index, run in enumerate(runs)}
        # One for all workers: a configuration is begun by one of them, which then stays with it.
        self._fresh = iter(range(len(runs)))
        self._elsewhere: deque[Job] = deque()  # in another process's hands

    def finish(
        self,
        records: Generator[tuple[Job, Record], None, None],
        trials: int | None,
        progress: bool | None,
    ) -> None:
        """Takes records until every run is finished."""
        if not self._open:
            return
        # Before an hour of work, not after it: a store that cannot be written to is found out here.
        append(self._store, self._begun)
        self._claims = Claims(self._store)
        total = None if trials is None else trials * len(self._runs)
        with progress_bar(total, progress) as bar, closing(self._claims), closing(records):
            self._bar = bar
            bar.update(sum(run.blocks.moments.count for run in self._runs))
            for job, record in records:
                self._take(job, replace(record, start=self._begun.start, at=time.time()))
                if not self._open:
                    break

    def next(self, previous: Job | None) -> Job | None:
        """Of the run before, whose trial is made; of one that nobody has; of any; None: of none."""
        for index in self._candidates(previous):
            run = self._runs[index]
            for block, size in iter(run.blocks.hand_out, None):
                job = Job(index, Block(run.key.seed, run.config, block, size), run.facts[:])
                # A block in another process's hands is put aside, not waited for.
                if self._claimed(job):
                    return job
        # Once round: what is refused again goes to the end of the queue.
        for _ in range(len(self._elsewhere)):
            job = self._elsewhere.popleft()
            if self._claimed(job):
                return job
        return None

    def wait(self) -> bool:
        """When nothing is left and nothing is busy: True, after a pause, if more may come."""
        if not self._elsewhere or not self._open:
            return False
        # The other process may store its block, or die: then its lock is free, and ``next`` takes
        # it.
        time.sleep(PAUSE)
        self._look()
        return True

    def failed(self, job: Job, error: Exception) -> bool:
        """Whether to go on without that job's run; else the error is raised."""
        run = self._runs[job.run]
        text = f"{type(error).__name__}: {error}"
        failure = Failure(list(run.key), run.config, text, self._begun.start, time.time())
        self._claims.free(self._name(job))
        # The store may be what failed: a second error must not hide the first.
        with suppress(OSError):
            append(self._store, failure)
        if self._on_error is OnError.RAISE:
            return False
        run.error.append(text)
        run.blocks.give_up()
        self._open.discard(job.run)
        return True

    def _candidates(self, previous: Job | None) -> Iterator[int]:
        if previous is not None:
            yield previous.run
        yield from self._fresh
        yield from range(len(self._runs))

    def _claimed(self, job: Job) -> bool:
        """Whether a block is ours to run: nobody has it in hand, and nobody has done it."""
        run = self._runs[job.run]
        if run.blocks.finished:
            return False
        if not self._claims.take(self._name(job)):
            self._elsewhere.append(job)
            return False
        # After the claim: whoever held it before has stored the block before it let go.
        self._look()
        done = (job.block.index, job.block.size) in self._reader.runs.get(run.key, {})
        if done:
            self._claims.free(self._name(job))
        return not done

    def _name(self, job: Job) -> str:
        return f"{self._runs[job.run].key} {job.block.index} {job.block.size}"

    def _look(self) -> None:
        """Takes what other sweeps have stored."""
        for record in self._reader.read():
            index = self._run_of.get(record.key)
            # A store may hold other grids, seeds and codes as well.
            if index is not None:
                self._merge(index, record)

    def _take(self, job: Job, record: Record) -> None:
        run = self._runs[job.run]
        try:
            same_facts(run.config, [*run.facts, record.facts])
            run.blocks.check(record)
        except ValueError as error:
            if not self.failed(job, error):
                raise
            return
        if not run.facts:
            run.facts.append(record.facts)
        # On the disk before the lock is free: whoever takes it next finds the block there.
        append(self._store, record)
        self._reader.insert(record)
        self._claims.free(self._name(job))
        self._merge(job.run, record)

    def _merge(self, index: int, record: Record) -> None:
        blocks = self._runs[index].blocks
        before = blocks.moments.count
        blocks.take_back(record.block, record.moments.count, record)
        self._bar.update(blocks.moments.count - before)
        if blocks.finished:
            self._open.discard(index)
