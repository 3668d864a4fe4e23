"""Random features of n unit vectors rounded to bits and counted, beside their matrix product."""

from functools import partial

import numpy as np
import torch
from floors import DEVICE, unit_vectors
from harness import Case, Work

from torchdp.density import GaussianFourier, GaussianSquareWave, LaplacianSigns
from torchdp.draws import Simulated
from torchdp.randomness import keyed_generator

PART = 1365  # rows of a part
FAMILIES = {
    "Fourier": GaussianFourier,
    "square waves": GaussianSquareWave,
    "Laplacian signs": LaplacianSigns,
}


def at_once(x, w, b, generator):
    """All features in memory."""
    uniform = torch.rand(len(x), w.shape[1], device=x.device, generator=generator)
    chances = (1 + torch.addmm(b, x, w).cos_()) / 2
    return (chances > uniform).sum(0)


def by_numpy(x, w, b, rng):
    """In blocks of 4000 users."""
    total = np.zeros(w.shape[1], dtype=np.int64)
    for start in range(0, len(x), 4000):
        waves = np.cos(x[start : start + 4000] @ w + b)
        uniform = rng.random(waves.shape, dtype=np.float32)
        total += (uniform < np.float32(0.5) * (1 + waves)).sum(0)
    return total


def ones(family, n, d):
    generator = keyed_generator(b"features", DEVICE)
    features = FAMILIES[family](d).draw(d, generator=generator)
    draws = Simulated(generator)
    x = unit_vectors(n, d)
    w = torch.randn(d, d, device=DEVICE)
    b = torch.zeros(d, device=DEVICE)
    host = [tensor.cpu().numpy() for tensor in (x, w, b)]
    floors = {"matrix product": lambda: [part @ w for part in x.split(PART)]}
    peers = {}
    if family == "Fourier":
        peers = {
            "torch, n x I at once": lambda: partial(at_once, x, w, b, generator),
            "numpy": lambda: partial(by_numpy, *host, np.random.default_rng(0)),
        }
    return Work(lambda: features.ones(x, draws, ()), n, floors, peers)


def cases(small):
    d, n = (16, 100) if small else (768, 4096)
    for family in FAMILIES:
        some = n // 16 if family == "Laplacian signs" else n
        yield Case(f"{family}, d = I = {d}", partial(ones, family, some, d))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only features")
