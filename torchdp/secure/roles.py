"""The roles of a secure sum, each its own process with its own key, over files in a folder.

The folder is the transport and needs no protection but against loss: what is in it is public, or
frames that only the two ends of a link read and make, and a session's file of other bytes than a
role's key joined (``KeyFile.join``) is refused. It may be shared by the parties' machines, or each
have one of its own and files be carried between them by any means.

| file | written by | read by |
|---|---|---|
| ``session.json`` | whoever opens the session | everybody |
| ``ORGANISATION.SERVER.frames`` | ``submit`` | that server |
| ``SERVER.SERVER.roll`` | ``serve`` | the second server |
| ``SERVER.analyst.sum`` | ``serve`` | ``release`` |

A party may be killed anywhere and started again. What must not happen twice, drawing an
organisation's noise, closing a server's doors, publishing its sum, is committed in the party's
``KeyFile`` before it leaves (``KeyFile.once``): after that the same bytes leave again, before it
nothing has left. So of a session one sum of one set of clients leaves each server, and of two
sessions with common clients each is a release of its own, with noise of its own.
"""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.protocol import Estimate
from torchdp.protocol.frames import Rows
from torchdp.secure.frames import HEADER_BYTES, TAG_BYTES, FrameError, header_of
from torchdp.secure.keys import KeyFile
from torchdp.secure.ring import share
from torchdp.secure.servers import Server, client_frames, reveal_frames
from torchdp.secure.session import ANALYST, Party, Session

SESSION_FILE = "session.json"
# seconds to wait
LONGEST = 1e7
# seconds between two looks at the folder
PAUSE = 0.1
# bytes of a file that are read at a time
CHUNK = 2**20


