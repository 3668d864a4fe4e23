"""Kernels of the difference of two points: their Fourier transforms, and what of their images reaches a box."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks

FAR = 50.0  # scales beyond which images of kernels with tails are below every rounding
MARGIN = 1e-13  # of a sum over images, relative: for what lies beyond, and for floats


@dataclass(frozen=True)
class StationaryKernel(ABC):
    """k(x, y) = k(z), z = x - y in R^d for any d: 0 <= k <= k(0) = 1, and k does not rise in any |z_i|.

    With a period L_i in each coordinate let k~(z) = sum_j k(z + j L), and c_m its Fourier coefficients, of which
    Poisson's summation formula says c_m = transform(2 pi m/L)/prod L. scale: > 0, in units of the data. ValueError.
    """

    scale: float
    nearest: ClassVar[float] = 0.3  # scales between a box and its images, at least

    def __post_init__(self) -> None:
        checks.keep(self, scale=checks.positive)

    @abstractmethod
    def k(self, z: Tensor) -> Tensor:
        """(..., d) -> (...)."""

    @abstractmethod
    def transform(self, w: Tensor) -> Tensor:
        """int k(z) cos<w, z> dz >= 0: (..., d) -> (...)."""

    @abstractmethod
    def images(self, sides: list[float], periods: list[float]) -> float:
        """An upper bound of k~(z) - k(z) over |z_i| <= sides_i < periods_i; exact to floats where sides are 0."""

    @abstractmethod
    def energy(self, periods: list[float]) -> float:
        """The mean of k~^2 over a period, sum_m c_m^2, to floats."""


class ProductKernel(StationaryKernel):
    """A product over the coordinates."""

    @abstractmethod
    def one(self, z: Tensor) -> Tensor:
        """The factor of one coordinate."""

    @abstractmethod
    def transform_of_one(self, w: Tensor) -> Tensor:
        """Its transform."""

    @abstractmethod
    def energy_of_one(self, period: float) -> float:
        """The mean of the squared sum of its images over a period."""

    def k(self, z: Tensor) -> Tensor:
        return self.one(z).prod(-1)

    def transform(self, w: Tensor) -> Tensor:
        return self.transform_of_one(w).prod(-1)

    def images(self, sides: list[float], periods: list[float]) -> float:
        """prod (f_i + r_i) - prod f_i <= prod (1 + r_i) - 1; r_i: near images as if z_i = side, others as if 0."""
        total = 1.0
        for side, period in zip(sides, periods, strict=True):
            far = period * multiples(FAR * self.scale, period)
            total *= 1 + float(self.one(far[1:] - side).sum() + self.one(far[1:]).sum()) * (1 + MARGIN)
        return total - 1

    def energy(self, periods: list[float]) -> float:
        return math.prod(self.energy_of_one(period) for period in periods) * (1 + MARGIN)


class Gaussian(ProductKernel):
    """k(z) = exp(-||z||^2/scale^2)."""

    def one(self, z: Tensor) -> Tensor:
        return (-(z / self.scale).square()).exp()

    def transform_of_one(self, w: Tensor) -> Tensor:
        return math.sqrt(math.pi) * self.scale * (-(w * self.scale / 2).square()).exp()

    def energy_of_one(self, period: float) -> float:
        """By the autocorrelation, a Gaussian of twice the variance, at the multiples of the period."""
        far = multiples(FAR * self.scale, period) * period
        return math.sqrt(math.pi / 2) * self.scale / period * (2 * float(self.one(far / math.sqrt(2)).sum()) - 1)


class Laplacian(ProductKernel):
    """k(z) = exp(-||z||_1/scale)."""

    def one(self, z: Tensor) -> Tensor:
        return (-z.abs() / self.scale).exp()

    def transform_of_one(self, w: Tensor) -> Tensor:
        return 2 * self.scale / (1 + (w * self.scale).square())

    def energy_of_one(self, period: float) -> float:
        """By the autocorrelation (scale + |t|) e^(-|t|/scale)."""
        far = multiples(FAR * self.scale, period) * period
        return (2 * float(((self.scale + far) * self.one(far)).sum()) - self.scale) / period


class ExponentialKernel(StationaryKernel):
    """k(z) = exp(-||z||/scale), in up to three dimensions."""

    nearest: ClassVar[float] = 2.0

    def k(self, z: Tensor) -> Tensor:
        return (-torch.linalg.vector_norm(z, dim=-1) / self.scale).exp()

    def transform(self, w: Tensor) -> Tensor:
        d = w.shape[-1]
        whole = 2**d * math.pi ** ((d - 1) / 2) * math.gamma((d + 1) / 2) * self.scale**d
        return whole / (1 + (w * self.scale).square().sum(-1)) ** ((d + 1) / 2)

    def images(self, sides: list[float], periods: list[float]) -> float:
        near = [
            (period * multiples(FAR * self.scale + side, period, both=True).abs() - side).clamp_min(0)
            for side, period in zip(sides, periods, strict=True)
        ]
        return float(self.k(torch.cartesian_prod(*near).view(-1, len(near))).sum() - 1) * (1 + MARGIN)

    def energy(self, periods: list[float]) -> float:
        """By the autocorrelation, int k^2 times Matern's function of smoothness d/2 + 1."""
        d = len(periods)
        far = [period * multiples(FAR * self.scale, period, both=True) for period in periods]
        r = torch.linalg.vector_norm(torch.cartesian_prod(*far).view(-1, d), dim=-1) / self.scale
        if d == 2:
            t = r.clamp_min(1e-9)
            bessel = torch.special.modified_bessel_k0(t) + 2 / t * torch.special.modified_bessel_k1(t)
            shape, whole = torch.where(r > 0, t.square() * bessel / 2, 1.0), math.pi / 2
        else:
            shape, whole = (1 + r + (d == 3) * r.square() / 3) * (-r).exp(), {1: 1.0, 3: math.pi}[d]
        return whole * self.scale**d / math.prod(periods) * float(shape.sum()) * (1 + MARGIN)


def multiples(reach: float, period: float, both: bool = False) -> Tensor:
    """0, 1, ... up to the first beyond ``reach`` in periods; both: negative ones too."""
    count = math.ceil(reach / period) + 1
    return torch.arange(-count if both else 0, count + 1, dtype=torch.float64)
