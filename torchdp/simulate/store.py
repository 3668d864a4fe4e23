"""An append-only store of finished blocks: JSON lines, each with its CRC-32.

A line is accepted only if encoding what it parses to gives back the very same bytes, checksum
included; a torn or damaged line costs its own block, which is then run again. Beside the blocks it
holds how each sweep started and which configurations failed. Stores merge by ``cat``.
"""

import errno
import fcntl
import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchdp import checks
from torchdp.simulate.moments import Measured, Moments
from torchdp.simulate.streams import digest

# Changes with what a line holds: lines of another format are skipped, not guessed at.
FORMAT = "torchdp.simulate.store/4"


class RunKey(NamedTuple):
    """Blocks are merged with blocks of the same key and no others."""

    digest: str
    seed: int
    block_size: int
    code: str


@dataclass(frozen=True)
class Record(Measured):
    """One finished block.

    ``moments.count`` is the number of samples in it; ``seconds`` is wall time. code: what made it,
    see ``torchdp.simulate.code.code_of``. start: the number of the sweep that ran it; at: when it
    was done, in seconds since 1970.
    """

    seed: int
    config: dict[str, Any]
    block: int
    block_size: int
    metrics: Mapping[str, Moments]
    facts: dict[str, Any]
    seconds: float
    device: str
    code: str
    start: str = ""
    at: float = 0.0

    @property
    def key(self) -> RunKey:
        """The run this block belongs to."""
        return RunKey(digest(self.config), self.seed, self.block_size, self.code)

    def body(self) -> dict[str, Any]:
        metrics = []
        for name, moments in self.metrics.items():
            # Of no samples there are NaN and infinities, which JSON lacks: the name alone.
            metrics.append([name, *astuple(moments)] if moments.count else [name])
        return {"kind": "block", "digest": digest(self.config), **vars(self), "metrics": metrics}

    @staticmethod
    def of(body: dict[str, Any]) -> "Record":
        # Not read but computed anew; ``decode`` then compares the bytes.
        body.pop("digest")
        metrics = {name: Moments(*numbers) for name, *numbers in body.pop("metrics")}
        return Record(metrics=metrics, **body)


@dataclass(frozen=True)
class Start:
    """How a sweep started. start: its number; facts: what, where, when, see ``code.start``."""

    start: str
    facts: dict[str, Any]

    def body(self) -> dict[str, Any]:
        return {"kind": "start", **vars(self)}


@dataclass(frozen=True)
class Failure:
    """A configuration that failed, in a sweep, at some time, with an error."""

    key: list[Any]  # a RunKey
    config: dict[str, Any]
    error: str
    start: str
    at: float

    def body(self) -> dict[str, Any]:
        return {"kind": "failure", **vars(self)}


Line = Record | Start | Failure
_KINDS: dict[str, Callable[[dict[str, Any]], Line]] = {
    "block": Record.of,
    "start": lambda body: Start(**body),
    "failure": lambda body: Failure(**body),
}
Run = dict[tuple[int, int], Record]
"""(block index, samples in the block) -> record.

A last block that was short once may be run in full later.
"""


def append(path: str | os.PathLike[str], record: Line) -> None:
    """Writes ``record`` with one write on an O_APPEND descriptor and waits until it is on the disk.

    Several processes may append to one file. Raises OSError that names ``path``; what was written
    before stays valid.
    """
    data = encode(record)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # A torn last line, of a writer that was killed, must not swallow this record.
                data = b"\n" + data
            # In one write, which O_APPEND puts behind all others' in one piece.
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(
                    errno.ENOSPC, f"only {written} of {len(data)} bytes fitted; is the disk full?"
                )
            # Before the next block begins: a power failure costs the block in work alone.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        message = (
            f"cannot append to the results store ({error.strerror}); blocks already in it are kept"
        )
        raise OSError(error.errno, message, os.fspath(path)) from error


