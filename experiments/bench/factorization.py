"""Certified factorizations beside decompositions of the same size, and a polar factor by matrix products alone."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from floors import DEVICE
from harness import Case, Part, Work

from torchdp import workloads
from torchdp.factorization import certify, factorize, factorize_epochs
from torchdp.factorization.solvers.spectrum import Decomposed, Iterated


def prefix(n: int, tol: float) -> Work:
    """gamma_2 of prefix sums; a decomposition an iteration is the least of what the solver does."""
    W = workloads.prefix(n, device=DEVICE).dense()
    return Work(lambda: factorize(W, tol=tol), 1, {"one eigh": partial(torch.linalg.eigh, W.mT @ W)})


def by_hand(n: int, tol: float = 1e-6) -> None:
    """The largest error of prefix sums in numpy: a multiplicative fixed point on weights of rows and columns."""
    W = np.tri(n)
    p = np.full(n, 1 / n)
    q = np.full(n, 1 / n)
    low, high = 0.0, math.inf
    while high > low * (1 + tol):
        U, s, V = np.linalg.svd(np.sqrt(p)[:, None] * W * np.sqrt(q))
        low = s.sum()
        rows = np.einsum("ij,j,ij->i", U, s, U) / p
        columns = np.einsum("ji,j,ji->i", V, s, V) / q
        high = math.sqrt(rows.max() * columns.max())
        p *= rows / low
        q *= columns / low
        p /= p.sum()
        q /= q.sum()


def largest(n: int) -> Work:
    """To 1e-6, as in the README."""
    W = workloads.prefix(n, device=DEVICE)
    dense = W.dense()
    floors = {"one eigh": partial(torch.linalg.eigh, dense.mT @ dense)}
    return Work(lambda: factorize(W, tol=1e-6), 1, floors, {"numpy by hand": lambda: partial(by_hand, n)})


def many(batch: int, n: int) -> Work:
    W = torch.randn(
        batch, n, n, dtype=torch.float64, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0)
    )
    floors = {
        "one eigh each": partial(torch.linalg.eigh, W.mT @ W),
        "one product each": partial(torch.matmul, W, W),
    }
    few = W[: batch // 10 + 1]
    return Work(
        lambda: factorize(W), batch, floors, {"a loop": lambda: Part(lambda: [*map(factorize, few)], len(few))}
    )


def ranges(n: int) -> Work:
    W = workloads.all_ranges(n, device=DEVICE).dense()
    return Work(lambda: factorize(W), 1, {"one eigh": partial(torch.linalg.eigh, W.mT @ W)})


def step(path: Callable[[], Decomposed | Iterated], n: int, gap: float) -> Work:
    W = workloads.prefix(n, device=DEVICE).dense()
    weights, path = W.new_full((n,), 1 / n), path()
    if isinstance(path, Iterated):
        path.refine()  # float64: these gaps are below those of float32
    floors = {"one eigh": partial(torch.linalg.eigh, W.mT @ W), "one product": lambda: W @ W}
    return Work(partial(path.step, W[None], weights[None], weights[None], gap), 1, floors)


def certificate(n: int) -> Work:
    W = workloads.prefix(n, device=DEVICE).dense()
    found = factorize(W)
    run = partial(certify, W, found.left, found.right, found.row_weights, found.column_weights)
    return Work(run, 1, {"one eigh": partial(torch.linalg.eigh, W.mT @ W)})


def epochs(n: int) -> Work:
    W = workloads.prefix(n, device=DEVICE).dense()
    return Work(partial(factorize_epochs, W, n // 4), 1, {"one eigh": partial(torch.linalg.eigh, W.mT @ W)})


def cases(small: bool) -> Iterator[Case]:
    for n in (16,) if small else (64, 256, 512, *[4096] * (DEVICE.type == "cuda")):
        yield Case(f"factorize, prefix {n}, largest error to 1e-6", partial(largest, n))
        yield Case(f"factorize, prefix {n}, to 1e-3", partial(prefix, n, 1e-3))
    n, batch = (8, 4) if small else (32, 1000)
    yield Case(f"factorize, {batch} of {n} x {n}", partial(many, batch, n))
    yield Case(f"factorize, all ranges of [{2 * n}]", partial(ranges, 2 * n))
    yield Case("certify", partial(certificate, 16 if small else 256))
    for path, gap in ((Decomposed, math.inf), (Iterated, 1e-3), (Iterated, 1e-6)):
        name = f"one step, {path.__name__}" + f", gap {gap:g}" * (path is Iterated)
        yield Case(name, partial(step, path, 16 if small else 256, gap))
    yield Case("factorize_epochs, 4 epochs", partial(epochs, 16 if small else 128))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only factorization")
