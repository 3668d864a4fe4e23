"""A party's secret key, and what it did with it: one file that serves one session.

Every party has an X25519 pair, and its public key stands in the session's file. The key of a link
is HKDF-SHA256 of what X25519 makes of one end's secret key and the other's public key, with the
session's digest as salt and both ends' names as info: no secret travels, and a key fits one pair of
parties in one session.

What is assumed: the Diffie-Hellman problem on Curve25519 is hard and HKDF's output looks random;
secret keys stay where they were made; and everybody holds the same session file with everybody's
true public key (``Session.fingerprint``, compared by telephone, accepted by ``KeyFile.join``). Who
steals a key file reads that session's frames to and from its owner, those recorded before too, and
speaks for the owner and to the owner. So a key serves one session; delete the file when the session
is over. A copy of the file, or one restored from a backup, is a second party of the same name: it
may do once more what is done once.

Source: Langley, Hamburg, Turner (2016), RFC 7748, section 6.1; Krawczyk, Eronen (2010), RFC 5869.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from torchdp import checks

# of an X25519 secret key, and of what HKDF derives for a link
KEY_BYTES = 32
# No dots or capitals: dots separate names in files, and some disks do not tell capitals apart.
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
# 32 bytes
HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
# seconds to wait for another process of the same party
PATIENCE = 60.0
OWNER_ONLY = 0o600
OTHERS = 0o077
# a commit outlives a power failure
SETTINGS = ("synchronous = EXTRA", "fullfsync = ON")
# ``session`` is NULL until the key has joined one
TABLES = [
    "CREATE TABLE party (name TEXT NOT NULL, secret BLOB NOT NULL, session BLOB)",
    "CREATE TABLE done (what TEXT PRIMARY KEY, data BLOB NOT NULL)",
]


def agreed_key(secret: bytes, public: bytes, session: bytes, one: str, other: str) -> bytes:
    """The 32 bytes that both ends of a link derive, each from its own secret key.

    Args:
        secret: one end's secret key.
        public: the other's public key.
        session: 32 bytes that name the session and all that is public of it.
        one: an end's name; in any order.
        other: the other's.

    Raises ValueError for a public key that no honest party has.
    """
    own = X25519PrivateKey.from_private_bytes(secret)
    try:
        # Points of small order are refused: what they make, anybody knows.
        shared = own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise ValueError(f"the public key of {one} or {other} is none of X25519: {error}") from None
    # Sorted, so that both ends derive one key; names bind it to this pair of parties.
    info = f"torchdp secure link: {' and '.join(sorted((one, other)))}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=session, info=info).derive(shared)


def party_name(name: str) -> str:
    """``name``, if files can be called so. Raises TypeError, ValueError."""
    if not NAME.fullmatch(checks.instance("name", name, str)):
        raise ValueError(
            "name must be at most 64 small letters, digits and hyphens, such as north, "
            f"not {name!r}"
        )
    return name


class KeyFile:
    """The secret key of one party and all that it did once, in a file that its owner alone reads.

    path: of a file that ``KeyFile.made`` made. Raises OSError; ValueError where others may read it,
    or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checks.path("path", path).absolute()
        # Not repaired: who could read the file may hold the key already.
        if os.name == "posix" and self.path.stat().st_mode & OTHERS:
            raise ValueError(
                f"{self.path} may be read by others: make a new key, whose file has mode 600"
            )
        with self._transaction("DEFERRED") as db:
            rows = db.execute("SELECT name, secret FROM party").fetchall()
        if len(rows) != 1 or len(rows[0][1]) != KEY_BYTES:
            raise ValueError(f"{self.path} holds no key")
        self.name, self._secret = rows[0]

    @staticmethod
    def made(path: str | os.PathLike[str], name: str) -> "KeyFile":
        """A new file, which must not be there, with a new key from the system.

        Raises OSError, ValueError.
        """
        party_name(name)
        # made with these rights: there is no moment at which others may open it
        new = os.O_CREAT | os.O_EXCL | os.O_RDWR
        os.close(os.open(checks.path("path", path), new, OWNER_ONLY))
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                db.execute(table)
            secret = X25519PrivateKey.generate().private_bytes_raw()
            db.execute("INSERT INTO party VALUES (?, ?, NULL)", (name, secret))
            db.execute("COMMIT")
        return KeyFile(path)

    @property
    def public(self) -> str:
        """The public key, 64 hexadecimal digits, for the session's file."""
        secret = X25519PrivateKey.from_private_bytes(self._secret)
        return secret.public_key().public_bytes_raw().hex()

    @property
    def joined(self) -> bytes | None:
        """The digest of the session that was joined; None before."""
        with self._transaction("DEFERRED") as db:
            session = db.execute("SELECT session FROM party").fetchone()[0]
        return None if session is None else bytes(session)

    def join(self, session: Any, fingerprint: str) -> None:
        """Accept a session, for ever: this key serves no other, and no file of other bytes.

        Args:
            session: the ``Session``, as it was read; what it asks, promises and whose public keys
                it has are accepted.
            fingerprint: what a person compared with the other parties by another channel.

        Raises ValueError where this is not the session's fingerprint, the key is of no party, or
        joined another.
        """
        if not hasattr(session, "fingerprint"):
            raise TypeError(
                "session must be a Session, as read_session returns it, "
                f"not {type(session).__name__}"
            )
        if checks.instance("fingerprint", fingerprint, str).strip().lower() != session.fingerprint:
            raise ValueError(
                "fingerprint is not the session's: the file was changed, or another was compared"
            )
        session.party(self, session.parties)
        with self._transaction("IMMEDIATE") as db:
            # The write lock is held since BEGIN IMMEDIATE: two joins can not both find NULL.
            before = db.execute("SELECT session FROM party").fetchone()[0]
            if before not in (None, session.digest):
                raise ValueError(
                    f"{self.path} joined another session; "
                    "each session needs new keys of all parties"
                )
            db.execute("UPDATE party SET session = ?", (session.digest,))

    def key(self, session: bytes, other: str, public: str) -> bytes:
        """The key of the link with another party in the session that was joined.

        Raises ValueError for another session.
        """
        self.check_joined(session)
        return agreed_key(self._secret, bytes.fromhex(public), session, self.name, other)

    def check_joined(self, session: bytes) -> None:
        """Raises ValueError where this is not the digest of the session that was joined."""
        joined = self.joined
        if joined is None:
            raise ValueError(
                f"{self.path} has joined no session: compare the fingerprint with the others, "
                "then KeyFile.join"
            )
        if joined != session:
            raise ValueError(
                f"{self.path} joined another session than this file's: "
                "restore the file whose fingerprint was compared"
            )

    def done(self, what: str) -> bytes | None:
        """What ``once`` kept under this name."""
        with self._transaction("DEFERRED") as db:
            found = db.execute("SELECT data FROM done WHERE what = ?", (what,)).fetchone()
        return found[0] if found else None

    def once(self, what: str, make: Callable[[], bytes]) -> bytes:
        """What ``make`` returns, on the disk before it is returned.

        Ever after it is the same bytes, without ``make``. Whoever is killed inside has done
        nothing; two processes wait for each other, and do it once.
        """
        with self._transaction("IMMEDIATE") as db:
            found = db.execute("SELECT data FROM done WHERE what = ?", (what,)).fetchone()
            if found:
                return bytes(found[0])
            data = make()
            db.execute("INSERT INTO done VALUES (?, ?)", (what, data))
        return data

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """What is not committed at the end is rolled back. Raises OSError, ValueError."""
        # mode=rw: a file that is gone is an error, not an empty one made in its place.
        uri = f"{self.path.as_uri()}?mode=rw"
        try:
            connection = sqlite3.connect(uri, timeout=PATIENCE, isolation_level=None, uri=True)
            with closing(connection) as db:
                for setting in SETTINGS:
                    db.execute(f"PRAGMA {setting}")
                db.execute(f"BEGIN {kind}")
                yield db
                db.execute("COMMIT")
        # A subclass, so first: a lock or a full disk is no damage.
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path} can not be used now: {error}") from error
        except sqlite3.Error as error:
            raise ValueError(f"{self.path} is no key file, or damaged: {error}") from error


def new_keys(folder: str | os.PathLike[str], *names: str) -> list[Path]:
    """A new key file ``NAME.key`` for each name, and ``NAME.pub``, to be sent to everybody.

    Returns the latter. Raises OSError, ValueError; FileExistsError where a key is there already.
    """
    folder = checks.path("folder", folder)
    public_files = []
    for name in names:
        key = KeyFile.made(folder / f"{party_name(name)}.key", name)
        public = folder / f"{name}.pub"
        public.write_text(f"{name} {key.public}\n")
        public_files.append(public)
    return public_files
