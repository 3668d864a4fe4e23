"""Vectors of the unit ball, epsilon = 1: every user's message made and added up, beside its normals
alone.

Published code for the same messages is a side of the league (``experiments/league/run.py``).
"""

from functools import partial

import torch
from floors import DEVICE, normals, unit_vectors
from harness import Case, Work

from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator

EPSILON = 1.0
TYPES = 100


def collect(n, d, dtype):
    """Users by themselves."""
    randomizer = PrivUnit(d, EPSILON)
    x = unit_vectors(n, d, dtype)
    noise = SeededNoise(1, DEVICE)
    floors = {"float64 normals": normals(n, d + 1)}
    return Work(lambda: randomizer.collect(x, noise=noise), n, floors)


def of_types(n, d):
    """Users in 100 types."""
    randomizer = PrivUnit(d, EPSILON)
    x = unit_vectors(TYPES, d)
    noise = SeededNoise(1, DEVICE)
    counts = torch.full((TYPES,), n // TYPES, device=DEVICE)
    floors = {"float64 normals": normals(n, d + 1)}
    return Work(lambda: randomizer.collect_crowd(x, counts, noise), n, floors)


def drawn(n, d):
    """The sum over n users at once, beside one normal vector for each of their types."""
    randomizer = PrivUnit(d, EPSILON)
    generator = keyed_generator(b"vectors", DEVICE)
    crowd = Crowd(unit_vectors(TYPES, d), torch.full((TYPES,), n // TYPES, device=DEVICE))
    floors = {"a normal vector a type": normals(TYPES, d)}
    return Work(lambda: randomizer.sample_tally(crowd, generator=generator), 1, floors)


def cases(small):
    n = 300 if small else 20_000
    for dtype in (torch.float32, torch.float64):
        name = str(dtype)[6:]
        yield Case(f"PrivUnit.collect, d = 256, {name}", partial(collect, n, 256, dtype))
    for d in (64, 256):
        yield Case(f"PrivUnit, 100 types, d = {d}", partial(of_types, 20 * n * 16 // d, d))
    for many in (10**9,) if small else (10**4, 10**6, 10**9):
        yield Case(f"PrivUnit.sample_tally, {many:.0e} users", partial(drawn, many, 256))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only vectors")
