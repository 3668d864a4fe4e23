"""Vectors of the unit ball, epsilon = 1: every user's message made and added up, beside its normals alone."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from floors import DEVICE, normals, unit_vectors
from harness import Case, Part, Work

from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator

EPSILON, TYPES = 1.0, 100


def published(points: np.ndarray) -> Part:
    """PrivUnitG of github.com/apple/ml-projunit, from the checkout that the variable PROJUNIT names; one by one."""
    sys.path.insert(0, os.environ.get("PROJUNIT", "."))
    import PrivUnitAlgs as peer

    p = peer.priv_unit_G_get_p(EPSILON)
    gamma, sigma = peer.get_gamma_sigma(p, EPSILON)
    unit = points[:300] / np.linalg.norm(points[:300], axis=1, keepdims=True)
    return Part(lambda: sum(peer.PrivUnitG(x, EPSILON, p, gamma, sigma) for x in unit), len(unit))


def collect(kind: Callable[..., object], n: int, d: int, dtype: torch.dtype) -> Work:
    """Users by themselves."""
    randomizer, x, noise = kind(d, EPSILON), unit_vectors(n, d, dtype), SeededNoise(1, DEVICE)
    host = x.double().cpu().numpy()
    peers = {"ml-projunit, PrivUnitG": lambda: published(host)}
    floors = {"float64 normals": normals(n, d + 1)}
    return Work(lambda: randomizer.collect(x, noise=noise), n, floors, peers if kind is PrivUnit else {})


def of_types(n: int, d: int) -> Work:
    """Users in 100 types."""
    randomizer, x, noise = PrivUnit(d, EPSILON), unit_vectors(TYPES, d), SeededNoise(1, DEVICE)
    counts = torch.full((TYPES,), n // TYPES, device=DEVICE)
    return Work(lambda: randomizer.collect_crowd(x, counts, noise), n, {"float64 normals": normals(n, d + 1)})


def drawn(kind: Callable[..., object], n: int, d: int) -> Work:
    """The sum over n users at once, beside one normal vector for each of their types."""
    randomizer, generator = kind(d, EPSILON), keyed_generator(b"vectors", DEVICE)
    crowd = Crowd(unit_vectors(TYPES, d), torch.full((TYPES,), n // TYPES, device=DEVICE))
    floors = {"a normal vector a type": normals(TYPES, d)}
    return Work(lambda: randomizer.sample_tally(crowd, generator=generator), 1, floors)


def source(n: int, d: int, dtype: torch.dtype) -> Work:
    noise = SeededNoise(1, DEVICE)
    floors = {"torch.randn": normals(n, d, dtype)}
    return Work(lambda: noise.normal((n, d), dtype), n * d, floors)


def cases(small: bool) -> Iterator[Case]:
    n = 300 if small else 20_000
    for dtype in (torch.float32, torch.float64):
        name = str(dtype)[6:]
        yield Case(f"SeededNoise.normal, {name}", partial(source, n // 10, 256, dtype))
        yield Case(f"PrivUnit.collect, d = 256, {name}", partial(collect, PrivUnit, n, 256, dtype))
    for d in (64, 256):
        yield Case(f"PrivUnit, 100 types, d = {d}", partial(of_types, 20 * n * 16 // d, d))
    for many in (10**9,) if small else (10**4, 10**6, 10**9):
        yield Case(f"PrivUnit.sample_tally, {many:.0e} users", partial(drawn, PrivUnit, many, 256))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only vectors")
