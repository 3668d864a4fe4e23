"""Servers and analyst: what they take in, what they refuse, what they give out."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol import Estimate, Tally
from torchdp.secure.frames import (
    ANALYST,
    NO_SET,
    FrameError,
    Header,
    Kind,
    header_of,
    pack_set,
    seal,
    set_digest,
    unpack_set,
    unseal,
)
from torchdp.secure.ring import reconstruct
from torchdp.secure.sums import SecureSums, checked_key

SESSION_BYTES = 16


class Links:
    """The keys of a server or the analyst, by the other end's name: "server 0", ..., "analyst".

    They come from a key exchange of the two ends: ``Session`` has one.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        for name, key in checks.instance("keys", keys, Mapping).items():
            checked_key(f"keys[{name!r}]", key)
        self._keys = dict(keys)

    def __getitem__(self, name: str) -> bytes:
        if name not in self._keys:
            raise FrameError(f"there is no key for the link with {name!r}")
        return self._keys[name]


class Server:
    """One of the servers of ``SecureSums``: adds up shares, and publishes their sums once.

    It opens frames of the clients whom it enrolled, and of nobody else. Every
    frame is verified before it changes anything; a frame that was changed, repeated, or meant for
    another place raises FrameError. That it publishes once is kept by this object alone; ``serve``
    keeps it on the disk. Memory: the sums, (m, d), and 17 bytes a client where nobody may drop out
    (``coalition.absent`` = 0); elsewhere also each word that arrives, because one who did not reach
    another server has to be taken out again.

    Args:
        protocol: public.
        session: 16 bytes that name this run, new for each.
        number: k in [0, S).
        links: its keys.
    """

    def __init__(self, protocol: SecureSums, session: bytes, number: int, links: Links) -> None:
        checks.instance("protocol", protocol, SecureSums)
        checks.instance("links", links, Links)
        checks.integer("number", number, 0, protocol.servers - 1)
        self.protocol = protocol
        self.session = _session(session)
        self.number = number
        self._links = links
        sketch = protocol.sketch
        dtype = protocol.ring.dtype
        self._sums = torch.zeros(protocol.layout["words"][0], dtype=dtype)
        # Shares are kept only where a client may have to be taken out again.
        kept = sketch.clients if protocol.coalition.absent else 0
        self._words = torch.empty(protocol.sketch.copies, kept, protocol.columns, dtype=dtype)
        self._seen = torch.zeros(sketch.clients, dtype=torch.bool)
        # first and count of those who share a client's key
        self._groups = np.zeros((sketch.clients, 2), np.int64)
        # of a group, by its first client
        self._keys: dict[int, bytes] = {}
        # the clients of the other servers, by the server's number
        self._rolls: dict[int, Tensor] = {}
        self._closed = False
        self._published = False

    @property
    def seen(self) -> Tensor:
        """The clients whose shares are here: (n,) bool."""
        # A copy: nobody marks a client as heard but ``receive``.
        return self._seen.clone()

    def issue(self, first: int, count: int = 1) -> bytes:
        """A new key of clients first, ..., first + count - 1 to this server, enrolled.

        Raises TypeError, ValueError, as ``enrol``.
        """
        key = os.urandom(32)
        self.enrol(first, count, key)
        return key

    def enrol(self, first: int, count: int, key: bytes) -> None:
        """Let clients first, ..., first + count - 1 speak by a key that was agreed upon.

        Whoever holds it speaks for all of them. Raises TypeError, ValueError; ValueError too where
        one of them has a key already.
        """
        first = checks.integer("first", first, 0, len(self._groups) - 1)
        count = checks.integer("count", count, 1, len(self._groups) - first)
        # Whoever held a second key for a client could speak in that client's place.
        if self._groups[first : first + count, 1].any():
            raise ValueError(
                f"first = {first}, count = {count}: one of these clients has a key already; "
                "each group gets one, once"
            )
        self._keys[first] = checked_key("key", key)
        self._groups[first : first + count] = first, count

    def receive(self, frame: bytes) -> None:
        """Add the shares of one client, or of several who hold one key. Raises FrameError."""
        claim = header_of(frame)
        # Nothing of the claim is verified yet: it says which key to try, and the tag covers it.
        expected = message_header(
            self.protocol, self.session, self.number, claim.first, claim.count
        )
        if not 0 < claim.count <= len(self._seen) - claim.first:
            raise FrameError(f"a frame is of clients beyond the {len(self._seen)} of the sketch")
        # Clients who were not enrolled have a group of none, into which no frame fits.
        first, count = self._groups[claim.first].tolist()
        if claim.first + claim.count > first + count:
            raise FrameError(
                "a frame is of clients to whom this server issued no key, or not the same one"
            )
        words = unseal(self._keys[first], expected, frame)
        part = slice(claim.first, claim.first + claim.count)
        if self._closed:
            raise FrameError("a frame came after the servers had begun to agree on the clients")
        if self._seen[part].any():
            raise FrameError("a frame repeats a client who is already here")
        # All refusals lie above: a frame counts whole or not at all.
        self.protocol.place(self._sums, part, words)
        if self._words.numel():
            self._words[:, part] = words
        self._seen[part] = True

    def roll_call(self, other: int) -> bytes:
        """The frame that tells another server which clients are here; no more are let in."""
        # Before the roll is read: a client let in later would be in the sum of this server alone.
        self._closed = True
        header = roll_header(self.protocol, self.session, self.number, other)
        roll = pack_set(self._seen, self.protocol.bits)
        return seal(self._links[f"server {other}"], header, roll)

    def agree(self, frame: bytes) -> None:
        """Take another server's roll call: a client whom either lacks is left out.

        This server may still be hearing clients; its own roll call closes the doors. Raises
        FrameError.
        """
        # The claimed sender picks the link; no other party makes a frame that opens there.
        other = header_of(frame).sender
        expected = roll_header(self.protocol, self.session, other, self.number)
        roll = unseal(self._links[f"server {other}"], expected, frame)
        if other in self._rolls:
            raise FrameError("a roll call came twice")
        self._rolls[other] = unpack_set(roll, len(self._seen))

    def publish(self) -> bytes:
        """The frame with the (m, d) sums of the clients whom every server heard, once.

        Refuses (FrameError) until every other server's roll call is in and its own is made, a
        second time (the difference of two sums would be somebody's data), and where too many
        clients are missing for the noise to suffice.
        """
        if self._published:
            raise FrameError(
                "the sums were published already; two different sums would reveal their difference"
            )
        due = self.protocol.servers - 1
        if len(self._rolls) < due:
            raise FrameError(f"{len(self._rolls)} of {due} roll calls are in; wait for the others")
        if not self._closed:
            raise FrameError("this server has made no roll call yet; the others wait for it")
        # Only of clients whom every server heard do the masks add up to nothing.
        agreed = torch.stack([self._seen, *self._rolls.values()]).all(0)
        missing = int((~agreed).sum())
        most = self.protocol.coalition.absent
        if missing > most:
            raise FrameError(
                f"{missing} of {len(agreed)} clients did not reach every server, the noise lets "
                f"absent = {most} drop out: nothing is released; start a new session with those "
                "who are there"
            )
        # Before the frame exists: an error further down must not permit another sum.
        self._published = True
        gone = self._seen & ~agreed
        if gone.any():
            self.protocol.place(self._sums, gone, -self._words[:, gone])
        name = set_digest(self.session, agreed)
        header = sum_header(self.protocol, self.session, self.number, name, int(agreed.sum()))
        return seal(self._links["analyst"], header, self._sums[None])