def open_session(folder: checks.StrPath, session: Session) -> None:
    """Write the session's file into an empty folder, which is made. Raises OSError, ValueError.

    Warns where the question counts fewer ``corrupt`` clients than the largest organisation has
    (``Session.exposed``).
    """
    folder = checks.path("folder", folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(
            f"folder must be empty, or new: {folder} holds files, perhaps of another session"
        )
    put(folder / SESSION_FILE, checks.instance("session", session, Session).to_bytes())
    if session.exposed is not None:
        warnings.warn(session.exposed, stacklevel=2)


def read_session(folder: checks.StrPath) -> Session:
    """The session of a folder. Raises OSError, FrameError."""
    return Session.from_bytes((checks.path("folder", folder) / SESSION_FILE).read_bytes())


def joined_session(folder: checks.StrPath, key: KeyFile) -> Session:
    """The session of a folder, if it is the one that this key joined.

    Before that is known, nothing in the file is read.
    Raises OSError; ValueError where the key joined none, or the file has other bytes.
    """
    data = (checks.path("folder", folder) / SESSION_FILE).read_bytes()
    checks.instance("key", key, KeyFile).check_joined(hashlib.sha256(data).digest())
    return Session.from_bytes(data)


def submit(folder: checks.StrPath, key: KeyFile, x: Rows, *, noise: Noise | None = None) -> Session:
    """An organisation's part: round its clients' rows, add their noise, share out.

    One file of frames for each server. Called again, as after a kill, it sends the same frames
    again. Raises ValueError, TypeError before anything is drawn, OSError; FrameError where frames
    that left already are not there any more: nothing is drawn twice.

    Args:
        folder: of the session.
        key: the organisation's.
        x: what the question takes, of this organisation's clients in their order.
        noise: None takes the system's.
    """
    session = joined_session(folder, key)
    folder = checks.path("folder", folder)
    own = session.party(key, session.organisations)
    rows = session.sums.rows(session.question.rows(x))
    if len(rows) != own.clients:
        raise ValueError(
            f"x must hold the {own.clients} clients of {own.name}, a row each, not {len(rows)}"
        )
    keys = session.client_keys(key)
    paths = [folder / f"{own.name}.{server.name}.frames" for server in session.servers]

    # Other names until the digests are committed: no server reads frames that may be redrawn.
    def make() -> bytes:
        partial = [_partial(path) for path in paths]
        return json.dumps(_write_frames(session, own, keys, rows, noise, partial)).encode()

    for path, digest in zip(paths, json.loads(key.once("frames", make)), strict=True):
        _deliver(path, digest)
    return session


def _write_frames(
    session: Session,
    own: Party,
    keys: list[bytes],
    rows: Tensor,
    noise: Noise | None,
    paths: list[Path],
) -> list[str]:
    """All frames of an organisation, one file for each server; returns the files' digests."""
    sums = session.sums
    draws = source(noise, rows.device)
    for path in paths:
        # A killed run may have left frames here, of noise that is now drawn anew.
        path.write_bytes(b"")
    for words in sums.spoken(rows.split(sums.at_once), draws, session.first(own)):
        shares = share(words.values, sums.servers)  # masks add up to nothing; they are never seeded
        frames = client_frames(sums, session.name, shares, words.first, keys)
        for path, frame in zip(paths, frames, strict=True):
            with path.open("ab") as file:
                file.write(frame)
    # On the disk before the digests are committed: else a power failure could leave these alone.
    for path in (*paths, paths[0].parent):
        _to_disk(path)
    return [_digest(path) for path in paths]


def _deliver(path: Path, digest: str) -> None:
    """Give a finished file its name, once. Raises FrameError where it is neither here nor there."""
    # A run before this one may have given the file its name already.
    for found in (_partial(path), path):
        if found.exists() and _digest(found) == digest:
            os.replace(found, path)
            _to_disk(path.parent)
            return
    raise FrameError(
        f"{path.name} was sent and is gone or changed; nothing is drawn twice: start a new session"
    )


def serve(folder: checks.StrPath, key: KeyFile, *, wait: float = 0.0) -> Session:
    """A server's role: receive, close, agree with the others on who was received, publish the sum.

    The doors close when all clients were heard, or after ``wait`` seconds if no more are missing
    than ``coalition.absent``. A file that is damaged, late or of somebody else is named in a
    warning and changes nothing. Returns when the sum is out. Raises TimeoutError where it waits in
    vain, and may be called again; FrameError where this session can not end: another server heard
    other clients, or frames that were counted are gone; OSError, ValueError.
    """
    session = joined_session(folder, key)
    folder = checks.path("folder", folder)
    until = time.monotonic() + checks.within("wait", wait, 0, LONGEST)
    server = session.server(key)
    own = session.party(key, session.servers)
    sum_file = folder / f"{own.name}.{ANALYST}.sum"
    # A sum that was committed leaves again as it is, whatever the folder holds by now.
    out = key.done("sum")
    if out is None:
        _close(folder, session, server, own, key, until)
        for k, other in enumerate(session.servers):
            if other != own:
                put(folder / f"{own.name}.{other.name}.roll", server.roll_call(k))
        # All own rolls are out by now: no two servers wait for each other's.
        others = [other for other in session.servers if other != own]
        rolls = [folder / f"{other.name}.{own.name}.roll" for other in others]
        for data in _arrived(rolls, until):
            server.agree(data)
        out = key.once("sum", server.publish)
    put(sum_file, out)
    return session


def _close(
    folder: Path, session: Session, server: Server, own: Party, key: KeyFile, until: float
) -> None:
    """Hear the organisations; whom, is committed. Raises TimeoutError, FrameError."""
    files = {party: folder / f"{party.name}.{own.name}.frames" for party in session.organisations}
    for path in folder.glob(f"*.{own.name}.frames"):
        if path not in files.values():
            warnings.warn(
                f"{path.name} is refused: no organisation of this session has this name",
                stacklevel=3,
            )
    closed = key.done("heard")
    if closed is not None:
        # by a process before this one
        _hear_again(folder, server, closed)
        return
    received = {party.name: 0 for party in files}
    while True:
        for party, path in files.items():
            # From where the last look ended: a file may grow while it is copied into the folder.
            received[party.name] = _hear(path, server, received[party.name])
        missing = [party.name for party in files if not _whole(session, server, party)]
        if not missing or time.monotonic() >= until:
            break
        time.sleep(PAUSE)
    gone = int((~server.seen).sum())
    if gone > session.sums.coalition.absent:
        raise TimeoutError(
            f"{gone} clients of {', '.join(missing)} are missing, "
            f"absent = {session.sums.coalition.absent} may be; "
            "nothing was closed: call again when their files are there"
        )
    # How far each file was read, and a digest of that: after a kill just this is added again.
    counted = {}
    for party, path in files.items():
        size = received[party.name]
        counted[path.name] = [size, _digest(path, size)]
    data = json.dumps(counted).encode()
    # The first commit wins; this process may have added other frames, and must not go on.
    if key.once("heard", lambda: data) != data:
        raise FrameError("another process of this server closed its doors meanwhile; call again")


def _hear_again(folder: Path, server: Server, closed: bytes) -> None:
    """Count the frames that were counted when the doors closed. Raises FrameError."""
    for name, (size, digest) in json.loads(closed).items():
        path = folder / name
        if size and (not path.exists() or _digest(path, size) != digest):
            raise FrameError(f"{name} was counted and is gone or changed: start a new session")
        if path.exists() and path.stat().st_size > size:
            warnings.warn(f"{name} is refused: it came after the doors were closed", stacklevel=4)
        for frame in _frames(path, 0, size):
            server.receive(frame)


def _hear(path: Path, server: Server, start: int) -> int:
    """Count the frames of a file from there on; returns where the first uncounted one begins."""
    # Read once: what is appended meanwhile waits for the next look.
    size = path.stat().st_size if path.exists() else 0
    try:
        for frame in _frames(path, start, size):
            server.receive(frame)
            start += len(frame)
    except FrameError as error:
        warnings.warn(f"{path.name} is refused from byte {start} on: {error}", stacklevel=4)
    return start


def _whole(session: Session, server: Server, party: Party) -> bool:
    first = session.first(party)
    return bool(server.seen[first : first + party.clients].all())


def _frames(path: Path, start: int, end: int) -> Iterator[bytes]:
    """The frames in a part of a file, one at a time. Raises FrameError."""
    if start >= end:  # there may be no file yet
        return
    with path.open("rb") as file:
        file.seek(start)
        while start < end:
            front = file.read(HEADER_BYTES + TAG_BYTES)
            length = header_of(front).frame_bytes
            # The length is a claim of an unverified header: it must not decide what is allocated.
            if length > end - start:
                raise FrameError("it ends before its last frame does")
            yield front + file.read(length - len(front))
            start += length


def release(folder: checks.StrPath, key: KeyFile, *, wait: float = 0.0) -> Estimate:
    """The analyst's part: the question's estimate from the sums of all servers.

    Raises TimeoutError where a server's sum is not there after ``wait`` seconds, FrameError,
    OSError, ValueError.
    """
    session = joined_session(folder, key)
    folder = checks.path("folder", folder)
    until = time.monotonic() + checks.within("wait", wait, 0, LONGEST)
    links = session.analyst_links(key)
    files = [folder / f"{server.name}.{ANALYST}.sum" for server in session.servers]
    found = reveal_frames(session.sums, session.name, list(_arrived(files, until)), links)
    return session.question.released(found)


def _arrived(paths: list[Path], until: float) -> Iterator[bytes]:
    """What these files hold, when they are there. Raises TimeoutError."""
    for path in paths:
        while not path.exists():
            if time.monotonic() >= until:
                raise TimeoutError(f"{path.name} is not there yet: call again when it is")
            time.sleep(PAUSE)
        yield path.read_bytes()


def put(path: Path, data: bytes) -> None:
    """Write a file that is seen whole or not at all, and is on the disk. Raises OSError."""
    # Renamed only when it is whole and on the disk; the folder's entry is synchronised last.
    _partial(path).write_bytes(data)
    _to_disk(_partial(path))
    os.replace(_partial(path), path)
    _to_disk(path.parent)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _to_disk(path: Path) -> None:
    # Only POSIX opens a folder to synchronise its entries.
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file, or of so many bytes of it; where these are none, there may be no file."""
    digest = hashlib.sha256()
    # More than any file holds.
    left = 2**62 if size is None else size
    if not left:
        return digest.hexdigest()
    with path.open("rb") as file:
        part = file.read(min(left, CHUNK))
        while part:
            digest.update(part)
            left -= len(part)
            part = file.read(min(left, CHUNK))
    return digest.hexdigest()
