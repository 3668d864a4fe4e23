"""What a density may be chosen from: features, and the shape of their steps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import Features
from torchdp.density.inner_product import InnerProductFamily, InnerProductRotated
from torchdp.density.orthogonal import GaussianOrthogonal
from torchdp.density.stationary import Gaussian, StationaryKernel
from torchdp.density.waves import MOST_DIMENSIONS, Waves, lattices

COUNTS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of waves
ORTHOGONAL = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
ENOUGH = 0.05  # of a curator's error: waves whose bound is below need no more of them
CROWD = 1024  # users, spread over the box, by whom rounding is judged


@dataclass(frozen=True, eq=False)
class Plan:
    """Features with steps scale * shape, as a choice sees them.

    feature: their own squared error, of the mean or the worst query. gain: of R^2 g_j^2/I^2, (instances,). gamma: at
    scale 1. shares: f/R of a typical user. crowd: points of users by whom rounding is judged at last; None: ``shares``.
    """

    name: str
    features: Features
    feature: float
    gain: Tensor
    shape: Tensor
    gamma: float
    shares: Tensor
    crowd: Tensor | None = None


def plans(
    kernel: StationaryKernel | InnerProductFamily,
    box: Tensor | None,
    dimension: int | None,
    limit: float,
    mean: bool,
    generator: torch.Generator,
) -> Iterator[Plan]:
    """With ever more features; limit: a curator's error, about. Raises TypeError, ValueError."""
    checks.instance("kernel", kernel, (StationaryKernel, InnerProductFamily))
    if isinstance(kernel, InnerProductFamily):
        yield _products(kernel, generator)
        return
    if box is not None:
        corners = torch.as_tensor(box, dtype=torch.float64)
        dimension = corners.shape[-1] if corners.ndim == 2 else 1  # Waves refuses the rest
        if dimension <= MOST_DIMENSIONS:
            yield from _waves(Waves(kernel, corners), limit, mean, generator.device)
            return
    if dimension is None or not isinstance(kernel, Gaussian):
        raise ValueError(
            "box must be given, (2, d) public corners with d <= 3, or for a Gaussian kernel the dimension; of other "
            "kernels in more dimensions take a family, such as LaplacianSigns, and ShuffledKDE.calibrated"
        )
    family = GaussianOrthogonal(checks.integer("dimension", dimension, 1), kernel.scale)
    yield from _orthogonal(family, generator)


def _waves(family: Waves, limit: float, mean: bool, device: torch.device) -> Iterator[Plan]:
    low, high = torch.as_tensor(family.box, dtype=torch.float64, device=device)
    points = torch.quasirandom.SobolEngine(family.dimension).draw(CROWD, dtype=torch.float64).to(device)
    crowd = low + (high - low) * points
    for count in COUNTS:
        bounds = [one.average if mean else one.worst for one in lattices(family)]
        pairs = zip(lattices(family), bounds, strict=True)
        tried = ((one, float(each[min(count, len(each)) - 1])) for one, each in pairs)
        lattice, bound = min(tried, key=lambda pair: pair[1])
        features = lattice.features(family, count, device)
        weights = features.weights.cpu().repeat_interleave(2)
        shape = weights.abs().sqrt()
        yield Plan(
            f"{features.repetitions} waves", features, bound**2, weights.square() / 2, shape,
            features.gamma(shape), arc(), crowd,
        )  # fmt: skip
        if bound < ENOUGH * limit or features.repetitions < count:
            return


def _orthogonal(family: GaussianOrthogonal, generator: torch.Generator) -> Iterator[Plan]:
    """Feature term: that of independent waves, 1/(2 I) at far points, where near ones have less."""
    for count in ORTHOGONAL:
        features = family.draw(count, generator=generator)
        even = torch.full((2 * count,), 1.0, dtype=torch.float64)
        gain = even / (2 * float(count) ** 2)
        yield Plan(f"{count} orthogonal waves", features, 1 / (2 * count), gain, even, float(count), arc())


def _products(kernel: InnerProductFamily, generator: torch.Generator) -> Plan:
    """Coordinates that a rotation makes nearly normal, of deviation R/width."""
    family = kernel if isinstance(kernel, InnerProductRotated) else InnerProductRotated(kernel.dimension)
    features = family.draw(1, generator=generator)
    even = torch.ones(features.instances, dtype=torch.float64)
    normal = torch.special.ndtri((torch.arange(64, dtype=torch.float64) + 0.5) / 64)
    shares = (normal / (family.bound * math.sqrt(family.coordinates))).clamp(-1, 1)
    gain = even * family.bound**2 / len(even)
    name = f"{features.instances} rotated coordinates"
    return Plan(name, features, family.bias**2, gain, even, features.gamma(even), shares)


def arc() -> Tensor:
    """Cosines of uniform angles."""
    return ((torch.arange(64, dtype=torch.float64) + 0.5) * (math.pi / 64)).cos()
