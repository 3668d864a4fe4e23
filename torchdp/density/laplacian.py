"""The Laplacian kernel, by random binning and hashing of the bins."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.bins import Grid
from torchdp.density.family import Family, Features, OneTermFamily, SignFeatures, drawn


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
        object.__setattr__(self, "scale", checks.positive("scale", self.scale))

    @property
    def support(self) -> int:
        return 1

    def query_moment(self, y: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(self.queries(y)[:, 0])

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
class LaplacianSigns(LaplacianFamily, OneTermFamily):
    """f = g = a random sign of the point's bin: Q = S = R = 1, no bias, one bit without rounding.

    Different bins have independent signs, so E f(x) g(y) = P(same bin) = exp(-||x - y||_1 / scale).
    dimension >= 1, scale > 0. Raises ValueError.
    Source: Rahimi, Recht (2007), random binning, with a sign for each bin.
    """

    def cross_moment(self, x: Tensor, other: Tensor, y: Tensor) -> Tensor:
        """k(x, other), since g^2 = 1."""
        together = torch.exp(-(x - other).abs().sum(-1) / self.scale)
        return together.expand(torch.broadcast_shapes(together.shape, y.shape[:-1]))

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


@dataclass(frozen=True)
class LaplacianBuckets(LaplacianFamily):
    """f = g = the indicator of the bucket that the point's bin is hashed to: Q = buckets, S = R = 1, bias 1/buckets.

    E <f(x), g(y)> = k + (1 - k)/buckets. LaplacianSigns is better in everything: for comparison with the paper.
    dimension >= 1, scale > 0; buckets: a power of two, at least 2. Raises ValueError.
    Source: Wagner (2025), section 2.3, after Indyk, Motwani (1998).
    """

    buckets: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        buckets = checks.integer("buckets", self.buckets, 2)
        if buckets & (buckets - 1) or buckets > 2**20:
            raise ValueError(f"buckets must be a power of two, at most 2^20, not {buckets}")
        object.__setattr__(self, "buckets", buckets)

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

    def mean(self, x: Tensor, y: Tensor) -> Tensor:
        """E <f(x_u), g(y_v)>: (*batch, n, d), (*batch, q, d) -> (*batch, n, q)."""
        kernel = self.kernel(x, y)
        return kernel + (1 - kernel) / self.buckets

    def variance(self, x: Tensor, y: Tensor) -> Tensor:
        """Variance of <f(x_u), g(y_v)>, one repetition: (n, d), (q, d) -> (n, q)."""
        mean = self.mean(x, y)
        return mean * (1 - mean)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "BucketFeatures":
        return BucketFeatures(self, repetitions, self._grid(repetitions, generator))


@dataclass(frozen=True, eq=False)
class BucketFeatures(Features):
    """The top bits of the hash name the bucket."""

    family: LaplacianBuckets
    grid: Grid

    def f(self, x: Tensor) -> Tensor:
        buckets = self.family.buckets
        hit = (self.grid.hash(x) >> (65 - buckets.bit_length())) & (buckets - 1)
        return (
            torch.zeros(*hit.shape, buckets, dtype=x.dtype, device=x.device)
            .scatter_(-1, hit[..., None], 1)
            .flatten(1)
        )
