"""What the parties of a secure sum agree upon before it begins: the question and who takes part."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchdp import checks
from torchdp.brief import Brief
from torchdp.description import described, made
from torchdp.secure.frames import FrameError
from torchdp.secure.keys import HEXADECIMAL, KeyFile, party_name
from torchdp.secure.servers import Links, Server
from torchdp.secure.shared_sum import SharedSum
from torchdp.secure.sums import SecureSums

# the analyst's end among a server's links, and in the names of files
ANALYST = "analyst"
# packages whose classes a session is made of
PACKAGES = (
    "torchdp.density",
    "torchdp.privacy",
    "torchdp.regression",
    "torchdp.secure",
    "torchdp.sketching",
)


@dataclass(frozen=True)
class Party:
    """One who takes part.

    Args:
        name: as files are called.
        public: its X25519 public key, 64 hexadecimal digits, as ``KeyFile.public``.
        clients: for how many it speaks; servers, analyst: 0.

    Raises ValueError, TypeError.
    """

    name: str
    public: str
    clients: int = 0

    def __post_init__(self) -> None:
        party_name(self.name)
        if not HEXADECIMAL.fullmatch(checks.instance("public", self.public, str)):
            raise ValueError(
                f"the public key of {self.name} must be 64 hexadecimal digits, as KeyFile.public is"
            )
        checks.integer("clients", self.clients, 0)


@dataclass(frozen=True, eq=False)
class Session(Brief):
    """One release: the question, and who plays which role; public, and the same for all parties.

    An organisation knows the noise of all its clients. So that the others are hidden from it, a
    question whose ``corrupt`` is None counts as many corrupt clients as the largest has: the
    session holds the question with that number. Another number is kept, and ``exposed`` says what
    it leaves open.

    Args:
        question: a ``SecureSums`` or a ``SharedSum`` (``GramRelease``, ``FrequencyMoments``,
            ``SecureHistogram``) of as many clients as the organisations have together.
        servers: two or more.
        organisations: in the order of their clients.
        analyst: who gets the sums.
        columns: names of an organisation's columns: part of what all parties accept.
        nonce: 64 hexadecimal digits, new for each session.

    Whoever holds another file has other link keys, so none of its frames is opened. Raises
    ValueError, TypeError.
    """

    question: SecureSums | SharedSum[Any]
    servers: tuple[Party, ...]
    organisations: tuple[Party, ...]
    analyst: Party
    columns: tuple[str, ...] = ()
    nonce: str = field(default_factory=lambda: os.urandom(32).hex())

    def __post_init__(self) -> None:
        checks.instance("question", self.question, (SecureSums, SharedSum))
        for name, kind in (("servers", Party), ("organisations", Party), ("columns", str)):
            object.__setattr__(self, name, tuple(checks.each_of(name, getattr(self, name), kind)))
        checks.instance("analyst", self.analyst, Party)
        for part in ("name", "public"):
            # One party in the place of two servers would hold all shares, and so the words.
            if len({getattr(party, part) for party in self.parties}) < len(self.parties):
                raise ValueError(f"two parties have the same {part}; each needs a key of its own")
        if not HEXADECIMAL.fullmatch(checks.instance("nonce", self.nonce, str)):
            raise ValueError("nonce must be 64 hexadecimal digits, such as os.urandom(32).hex()")
        if any(party.clients < 1 for party in self.organisations):
            raise ValueError("every organisation must have 1 client or more")
        clients = sum(party.clients for party in self.organisations)
        due = self.question.secure_sum(len(self.servers)).sketch.clients
        if clients != due:
            raise ValueError(
                f"organisations have {clients} clients together, the question is of {due}"
            )
        try:
            question = self.question.against(self._largest)
        except ValueError as error:
            raise ValueError(
                f"question counts the {self._largest} clients of the largest organisation as "
                "corrupt, which leaves too few; state corrupt, 0 where organisations may know more "
                f"of each other: {error}"
            ) from None
        # Kept with the colluders counted: the digest, and everybody's noise, are of this question.
        object.__setattr__(self, "question", question)

    @property
    def parties(self) -> tuple[Party, ...]:
        """Everybody."""
        return (*self.servers, *self.organisations, self.analyst)

    @property
    def _largest(self) -> int:
        """Clients of the largest organisation."""
        return max(party.clients for party in self.organisations)

    @property
    def exposed(self) -> str | None:
        """Why the guarantee does not hold against the largest organisation; None where it does."""
        counted = self.sums.coalition.corrupt or 0
        if counted >= self._largest:
            return None
        return (
            f"an organisation knows the noise of its {self._largest} clients, corrupt = {counted}: "
            "the guarantee does not hold against it; make the question without corrupt, which "
            "counts them"
        )

    @cached_property
    def sums(self) -> SecureSums:
        """The question as integers that these servers add up."""
        return self.question.secure_sum(len(self.servers))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name all of the session; HKDF's salt of every link."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def fingerprint(self) -> str:
        """What the parties compare by another channel than that by which the file came."""
        digits = self.digest.hex()
        return "-".join(digits[i : i + 4] for i in range(0, len(digits), 4))

    @property
    def name(self) -> bytes:
        """The 16 bytes in the header of each frame."""
        # The digest covers the session's nonce, so it is one itself.
        return self.sums.session(self.digest)

    def first(self, organisation: Party) -> int:
        """The number of an organisation's first client."""
        before = self.organisations[: self.organisations.index(organisation)]
        return sum(party.clients for party in before)

    def party(self, key: KeyFile, among: tuple[Party, ...]) -> Party:
        """Whose key this is. Raises ValueError where none of these has it."""
        for party in among:
            # The name enters each link's key: under another one no frame of the others would open.
            if (party.name, party.public) == (key.name, key.public):
                return party
        names = ", ".join(party.name for party in among)
        raise ValueError(f"{key.path} is not the key of {names} in this session")

    def client_keys(self, key: KeyFile) -> list[bytes]:
        """An organisation's keys, one for each server, as ``client_frames`` takes them.

        Raises ValueError.
        """
        self.party(key, self.organisations)
        return [self._link(key, server) for server in self.servers]

    def server(self, key: KeyFile) -> Server:
        """The server that this key belongs to, every organisation enrolled. Raises ValueError."""
        own = self.party(key, self.servers)
        ends = {f"server {k}": party for k, party in enumerate(self.servers) if party != own}
        ends[ANALYST] = self.analyst
        links = {name: self._link(key, party) for name, party in ends.items()}
        server = Server(self.sums, self.name, self.servers.index(own), Links(links))
        for party in self.organisations:
            server.enrol(self.first(party), party.clients, self._link(key, party))
        return server

    def analyst_links(self, key: KeyFile) -> Links:
        """The analyst's links, one with each server. Raises ValueError."""
        self.party(key, (self.analyst,))
        parties = enumerate(self.servers)
        return Links({f"server {k}": self._link(key, party) for k, party in parties})

    def _link(self, key: KeyFile, other: Party) -> bytes:
        """The key of its owner's link with another party."""
        return key.key(self.digest, other.name, other.public)

    def to_bytes(self) -> bytes:
        """The session's file content; the same bytes for equal sessions."""
        # Sorted keys, and floats in hexadecimal: equal sessions have equal digests.
        return json.dumps(described(self, {}, "session"), sort_keys=True, indent=1).encode()

    @staticmethod
    def from_bytes(data: bytes) -> "Session":
        """What ``to_bytes`` wrote. Raises FrameError for anything else."""
        try:
            session = made(json.loads(data), Session, rooms=PACKAGES)
            checks.instance("session", session, Session)
            # what is accepted is what everybody's digest is of
            if session.to_bytes() != data:
                raise ValueError("a session has other bytes")
            return session
        # The bytes may be anybody's, nested without end too: whatever fails is the file's fault.
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FrameError(
                f"this is no session of this version of torchdp, or was changed: {error}"
            ) from None
