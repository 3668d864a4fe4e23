"""The parties of a secure sketch as processes, over torch.distributed (gloo): S servers, clients, analyst.

gloo encrypts and authenticates nothing: whoever reaches the meeting point may take any rank. What he gets there are
frames (``frames``), which without the links' keys he can neither read nor make; he can hold them back, and end a
process by speaking gloo otherwise than here. Between machines keep it inside a network of its own (WireGuard, IPsec).
The keys themselves are the parties' to agree on: nothing here tells a client who holds a server's key. One process
holds the rows and the keys of all clients: it plays organisations that trust each other, or simulates them. Clients
who are to hide from each other send frames of their own, by ``client_frames``, to ``Server``.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, SeededNoise, source
from torchdp.protocol import Estimate
from torchdp.secure.frames import FrameError
from torchdp.secure.ring import share
from torchdp.secure.servers import (
    Links,
    Server,
    client_frames,
    message_header,
    reveal_frames,
    roll_header,
    sum_header,
)
from torchdp.secure.sums import SecureSums

SHORTEST, LONGEST = 1e-3, 1e6  # seconds of a step


def parties(protocol: SecureSums) -> list[str]:
    """Names by rank: the servers, then all clients in one process, then the analyst."""
    checks.instance("protocol", protocol, SecureSums)
    return [*(f"server {k}" for k in range(protocol.servers)), "clients", "analyst"]


def links_of_all(protocol: SecureSums, nonce: bytes, secret: bytes) -> dict[str, Links]:
    """Each party's links for ``take_part``, by its name, from one secret: for a simulation, whose maker knows all."""
    *servers, clients, analyst = parties(protocol)
    links = {name: Links.derived(secret, name, protocol.servers) for name in (*servers, analyst)}
    issuing = [Server(protocol, protocol.session(nonce), k, links[name]) for k, name in enumerate(servers)]
    issued = {f"server {server.number}": server.issue(0, protocol.sketch.clients) for server in issuing}
    return {**links, clients: Links(issued)}


class Wire:
    """Frames to and from other ranks; ``sent`` holds every frame that this process sent, if it is to keep them.

    Raises ConnectionError where the other end is gone or silent for longer than the group's timeout.
    """

    def __init__(self, names: list[str], keep: bool) -> None:
        self._names, self._keep = names, keep
        self.sent: list[tuple[str, bytes]] = []

    def exchange(self, out: Sequence[tuple[str, bytes]], due: Sequence[tuple[str, int]] = ()) -> list[bytes]:
        """Send frames, each to the party named with it, and return one frame from each party that is ``due``.

        The length of a frame is public, by the protocol; it goes ahead of the frame all the same, so that one of
        another length arrives, to be refused, where gloo would abort. Receives are posted first: sends wait for them.
        """
        if self._keep:
            self.sent += out
        ranks = [self._rank(name) for name, _ in due]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in due]
        try:
            coming = [dist.irecv(length, rank) for length, rank in zip(lengths, ranks, strict=True)]
            work, held = [], []
            for name, frame in out:
                held += [
                    torch.tensor([len(frame)], dtype=torch.int64),
                    torch.frombuffer(bytearray(frame), dtype=torch.uint8),
                ]
                work += [dist.isend(part, self._rank(name)) for part in held[-2:]]
            _finish(coming)
            buffers = [
                torch.empty(_bounded(int(length), most), dtype=torch.uint8)
                for length, (_, most) in zip(lengths, due, strict=True)
            ]
            _finish([dist.irecv(buffer, rank) for buffer, rank in zip(buffers, ranks, strict=True)] + work)
        except RuntimeError as error:
            others = " or ".join(sorted({name for name, _ in (*out, *due)}))
            raise ConnectionError(
                f"{others} is gone, or silent for longer than the timeout; nothing is released: start a new session, "
                "with fresh noise"
            ) from error
        return [buffer.numpy().tobytes() for buffer in buffers]

    def _rank(self, name: str) -> int:
        return self._names.index(name)


def _finish(work: Sequence[dist.Work | None]) -> None:
    for pending in filter(None, work):
        pending.wait()


