"""Randomizers whose message is a scaled random point of the lifted sphere, symmetric about the user's own point."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import privunit
from torchdp.kernels.dispatch import keyed
from torchdp.kernels.normals.pieces import portions
from torchdp.randomizers.ball.axial_sums import AxialSums, directed
from torchdp.randomizers.ball.ball import BallRandomizer
from torchdp.randomizers.ball.sphere import CapLaw
from torchdp.randomizers.ball.subgaussian import Law

USERS_AT_ONCE = 2**22  # whose T, sqrt(1 - T^2) and g0 a fused sum holds


@dataclass(frozen=True)
class SphereRandomizer(BallRandomizer):
    """Y = radius (T u + sqrt(1 - T^2) w)/E T without its last coordinate, w uniform on the unit sphere across u.

    u = (x', sqrt(1 - ||x'||^2)), x' = x / radius, lies on the unit sphere of R^{dim + 1}.
    """

    @property
    @abstractmethod
    def cap(self) -> CapLaw:
        """The law of PrivUnit's coordinate."""

    @property
    @abstractmethod
    def _mean(self) -> float:
        """E T."""

    @property
    def entry_limit(self) -> float:
        return self.radius / self._mean

    @property
    @abstractmethod
    def _along(self) -> Law:
        """T by quadrature: nodes and weights."""

    @cached_property
    def _sum(self) -> AxialSums:
        """The law of sums of very many messages."""
        return AxialSums(*self._along, self.dim + 1)

    @abstractmethod
    def _draw(self, shape: tuple[int, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        """Independent copies of (T, sqrt(1 - T^2)), float64."""

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        return privunit.message(users, *self._numbers(len(users), draws), radius=self.radius, mean=self._mean)

    def _total(self, points: Tensor, types: Tensor, draws: Draws) -> Tensor:
        users, numbers = points.index_select(0, types), self._numbers(len(types), draws)
        return privunit.total(users, *numbers, radius=self.radius, mean=self._mean)

    def _numbers(self, users: int, draws: Draws) -> tuple[Tensor, ...]:
        """(g, g0, T, sqrt(1 - T^2)) of so many users."""
        return draws.normal((users, self.dim)), draws.normal((users,)), *self._draw((users,), draws)

    def _collect(self, points: Tensor, counts: Tensor, draws: Draws) -> Tensor:
        key = draws.kernel_key() if keyed(points.device) and self.dim <= privunit.LARGEST_DIM else None
        if key is None:
            return super()._collect(points, counts, draws)
        total = torch.zeros(self.dim, dtype=torch.float64, device=points.device)
        for first, last, some in portions(counts, USERS_AT_ONCE):
            numbers = (draws.normal((last - first,)), *self._draw((last - first,), draws))
            total += privunit.sums(points, some, *numbers, key, first, radius=self.radius, mean=self._mean)
        return total

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        held = counts > 0
        users = counts[held].expand(*shape, -1)
        sums = self._sum.sums(users, lambda n: self._draw((n,), draws), draws)
        return directed(lifted(points[held]), sums, draws)[..., :-1] / self._mean


def lifted(points: Tensor) -> Tensor:
    """Points of the unit ball (m, dim) as points of the unit sphere: (m, dim + 1), their height last."""
    height = (1 - points.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
    return torch.cat([points, height], -1)
