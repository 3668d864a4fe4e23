"""What tests share: two-sample tests on atoms that rounding split, z-scores, divergences of laws,
generators, files.
"""

import io
import itertools
import math
import sys
from collections.abc import Iterable
from functools import reduce
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from torchdp.kernels.secure_sketch import reference
from torchdp.noise import Noise, SeededNoise
from torchdp.randomness import keyed_generator

# level of every statistical test
UNLIKELY = 1e-6


class Given(Noise):
    """A user's noise whose words are put in by hand, one after the other, and then those of a
    seed.
    """

    def __init__(self, words: Iterable[int]) -> None:
        super().__init__()
        self.left = [word % 2**64 - (word % 2**64 >> 63 << 64) for word in words]
        self.more = SeededNoise(0)

    def fill(self, words: Tensor) -> None:
        first = self.left[: len(words)]
        self.left = self.left[len(words) :]
        words[: len(first)] = torch.tensor(first, dtype=torch.int64)
        if len(first) < len(words):
            self.more.fill(words[len(first) :])


def keyed_normals(key: Tensor, first: int, count: int) -> Tensor:
    """The normals that a secure sketch rounds, entries first, ..., first + count - 1: (count,)
    float64.
    """
    radius, angle, start = reference._polar(key, first, count)
    return reference._across(radius, angle)[first - start :][:count]


def executed(path: Path, name: str | None = None, *, registered: bool = False) -> ModuleType:
    """A file as a module of its own; registered where its dataclasses look for their module."""
    spec = spec_from_file_location(name or path.stem, path)
    module = module_from_spec(spec)
    if registered:
        sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stored(state: Any) -> Any:
    """What ``torch.load`` reads by default of what ``torch.save`` wrote."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def sampled(runs: int, key: int | bytes) -> dict[str, Any]:
    """Arguments of ``sample_estimate``: so many runs, the same for the same seed, or name."""
    source = generator(key) if isinstance(key, int) else keyed_generator(key)
    return {"generator": source, "sample_shape": (runs,)}


def float64(values: Any) -> Tensor:
    """A tensor of these numbers in double precision, whatever the default is."""
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0, name: bytes | None = None) -> Tensor:
    """Standard normals in float64, the same for the same seed, or name."""
    source = generator(seed) if name is None else keyed_generator(name)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def uniform(*shape: int, seed: int = 0, name: bytes | None = None) -> Tensor:
    """Uniform numbers in float64, the same for the same seed, or name."""
    source = generator(seed) if name is None else keyed_generator(name)
    return torch.rand(*shape, dtype=torch.float64, generator=source)


def ball(n: int, d: int, seed: int = 1) -> Tensor:
    """Points in the unit ball."""
    return torch.nn.functional.normalize(normal(n, d, seed=seed), dim=1) * uniform(
        n, 1, seed=seed + 1
    )


def counts_of(weights: Tensor, n: float) -> Tensor:
    """How many users hold each type, about n of them in all, their shares as these weights."""
    return (weights / weights.sum() * n).round().long()


def coverage(interval: tuple[Tensor, Tensor], truth: Tensor | float) -> float:
    """The share of intervals that hold the truth."""
    low, high = interval
    return float(((low <= truth) & (truth <= high)).double().mean())


def log_ratio(rows: Tensor) -> float:
    """The largest log ratio within a row: the epsilon that a matrix (outputs, types) spends."""
    return float((rows.amax(1) / rows.amin(1)).log().max())


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The hockey-stick divergence of p from q at epsilon: sum max(0, p - e^epsilon q)."""
    excess = p - math.exp(epsilon) * q
    return float(np.maximum(excess, 0).sum())


def hockey_sticks(p: np.ndarray, q: np.ndarray, epsilons: Iterable[float]) -> np.ndarray:
    return np.array([hockey_stick(p, q, epsilon) for epsilon in epsilons])


