"""Secure sketches, d = 10, m = 100 rows, 3 servers: words of the cipher, one server's transform,
the whole.
"""

import os
from functools import partial

import numpy as np
import torch
from floors import DEVICE, normals, read, words
from harness import Case, Work

from torchdp.kernels import chacha
from torchdp.kernels.secure_sketch import add_rows
from torchdp.memory import rows_at_once
from torchdp.noise import Noise, SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.secure import Links, SecureSketch, Server, client_frames
from torchdp.secure.ring import masks
from torchdp.sketching import AdaptiveCoalition, balanced_osnap

COLUMNS = 10
HEIGHT = 100
SERVERS = 3


def protocol(clients, bits):
    """Rows in [0, 1]^d and a protocol for them."""
    generator = keyed_generator(b"secure sketch", DEVICE)
    A = torch.rand(clients, COLUMNS, dtype=torch.float64, generator=generator, device=DEVICE)
    sketch = balanced_osnap(clients, HEIGHT, 1, generator=generator)
    return A, SecureSketch(
        sketch, COLUMNS, COLUMNS**0.5, 0.5, 1e-6, servers=SERVERS, bits=bits, entry=1.0
    )


def numpy_sums(A, protocol: SecureSketch):
    """The same work in numpy, all at once, from a generator that is no cipher."""
    rng = np.random.default_rng()
    ring = protocol.ring
    kind = np.dtype(f"u{ring.bits // 8}")
    rows = protocol.sketch.rows[0].cpu().numpy()
    signs = protocol.sketch.signs[0].cpu().numpy()
    sigma = protocol.sigma.cpu().numpy() * ring.scale
    noise = np.rint(rng.standard_normal(A.shape) * sigma[rows, None])
    numbers = (A.cpu().numpy() * ring.scale).astype(np.int64)
    values = (noise.astype(np.int64) + numbers) * signs[:, None]
    shares = np.empty((SERVERS, *A.shape), kind)
    shares[:-1] = rng.integers(2**ring.bits, size=(SERVERS - 1, *A.shape), dtype=kind)
    shares[-1] = values.astype(kind) - shares[:-1].sum(0, dtype=kind)
    sums = np.zeros((SERVERS, HEIGHT, COLUMNS), kind)
    for table, part in zip(sums, shares, strict=True):
        np.add.at(table, rows, part)
    return sums


def collect(clients, bits):
    A, whole = protocol(clients, bits)
    noise = Noise(DEVICE)
    peers = {"numpy": lambda: partial(numpy_sums, A, whole)}
    floors = {"its normals": normals(clients, COLUMNS), "one read of the rows": read(A)}
    return Work(lambda: whole.collect(A, noise=noise), clients * COLUMNS, floors, peers)


def drawn(clients):
    A, whole = protocol(clients, 64)
    summary = whole.summary(A)
    generator = keyed_generator(b"total", DEVICE)
    floors = {"a normal number an entry": normals(HEIGHT, COLUMNS)}
    return Work(lambda: whole.sample_tally(summary, generator=generator), 1, floors)


def transform(clients, dtype):
    """One server's sums of its shares, part by part as they arrive."""
    sketch = balanced_osnap(clients, HEIGHT, 1, generator=keyed_generator(b"rows", DEVICE))
    shares = masks((1, clients, COLUMNS), dtype, SeededNoise(1, DEVICE))
    sums = torch.zeros(HEIGHT, COLUMNS, dtype=dtype, device=DEVICE)
    rows = sketch.rows[0]
    signs = sketch.signs[0][:, None].to(dtype)
    step = rows_at_once(160)
    parts = list(zip(rows.split(step), shares[0].split(step), strict=True))

    def added():
        return [add_rows(sums, own, part) for own, part in parts]

    def at_once():
        return sums.index_add_(0, rows, shares[0] * signs)

    peers = {"signs, index_add_": lambda: at_once}
    return Work(added, clients, {"one read": read(shares)}, peers)


def server(clients, most):
    """One of two servers from sealed frames to its published sums, where so many clients may drop
    out.
    """
    sketch = balanced_osnap(clients, HEIGHT, 1, generator=keyed_generator(b"rows"))
    coalition = AdaptiveCoalition(absent=most)
    whole = SecureSketch(sketch, COLUMNS, COLUMNS**0.5, 0.5, 1e-6, entry=1.0, coalition=coalition)
    session = whole.session(bytes(32))
    key = bytes(range(32))
    links = [Links({f"server {1 - k}": key, "analyst": key}) for k in range(2)]
    other = Server(whole, session, 1, links[1])
    keys = [key, other.issue(0, clients)]
    shares = masks((1, clients, COLUMNS), torch.int64, SeededNoise(1))
    both = [[], []]
    for first in range(0, clients, whole.at_once):
        part = shares[None, :, first : first + whole.at_once]
        sealed = client_frames(whole, session, part.repeat(2, 1, 1, 1), first, keys)
        for frames, frame in zip(both, sealed, strict=True):
            frames.append(frame)
    for frame in both[1]:
        other.receive(frame)
    call = other.roll_call(0)

    def served():
        one = Server(whole, session, 0, links[0])
        one.enrol(0, clients, key)
        for frame in both[0]:
            one.receive(frame)
        one.agree(call)
        one.roll_call(1)
        return one.publish()

    return Work(served, clients, {"one read of the words": read(shares)})


def stream(count):
    """``count`` words of 64 bits of the cipher."""
    key = chacha.system_key(DEVICE)
    peers = {"the operating system": lambda: lambda: os.urandom(8 * count)}
    return Work(
        lambda: chacha.keystream(key, 0, count // 8),
        count,
        {"a generator's words": words(count)},
        peers,
    )


def cases(small):
    n = 1000 if small else 100_000
    yield Case("key stream", partial(stream, 8 * n))
    for dtype in (torch.int64, torch.int32):
        yield Case(f"one server's transform, {str(dtype)[6:]}", partial(transform, 10 * n, dtype))
    for most in (0, n // 1000):
        yield Case(
            f"one server, frames to sums, {most} may drop out", partial(server, 10 * n, most)
        )
    for bits in (64, 32):
        yield Case(f"SecureSketch.collect, {bits} bits", partial(collect, n, bits))
    yield Case("SecureSketch.sample_tally", partial(drawn, n))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only secure")
