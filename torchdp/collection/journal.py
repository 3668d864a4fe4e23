"""A collection on disk: one SQLite file of the protocol and its batches, chained by checksums.

What ``add`` acknowledges is in the file for good: a row and the new end of the chain are written in
one transaction and synchronised. The checksum of a row covers all rows before it, so no damage can
pass for a smaller collection.
"""

import errno
import hashlib
import json
import math
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.collection.collection import Batches, Collection, to_bytes
from torchdp.description import described, device_of, difference, made
from torchdp.protocol import Estimate, MessageProtocol, Tally

FORMAT = "torchdp.journal/1"
# packages whose classes a protocol is made of, beside those of a protocol that is given
PACKAGES = (
    "torchdp.density",
    "torchdp.domains",
    "torchdp.factorization",
    "torchdp.mean",
    "torchdp.pairwise",
    "torchdp.privacy",
    "torchdp.protocol",
    "torchdp.queries",
    "torchdp.randomizers",
    "torchdp.regression",
    "torchdp.rounded",
    "torchdp.secure",
    "torchdp.shuffle",
    "torchdp.sketching",
    "torchdp.workloads",
)
# seconds to wait for the batches of other processes
PATIENCE = 60.0
KEPT = "batches already counted in it are kept"
# bytes; zeros once a transaction has been committed
ROLLBACK_HEADER = 28
TABLES = [
    "CREATE TABLE header (format TEXT NOT NULL, protocol BLOB NOT NULL, checksum BLOB NOT NULL)",
    "CREATE TABLE batches (id INTEGER PRIMARY KEY, names TEXT NOT NULL, n INTEGER NOT NULL, "
    "tally BLOB NOT NULL, checksum BLOB NOT NULL)",
    "CREATE TABLE ends (batches INTEGER NOT NULL, checksum BLOB NOT NULL)",
]
# a commit is on the disk; the rollback journal stays, and tells of batches in a file that is empty
SETTINGS = ("synchronous = FULL", "fullfsync = ON", "journal_mode = PERSIST")
# what the system refuses; all else that SQLite complains about is damage
CODES = {
    sqlite3.SQLITE_BUSY: errno.ETIMEDOUT,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EACCES,
}

# nobody forks inside a transaction: a child would believe it held its parent's locks
_turn = threading.RLock()


def _fresh_turn() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _turn.acquire(),
        after_in_parent=lambda: _turn.release(),
        after_in_child=_fresh_turn,
    )