def _bounded(length: int, due: int) -> int:
    """A length to make room for. Raises RuntimeError for one that is far from what is due."""
    if not 0 < length <= 2 * due + 2**16:
        raise RuntimeError(f"a frame of {length} bytes is coming, {due} are due")
    return length


def take_part(
    protocol: SecureSums,
    nonce: bytes,
    rank: int,
    links: Links,
    *,
    init_method: str = "env://",
    x: Tensor | None = None,
    noise: Noise | None = None,
    timeout: float = 60.0,
    record: Path | None = None,
) -> Estimate | None:
    """What the process of this rank does, from rendezvous to the end; the analyst's returns the estimate (m, d).

    ``parties(protocol)`` says who has which rank. protocol, nonce: public, the same for all
    (``SecureSums.session``). links: this party's keys alone; the clients' are what each server's ``issue(0, n)``
    returned, by the server's name. init_method: torch.distributed's, "env://" under torchrun, or "file:///new/file".
    x: (n, d), and noise, of the clients' messages and their shares: for the clients' process alone. timeout: seconds
    that any step may wait. record: folder for "<party>.pt", all frames that were sent.
    Raises ConnectionError where another process is gone, FrameError, ValueError, TypeError.
    """
    names = parties(protocol)
    checks.instance("links", links, Links), checks.instance("init_method", init_method, str)
    timeout = _kept(timeout, record)
    if checks.integer("rank", rank, 0) >= len(names):
        raise ValueError(
            f"rank must be below {len(names)}: {protocol.servers} servers, clients, analyst; not {rank}"
        )
    if (names[rank] == "clients") != (x is not None) or (noise is not None and x is None):
        raise ValueError("x must be given to the clients' process, and x and noise to no other")
    if x is not None:
        x, noise = protocol.validate(x), source(noise, protocol.sketch.device)
    session, limit = protocol.session(nonce), timedelta(seconds=timeout)
    if dist.is_initialized():
        raise ValueError(
            "this process is in a process group already; call torch.distributed.destroy_process_group()"
        )
    wire = Wire(names, record is not None)
    try:
        dist.init_process_group("gloo", init_method, limit, len(names), rank)
    except (RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"{len(names)} processes did not meet at {init_method} in {timeout} seconds"
        ) from error
    try:
        result = None
        if names[rank] == "analyst":
            result = _analyse(protocol, session, links, wire)
        elif x is not None and noise is not None:
            _send(protocol, session, x, noise, links, wire)
        else:
            _serve(protocol, session, Server(protocol, session, rank, links), wire)
        if record is not None:
            torch.save(wire.sent, Path(record) / f"{names[rank]}.pt")
        _meet(timeout)
        return result
    finally:
        dist.destroy_process_group()


def run_processes(
    protocol: SecureSums,
    x: Tensor,
    *,
    seed: int | None = None,
    timeout: float = 60.0,
    record: Path | None = None,
) -> Estimate:
    """Start S + 2 processes on this machine, let them run the protocol on x (n, d), and return the estimate (m, d).

    What is isolated, and what is not. The process that calls this holds all rows and keys. Each process is handed its
    own keys alone; the rows, and what the noise is drawn from, go to the clients' process alone, one for all clients.
    They are processes of one user on one machine, who may read the memory of all of them. So this shows and tests the
    protocol; it keeps no secret from whoever runs it. They listen on the loopback interface alone.

    seed: of a ``SeededNoise`` made in the clients' process, for tests: ``estimate`` with it gives the same bits on the
    same device; None: the system's. timeout, record: as for ``take_part``. A script that calls this needs ``if
    __name__ == "__main__"``, as every use of Python's spawned processes does. Raises RuntimeError naming the party that
    failed; ValueError, TypeError before any process starts.
    """
    x = checks.instance("protocol", protocol, SecureSums).validate(x)
    timeout = _kept(timeout, record)
    if seed is not None:
        SeededNoise(seed)  # refuses what is no seed
    nonce, started = os.urandom(32), {}
    links = links_of_all(protocol, nonce, os.urandom(32))
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank, name in enumerate(parties(protocol)):
                own = (x, seed) if name == "clients" else (None, None)
                given = (protocol, nonce, rank, links[name], *own, timeout, record, folder)
                started[name] = mp.start_processes(_process, given, nprocs=1, join=False, start_method="spawn")
            _wait(started)
        finally:
            for context in started.values():
                context.processes[0].kill()
        value, error, n = torch.load(Path(folder) / "release.pt")
        return Estimate(value, error, n, stretch=protocol.stretch)