def reveal_frames(
    protocol: SecureSums, session: bytes, frames: Iterable[bytes], links: Links
) -> Estimate:
    """The analyst: the estimate (m, d) from one frame of each server. Raises FrameError."""
    checks.instance("protocol", protocol, SecureSums)
    checks.instance("links", links, Links)
    sums: dict[int, Tensor] = {}
    # the name of the set of clients, and how many they are
    agreed: tuple[bytes, int] | None = None
    for frame in checks.instance("frames", frames, (Sequence, Iterator)):
        claim = header_of(frame)
        # Set and number are as claimed: the tag covers them, and all servers must claim the same.
        expected = sum_header(protocol, _session(session), claim.sender, claim.agreed, claim.first)
        words = unseal(links[f"server {claim.sender}"], expected, frame)
        if claim.sender in sums:
            raise FrameError(f"server {claim.sender} is here twice")
        # A client in one sum and not in another leaves a mask in the total, uniform noise.
        if agreed not in (None, (claim.agreed, claim.first)):
            raise FrameError("the servers did not add up the same clients")
        agreed = (claim.agreed, claim.first)
        sums[claim.sender] = words[0]
    if agreed is None or len(sums) != protocol.servers:
        raise FrameError(
            f"{len(sums)} of {protocol.servers} servers' sums are here; their total means nothing "
            "without the rest"
        )
    total = reconstruct(torch.stack(list(sums.values())))
    clients = agreed[1]
    return protocol.analyse(Tally(clients, {"words": total.to(protocol.sketch.device)}))


