"""A collection on disk that survives crashes: an append-only file, one line for each batch.

A line is the SHA-256 of its JSON and the JSON. The first one names the format and the protocol's fingerprint. A batch
is acknowledged after fsync, so what a crash can leave behind is one torn last line, of a batch that was not
acknowledged: it is dropped, and its retry counts. Damage anywhere else is an error, not a smaller collection.
"""

import contextlib
import errno
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from torchdp.pairwise.collection import Collection, content
from torchdp.pairwise.fingerprint import fingerprint
from torchdp.pairwise.protocol import PairwiseEstimate, PairwiseProtocol

FORMAT = "torchdp.pairwise.journal/1"
AT_ONCE = 1000  # records held in memory while a file is read


class Journal:
    """A collection that is kept in a file, by one process at a time.

    >>> with Journal("ballot.jsonl", protocol) as journal:  # doctest: +SKIP
    ...     journal.add("monday-0001", protocol.tally(messages), len(messages))
    ...     print(journal.estimate().interval())

    ``add`` and ``merge`` return once the batch is on the disk; if they raise, or the process dies before they return,
    send the batch again under its name: it is counted once. Holds sums of messages and names of batches, no more.
    path: made if it is missing, continued if it is there. Raises OSError that names the path, also where another
    process holds the journal; ValueError for another protocol or a damaged file.
    """

    def __init__(self, path: str | os.PathLike[str], protocol: PairwiseProtocol) -> None:
        import fcntl  # not on every system; the rest of the package works without

        self.path = Path(path)
        empty = Collection.empty(protocol)
        self._file: int | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _explained(error, self.path) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self.collection, self._end = _replay(self.path, empty)
            os.ftruncate(self._file, self._end)
            if not self._end:
                self._append(_header(protocol))
                _sync_folder(self.path)
            os.fsync(self._file)  # a line that a killed process wrote may not be on the disk, and now counts
        except BlockingIOError as error:
            self.close()
            raise OSError(error.errno, "another process collects into this journal", str(self.path)) from error
        except OSError as error:
            self.close()
            raise _explained(error, self.path) from error
        except BaseException:
            self.close()
            raise

    def add(self, name: str, sums: Sequence[Tensor], n: int) -> Collection:
        """Counts the batch, on the disk, then in ``collection``; see ``Collection.add``. Raises OSError."""
        return self.merge(self.collection.batch(name, sums, n))

    def merge(self, other: Collection) -> Collection:
        """Counts all batches of another collection as one record; see ``Collection.merge``. Raises OSError."""
        merged = self.collection.merge(other)
        if merged is not self.collection:
            try:
                self._append(_record(other))
            except OSError as error:
                raise _explained(error, self.path) from error
            self.collection = merged
        return merged

    def estimate(self) -> PairwiseEstimate:
        """See ``Collection.estimate``."""
        return self.collection.estimate()

    def compact(self) -> None:
        """Rewrites the file as one record: all sums in one, and every batch's name. Raises OSError."""
        old = self._check_open()
        save(self.collection, self.path)
        os.close(old)
        try:
            self._file = os.open(self.path, os.O_RDWR)
            self._end = os.fstat(self._file).st_size
        except OSError as error:
            self.close()
            raise _explained(error, self.path) from error

    def close(self) -> None:
        """Lets another process collect. Nothing is lost by not closing."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._file = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> int:
        if self._file is None:
            raise ValueError(f"the journal {self.path} is closed; open it again")
        return self._file

    def _append(self, line: bytes) -> None:
        file = self._check_open()
        try:
            written = os.pwrite(file, line, self._end)
            if written < len(line):
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes fitted; is the disk full?")
            os.fsync(file)
        except OSError:
            try:
                os.ftruncate(file, self._end)
                os.fsync(file)
            except OSError:  # what is on the disk is no longer known: only reading it again can tell
                self.close()
            raise
        self._end += len(line)


def save(collection: Collection, path: str | os.PathLike[str]) -> None:
    """Writes a collection as a journal of one record, all of it or nothing; replaces a file that is there.

    Not for a path that a Journal holds open. Raises OSError that names the path.
    """
    path = Path(path)
    temporary = Path(f"{path}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(_header(collection.protocol))
                if collection.batches:
                    file.write(_record(collection))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path)
    except OSError as error:
        raise _explained(error, path) from error


def load(path: str | os.PathLike[str], protocol: PairwiseProtocol) -> Collection:
    """The collection in a file, whether ``save`` or a Journal wrote it; it may be read while a Journal grows.

    A torn last line is left out, with a RuntimeWarning. Raises OSError; ValueError for another protocol or damage.
    """
    collection, end = _replay(Path(path), Collection.empty(protocol))
    if not end:
        raise ValueError(f"{path} is empty: no collection was written to it")
    return collection


def _replay(path: Path, empty: Collection) -> tuple[Collection, int]:
    """The collection in the file and where its last intact line ends (0: not even the first line is there)."""
    total, fresh = empty, []
    end, position, torn, start = 0, 0, 0, b""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            position += len(line)
            start = start or line
            body = _decode(line)
            if body is None:
                torn = torn or number
                continue
            if torn:
                raise ValueError(
                    f"{path}, line {torn}: damaged, with intact lines after it, so no crash did this; restore the "
                    "file from a backup, or take the line out and send its batch again"
                )
            if number == 1:
                _check_header(body, path, empty.protocol)
            else:
                fresh.append(_collection(body, path, number, empty))
            if len(fresh) == AT_ONCE:
                total, fresh = total.merge(*fresh), []
            end = position
    if not end and not _header(empty.protocol).startswith(start.rstrip(b"\0")):
        raise ValueError(f"{path} is not a journal of this protocol, not even a torn one: it is left as it is")
    if position > end:
        warnings.warn(
            f"{path}: left out a torn last line ({position - end} bytes), of a batch that was not acknowledged; "
            "send it again",
            RuntimeWarning,
            stacklevel=3,
        )
    return total.merge(*fresh), end


def _check_header(body: dict[str, Any], path: Path, protocol: PairwiseProtocol) -> None:
    if body.get("format") != FORMAT:
        raise ValueError(f"{path} is not a journal of format {FORMAT}")
    if body.get("protocol") != fingerprint(protocol):
        raise ValueError(
            f"{path} belongs to another protocol: the statistic, epsilon or the randomizer differs from the one given"
        )


def _header(protocol: PairwiseProtocol) -> bytes:
    return _encode({"format": FORMAT, "protocol": fingerprint(protocol)})


def _record(collection: Collection) -> bytes:
    return _encode({"batches": dict(collection.batches), **content(collection)})


def _collection(body: dict[str, Any], path: Path, number: int, empty: Collection) -> Collection:
    sums = tuple(
        torch.tensor(values, dtype=own.dtype, device=own.device)
        for values, own in zip(body["sums"], empty.sums, strict=True)
    )
    if any(each.shape != own.shape for each, own in zip(sums, empty.sums, strict=True)):
        raise ValueError(f"{path}, line {number}: sums of another shape than this protocol's")
    return Collection(empty.protocol, MappingProxyType(body["batches"]), body["n"], sums)


def _encode(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"


def _decode(line: bytes) -> dict[str, Any] | None:
    """The body of one whole line; None if a byte is missing or changed."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or hashlib.sha256(text).hexdigest().encode() != checksum:
        return None
    return json.loads(text)


def _sync_folder(path: Path) -> None:
    """The file's name is on the disk too."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explained(error: OSError, path: Path) -> OSError:
    message = f"cannot write to the collection ({error.strerror}); batches already counted in it are kept"
    return OSError(error.errno, message, str(path))