class Reader:
    """Every intact line of a file, read as it grows.

    runs: blocks by run, in order of first appearance; of two records of the same block the first
    counts. starts, failures: the other lines. skipped: lines that are damaged or of another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.runs: dict[RunKey, Run] = {}
        self.starts: dict[str, Start] = {}
        self.failures: list[Failure] = []
        self.skipped = 0
        self._path = path
        self._place = 0  # bytes that were read

    def read(self, last: bool = False) -> list[Record]:
        """The blocks that are new since the last call.

        last: a line that only lacks its newline counts too.

        Raises:
            OSError: the file cannot be read.
            ValueError: two records of the same block hold different moments.
        """
        fresh: list[Record] = []
        if not os.path.exists(self._path) or os.path.getsize(self._path) == self._place:
            return fresh
        with open(self._path, "rb") as file:
            file.seek(self._place)
            for line in file:
                # Somebody may be writing it: the place stays before it, and the next call reads it
                # again.
                if not line.endswith(b"\n") and not last:
                    break
                self._place += len(line)
                if not line.strip():
                    continue
                content = decode(line)
                if content is None:
                    self.skipped += 1
                elif self.insert(content) and isinstance(content, Record):
                    fresh.append(content)
        return fresh

    def insert(self, line: Line) -> bool:
        """Whether it was new. Raises ValueError."""
        if isinstance(line, Start):
            return self.starts.setdefault(line.start, line) is line
        if isinstance(line, Failure):
            if line in self.failures:
                return False
            self.failures.append(line)
            return True
        run = self.runs.setdefault(line.key, {})
        first = run.setdefault((line.block, line.moments.count), line)
        # A block is a function of its key, up to the bits in which machines differ: these never
        # mix.
        if first.metrics != line.metrics:
            raise ValueError(
                f"{os.fspath(self._path)} holds block {line.block} of seed {line.seed}, "
                f"config {line.config} twice with different moments: by {first.device} and by "
                f"{line.device}; other hardware or another number of threads needs a store of its "
                "own"
            )
        return first is line

    def lines(self) -> Iterator[Line]:
        """All that was read."""
        yield from self.starts.values()
        for run in self.runs.values():
            yield from run.values()
        yield from self.failures


def load(path: str | os.PathLike[str]) -> Reader:
    """A reader that has read the whole file. One RuntimeWarning says how many lines it skipped.

    Raises:
        OSError: the file cannot be read. ValueError: two records of the same block hold different
            moments.
    """
    os.stat(checks.path("store", path))
    reader = Reader(path)
    reader.read(last=True)
    if reader.skipped:
        warnings.warn(
            f"{os.fspath(path)}: skipped {reader.skipped} line(s), damaged or of another format; "
            "a sweep runs those blocks again",
            RuntimeWarning,
            stacklevel=2,
        )
    return reader


def merge(stores: Sequence[str | os.PathLike[str]], into: str | os.PathLike[str]) -> int:
    """Adds what ``stores`` hold and ``into`` lacks to ``into``; returns how many blocks that were.

    Raises:
        OSError: a store cannot be read or written. ValueError: two of them contradict each other;
            nothing is written.
    """
    checks.path("into", into)
    for path in checks.each_of("stores", stores, object):
        os.stat(checks.path("each of stores", path))
    target = load(into) if os.path.exists(into) else Reader(into)
    lines: list[Line] = []
    for path in stores:
        held = list(load(path).lines())
        if not held:
            raise ValueError(
                f"{os.fspath(path)} holds no line of a sweep's store; name a results.jsonl"
            )
        lines += held
    # All lines are compared before the first one is written.
    added = [line for line in lines if target.insert(line)]
    for line in added:
        append(into, line)
    return sum(isinstance(line, Record) for line in added)


def encode(line: Line) -> bytes:
    """The bytes of ``line`` and a newline. Raises TypeError, ValueError for no finite JSON."""
    body = {"format": FORMAT, **line.body()}
    # Of the body without it, with sorted keys: one content has one spelling.
    checksum = f"{zlib.crc32(_dumps(body)):08x}"
    return _dumps({**body, "crc32": checksum}) + b"\n"


def decode(line: bytes) -> Line | None:
    """What one line holds, with or without its newline; None if it is not intact."""
    line = line.removesuffix(b"\n")
    try:
        body = json.loads(line)
        if body.pop("format") != FORMAT or not body.pop("crc32"):
            return None
        content = _KINDS[body.pop("kind")](body)
        # Damage that is JSON too, or another spelling of the same, does not give the same bytes.
        return content if encode(content) == line + b"\n" else None
    # Damage may parse to anything; deep brackets exhaust the stack.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _dumps(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class Claims:
    """A lock on one byte of a file beside the store for each block in work.

    The system frees a dead process's locks. Where the file system has no locks, every claim is
    granted: blocks may then be run twice, to the same bits.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._file: int | None = None
        with suppress(OSError):
            # Sweeps that reach one store by several links must meet at one file.
            self._file = os.open(os.path.realpath(store) + ".claims", os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, name: str) -> bool:
        """Whether the block is ours now, or was: False where another process works on it."""
        if self._file is not None:
            try:
                # A byte may lie beyond the end of the file: it is locked, never written.
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
            # EAGAIN or EACCES, as the system likes: another process holds the lock.
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                pass
        return True

    def free(self, name: str) -> None:
        if self._file is not None:
            with suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(name))

    def close(self) -> None:
        if self._file is not None:
            # Closing it frees all of this process's locks.
            os.close(self._file)
            self._file = None


def _place(name: str) -> int:
    # 56 bits: file systems lock bytes up to 2^63
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