def message_header(
    protocol: SecureSums, session: bytes, server: int, first: int, count: int
) -> Header:
    """The header of the shares of clients first, ..., first + count - 1 for one server."""
    return Header(
        session,
        NO_SET,
        Kind.MESSAGE,
        protocol.bits,
        sender=0,
        receiver=server,
        copies=protocol.sketch.copies,
        columns=protocol.columns,
        first=first,
        count=count,
    )


def sum_header(
    protocol: SecureSums, session: bytes, server: int, agreed: bytes, heard: int
) -> Header:
    """The header of a server's sums over the clients named by ``agreed``, so many."""
    bits = protocol.bits
    columns = protocol.columns
    height = protocol.sketch.height
    return Header(session, agreed, Kind.SUM, bits, server, ANALYST, 1, columns, heard, height)


def roll_header(protocol: SecureSums, session: bytes, sender: int, receiver: int) -> Header:
    """The header of the roll call that one server sends another."""
    bits = protocol.bits
    words = (protocol.sketch.clients + bits - 1) // bits
    return Header(session, NO_SET, Kind.ROLL, bits, sender, receiver, 1, 1, 0, words)


def client_frames(
    protocol: SecureSums, session: bytes, shares: Tensor, first: int, keys: list[bytes]
) -> list[bytes]:
    """A frame for each server from clients first, first + 1, ..., by their keys.

    Args:
        protocol: public.
        session: 16 bytes that name this run.
        shares: (S, s, k, d), of k clients.
        first: the first of them.
        keys: what each server's ``issue`` returned, server 0's first, for a range of clients that
            holds these.

    Raises ValueError, TypeError.
    """
    checks.instance("protocol", protocol, SecureSums)
    shape = (protocol.servers, protocol.sketch.copies, "k", protocol.columns)
    checks.dense("shares", shares)
    checks.shaped("shares", shares, *shape, note=", as share returns it", empty=True)
    checks.integer("first", first, 0, protocol.sketch.clients - shares.shape[2])
    keys_given = isinstance(keys, list) and all(isinstance(key, bytes) for key in keys)
    if not keys_given or len(keys) != protocol.servers:
        raise ValueError(
            f"keys must be a list of {protocol.servers}, bytes, as each server's issue returns them"
        )
    session = _session(session)
    frames = []
    for server, (key, words) in enumerate(zip(keys, shares, strict=True)):
        header = message_header(protocol, session, server, first, shares.shape[2])
        frames.append(seal(key, header, words))
    return frames


def _session(session: bytes) -> bytes:
    if not isinstance(session, bytes) or len(session) != SESSION_BYTES:
        raise ValueError(
            f"session must be {SESSION_BYTES} bytes, such as protocol.session(os.urandom(32))"
        )
    return session
