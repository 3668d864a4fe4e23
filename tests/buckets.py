"""A family of more coordinates than it uses: the Laplacian kernel by hashed buckets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.density.family import Features
from torchdp.density.laplacian import Grid, LaplacianSigns


@dataclass(frozen=True)
class LaplacianBuckets(LaplacianSigns):
    """f = g = the indicator of the bucket that the point's bin is hashed to: S = R = 1, bias
    1/buckets.

    E <f(x), g(y)> = k + (1 - k)/buckets; buckets: a power of two.
    Source: Wagner (2025), section 2.3, after Indyk, Motwani (1998).
    """

    buckets: int = 16

    @property
    def coordinates(self) -> int:
        return self.buckets

    @property
    def movement(self) -> float:
        """Two bits, each between sure and a coin."""
        return 0.5

    @property
    def bias(self) -> float:
        return 1 / self.buckets

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "BucketFeatures":
        return BucketFeatures(self, repetitions, self._grid(repetitions, generator))


@dataclass(frozen=True, eq=False)
class BucketFeatures(Features):
    family: LaplacianBuckets
    grid: Grid

    def f(self, x: Tensor) -> Tensor:
        count = self.family.buckets
        # the first bits of 64, for a power of two of them
        hit = (self.grid.hash(x) >> (65 - count.bit_length())) & (count - 1)
        rows = torch.nn.functional.one_hot(hit, count).to(x.dtype)
        return rows.flatten(1)
