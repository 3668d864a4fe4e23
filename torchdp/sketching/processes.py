"""The parties of a secure sketch as processes, over torch.distributed (gloo): S servers, clients, analyst.

gloo sends in the clear: whoever reads all links of a client adds up its shares. Between machines, run it inside an
encrypted network (WireGuard, IPsec); frames are authenticated here in any case.
"""

import os
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from torchdp import checks
from torchdp.kernels.chacha import generator_key
from torchdp.randomness import keyed_generator
from torchdp.sketching.frames import FrameError
from torchdp.sketching.masks import system_masks
from torchdp.sketching.protocol import SecureSketch
from torchdp.sketching.servers import (
    Links,
    Server,
    client_frames,
    message_header,
    reveal_frames,
    roll_header,
    sum_header,
)
from torchdp.sketching.shares import share


def parties(protocol: SecureSketch) -> list[str]:
    """Names by rank: the servers, then all clients in one process, then the analyst."""
    return [*(f"server {k}" for k in range(protocol.servers)), "clients", "analyst"]


class Wire:
    """Frames to and from other ranks; ``sent`` holds every frame that this process sent, if it is to keep them.

    Raises ConnectionError where the other end is gone or silent for longer than the group's timeout.
    """

    def __init__(self, names: list[str], keep: bool) -> None:
        self._names, self._keep = names, keep
        self.sent: list[tuple[str, bytes]] = []

    def exchange(self, out: Sequence[tuple[str, bytes]], due: Sequence[tuple[str, int]] = ()) -> list[bytes]:
        """Send frames, each to the party named with it, and return one frame from each party that is ``due``.

        The length of a frame is public, by the protocol. Receives are posted first: gloo's sends wait for them.
        """
        if self._keep:
            self.sent += out
        buffers = [torch.empty(length, dtype=torch.uint8) for _, length in due]
        try:
            work = [dist.irecv(buffer, self._rank(name)) for buffer, (name, _) in zip(buffers, due, strict=True)]
            frames = [torch.frombuffer(bytearray(frame), dtype=torch.uint8) for _, frame in out]
            work += [dist.isend(frame, self._rank(name)) for frame, (name, _) in zip(frames, out, strict=True)]
            for pending in filter(None, work):
                pending.wait()
        except RuntimeError as error:
            others = " or ".join(sorted({name for name, _ in (*out, *due)}))
            raise ConnectionError(
                f"{others} is gone, or silent for longer than the timeout; nothing is released: start a new session, "
                "with fresh noise"
            ) from error
        return [buffer.numpy().tobytes() for buffer in buffers]

    def _rank(self, name: str) -> int:
        return self._names.index(name)


def take_part(
    protocol: SecureSketch,
    nonce: bytes,
    rank: int,
    links: Links,
    *,
    init_method: str = "env://",
    A: Tensor | None = None,
    noise_key: bytes | None = None,
    timeout: float = 60.0,
    record: Path | None = None,
) -> Tensor | None:
    """What the process of this rank does, from rendezvous to the end; the analyst's returns the release (m, d).

    ``parties(protocol)`` says who has which rank. protocol, nonce: public, the same for all
    (``SecureSketch.session``). links: this party's keys alone. init_method: torch.distributed's, "env://" under
    torchrun, or "file:///new/file". A: (n, d), and noise_key: 32 secret bytes never used before; for the clients'
    process alone, whose ``keyed_messages`` take ``generator_key(keyed_generator(noise_key))``, 256 bits on any device,
    and which shares out with masks from ``system_masks``. timeout: seconds that any step may wait. record: folder for
    "<party>.pt", all frames that were sent. Raises ConnectionError where another process is gone, FrameError,
    ValueError.
    """
    names = parties(protocol)
    if checks.integer("rank", rank, 0) >= len(names):
        raise ValueError(
            f"rank must be below {len(names)}: {protocol.servers} servers, clients, analyst; not {rank}"
        )
    if names[rank] == "clients" and (A is None or noise_key is None):
        raise ValueError("A and noise_key must be given to the clients' process")
    if noise_key is not None and A is not None:
        _check_key(noise_key)
        A = protocol.check_all(A)
    session, limit = protocol.session(nonce), timedelta(seconds=checks.positive("timeout", timeout))
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
        elif names[rank] == "clients" and A is not None and noise_key is not None:
            _send(protocol, session, A, generator_key(keyed_generator(noise_key)), links, wire)
        else:
            _serve(protocol, session, Server(protocol, session, rank, links), wire)
        if record is not None:
            torch.save(wire.sent, Path(record) / f"{names[rank]}.pt")
        _meet(timeout)
        return result
    finally:
        dist.destroy_process_group()