def _kept(timeout: float, record: Path | None) -> float:
    """Seconds, where they and the folder of a record will do. Raises ValueError, TypeError."""
    if record is not None and not checks.path("record", record).is_dir():
        raise ValueError(f"record must be a folder that is there, not {record}")
    return checks.within("timeout", timeout, SHORTEST, LONGEST)


def _wait(started: dict[str, mp.ProcessContext]) -> None:
    """Until all processes have ended well. Raises RuntimeError naming one that did not: a killed one first."""
    running = dict(started)
    while running:
        connection.wait([sentinel for context in running.values() for sentinel in context.sentinels])
        for name in sorted(running, key=lambda name: running[name].processes[0].exitcode or 0):
            try:
                if running[name].join(timeout=0):
                    del running[name]
            except mp.ProcessExitedException as error:
                end = error.signal_name or f"exit code {error.exit_code}"
                raise RuntimeError(f"the process of {name} ended by {end}; nothing is released") from None
            except mp.ProcessRaisedException as error:
                raise RuntimeError(f"{name}: {str(error).strip().splitlines()[-1]}") from None


def _process(
    _: int,
    protocol: SecureSums,
    nonce: bytes,
    rank: int,
    links: Links,
    x: Tensor | None,
    seed: int | None,
    timeout: float,
    record: Path | None,
    folder: str,
) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    noise = None if seed is None else SeededNoise(seed, protocol.sketch.device)
    found = take_part(
        protocol, nonce, rank, links, init_method=f"file://{folder}/rendezvous", x=x, noise=noise, timeout=timeout,
        record=record,
    )  # fmt: skip
    if found is not None:
        torch.save((found.value, found.standard_error, found.n), Path(folder) / "release.pt")


def _send(protocol: SecureSums, session: bytes, x: Tensor, noise: Noise, links: Links, wire: Wire) -> None:
    keys = [links[f"server {k}"] for k in range(protocol.servers)]
    for words in protocol.spoken(x, noise):
        shares = share(words.values, protocol.servers, noise=noise)
        frames = client_frames(protocol, session, shares, words.first, keys)
        wire.exchange([(f"server {k}", frame) for k, frame in enumerate(frames)])


def _serve(protocol: SecureSums, session: bytes, server: Server, wire: Wire) -> None:
    server.issue(0, protocol.sketch.clients)  # the key that the clients' process holds
    for part in protocol.parts():
        due = message_header(protocol, session, server.number, part.start, part.stop - part.start)
        try:
            server.receive(*wire.exchange([], [("clients", due.frame_bytes)]))
        except FrameError:
            continue  # these clients are missing here, and the roll call will say so
    others = [k for k in range(protocol.servers) if k != server.number]
    length = roll_header(protocol, session, server.number, others[0]).frame_bytes
    calls = [(f"server {k}", server.roll_call(k)) for k in others]
    for frame in wire.exchange(calls, [(name, length) for name, _ in calls]):
        server.agree(frame)
    wire.exchange([("analyst", server.publish())])


def _analyse(protocol: SecureSums, session: bytes, links: Links, wire: Wire) -> Estimate:
    length = sum_header(protocol, session, 0, bytes(16), 0).frame_bytes
    frames = wire.exchange([], [(f"server {k}", length) for k in range(protocol.servers)])
    return reveal_frames(protocol, session, frames, links)


def _meet(timeout: float) -> None:
    """Nobody hangs up before everybody has what it was sent."""
    try:
        dist.barrier()
    except RuntimeError as error:
        raise ConnectionError(f"a process was gone at the end, or silent for {timeout} seconds") from error
