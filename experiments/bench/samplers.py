"""Rounded normals, a draw for each of n users and 768 columns, beside torch, numpy, OpenDP and the
words alone.
"""

import importlib
from functools import partial

import numpy as np
import torch
from floors import DEVICE, words
from harness import Case, Part, Run, Work

from torchdp.noise import Noise
from torchdp.randomness import keyed_generator
from torchdp.rounded import RoundedNormal

COLUMNS = 768
FEW = 1000  # integers of a slow peer


def rounded(users, sigma):
    """Integers round(sigma g) from the system's cipher; torch's and numpy's are not private."""
    normal = RoundedNormal(sigma)
    noise = Noise(DEVICE)
    size = (users, COLUMNS)
    generator = keyed_generator(b"samplers", DEVICE)
    rng = np.random.default_rng(0)
    by_torch = partial(torch.randn, size, device=DEVICE, generator=generator)

    def by_opendp() -> Run | Part:
        dp = importlib.import_module("opendp.prelude")
        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
        release = dp.m.make_gaussian(*space, scale=sigma)
        return Part(partial(release, [0] * FEW), FEW)

    peers = {
        "torch.randn, float64": lambda: partial(by_torch, dtype=torch.float64),
        "torch.randn, float32": lambda: by_torch,
        "numpy, float64": lambda: partial(rng.normal, size=size),
        "opendp, integers": by_opendp,
        "normals of the cipher, float64": lambda: partial(noise.normal, size),
    }
    count = users * COLUMNS
    floors = {"a word in four draws": words(-(-count // 4))}
    return Work(lambda: normal.draw(size, noise), count, floors, peers)


def cases(small):
    users = 2 if small else 130
    for sigma in (4.0, 64.0, 1024.0, 1e5):
        yield Case(f"rounded normal, sigma = {sigma:g}", partial(rounded, users, sigma))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only samplers")
