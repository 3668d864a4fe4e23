"""What the parties of a secure sum agree upon before it begins: the question, who takes part, their public keys."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchdp import checks
from torchdp.collection.description import described, made
from torchdp.secure.frames import FrameError
from torchdp.secure.keys import KEY_BYTES, KeyFile, party_name
from torchdp.secure.servers import Links, Server
from torchdp.secure.shared_sum import SharedSum
from torchdp.secure.sums import SecureSums

FORMAT = "torchdp.session/1"
ANALYST = "analyst"


@dataclass(frozen=True)
class Party:
    """One who takes part: its name, its X25519 public key, for how many clients it speaks (servers, analyst: 0)."""

    name: str
    public: bytes
    clients: int = 0

    def __post_init__(self) -> None:
        party_name(self.name)
        if not isinstance(self.public, bytes) or len(self.public) != KEY_BYTES:
            raise ValueError(f"the public key of {self.name} must be {KEY_BYTES} bytes")
        checks.integer("clients", self.clients, 0)


@dataclass(frozen=True, eq=False)
class Session:
    """One release: the question, and who plays which role. Everything in it is public, and all parties hold it alike.

    question: a ``SecureSums`` or a ``SharedSum`` (``GramRelease``, ``FrequencyMoments``, ``SecureHistogram``) of as
    many clients as the organisations have together. servers: two or more. organisations: in the order of their
    clients. columns: what the question calls an organisation's columns, for the command line. nonce: 32 bytes, new for
    each session. Whoever holds another file has other link keys, so none of its frames is opened. Raises ValueError,
    TypeError.
    """

    question: SecureSums | SharedSum[Any]
    servers: tuple[Party, ...]
    organisations: tuple[Party, ...]
    analyst: Party
    nonce: bytes
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.instance("question", self.question, (SecureSums, SharedSum))
        for name, kind in (("servers", Party), ("organisations", Party), ("columns", str)):
            object.__setattr__(self, name, tuple(checks.each_of(name, getattr(self, name), kind)))
        everybody = [*self.servers, *self.organisations, checks.instance("analyst", self.analyst, Party)]
        for part in ("name", "public"):
            if len({getattr(party, part) for party in everybody}) < len(everybody):
                raise ValueError(f"two parties have the same {part}; each needs a key of its own")
        if not isinstance(self.nonce, bytes) or len(self.nonce) != KEY_BYTES:
            raise ValueError(f"nonce must be {KEY_BYTES} bytes, such as os.urandom({KEY_BYTES})")
        if any(party.clients < 1 for party in self.organisations):
            raise ValueError("every organisation must have 1 client or more")
        clients, due = sum(party.clients for party in self.organisations), self.sums.sketch.clients
        if clients != due:
            raise ValueError(f"organisations have {clients} clients together, the question is of {due}")

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
        return "-".join(self.digest.hex()[i : i + 4] for i in range(0, 64, 4))

    @property
    def name(self) -> bytes:
        """The 16 bytes in the header of each frame."""
        return self.sums.session(self.digest)

    def first(self, organisation: Party) -> int:
        """The number of an organisation's first client."""
        return sum(party.clients for party in self.organisations[: self.organisations.index(organisation)])

    def party(self, key: KeyFile, among: tuple[Party, ...]) -> Party:
        """Whose key this is. Raises ValueError where none of these has it."""
        for party in among:
            if (party.name, party.public) == (key.name, key.public):
                return party
        names = ", ".join(party.name for party in among)
        raise ValueError(f"{key.path} is not the key of {names} in this session")

    def client_keys(self, key: KeyFile) -> list[bytes]:
        """An organisation's keys, one for each server, as ``client_frames`` takes them. Raises ValueError."""
        self.party(key, self.organisations)
        return [key.key(self.digest, server.name, server.public) for server in self.servers]

    def server(self, key: KeyFile) -> Server:
        """The server that this key belongs to, every organisation enrolled. Raises ValueError."""
        own = self.party(key, self.servers)
        ends = {f"server {k}": party for k, party in enumerate(self.servers) if party != own}
        ends[ANALYST] = self.analyst
        links = {name: key.key(self.digest, party.name, party.public) for name, party in ends.items()}
        server = Server(self.sums, self.name, self.servers.index(own), Links(links))
        for party in self.organisations:
            server.enrol(self.first(party), party.clients, key.key(self.digest, party.name, party.public))
        return server

    def analyst_links(self, key: KeyFile) -> Links:
        """The analyst's links, one with each server. Raises ValueError."""
        self.party(key, (self.analyst,))
        links = enumerate(self.servers)
        return Links({f"server {k}": key.key(self.digest, party.name, party.public) for k, party in links})

    def to_bytes(self) -> bytes:
        """The session's file; the same bytes for equal sessions."""
        parties = {"servers": self.servers, "organisations": self.organisations, "analyst": (self.analyst,)}
        listed = {role: [[p.name, p.public.hex(), p.clients] for p in each] for role, each in parties.items()}
        question, columns = described(self.question, {}, "question"), list(self.columns)
        whole = {"format": FORMAT, "nonce": self.nonce.hex(), "question": question, "columns": columns, **listed}
        return json.dumps(whole, sort_keys=True, indent=1).encode()

    @staticmethod
    def from_bytes(data: bytes) -> "Session":
        """What ``to_bytes`` wrote. Raises FrameError for anything else."""
        try:
            whole = json.loads(data)
            if whole["format"] != FORMAT:
                raise ValueError(f"its format is {whole['format']!r}")
            servers, organisations, (analyst,) = (
                tuple(Party(name, bytes.fromhex(public), clients) for name, public, clients in whole[role])
                for role in ("servers", "organisations", "analyst")
            )
            question, nonce = made(whole["question"], {}), bytes.fromhex(whole["nonce"])
            found = Session(question, servers, organisations, analyst, nonce, tuple(whole["columns"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FrameError(f"this is no session of this version of torchdp: {error}") from None
        if found.to_bytes() != data:
            raise FrameError("a session's file was changed, or written by another version of torchdp")
        return found


def new_session(
    question: SecureSums | SharedSum[Any],
    servers: Sequence[Party],
    organisations: Sequence[Party],
    analyst: Party,
    columns: Sequence[str] = (),
) -> Session:
    """A session with a nonce from the system, arguments as ``Session``'s. Raises ValueError, TypeError."""
    nonce = os.urandom(KEY_BYTES)
    return Session(question, servers, organisations, analyst, nonce, columns)  # type: ignore[arg-type]
