"""Samplers from a counter, a draw for each of n users and 768 columns, beside torch's, numpy's and the words alone."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from floors import DEVICE, words
from harness import Case, Work
from torch import Tensor

from torchdp.kernels import inversion, truncated_normal
from torchdp.randomness import keyed_generator

COLUMNS = 768


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


def cases(small: bool) -> Iterator[Case]:
    users = 2 if small else 130
    for mean in (1e-6, 0.5, 100.0):
        yield Case(f"Poisson({mean:g})", partial(counts, users, False, mean))
    for r, p in ((1e-3, 0.9), (2.5, 0.5)):
        yield Case(f"NB({r:g}, {p:g})", partial(counts, users, False, r * p / (1 - p), r))
    yield Case("NB(0.001, 0.9), sums over users", partial(counts, users, True, 0.009, 1e-3))
    yield Case("normals of at least 2", partial(half_line, users))
