"""The Laplacian kernel, by random binning and hashing of the bins."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.bins import Grid
from torchdp.density.family import Family, SignFeatures, drawn


@dataclass(frozen=True)
class LaplacianFamily(Family):
    """k(x, y) = exp(-||x - y||_1 / scale): the chance that x and y fall into one bin of a random grid.

    In each dimension bins have a width w ~ Gamma(2, scale) and an offset uniform on [0, w): two points at distance t
    share one with probability E (1 - t/w)_+ = e^{-t/scale}.
    Source: Rahimi, Recht (2007), random binning.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, scale=checks.positive)

    support = 1

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, y, p=1) / self.scale)

    def _grid(self, repetitions: int, generator: torch.Generator) -> Grid:
        repetitions, generator = drawn(repetitions, generator)
        shape = (self.dimension, repetitions)
        u = torch.rand((3, *shape), dtype=torch.float64, device=generator.device, generator=generator)
        widths = -self.scale * (torch.log1p(-u[0]) + torch.log1p(-u[1]))
        keys = torch.empty((2, *shape), dtype=torch.int64, device=generator.device)
        keys.random_(-(2**63), None, generator=generator)
        return Grid(widths.clamp_min_(1e-12 * self.scale), u[2], keys)


@dataclass(frozen=True)
class LaplacianSigns(LaplacianFamily):
    """f = g = a random sign of the point's bin: Q = S = R = 1, no bias, one bit without rounding.

    Different bins have independent signs, so E f(x) g(y) = P(same bin) = exp(-||x - y||_1 / scale).
    dimension >= 1, scale > 0. Raises ValueError.
    Source: Rahimi, Recht (2007), random binning, with a sign for each bin.
    """

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "BinSignFeatures":
        return BinSignFeatures(self, repetitions, self._grid(repetitions, generator))


@dataclass(frozen=True, eq=False)
class BinSignFeatures(SignFeatures):
    """The top bit of the hash."""

    grid: Grid

    def positive(self, x: Tensor) -> Tensor:
        return self.over(x)(x)

    def over(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return self.grid.reader(x)