def run_processes(
    protocol: SecureSketch,
    A: Tensor,
    *,
    noise_key: bytes,
    timeout: float = 60.0,
    record: Path | None = None,
) -> Tensor:
    """Start S + 2 processes on this machine, let them run the protocol on A (n, d), and return the release (m, d).

    ``release`` with ``keyed_generator(noise_key)`` gives the same bits on a CPU. The links' keys are drawn here from
    os.urandom and handed to each process alone. A script that calls this needs ``if __name__ == "__main__"``, as
    every use of Python's spawned processes does. noise_key, timeout, record: as for ``take_part``. Raises
    RuntimeError naming the party that failed; ValueError, TypeError before any process starts.
    """
    A = protocol.check_all(A)
    _check_key(noise_key)
    names, secret, nonce = parties(protocol), os.urandom(32), os.urandom(32)
    with tempfile.TemporaryDirectory() as folder:
        links = [Links.derived(secret, name, protocol.servers) for name in names]
        shared = (protocol, nonce, links, A, noise_key, timeout, record, folder)
        try:
            mp.start_processes(_process, shared, nprocs=len(names), start_method="spawn")
        except mp.ProcessExitedException as error:
            end = error.signal_name or f"exit code {error.exit_code}"
            raise RuntimeError(
                f"the process of {names[error.error_index]} ended by {end}; nothing is released"
            ) from None
        except mp.ProcessRaisedException as error:
            last = str(error).strip().splitlines()[-1]
            raise RuntimeError(f"{names[error.error_index]}: {last}") from None
        return torch.load(Path(folder) / "release.pt")


def _check_key(noise_key: bytes) -> None:
    if not isinstance(noise_key, bytes) or len(noise_key) < 32:
        raise ValueError("noise_key must be at least 32 bytes never used before, such as os.urandom(32)")


def _process(
    rank: int,
    protocol: SecureSketch,
    nonce: bytes,
    links: list[Links],
    A: Tensor,
    noise_key: bytes,
    timeout: float,
    record: Path | None,
    folder: str,
) -> None:
    torch.set_num_threads(1)
    mine = parties(protocol)[rank] == "clients"
    release = take_part(
        protocol, nonce, rank, links[rank], init_method=f"file://{folder}/rendezvous", A=A if mine else None,
        noise_key=noise_key if mine else None, timeout=timeout, record=record,
    )  # fmt: skip
    if release is not None:
        torch.save(release, Path(folder) / "release.pt")


def _send(protocol: SecureSketch, session: bytes, A: Tensor, key: Tensor, links: Links, wire: Wire) -> None:
    inbound = [links[f"server {k}"] for k in range(protocol.servers)]
    key = key.to(protocol.sketch.device)  # drawn on a CPU: a CUDA generator would keep 64 bits of it
    for part in protocol.parts():
        words = protocol.keyed_messages(A[part], part.start, key=key)
        frames = client_frames(
            protocol, session, share(words, protocol.servers, masks=system_masks), part.start, inbound
        )
        wire.exchange([(f"server {k}", frame) for k, frame in enumerate(frames)])


def _serve(protocol: SecureSketch, session: bytes, server: Server, wire: Wire) -> None:
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


def _analyse(protocol: SecureSketch, session: bytes, links: Links, wire: Wire) -> Tensor:
    length = sum_header(protocol, session, 0, bytes(16)).frame_bytes
    frames = wire.exchange([], [(f"server {k}", length) for k in range(protocol.servers)])
    return reveal_frames(protocol, session, frames, links)


def _meet(timeout: float) -> None:
    """Nobody hangs up before everybody has what it was sent."""
    try:
        dist.barrier()
    except RuntimeError as error:
        raise ConnectionError(f"a process was gone at the end, or silent for {timeout} seconds") from error
