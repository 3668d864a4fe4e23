"""The Gaussian kernel by orthogonal frequencies, each with its cosine and its sine."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.density.family import Features, drawn
from torchdp.density.gaussian import GaussianKernel
from torchdp.density.rounding import fused, fused_ones
from torchdp.draws import Simulated


@dataclass(frozen=True)
class GaussianOrthogonal(GaussianKernel):
    """f(x) = g(x) = (cos <w, x>, sin <w, x>): Q = S = 2, R = 1, no bias; frequencies of one draw are orthogonal.

    <f(x), g(y)> = cos <w, x - y>, and E cos <w, x - y> = exp(-||x - y||^2/bandwidth^2) for w = (sqrt(2)/bandwidth) r u,
    r^2 chi-squared of d degrees, u uniform on the sphere: a normal frequency. The u of up to d repetitions are the
    columns of one Haar orthogonal matrix, so sum_i <u_i, x - y>^2 is nearly fixed and the mean over the repetitions
    varies much less than that of independent frequencies; beyond d repetitions, further matrices. Against
    GaussianFourier at the same number of bits: no random phase, which adds variance, and errors of the frequencies that
    cancel. What is known in closed form is each repetition's moments, not those of the mean.

    dimension >= 1; bandwidth > 0. Raises ValueError.
    Source: Yu, Suresh, Choromanski, Holtmann-Rice, Kumar (2016), orthogonal random features.
    """

    @property
    def coordinates(self) -> int:
        return 2

    @property
    def bound(self) -> float:
        return 1.0

    @property
    def support(self) -> int:
        return 2

    @property
    def movement(self) -> float:
        """A point of the circle moves by 2 at most: (f - f')^2/4 adds up to 1, not 2, in each repetition."""
        return 1.0

    def query_moment(self, y: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(self.queries(y)[:, 0])

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "OrthogonalFeatures":
        repetitions, generator = drawn(repetitions, generator)
        d, blocks = self.dimension, -(-repetitions // self.dimension)
        normal = torch.randn(blocks, d, d, dtype=torch.float64, device=generator.device, generator=generator)
        q, r = torch.linalg.qr(normal)
        directions = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).transpose(0, 1).flatten(1)[:, :repetitions]
        squares = 2 * torch._standard_gamma(normal.new_full((repetitions,), d / 2), generator=generator)
        frequencies = directions * squares.sqrt() * (math.sqrt(2) / self.bandwidth)
        return OrthogonalFeatures(self, repetitions, frequencies)


@dataclass(frozen=True, eq=False)
class OrthogonalFeatures(Features):
    """frequencies: (d, repetitions). Numbers 2 i and 2 i + 1 are the cosine and the sine of repetition i."""

    frequencies: Tensor

    def f(self, x: Tensor) -> Tensor:
        angles = (x @ self.frequencies.to(x)).nan_to_num_(0.0, 0.0, 0.0)  # overflow too must stay on the circle
        return torch.stack([angles.cos(), angles.sin()], -1).flatten(-2)

    def g(self, y: Tensor) -> Tensor:
        return self.f(y)

    def class_ones(
        self, x: Tensor, labels: Tensor, classes: int, draws: Simulated, shape: tuple[int, ...]
    ) -> Tensor:
        if not fused(x):
            return super().class_ones(x, labels, classes, draws, shape)
        phases = self.frequencies.new_tensor([[0.0], [-math.pi / 2]]).expand(2, self.repetitions)
        return fused_ones(x, self.frequencies, phases, labels, classes, draws, shape)
