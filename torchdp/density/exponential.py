"""The exponential kernel on a ball, by the parity of random hyperplanes."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import Family, SignFeatures, drawn, in_ball
from torchdp.draws import Simulated


@dataclass(frozen=True)
class Exponential(Family):
    """k(x, y) = exp(-||x - y||_2 / scale) on the ball of this radius: Q = S = R = 1, no bias, nothing rounded.

    f = g = the parity of the hyperplanes {z: <a, z> = t} that a point lies above: Poisson(L) of them, a uniform on the
    sphere, t uniform on [-radius, radius]. x and y are separated by Poisson(L c_d ||x - y||/(2 radius)) of them, c_d =
    E |a_1| = Gamma(d/2)/(sqrt(pi) Gamma((d + 1)/2)), and E (-1)^Poisson(m) = e^{-2m}: L = radius/(c_d scale).

    dimension >= 1; scale > 0; radius > 0: of the ball that holds users and queries. Raises ValueError.
    Source: after Indyk, Motwani (1998) in Wagner (2025), section 2.3; parity in the place of buckets as above.
    """

    bounded: ClassVar[bool] = True

    scale: float = 1.0
    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, scale=checks.positive, radius=checks.positive)

    @property
    def hyperplanes(self) -> float:
        """L: their expected number in one repetition."""
        d = self.dimension
        mean = math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)
        return self.radius / (mean * self.scale)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "ParityFeatures":
        repetitions, generator = drawn(repetitions, generator)
        device = generator.device
        rate = torch.full((repetitions,), self.hyperplanes, dtype=torch.float64, device=device)
        each = Simulated(generator).poisson(rate)
        owner = torch.repeat_interleave(torch.arange(repetitions, device=device), each)
        shape = (len(owner), self.dimension)
        normal = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        uniform = torch.rand(len(owner), dtype=torch.float64, device=device, generator=generator)
        normal /= torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
        return ParityFeatures(self, repetitions, normal, (2 * uniform - 1) * self.radius, owner)

    def inside(self, name: str, points: Tensor) -> Tensor:
        return in_ball(name, points, self.radius, "the radius; scale them, or state a larger one")

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / self.scale)


@dataclass(frozen=True, eq=False)
class ParityFeatures(SignFeatures):
    """normals: (hyperplanes, d); thresholds and owner, the repetition of each: (hyperplanes,)."""

    normals: Tensor
    thresholds: Tensor
    owner: Tensor

    @property
    def numbers(self) -> int:
        return max(self.instances, len(self.owner))

    def positive(self, x: Tensor) -> Tensor:
        above = (x @ self.normals.to(x).mT > self.thresholds.to(x)).to(torch.int32)
        total = torch.zeros(len(x), self.repetitions, dtype=torch.int32, device=x.device)
        return total.index_add_(1, self.owner.to(x.device), above) % 2 == 0
