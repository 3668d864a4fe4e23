"""Randomizers whose message is a scaled random point of the lifted sphere, symmetric about the user's own point."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.kernels import philox, privunit
from torchdp.kernels.dispatch import fuses
from torchdp.randomizers.ball import BallRandomizer
from torchdp.randomizers.normals import normals_like
from torchdp.randomizers.sphere_sums import sphere_sums

USERS_AT_ONCE = 2**22  # whose T, sqrt(1 - T^2) and g0 a fused sum holds


@dataclass(frozen=True)
class SphereRandomizer(BallRandomizer):
    """Y = radius (T u + sqrt(1 - T^2) w)/E T without its last coordinate, w uniform on the unit sphere across u.

    u = (x', sqrt(1 - ||x'||^2)), x' = x / radius, lies on the unit sphere of R^{dim + 1}.
    """

    @property
    @abstractmethod
    def _mean(self) -> float:
        """E T."""

    @abstractmethod
    def _draw(self, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent copies of (T, sqrt(1 - T^2)), float64."""

    def _messages(self, users: Tensor, generator: torch.Generator) -> Tensor:
        draws = self._draws(users, generator)
        return privunit.message(users, *draws, radius=self.radius, mean=self._mean)

    def _total(self, points: Tensor, types: Tensor, generator: torch.Generator) -> Tensor:
        users = points.index_select(0, types)
        draws = self._draws(users, generator)
        return privunit.total(users, *draws, radius=self.radius, mean=self._mean)

    def _draws(self, users: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        normals, lift = normals_like(users, generator), normals_like(users[:, 0], generator)
        return normals, lift, *self._draw((len(users),), generator)

    def _collect(self, points: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
        if not fuses(points.device) or self.dim > privunit.LARGEST_DIM:
            return super()._collect(points, counts, generator)
        total = torch.zeros(self.dim, dtype=torch.float64, device=points.device)
        key, ends = philox.draw_key(generator), counts.cumsum(0)
        users = int(counts.sum())
        for first in range(0, users, USERS_AT_ONCE):
            last = min(first + USERS_AT_ONCE, users)
            some = ends.clamp(first, last) - (ends - counts).clamp(first, last)
            lift = torch.randn(last - first, dtype=torch.float64, device=points.device, generator=generator)
            draws = (lift, *self._draw((last - first,), generator))
            total += privunit.sums(points, some, *draws, key, first, radius=self.radius, mean=self._mean)
        return total

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        def draw(types: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
            return self._draw((repeats, len(types)), generator)

        return sphere_sums(lifted(points), counts, draw, shape, generator)[..., :-1] / self._mean


def lifted(points: Tensor) -> Tensor:
    """Points of the unit ball (m, dim) as points of the unit sphere: (m, dim + 1), their height last."""
    height = (1 - points.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
    return torch.cat([points, height], -1)
