"""Samplers, a draw for each of n users and 768 columns, beside torch's, numpy's, OpenDP's and the words alone."""

import importlib
import os
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from floors import DEVICE, words
from harness import Case, Part, Run, Work
from torch import Tensor

from torchdp.kernels import inversion, truncated_normal
from torchdp.noise import Noise
from torchdp.randomness import keyed_generator
from torchdp.rounded import RoundedNormal

COLUMNS = 768
FEW = 1000  # integers of a slow peer


def full(users: int, value: float) -> Tensor:
    return torch.full((users, COLUMNS), value, dtype=torch.float64, device=DEVICE)


def counts(users: int, sums: bool, mean: float, shape: float | None = None) -> Work:
    """Poisson numbers of this mean; with a shape r negative binomial ones: a gamma-Poisson mixture."""
    generator, rng = keyed_generator(b"samplers", DEVICE), np.random.default_rng(0)
    size, chance = (users, COLUMNS), 0.0 if shape is None else mean / (mean + shape)
    table = (inversion.poisson(mean) if shape is None else inversion.negative_binomial(shape, chance)).to(DEVICE)
    draw = inversion.column_sums if sums else inversion.draws

    def by_numpy() -> np.ndarray:
        return rng.poisson(mean, size) if shape is None else rng.negative_binomial(shape, 1 - chance, size)

    def by_torch() -> Tensor:
        if shape is None:
            return torch.poisson(full(users, mean), generator=generator)
        rate = torch._standard_gamma(full(users, shape), generator=generator) * (chance / (1 - chance))
        return torch.poisson(rate, generator=generator)

    count, peers = users * COLUMNS, {"torch": lambda: by_torch, "numpy": lambda: by_numpy}
    return Work(lambda: draw(table, 1, users, COLUMNS), count, {"a word a draw": words(count)}, peers)


def half_line(users: int) -> Work:
    """Normals that are at least 2."""
    generator, count = keyed_generator(b"samplers", DEVICE), users * COLUMNS
    survival = 0.5 * torch.special.erfc(full(users, 2.0) / 2**0.5)

    def by_torch() -> Tensor:
        return -torch.special.ndtri(survival * torch.rand_like(survival, generator=generator))

    def ours() -> Tensor:
        return truncated_normal.draws(1, count, 2.0, device=DEVICE)

    return Work(ours, count, {"a word a draw": words(count)}, {"torch": lambda: by_torch})


def rounded(users: int, sigma: float) -> Work:
    """Integers round(sigma g) from the system's cipher; torch's and numpy's normals are floats, and not private."""
    normal, noise, size = RoundedNormal(sigma), Noise(DEVICE), (users, COLUMNS)
    generator, rng = keyed_generator(b"samplers", DEVICE), np.random.default_rng(0)

    def by_torch() -> Tensor:
        return torch.randn(size, dtype=torch.float64, device=DEVICE, generator=generator)

    def by_opendp() -> Run | Part:
        dp = importlib.import_module("opendp.prelude")
        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
        release, zeros = dp.m.make_gaussian(*space, scale=sigma), [0] * FEW
        return Part(lambda: release(zeros), FEW)

    peers = {
        "torch.randn, float64": lambda: by_torch,
        "numpy, float64": lambda: lambda: rng.normal(size=size),
        "opendp, integers": by_opendp,
        "normals of the cipher, float64": lambda: lambda: noise.normal(size),
    }
    count = users * COLUMNS
    return Work(lambda: normal.draw(size, noise), count, {"a word in four draws": words(-(-count // 4))}, peers)


def ciphered(count: int) -> Work:
    """Words of 64 bits of the system's cipher, into memory that is kept: what all that hides a user is made of."""
    noise, held, rng = (
        Noise(DEVICE),
        torch.empty(2**15, dtype=torch.int64, device=DEVICE),
        np.random.default_rng(0),
    )

    def ours() -> None:
        for first in range(0, count, len(held)):
            noise.fill(held[: count - first])

    peers = {
        "numpy, PCG64": lambda: lambda: rng.integers(-(2**63), 2**63, count),
        "os.urandom": lambda: lambda: os.urandom(8 * count),
    }
    return Work(ours, count, {"torch's random_": words(count)}, peers)


def cases(small: bool) -> Iterator[Case]:
    users = 2 if small else 130
    yield Case("words of the cipher", partial(ciphered, users * COLUMNS * 10))
    for mean in (1e-6, 0.5, 100.0):
        yield Case(f"Poisson({mean:g})", partial(counts, users, False, mean))
    for r, p in ((1e-3, 0.9), (2.5, 0.5)):
        yield Case(f"NB({r:g}, {p:g})", partial(counts, users, False, r * p / (1 - p), r))
    yield Case("NB(0.001, 0.9), sums over users", partial(counts, users, True, 0.009, 1e-3))
    yield Case("normals of at least 2", partial(half_line, users))
    for sigma in (4.0, 64.0, 1024.0, 1e5):
        yield Case(f"rounded normal, sigma = {sigma:g}", partial(rounded, users, sigma))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py --only samplers")
