"""The Gaussian kernel, by random Fourier features and by their square waves."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import Family, Features, SignFeatures, drawn
from torchdp.density.rounding import TURN, fused, fused_ones, fused_positive
from torchdp.draws import Simulated


@dataclass(frozen=True)
class GaussianKernel(Family):
    """k(x, y) = exp(-||x - y||^2 / bandwidth^2), from normal frequencies w ~ N(0, 2/bandwidth^2 I): no bias."""

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, bandwidth=checks.positive)

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-squared_distances(x, y) / self.bandwidth**2)

    def _waves(self, repetitions: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent frequencies (d, repetitions) and phases (repetitions,)."""
        repetitions, generator = drawn(repetitions, generator)
        shape = (self.dimension, repetitions)
        normal = torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator)
        turns = torch.rand(repetitions, dtype=torch.float64, device=generator.device, generator=generator)
        return normal * (math.sqrt(2) / self.bandwidth), turns * (2 * math.pi)


@dataclass(frozen=True)
class GaussianFourier(GaussianKernel):
    """f(x) = g(x) = sqrt(2) cos(<w, x> + b), b uniform on [0, 2 pi): Q = S = 1, R = sqrt(2), no bias.

    exp(-||x - y||^2 / bandwidth^2); dimension >= 1, bandwidth > 0. Raises ValueError.
    Source: Rahimi, Recht (2007); Wagner (2025), section 2.3.
    """

    @property
    def bound(self) -> float:
        return math.sqrt(2)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "FourierFeatures":
        return FourierFeatures(self, repetitions, *self._waves(repetitions, generator))


@dataclass(frozen=True, eq=False)
class FourierFeatures(Features):
    """frequencies: (d, repetitions); phases: (repetitions,)."""

    frequencies: Tensor
    phases: Tensor

    def f(self, x: Tensor) -> Tensor:
        return self.share(x).mul_(self.bound)

    def share(self, x: Tensor) -> Tensor:
        return waves(x, self.frequencies, self.phases)

    def class_ones(
        self, x: Tensor, labels: Tensor, classes: int, draws: Simulated, shape: tuple[int, ...]
    ) -> Tensor:
        if not fused(x):
            return super().class_ones(x, labels, classes, draws, shape)
        return fused_ones(x, self.frequencies, self.phases[None], labels, classes, draws, shape)


@dataclass(frozen=True)
class GaussianSquareWave(GaussianKernel):
    """f(x) = sign cos(<w, x> + b), g(y) = (pi/2) cos(<w, y> + b), b uniform on [0, 2 pi): Q = S = R = 1, no bias.

    The square wave is (4/pi)(cos t - cos(3t)/3 + cos(5t)/5 - ...), and over the phase b all its terms but the first
    are orthogonal to g: E f(x) g(y) = (pi/2)(4/pi)(1/2) E cos <w, x - y> = k(x, y). Only f needs a bound; among all f
    in [-1, 1] the square wave has the largest first coefficient, so E g^2 = pi^2/8 is the least that cosines allow.
    A sign is one bit already: against GaussianFourier nothing is rounded, and the variance of the privacy noise is
    pi^2/16 = 0.62 times.

    exp(-||x - y||^2 / bandwidth^2); dimension >= 1, bandwidth > 0. Raises ValueError.
    Source: Schellekens, Jacques (2020), asymmetric random periodic features.
    """

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "SquareWaveFeatures":
        return SquareWaveFeatures(self, repetitions, *self._waves(repetitions, generator))


@dataclass(frozen=True, eq=False)
class SquareWaveFeatures(SignFeatures):
    """frequencies: (d, repetitions); phases: (repetitions,)."""

    frequencies: Tensor
    phases: Tensor

    def positive(self, x: Tensor) -> Tensor:
        frequencies, phases = (each.to(x) / TURN for each in (self.frequencies, self.phases))
        turns = torch.addmm(phases, x, frequencies)
        return turns.sub_(turns.round()).abs_() < 0.25  # where the cosine is positive, without one

    def class_ones(
        self, x: Tensor, labels: Tensor, classes: int, draws: Simulated, shape: tuple[int, ...]
    ) -> Tensor:
        if not fused(x):
            return super().class_ones(x, labels, classes, draws, shape)
        ones = fused_positive(x, self.frequencies, self.phases[None], labels, classes)
        return ones.expand(*shape, *ones.shape)

    def g(self, y: Tensor) -> Tensor:
        return waves(y, self.frequencies, self.phases).mul_(math.pi / 2)


def waves(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """cos(<w_i, x> + b_i): (n, d) -> (n, repetitions). An angle that overflows counts as 0."""
    return torch.addmm(phases.to(x), x, frequencies.to(x)).nan_to_num_(0.0, 0.0, 0.0).cos_()


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_u - y_v||^2: (*batch, n, d), (*batch, q, d) -> (*batch, n, q)."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