class Journal(Brief):
    """A collection that is kept in a file, by any number of threads and processes at once.

    >>> from torchdp.randomizers import RandomizedResponse
    >>> protocol = RandomizedResponse(4, 1.0)
    >>> journal = Journal("ballot.db", protocol)
    >>> messages = protocol.randomize(torch.tensor([0, 2, 1, 1]))
    >>> journal.add("monday-0001", protocol.tally(messages)).n
    4
    >>> low, high = journal.estimate().interval()

    ``add`` and ``merge`` return once the batch is on the disk; if they raise, or the process dies
    before they return, send the batch again under its name: it is counted once. Holds the protocol,
    tallies and names of batches, no more; each is checked when it is read. Nothing stays open
    between two calls: threads, forked and spawned processes may use it, by any path that leads to
    the file through symbolic links. The disk must be local, or one whose file locks work; while
    processes write, copy with ``Journal(copy, protocol).merge(Journal(path).collection)``.

    Args:
        path: made if it is missing, continued if it is there.
        protocol: None takes the one in the file. ``protocol`` of a journal is that of the file,
            which another processor or number of threads would compute with other last digits: a
            given protocol may differ from it by rounding.

    Raises OSError that names the path; ValueError for another protocol, a damaged file or one that
    is no journal, and leaves it as it is.
    """

    _printed = ("path", "protocol")

    def __init__(
        self, path: str | os.PathLike[str], protocol: MessageProtocol[Any, Any] | None = None
    ) -> None:
        self.path = checks.path("path", path).absolute()
        given = None if protocol is None else Collection.of(protocol)
        with _turn, self._explained():
            if given is not None:
                _make_folder(self.path.parent)
            new = self._unwritten(given is None)
            kind = "IMMEDIATE" if new else "DEFERRED"
            with self._transaction(kind, "rwc" if new else "rw") as db:
                # another process may have begun it meanwhile
                if protocol is not None and not self.path.stat().st_size:
                    _begin(db, protocol)
                self._header = self._checked_header(db)
                self._collection = self._empty(given)
                # rows that this object has read, and the checksum that they end with
                self._rows = 0
                self._end = self._header[-1]
                self._read(db)

    @property
    def protocol(self) -> MessageProtocol[Any, Any]:
        """That of the file."""
        return self._collection.protocol

    @property
    def collection(self) -> Collection:
        """All batches in the file now, whoever added them. Raises OSError, ValueError."""
        with self._transaction("DEFERRED") as db:
            return self._read(db)

    def add(self, name: str, tally: Tally) -> Collection:
        """Counts the batch, on the disk; returns ``collection``. See ``Collection.add``.

        Raises OSError.
        """
        return self.merge(self._collection.batch(name, tally))

    def merge(self, other: Collection) -> Collection:
        """Counts all batches of another collection as one row; see ``Collection.merge``.

        Raises OSError.
        """
        checks.instance("other", other, Collection)
        with _turn:
            with self._transaction("IMMEDIATE") as db:
                # The write lock is held: the chain ends where it is read to, until the commit.
                before = self._read(db)
                merged = before.merge(other)
                if merged is before:
                    return merged
                number = self._rows + 1
                row = (json.dumps(dict(other.batches)), other.n, to_bytes(other.tally))
                end = _chained(self._end, *row)
                db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", (number, *row, end))
                db.execute("UPDATE ends SET batches = ?, checksum = ?", (number, end))
            # only what is committed is counted here
            self._collection = merged
            self._rows = number
            self._end = end
        return merged

    def estimate(self) -> Estimate:
        """See ``Collection.estimate``."""
        return self.collection.estimate()

    def sequence(self, level: float = 0.95, *, best: int) -> tuple[Tensor, Tensor]:
        """See ``Collection.sequence``."""
        return self.collection.sequence(level, best=best)

    def _checked_header(self, db: sqlite3.Connection) -> tuple[str, bytes, bytes]:
        """(format, protocol, checksum of both: the start of the chain)."""
        # As text and in order: a file with another index or trigger is not read either.
        if [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master")] != TABLES:
            raise ValueError(f"{self.path} is not a journal, or damaged: its tables are others")
        headers = db.execute("SELECT * FROM header").fetchall()
        if len(headers) != 1 or _chained(b"", *headers[0][:-1]) != headers[0][-1]:
            raise self._damaged("its header")
        return headers[0]

    def _empty(self, given: Collection | None) -> Collection:
        """Before the first batch, under the protocol of the file."""
        if self._header[0] != FORMAT:
            raise ValueError(
                f"{self.path} is a journal of format {self._header[0]!r}, not {FORMAT!r}"
            )
        stored = json.loads(zlib.decompress(self._header[1]))
        classes: dict[str, type] = {}
        device = torch.device("cpu")
        if given is not None:
            wanted = described(given.protocol, classes)
            device = device_of(given.protocol)
            field = difference(stored, wanted)
            if field is not None:  # an older version may have written fewer fields
                field = difference(_renewed(stored, classes), wanted)
            if field is not None:
                raise ValueError(
                    f"{self.path} belongs to another protocol: {field} differs; where a "
                    "factorization came out otherwise on other hardware, open it without a "
                    "protocol and use journal.protocol"
                )
        try:
            return Collection.of(made(stored, MessageProtocol, classes, device, PACKAGES))
        except TypeError as error:
            raise ValueError(
                f"{self.path}: another version of torchdp wrote its protocol ({error})"
            ) from error

    def _read(self, db: sqlite3.Connection) -> Collection:
        """The collection with the rows that this object has not seen, each checked."""
        if self._checked_header(db) != self._header:
            raise ValueError(f"{self.path} was replaced by another journal; open it anew")
        total = self._collection
        rows = self._rows
        end = self._end
        # from the last row that is known on: it must still be what it was
        cursor = db.execute("SELECT * FROM batches WHERE id >= ? ORDER BY id", (rows,))
        if rows and next(cursor, [None])[-1] != end:
            raise self._damaged(f"row {rows}")
        for number, names, n, data, checksum in cursor:
            rows += 1
            end = _chained(end, names, n, data)
            if number != rows or checksum != end:
                raise self._damaged(f"row {rows}")
            batches = Batches(json.loads(names))
            total = total.merge(Collection(self.protocol, batches, self._tally(n, data)))
        if db.execute("SELECT * FROM ends").fetchall() != [(rows, end)]:
            raise self._damaged(f"its end is not row {rows}")
        self._collection = total
        self._rows = rows
        self._end = end
        return total

    def _tally(self, n: int, data: bytes) -> Tally:
        """What ``to_bytes`` wrote."""
        parts = {}
        start = 0
        for name, (shape, dtype) in sorted(self.protocol.layout.items()):
            end = start + math.prod(shape) * dtype.itemsize
            # A bytearray: torch warns of memory that must not be written to.
            values = torch.frombuffer(bytearray(data[start:end]), dtype=dtype)
            parts[name] = values.view(shape)
            start = end
        return Tally(n, parts)

    @contextmanager
    def _transaction(self, kind: str, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        """A connection for as long as the transaction; what is not committed is rolled back."""
        with _turn, self._explained():
            if self.path.is_file() and self.path.stat().st_nlink > 1:
                raise ValueError(
                    f"{self.path} has several hard links; after a crash, one of them would not "
                    "find the rollback journal of the other: copy the file, or use a symbolic link"
                )
            target = f"{self.path.as_uri()}?mode={mode}"
            connection = sqlite3.connect(target, timeout=PATIENCE, isolation_level=None, uri=True)
            with closing(connection) as db:
                for setting in SETTINGS:
                    db.execute(f"PRAGMA {setting}")
                db.execute(f"BEGIN {kind}")
                yield db
                db.execute("COMMIT")

    def _unwritten(self, must_exist: bool) -> bool:
        """Whether nothing was ever committed to the file."""
        if must_exist and not self.path.stat().st_size:
            raise ValueError(f"{self.path} is empty: no collection was written to it")
        # read before the file's size: else a first commit between the two would look like damage
        rollback = Path(f"{self.path.resolve()}-journal")
        start = rollback.read_bytes()[:ROLLBACK_HEADER] if rollback.exists() else b""
        if not self.path.exists():
            return True
        if self.path.stat().st_size:
            return False
        if start == bytes(ROLLBACK_HEADER):
            raise self._damaged(f"it is empty, but {rollback.name} says that batches were written")
        return True

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self.path} is damaged ({what}); it is left as it is: restore a backup")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors, and the system's, as errors that name the path."""
        try:
            yield
        except sqlite3.Error as error:
            # SQLite's extended codes keep the primary one in the low byte.
            code = CODES.get(getattr(error, "sqlite_errorcode", -1) & 0xFF)
            if code is None:
                raise ValueError(
                    f"{self.path} is not a journal, or damaged ({error}); left as it is"
                ) from error
            raise OSError(code, f"{error}; {KEPT}", str(self.path)) from error
        except OSError as error:
            # An inner call has named the path already.
            if KEPT in str(error):
                raise
            raise OSError(
                error.errno, f"{error.strerror or error}; {KEPT}", str(self.path)
            ) from error


def _renewed(stored: Any, classes: dict[str, type]) -> Any:
    """The description that this version gives of what is stored, where it can be made."""
    try:
        return described(made(stored, MessageProtocol, classes, rooms=PACKAGES))
    except (TypeError, ValueError):
        return stored


def _begin(db: sqlite3.Connection, protocol: MessageProtocol[Any, Any]) -> None:
    """The tables of a new file.

    Raises TypeError for a protocol that cannot be made again from its fields.
    """
    classes: dict[str, type] = {}
    written = described(protocol, classes)
    # Made again at once: a protocol that could not be read later would cost its batches.
    again = made(written, MessageProtocol, classes, rooms=PACKAGES)
    if difference(written, described(again)) is not None:
        raise TypeError(
            f"protocol must be made from its fields alone, as {type(protocol).__name__} is not"
        )
    packed = zlib.compress(json.dumps(written).encode(), 1)
    start = _chained(b"", FORMAT, packed)
    for table in TABLES:
        db.execute(table)
    db.execute("INSERT INTO header VALUES (?, ?, ?)", (FORMAT, packed, start))
    db.execute("INSERT INTO ends VALUES (0, ?)", (start,))


def _chained(end: bytes, *parts: str | int | bytes) -> bytes:
    """The checksum of these parts and all before them."""
    hashed = hashlib.sha256(end)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        # kind and length first, so that no two lists of parts are the same bytes
        hashed.update(f"{type(part).__name__} {len(data)}\n".encode())
        hashed.update(data)
    return hashed.digest()


def _make_folder(folder: Path) -> None:
    """Makes the folder and those above it; their names are on the disk."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # A new folder is an entry of the one above it: that is what has to be on the disk.
    if os.name != "posix":
        return
    for made_now in missing:
        descriptor = os.open(made_now.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def held(name: str, kept: Collection | Journal) -> Collection:
    """The collection, or all that the journal holds now.

    Raises TypeError, and what ``Journal.collection`` raises.
    """
    checks.instance(name, kept, (Collection, Journal))
    return kept.collection if isinstance(kept, Journal) else kept
