"""The other rooms' hot calls: pairs, queries, training, domains, tables of users, journals, first calls and imports."""

import contextlib
import csv
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from floors import DEVICE, normals
from harness import Case, Run, Work

from torchdp import cli, pairwise, queries, workloads
from torchdp.collection import Journal
from torchdp.domains import Polytope
from torchdp.factorization import factorize
from torchdp.noise import SeededNoise
from torchdp.protocol import Tally
from torchdp.randomizers import RandomizedResponse
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BitSums, PoissonSum, RandomizedResponseSum
from torchdp.training import CorrelatedNoise


def types(n: int, k: int) -> torch.Tensor:
    return torch.randint(k, (n,), device=DEVICE, generator=keyed_generator(b"types", DEVICE))


def estimate(kind: type, n: int, k: int) -> Work:
    """Users' own messages and the estimate."""
    protocol, x = kind(pairwise.absolute_difference(k), 1.0), types(n, k)
    noise = SeededNoise(1, DEVICE)
    return Work(
        lambda: protocol.estimate(x, noise=noise), n, {"float64 normals": normals(n, protocol.statistic.dim + 1)}
    )


def queried(n: int, k: int) -> Work:
    W = workloads.prefix(k, device=DEVICE).dense()
    mechanism = queries.LocalFactorization.calibrated(queries.FactoredQueries.of(W, factorize(W)), epsilon=1.0)
    x, noise = types(n, k), SeededNoise(1, DEVICE)
    return Work(lambda: mechanism.estimate(x, noise=noise), n, {"float64 normals": normals(n, k + 1)})


def noise_of_a_step(size: int, bands: int) -> Work:
    """One step of 16 that cost the same, the past of ``bands`` - 1 of them kept."""
    C = torch.eye(4 * bands, dtype=torch.float64, device=DEVICE)
    for j in range(1, bands):
        C += torch.diag(torch.full((4 * bands - j,), 0.5**j, dtype=torch.float64, device=DEVICE), -j)
    total = torch.zeros(size, device=DEVICE)

    def ours() -> None:
        module = CorrelatedNoise(C, size, 1.0, noise=SeededNoise(1, DEVICE))
        for _ in range(len(C)):
            module(total)

    return Work(ours, len(C) * size, {"float32 normals": normals(len(C), size, torch.float32)})


def membership(n: int, vertices: int, d: int) -> Work:
    points = torch.randn(
        vertices, d, dtype=torch.float64, device=DEVICE, generator=keyed_generator(b"vertices", DEVICE)
    )
    domain, x = Polytope(points), 0.5 * points[:1].expand(n, d).contiguous()
    return Work(lambda: domain.contains(x), n, {"x times vertices": lambda: x @ points.mT})


def table(rows: int) -> Work:
    """``torchdp estimate`` of Gini's mean difference on a file of so many users."""
    path = Path(tempfile.gettempdir()) / f"torchdp-bench-{os.getuid()}-{rows}.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["age", "income"], *((i % 90, i % 1000) for i in range(rows))])
    options = (
        "--statistic gini-mean-difference --columns income --bounds income=0:1000 --bins 16 --epsilon 1".split()
    )

    def ours() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(["estimate", "--csv", str(path), *options])

    peers = {"numpy.loadtxt": lambda: partial(np.loadtxt, path, delimiter=",", skiprows=1)}
    return Work(ours, rows, {"its bytes read": path.read_bytes}, peers)


def journal(batches: int) -> Work:
    """Batches added, each on the disk before the next."""
    folder = Path(tempfile.mkdtemp(prefix="torchdp-bench-"))
    kept, count = Journal(folder / "votes.db", RandomizedResponse(4, 1.0)), iter(range(10**9))
    held = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT)

    def ours() -> None:
        for _ in range(batches):
            kept.add(str(next(count)), Tally(10, {"reports": torch.tensor([1, 2, 3, 4])}))

    def floor() -> None:
        for _ in range(batches):
            os.write(held, b"\0" * 4096)
            os.fsync(held)

    return Work(ours, batches, {"4 KiB written, fsync": floor})


def imported(module: str) -> Run:
    return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


def start(module: str) -> Work:
    """In fresh processes."""
    return Work(imported(f"torch, {module}"), 1, {"import torch": imported("torch")})


def first(call: Callable[[], object]) -> Work:
    """A call in a process of its own, as nothing had been called before."""

    def ours() -> None:
        if not (child := os.fork()):
            try:
                call()
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    return Work(ours, 1, {"import torch": imported("torch")})


def cases(small: bool) -> Iterator[Case]:
    n, k = (200, 4) if small else (20_000, 64)
    for kind in (pairwise.TwoMessage, pairwise.OneMessage):
        yield Case(f"{kind.__name__}.estimate, k = {k}", partial(estimate, kind, n, k))
    yield Case(f"LocalFactorization.estimate, k = {k}", partial(queried, n, k))
    for bands in (1, 16):
        yield Case(f"CorrelatedNoise, {bands} bands", partial(noise_of_a_step, 100 if small else 2**16, bands))
    yield Case("Polytope.contains, 100 vertices, d = 6", partial(membership, 2 if small else 200, 100, 6))
    yield Case("torchdp estimate of a CSV", partial(table, 100 if small else 100_000))
    yield Case("Journal.add", partial(journal, 2 if small else 50))
    if small:
        return
    for room in ("pairwise", "density", "training", "secure"):
        yield Case(f"import torchdp.{room}", partial(start, f"torchdp.{room}"))
    statistic, W = pairwise.absolute_difference, workloads.prefix
    calls: dict[str, Callable[[], object]] = {
        "queries.choose, 16 types": lambda: queries.choose(W(16), 10**5, 1.0),
        "queries.choose, 64 types": lambda: queries.choose(W(64), 10**5, 1.0),
        "queries.choose, ranges of 64": lambda: queries.choose(workloads.all_ranges(64), 10**5, 1.0),
        "pairwise.choose, 64 types": lambda: pairwise.choose(statistic(64), 10**5, 1.0),
        "pairwise.choose, 256 types": lambda: pairwise.choose(statistic(256), 10**5, 1.0),
        "BitSums.calibrated, 768": lambda: BitSums.calibrated(PoissonSum, 10**5, 2.0, 1e-6, 768),
        "BitSums.calibrated, 768, flips": lambda: BitSums.calibrated(RandomizedResponseSum, 10**5, 2.0, 1e-6, 768),
    }
    for name, call in calls.items():
        yield Case(f"first {name}", partial(first, call))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only rooms")
