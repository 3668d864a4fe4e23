"""PrivUnit at its exact optimum, lifted to the ball: the same noise at every point and direction.

Notation: D = dim + 1; u is the point lifted to the sphere of R^D, V a random point there,
T = <V, u> and gamma = E T; G are D normals.
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
from torchdp.randomizers.ball.axial_sums import AxialSums, Sums, add, directed, uniform_sums
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

# Whose T, sqrt(1 - T^2) and g0 a fused sum holds.
USERS_AT_ONCE = 2**22

# Units of 2^-53 in sqrt(dim + 1) T, and in sqrt(1 - T^2): measured, 34 and 20 at most.
COORDINATE = 500


@dataclass(frozen=True)
class PrivUnit(LatticeRandomizer):
    """For x with ||x|| <= radius a message Y with E Y = x and Cov Y = v I, before it is rounded.

    x / radius is lifted to the unit sphere of R^D, D = dim + 1; there a uniform point V is made
    e^epsilon times as likely on the cap <V, u> >= gamma, and Y is radius V/gamma without its last
    coordinate. gamma is the fixed point gamma = E <V, u>, which gives v = radius^2
    (1 - gamma^2)/(D gamma^2) (derivation: kernels/privunit/README.md). Raises ValueError.

    Args:
        dim: of x, a positive integer.
        epsilon: in [1e-6, 50].
        radius: of the ball, in [1e-140, 1e140].

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
        """Exact moments; variance v + step^2/6, the others but for step^2."""
        variance = self.radius**2 * self.cap.variance + self.step**2 / 6
        return BallMoments(variance, self.cap.third_moment, self.cap.fourth_moment)

    @property
    def grid(self) -> float:
        """h, in units of V of length sqrt(D), whose noise has the deviation sqrt(1 - gamma^2)."""
        inverse = math.cosh(self.cap.rapidity)  # of the deviation
        return super().grid * 2.0 ** -math.ceil(math.log2(inverse))

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
        cap = self.cap
        z, near = sided(own, cap.normal_threshold, cap.chance, cap.survival)
        t, height = uniform_coordinate(self.dim + 1, z)
        dot, of_dot = lifted.along
        square, of_square = lifted.square
        size = self._size
        across = square - dot.square()
        stretch = size * height * across.rsqrt()
        # Of the root of ``across``, relative.
        of_across = of_square + 2 * dot.abs() * of_dot + 8 * UNIT * square
        of_across = of_across / (2 * across)
        error = stretch * of_dot + size * (height * of_across + 40 * UNIT)
        # What is not drawn of the place, relative to it, and T's own rounding.
        error = error + 4 * 2.0**-64 / near + 2 * COORDINATE * UNIT
        return Mixture(stretch, size * t - stretch * dot, error)

    def _exactly(self, context: Any, own: list[int], G: list[Any], u: list[Any]) -> tuple[Any, Any]:
        above, outer = placed(context, own, self.cap.chance)
        survival = context.mpf(self.cap.survival)
        share = outer * (survival if above else 1 - survival)
        t, height = self.cap.exactly(context, share)
        if not above:
            t = -t
        dot = context.fdot(G, u)
        size = context.sqrt(self.dim + 1)
        across = context.sqrt(context.fdot(G, G) - dot * dot)
        stretch = size * height / across
        return stretch, size * t - stretch * dot

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """Along x on the sphere, of (T/gamma - 1) radius; no direction is worse.

        (On a grid, by the tests.)
        """
        w, weights = self.cap.quadrature()
        y = w / 2
        centre = self.cap.rapidity
        # tanh y - tanh c = sinh(y - c)/(cosh y cosh c)
        noise = self.radius * np.sinh(y - centre) / (np.cosh(y) * np.sinh(centre))
        return constants((noise, weights))

    @cached_property
    def _cap_sums(self) -> AxialSums:
        """The distribution of sums of very many points of the cap."""
        w, weights = self.cap.cap_quadrature()
        return AxialSums(np.tanh(w / 2), weights / weights.sum(), self.dim + 1)

    def _collect(self, points: Tensor, counts: Tensor, draws: Draws) -> Tensor:
        fused = keyed(points.device) and self.dim <= privunit.LARGEST_DIM
        key = draws.kernel_key() if fused else None
        if key is None:
            return super()._collect(points, counts, draws)
        total = torch.zeros(self.dim, dtype=torch.float64, device=points.device)
        mean = self.cap.threshold
        for first, last, some in portions(counts, USERS_AT_ONCE):
            users = (last - first,)
            normals = draws.normal(users)
            t, height = self.cap.draw(users, draws)
            total += privunit.sums(
                points, some, normals, t, height, key, first, radius=self.radius, mean=mean
            )
        return total

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        dim = self.dim + 1
        # Types that nobody holds need no normals.
        held = (counts > 0).reshape(-1, counts.shape[-1]).any(0)
        users = counts[..., held]
        points = points[..., held, :]
        users = users.expand(*shape, *users.shape)

        def on_cap(n: int) -> Sums:
            return self.cap.draw_cap((n,), draws)

        def anywhere(n: int) -> Sums:
            return uniform_coordinate(dim, draws.normal((n,)))

        # The density is c0 everywhere and more on the cap: a mixture of two uniform ones.
        inside = draws.binomial(users, 1 - self.cap.low_density)
        cap_sums = self._cap_sums.sums(inside, on_cap, draws)
        other_sums = uniform_sums(dim).sums(users - inside, anywhere, draws)
        sums = add(dim, cap_sums, other_sums, draws)
        # The lifted coordinate of points on the sphere is 0: rounding may turn its square negative.
        square = 1 - points.square().sum(-1, keepdim=True)
        axes = torch.cat([points, square.clamp_min(0).sqrt()], -1)
        return directed(axes, sums, draws)[..., :-1] / self.cap.threshold
