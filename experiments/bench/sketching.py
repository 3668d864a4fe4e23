"""Speed of the secure sketch: the servers' transform against the memory's speed, sharing, noise, one thread, one run.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), "Distributed Differentially Private Data Analytics via Secure
    Sketching", Tables 3 to 5 (MP-SPDZ on t3.large machines): seconds of one server, MB of all communication.
Command:  OMP_NUM_THREADS=1 python experiments/bench/sketching.py
First, n = 1e6 clients, d = 10, m = 100, s = 1: what one server does with its shares, part by part, beside one read
    of them (torch's sum of the same tensor) and beside a sketch that multiplies by signs and calls index_add_: the sums
    alone, and a Server from sealed frames to its published sums, where nobody or one in 10,000 may drop out. Second,
    what each party does in the paper's settings, on uniform words: sharing them, all clients together; the transform
    of one server; the sum of the servers' results. The paper's seconds, from other machines, are of one server. Third,
    the cost of one number: noise, masks, and the whole protocol in one process.
Expected: the transform within 8 times one read, faster than sign-multiply plus index_add_; the frames of a server cost
    more to open than to add up. MB equal
    to the paper's in every row. Machines are noisy: compare ratios, not seconds. Masks are those of the package
    cryptography (ChaCha20).
Output: results/bench/sketching/*.csv: medians of 15 runs taken in turns, of three for the rest, in CPU time of one
    thread: wall time where nobody else computes.
Artifact: Burkhardt et al. (2025) | Tables 3 to 5
Status: agrees in MB; seconds are of another machine
Time: three minutes, 5 GB of memory; --smoke in seconds.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from secure_sketch import by_parts
from torch import Tensor

from torchdp.noise import Noise, SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.secure import Links, SecureSketch, Server, client_frames, reconstruct, share
from torchdp.secure.frames import payload_bytes
from torchdp.secure.shares import masks
from torchdp.simulate import Experiment, Report
from torchdp.sketching import AdaptiveCoalition, balanced_osnap
from torchdp.sketching.transform import add_rows

COLUMNS, HEIGHT = 10, 100
# table, clients, copies, servers, the paper's seconds and MB
PAPER = (
    *((3, n, 1, 3, t, mb) for n, t, mb in (
        (100_000, 0.172, 24.024), (250_000, 0.457, 60.024), (500_000, 0.861, 120.024), (750_000, 1.219, 180.024),
        (1_000_000, 1.641, 240.024))),
    *((4, n, 1, 2, t, mb) for n, t, mb in (
        (100_000, 0.177, 16.016), (250_000, 0.453, 40.016), (500_000, 0.824, 80.016), (750_000, 1.240, 120.016),
        (1_000_000, 1.683, 160.016))),
    *((5, 500_000, s, 2, t, mb) for s, t, mb in (
        (1, 0.851, 80.016), (10, 6.863, 800.016), (20, 13.00, 1600.016), (30, 20.36, 2400.016), (40, 28.02, 3200.016),
        (50, 33.71, 4000.016)))
)  # fmt: skip


def medians(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each, the runs taken in turns after one that is not counted, each with cold caches."""
    other = torch.ones(2**25)  # reading it turns everything else out of the caches
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            other.sum()
            start = time.process_time()
            run()
            if repeat:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def serve(protocol: SecureSketch, frames: list[bytes], links: Links) -> None:
    """One server: every frame taken in, the other server's roll call, the sums published."""
    server = Server(protocol, protocol.session(bytes(32)), 0, links["server 0"])
    for frame in frames:
        server.receive(frame)
    other = Server(protocol, protocol.session(bytes(32)), 1, links["server 1"])
    other._seen[:] = True  # it is timed alone
    server.agree(other.roll_call(0))
    server.roll_call(1)
    server.publish()


