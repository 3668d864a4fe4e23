"""Finitely many points, and their convex hull."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import FLAT, Domain, Maximum, Proposal, rounding, slack
from torchdp.domains.noise_shape import on_points
from torchdp.memory import rows_at_once
from torchdp.randomness import keyed_generator


@dataclass(frozen=True, eq=False)
class Vertices(Domain):
    """A domain that has finitely many points to look at, (N, d): its oracle tries them all."""

    points: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, points=checks.one_matrix)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    @property
    def factor(self) -> float:
        return 1.0

    @cached_property
    def middle(self) -> Tensor | None:
        """The mean of the distinct points where each has its mirror image, else None."""
        distinct = torch.unique(self.points, dim=0)
        # About one of the points: far from 0 a plain mean rounds off the set's own size.
        mean = distinct[0] + (distinct - distinct[0]).mean(0)
        z = distinct - mean
        rounded = rounding(distinct, distinct.abs().amax(0))
        room = FLAT * z.abs().amax(0) + rounded
        generator = keyed_generator(b"torchdp.mean.finite.middle", "cpu")
        line = torch.randn(self.dimension, dtype=torch.float64, device="cpu", generator=generator)
        # Along a random line mirror images stand at opposite ends of the order.
        order = torch.argsort(z @ line.to(z))
        mirrored = z[order.flip(0)]
        unmatched = (z[order] + mirrored).abs() > room
        if bool(unmatched.any()):
            return None
        # Symmetric about 0 but for rounding: exactly 0, which needs no shift.
        return torch.where(mean.abs() <= room / 8, 0.0, mean)

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        return Maximum.among(self.points, B, centre)

    def extreme(self, directions: Tensor) -> Tensor:
        return self.points[(directions @ self.points.mT).argmax(-1)]

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        """The fixed point on all points at once."""
        middle = self.middle if shift else torch.zeros_like(self.points[0])
        return on_points(self.points, middle, p, tol, max_iterations=10_000)

    def spanning(self) -> Tensor:
        return self.points

    def corners(self, most: int) -> Tensor | None:
        return self.points if len(self.points) <= most else None


@dataclass(frozen=True, eq=False)
class FiniteSet(Vertices):
    """The points themselves. points: (N, d), real. Raises ValueError, TypeError."""

    @property
    def hull(self) -> Domain:
        return Polytope(self.points)

    def contains(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        frame = self.frame
        off = (x.double() - self.project(x.double())) @ frame.inverse.mT
        return off.norm(dim=-1) <= frame.room(slack(x), x.dtype)

    def project(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        points = self.points.to(x.device)
        flat = x.double().reshape(-1, self.dimension)
        # |x|^2 + |y|^2 - 2 <x, y> would lose digits to cancellation
        exact = "donot_use_mm_for_euclid_dist"
        nearest = [
            torch.cdist(part, points, compute_mode=exact).argmin(-1)
            for part in flat.split(rows_at_once(len(points)))
        ]
        return points[torch.cat(nearest)].reshape(x.shape).to(x)


@dataclass(frozen=True, eq=False)
class Polytope(Vertices):
    """The convex hull of the points, for the same noise. points: (N, d), real. Raises as FiniteSet.

    Source: Nikolov, Tang (2023), Theorem 20 (1)."""
