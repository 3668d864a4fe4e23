"""An append-only store of finished blocks: JSON lines, each with its CRC-32.

A line is accepted only if encoding what it parses to gives back the very same bytes, checksum included; a torn
or damaged line costs its own block, which is then run again.
"""

import errno
import json
import os
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchdp.simulate.moments import Moments
from torchdp.simulate.streams import digest

FORMAT = "torchdp.simulate.store/2"


class RunKey(NamedTuple):
    """Blocks are merged with blocks of the same key and no others."""

    digest: str
    seed: int
    block_size: int
    code: str


@dataclass(frozen=True)
class Record:
    """One finished block. ``moments.count`` is the number of samples in it; ``seconds`` is wall time.

    code: what made it, see ``torchdp.simulate.code.code_of``.
    """

    seed: int
    config: dict[str, Any]
    block: int
    block_size: int
    moments: Moments
    facts: dict[str, Any]
    seconds: float
    device: str
    code: str

    @property
    def key(self) -> RunKey:
        """The run this block belongs to."""
        return RunKey(digest(self.config), self.seed, self.block_size, self.code)


Run = dict[tuple[int, int], Record]
"""(block index, samples in the block) -> record: a last block that was short once may be run in full later."""


def append(path: str | os.PathLike[str], record: Record) -> None:
    """Writes ``record`` with one write on an O_APPEND descriptor and waits until it is on the disk.

    Several processes may append to one file. Raises OSError that names ``path``; what was written before
    stays valid.
    """
    data = encode(record)
    try:
        descriptor = _open(path)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a torn last line must not swallow this record
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes fitted; is the disk full?")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _explained(error, path) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Makes the file and its folder if they are missing. Raises OSError that names ``path``."""
    try:
        os.close(_open(path))
    except OSError as error:
        raise _explained(error, path) from error


def load(path: str | os.PathLike[str]) -> dict[RunKey, Run]:
    """Every intact record of the file, by run, in order of first appearance.

    Lines that are damaged or of another format are skipped, and one RuntimeWarning says how many. Of two
    records of the same block the first counts.

    Raises:
        OSError: the file cannot be read.
        ValueError: two records of the same block hold different moments.
    """
    runs: dict[RunKey, Run] = {}
    skipped = 0
    with open(path, "rb") as file:
        for line in file:
            if line.strip():
                record = decode(line)
                if record is None:
                    skipped += 1
                else:
                    _insert(runs, record, path)
    if skipped:
        warnings.warn(
            f"{os.fspath(path)}: skipped {skipped} line(s), damaged or of another format; a sweep runs those "
            "blocks again",
            RuntimeWarning,
            stacklevel=2,
        )
    return runs


def encode(record: Record) -> bytes:
    """The line of ``record``, newline included. Raises TypeError, ValueError if it is not finite JSON."""
    body = {
        "block": record.block,
        "block_size": record.block_size,
        "code": record.code,
        "config": record.config,
        "count": record.moments.count,
        "device": record.device,
        "digest": digest(record.config),
        "facts": record.facts,
        "format": FORMAT,
        "m2": record.moments.m2,
        "max": record.moments.maximum,
        "mean": record.moments.mean,
        "min": record.moments.minimum,
        "seconds": record.seconds,
        "seed": record.seed,
    }
    checksum = f"{zlib.crc32(_dumps(body)):08x}"
    return _dumps({**body, "crc32": checksum}) + b"\n"


def decode(line: bytes) -> Record | None:
    """The record of one line, with or without its newline; None if it is not intact."""
    line = line.removesuffix(b"\n")
    try:
        body = json.loads(line)
        record = Record(
            seed=body["seed"],
            config=body["config"],
            block=body["block"],
            block_size=body["block_size"],
            moments=Moments(body["count"], body["mean"], body["m2"], body["min"], body["max"]),
            facts=body["facts"],
            seconds=body["seconds"],
            device=body["device"],
            code=body["code"],
        )
        return record if encode(record) == line + b"\n" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _insert(runs: dict[RunKey, Run], record: Record, path: str | os.PathLike[str]) -> None:
    first = runs.setdefault(record.key, {}).setdefault((record.block, record.moments.count), record)
    if first.moments != record.moments:
        raise ValueError(
            f"{os.fspath(path)} holds block {record.block} of seed {record.seed}, config {record.config} twice "
            f"with different moments: by {first.device} and by {record.device}; other hardware or "
            "another number of threads needs a store of its own"
        )


def _open(path: str | os.PathLike[str]) -> int:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)


def _explained(error: OSError, path: str | os.PathLike[str]) -> OSError:
    message = f"cannot append to the results store ({error.strerror}); blocks already in it are kept"
    return OSError(error.errno, message, os.fspath(path))


def _dumps(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
