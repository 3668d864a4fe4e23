"""PrivUnit at its exact optimum, lifted to the ball: the same noise at every point and in every
direction.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.draws import Draws
from torchdp.kernels import privunit
from torchdp.kernels.dispatch import keyed
from torchdp.kernels.normals.pieces import portions
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.randomizers.ball.axial_sums import AxialSums, add, directed, uniform_sums
from torchdp.randomizers.ball.ball import BallMoments, SubGaussian, constants
from torchdp.randomizers.ball.lattice import UNIT, LatticeRandomizer, Lifted, Mixture
from torchdp.randomizers.ball.sphere import (
    CapLaw,
    placed,
    rapidity,
    sided,
    sinh,
    uniform_coordinate,
)
from torchdp.randomizers.base import ball_epsilon, real_local

USERS_AT_ONCE = 2**22  # whose T, sqrt(1 - T^2) and g0 a fused sum holds
# units of 2^-53 in sqrt(dim + 1) T, and in sqrt(1 - T^2): measured, 34 and 20 at most
COORDINATE = 500


@dataclass(frozen=True)
class PrivUnit(LatticeRandomizer):
    """For x in R^dim with ||x|| <= radius a message Y with E Y = x and Cov Y = v I, before it is
    rounded.

    x / radius is lifted to the unit sphere of R^D, D = dim + 1; there a uniform point V is made
    e^epsilon times as likely on the cap <V, u> >= gamma, and Y is radius V/gamma without its last
    coordinate. gamma is the fixed point gamma = E <V, u>, which gives v = radius^2
    (1 - gamma^2)/(D gamma^2) (derivation: kernels/privunit/README.md). dim: a positive integer;
    epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    V is uniform with probability c0, uniform on the cap else. ``sample_tally`` draws how many of a
    type's users there are of either kind, dim + 1 normals for each type, and for each kind three
    numbers a user, or three in all from about 60 users of it on, whatever their number
    (``AxialSums.least``).

    Guarantees: epsilon-LDP of the numbers that are sent, for any two points of the ball, but for
    the delta that
        arithmetic costs (``variation``).
    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers (2018), PrivUnit2; Asi, Feldman, Talwar
    (2022), optimality.
    """

    _own = 2  # the side and the end to count from; the place

    @cached_property
    def cap(self) -> CapLaw:
        """The distribution of <V, u>."""
        return CapLaw(self.dim + 1, self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        source = "Bhowmick et al. (2018), PrivUnit, rounded; density ratio c1/c0 = e^epsilon"
        return self.sent(real_local(self.epsilon, source))

    @staticmethod
    @entrywise(dim=checks.positive, epsilon=ball_epsilon)
    def unit_variance(dim: Numbers, epsilon: Numbers) -> Numbers:
        """v at radius 1, of an entry before it is rounded; numbers, or batches that broadcast."""
        return 1 / ((dim + 1) * sinh(rapidity(dim + 1, epsilon)).square())

    @property
    def blanket(self) -> Blanket:
        """Caps beyond the middle: those of opposite points share nothing."""
        return Blanket.two_level(self.guarantee.epsilon, self.cap.survival)

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments; variance radius^2 (1 - gamma^2)/((dim + 1) gamma^2) + step^2/6; the others
        but for step^2.
        """
        variance = self.radius**2 * self.cap.variance + self.step**2 / 6
        return BallMoments(variance, self.cap.third_moment, self.cap.fourth_moment)

    @property
    def grid(self) -> float:
        """h, in units of V = sqrt(dim + 1) times a unit vector, whose noise has the deviation
        sqrt(1 - gamma^2).
        """
        return super().grid * 2.0 ** -math.ceil(math.log2(math.cosh(self.cap.rapidity)))

    @property
    def _bits(self) -> int:
        return 16 if self._size < (2**15 - 1) * self.grid else 32

    @property
    def entry_limit(self) -> float:
        return self.radius / self.cap.threshold + self.step

    @property
    def _size(self) -> float:
        """||V||, lifted."""
        return math.sqrt(self.dim + 1)

    @property
    def _unit(self) -> float:
        return self.radius / (self.cap.threshold * self._size)

    def _mixture(self, own: Tensor, lifted: Lifted) -> Mixture:
        """V = ||V|| (T u + sqrt(1 - T^2) (G - <G, u> u)/|G - <G, u> u|)."""
        z, near = sided(own, self.cap.normal_threshold, self.cap.chance, self.cap.survival)
        t, height = uniform_coordinate(self.dim + 1, z)
        (dot, of_dot), (square, of_square), size = lifted.along, lifted.square, self._size
        across = square - dot.square()
        stretch = size * height * across.rsqrt()
        # of the root of ``across``, relative
        of_across = (of_square + 2 * dot.abs() * of_dot + 8 * UNIT * square) / (2 * across)
        error = stretch * of_dot + size * (height * of_across + 40 * UNIT)
        error = error + 4 * 2.0**-64 / near + 2 * COORDINATE * UNIT
        return Mixture(stretch, size * t - stretch * dot, error)

    def _exactly(self, context: Any, own: list[int], G: list[Any], u: list[Any]) -> tuple[Any, Any]:
        above, outer = placed(context, own, self.cap.chance)
        survival = context.mpf(self.cap.survival)
        t, height = self.cap.exactly(context, outer * (survival if above else 1 - survival))
        t = t if above else -t
        dot, size = context.fdot(G, u), context.sqrt(self.dim + 1)
        stretch = size * height / context.sqrt(context.fdot(G, G) - dot * dot)
        return stretch, size * t - stretch * dot

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """Along x on the sphere, those of (T/gamma - 1) radius; no direction is worse
        (on a grid, by the tests).
        """
        w, weights = self.cap.quadrature()
        y, centre = w / 2, self.cap.rapidity  # tanh y - tanh c = sinh(y - c)/(cosh y cosh c)
        return constants(
            (self.radius * np.sinh(y - centre) / (np.cosh(y) * np.sinh(centre)), weights)
        )

    @cached_property
    def _cap_sums(self) -> AxialSums:
        """The distribution of sums of very many points of the cap."""
        w, weights = self.cap.cap_quadrature()
        return AxialSums(np.tanh(w / 2), weights / weights.sum(), self.dim + 1)

    def _collect(self, points: Tensor, counts: Tensor, draws: Draws) -> Tensor:
        key = (
            draws.kernel_key()
            if keyed(points.device) and self.dim <= privunit.LARGEST_DIM
            else None
        )
        if key is None:
            return super()._collect(points, counts, draws)
        total = torch.zeros(self.dim, dtype=torch.float64, device=points.device)
        for first, last, some in portions(counts, USERS_AT_ONCE):
            numbers = (draws.normal((last - first,)), *self.cap.draw((last - first,), draws))
            mean = self.cap.threshold
            total += privunit.sums(
                points, some, *numbers, key, first, radius=self.radius, mean=mean
            )
        return total

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        held = (counts > 0).reshape(-1, counts.shape[-1]).any(0)
        users, points = counts[..., held], points[..., held, :]
        users = users.expand(*shape, *users.shape)
        inside = draws.binomial(users, 1 - self.cap.low_density)
        on_cap = self._cap_sums.sums(inside, lambda n: self.cap.draw_cap((n,), draws), draws)
        anywhere = uniform_sums(self.dim + 1).sums(
            users - inside, lambda n: uniform_coordinate(self.dim + 1, draws.normal((n,))), draws
        )
        sums = add(self.dim + 1, on_cap, anywhere, draws)
        height = (1 - points.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
        return directed(torch.cat([points, height], -1), sums, draws)[..., :-1] / self.cap.threshold