def transform(clients: int, repeats: int, report: Report) -> None:
    """One server's transform beside one read of its shares."""
    generator = keyed_generator(b"transform")
    report.say(f"one server's transform, n = {clients}, d = {COLUMNS}, m = {HEIGHT}, s = 1")
    sketch = balanced_osnap(clients, HEIGHT, 1, generator=generator)
    links = {name: Links.derived(bytes(range(32)), name, 2) for name in ("server 0", "server 1", "clients")}
    inbound = [links["clients"][f"server {k}"] for k in range(2)]
    for dtype in (torch.int64, torch.int32):
        bits = 8 * dtype.itemsize
        shares = masks((1, clients, COLUMNS), dtype, SeededNoise(1))
        signs, rows = sketch.signs[0][:, None].to(dtype), sketch.rows[0]
        sums = torch.zeros(HEIGHT, COLUMNS, dtype=dtype)
        protocols = {
            most: SecureSketch(
                sketch,
                COLUMNS,
                COLUMNS**0.5,
                0.5,
                1e-6,
                bits=bits,
                entry=1.0,
                coalition=AdaptiveCoalition(absent=most),
            )
            for most in (0, clients // 10_000)
        }
        parts = list(protocols[0].parts())

        def stream(w: Tensor, rows: Tensor, sums: Tensor, parts: list[slice]) -> None:
            for part in parts:
                add_rows(sums, rows[:, part], w[:, part])

        runs = {
            "one read": lambda w=shares: w.sum(dtype=w.dtype),
            "transform": lambda w=shares, e=sums, p=parts: stream(w, sketch.rows, e, p),
            "index_add_": lambda w=shares, e=sums, r=rows: e.index_add_(0, r, w[0]),
            "signs, index_add_": lambda w=shares, g=signs, e=sums, r=rows: e.index_add_(0, r, w[0] * g),
        }
        for most, protocol in protocols.items():
            session = protocol.session(bytes(32))
            frames = [
                client_frames(protocol, session, shares[None, :, part].expand(2, -1, -1, -1), part.start, inbound)[
                    0
                ]
                for part in parts
            ]
            runs[f"server, frames to sums, {most} may drop out"] = lambda p=protocol, f=frames: serve(p, f, links)
        times = medians(runs, repeats)
        for what, seconds in times.items():
            over_read = seconds / times["one read"]
            cells = {"ms": 1e3 * seconds, "GB_per_s": shares.nbytes / seconds / 1e9, "over_one_read": over_read}
            report.row("transform", words=str(dtype)[6:], what=what, **cells)


def share_all(words: Tensor, part: Tensor, servers: int) -> None:
    """Share as many words as ``words`` holds, as many at once as ``part`` does."""
    noise = Noise()
    for _ in range(len(words) // len(part)):
        share(part, servers, noise=noise)


def tables(largest: int, most_copies: int, report: Report) -> None:
    """The paper's settings: sharing by all clients, the transform of one server, the sum of the servers' results."""
    noise = SeededNoise(1)
    report.say("\nthe paper's settings")
    for table, clients, copies, servers, seconds, megabytes in PAPER:
        if clients > largest or copies > most_copies:
            continue
        held = masks((copies * clients, COLUMNS), torch.int64, noise)  # a server's: uniform, whatever was shared
        rows = torch.arange(HEIGHT).repeat_interleave(len(held) // HEIGHT)[None]
        zeros = torch.zeros(HEIGHT, COLUMNS, dtype=torch.int64)
        part = held[: max(1, clients // HEIGHT)]  # what is shared at once
        published = masks((servers, HEIGHT, COLUMNS), torch.int64, noise)

        times = {
            **medians({"share": lambda h=held, p=part, k=servers: share_all(h, p, k)}, 1 if copies > 1 else 3),
            **medians(
                {
                    "sum": lambda h=held, r=rows, z=zeros: add_rows(z, r, h[None]),
                    "reveal": lambda p=published: reconstruct(p),
                },
                3,
            ),
        }
        ours = payload_bytes(servers, copies, clients, HEIGHT, COLUMNS) / 1e6
        report.row(
            "settings",
            table=table,
            n=clients,
            s=copies,
            servers=servers,
            share_s=times["share"],
            transform_s=times["sum"],
            reveal_s=times["reveal"],
            MB=ours,
            paper_s=seconds,
            paper_MB=megabytes,
            faster=seconds / times["sum"],
        )


def numbers(clients: int, repeats: int, report: Report) -> None:
    """Nanoseconds for one number: noise, masks, and everything together."""
    generator = keyed_generator(b"numbers")
    sketch = balanced_osnap(clients, HEIGHT, 1, generator=generator)
    noise, count = Noise(), clients * COLUMNS
    A = torch.rand(clients, COLUMNS, dtype=torch.float64, generator=generator)
    protocols = {
        bits: SecureSketch(sketch, COLUMNS, COLUMNS**0.5, 0.5, 1e-6, servers=3, bits=bits, entry=1.0)
        for bits in (64, 32)
    }

    def in_parts(work: Callable[[int, slice], object]) -> None:
        for part in protocols[64].parts():
            work(COLUMNS * (part.stop - part.start), part)

    times = medians(
        {
            "64-bit masks": lambda: in_parts(lambda k, a: masks((k,), torch.int64, noise)),
            "32-bit masks": lambda: in_parts(lambda k, a: masks((k,), torch.int32, noise)),
            "64-bit words of a torch generator": lambda: in_parts(
                lambda k, a: torch.empty(k, dtype=torch.int64).random_(generator=generator)
            ),
            "normal numbers alone": lambda: in_parts(
                lambda k, a: torch.randn(k, dtype=torch.float64, generator=generator)
            ),
            "messages: check, encode, noise, round": lambda: in_parts(
                lambda k, a: protocols[64].randomize(A[a], first=a.start, noise=noise)
            ),
            "whole protocol, 3 servers, 64 bits": lambda: by_parts(A, protocols[64], noise),
            "whole protocol, 3 servers, 32 bits": lambda: by_parts(A, protocols[32], noise),
            "total drawn at once": lambda: protocols[64].sample_tally(
                protocols[64].summary(A), generator=generator
            ),
        },
        repeats,
    )
    report.say(f"\nnanoseconds for one number, n = {clients}, d = {COLUMNS}, m = {HEIGHT}, s = 1")
    for what, seconds in times.items():
        report.row("numbers", what=what, nanoseconds=1e9 * seconds / count)
    report.say()
    for bits, protocol in protocols.items():
        report.row(
            "grid", bits=bits, fraction_bits=protocol.ring.fraction_bits, variance_over_ideal=protocol.grid_factor
        )


@dataclass(frozen=True)
class Config:
    clients: int = 1_000_000  # of the first and third part
    repeats: int = 15
    few: int = 3  # repeats of the third part
    largest: int = 1_000_000  # clients of the paper's settings
    copies: int = 50


FULL = Config()
SMOKE = Config(100_000, 5, 1, 100_000, 1)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    transform(config.clients, config.repeats, report)
    tables(config.largest, config.copies, report)
    numbers(config.clients, config.few, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