def worst_pair(epsilon: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """The pair of output laws that every (epsilon, delta)-DP pair can be obtained from."""
    p = np.array([delta, (1 - delta) * math.exp(epsilon), 1 - delta, 0.0])
    p[1:3] /= 1 + math.exp(epsilon)
    return p, p[::-1]


def product_pair(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The product distributions of independent pairs, all their outcomes written out."""
    sides = zip(*pairs, strict=True)
    p, q = [np.array([math.prod(x) for x in itertools.product(*side)]) for side in sides]
    return p, q


def bits_law(chances: Iterable[float]) -> np.ndarray:
    """Law of a sum of independent bits, of their chances."""
    return reduce(
        np.convolve,
        [np.array([1 - chance, chance]) for chance in chances],
        np.ones(1),
    )


def shifted(law: np.ndarray, plus: int, minus: int | None = None) -> np.ndarray:
    """Counts moved up, rows by ``plus`` and, where there are any, columns by ``minus``."""
    moved = np.zeros_like(law)
    if minus is None:
        moved[plus:] = law[: len(law) - plus]
    else:
        rows = len(law) - plus
        moved[plus:, minus:] = law[:rows, : law.shape[1] - minus]
    return moved


def shift_delta(law: np.ndarray, shift: tuple[int, ...], epsilon: float) -> float:
    """max over both orders of sum_x max(0, p(x) - e^epsilon p(x - shift)), any number of
    coordinates.
    """
    widths = [(abs(v), abs(v)) for v in shift]
    here = np.pad(law, widths)
    there = np.roll(here, shift, axis=tuple(range(law.ndim)))
    scale = math.exp(epsilon)
    ways = here - scale * there, there - scale * here
    return max(np.maximum(excess, 0).sum() for excess in ways)


def thresholds(table: Any) -> list[int]:
    """A table's T_1, T_2, ... as integers, its filling left out."""
    numbers = [a << 96 | b << 64 | c << 32 | d for a, b, c, d in table.words.T.tolist()]
    return numbers[: table.length]


def byte_chi_square(words: Tensor) -> float:
    """The largest chi-square statistic of the words' byte positions, 255 degrees of freedom
    each.
    """
    flat = words.flatten()[:, None]
    octets = flat.contiguous().view(torch.uint8)
    counts = torch.stack([torch.bincount(column.long(), minlength=256) for column in octets.T])
    expected = len(octets) / 256
    squares = (counts - expected) ** 2
    return float((squares / expected).sum(1).max())


def overlap(one: Any, two: Any, room: float = 1e-12) -> bool:
    """Whether two certificates, with ``lower`` and ``upper``, may speak of one number."""
    meet = (one.lower <= two.upper * (1 + room)) & (two.lower <= one.upper * (1 + room))
    return bool(torch.as_tensor(meet).all())


def one_law(one: Tensor, two: Tensor, axes: int = 3) -> bool:
    """Do the rows of (a, ...) and (b, ...) come from one distribution? Along random axes and the first two
    entries.
    """
    one = one.double().reshape(len(one), -1)
    two = two.double().reshape(len(two), -1)
    width = one.shape[1]
    along = [torch.randn(width, axes, dtype=torch.float64, generator=generator(2))]
    along.append(torch.eye(width, min(width, 2), dtype=torch.float64))
    for axis in torch.cat(along, 1).mT:
        a = one @ axis
        b = two @ axis
        a, b = rounded(torch.cat([a, b])).split([len(a), len(b)])
        variance = a.var() / len(a) + b.var() / len(b)
        z = float((a.mean() - b.mean()) / variance.sqrt().clamp_min(1e-12))
        if abs(z) > 6 or ks_2samp(a, b, method="asymp").pvalue < UNLIKELY:
            return False
    return True


def rounded(values: Tensor) -> Tensor:
    """Atoms that differ in the last bits only become one."""
    scale = float(values.abs().max())
    return values if scale == 0 else (values / scale).round(decimals=9)


def z_scores(samples: Tensor, expected: Tensor) -> Tensor:
    """(samples.mean(0) - expected) in standard errors."""
    deviation = samples.std(0) / math.sqrt(len(samples))
    return (samples.mean(0) - expected) / deviation.clamp_min(1e-12)
