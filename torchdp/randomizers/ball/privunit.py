"""PrivUnit at its exact optimum, lifted to the ball: the same noise at every point and in every direction."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.randomizers.ball.ball import BallMoments
from torchdp.randomizers.ball.sphere import CapLaw
from torchdp.randomizers.ball.sphere_randomizer import SphereRandomizer
from torchdp.randomizers.ball.subgaussian import Law, SubGaussian, constants
from torchdp.randomizers.base import real_local


@dataclass(frozen=True)
class PrivUnit(SphereRandomizer):
    """For x in R^dim with ||x|| <= radius a message Y with E Y = x and Cov Y = v I, exactly.

    x / radius is lifted to the unit sphere of R^D, D = dim + 1; there a uniform point V is made e^epsilon times as
    likely on the cap <V, u> >= gamma, and Y is radius V/gamma without its last coordinate. gamma is the fixed point
    gamma = E <V, u>, which gives v = radius^2 (1 - gamma^2)/(D gamma^2) (derivation: kernels/privunit/README.md).
    Compared with PrivUnitG: less noise, by a fraction of order 1/dim (more at large epsilon), at a little more work.
    dim: a positive integer; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``drawn`` draws dim + 1 normals for each type in a repetition, and three numbers for each of its users if they are
    fewer than a few thousand; beyond, three in all, whatever the number of users (``AxialSums.least``).

    Guarantees: exactly epsilon-LDP, for any two points of the ball.
    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers (2018), PrivUnit2; Asi, Feldman, Talwar (2022), optimality.
    """

    @cached_property
    def cap(self) -> CapLaw:
        """The law of <V, u>."""
        return CapLaw(self.dim + 1, self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        return real_local(self.epsilon, "Bhowmick et al. (2018), PrivUnit; density ratio c1/c0 = e^epsilon")

    @property
    def moments(self) -> BallMoments:
        """Exact moments; variance radius^2 (1 - gamma^2)/((dim + 1) gamma^2)."""
        return BallMoments(self.radius**2 * self.cap.variance, self.cap.third_moment, self.cap.fourth_moment)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """Along x on the sphere, those of (T/gamma - 1) radius; no direction is worse (on a grid, by the tests)."""
        w, weights = self.cap.quadrature()
        y, centre = w / 2, self.cap.rapidity  # tanh y - tanh c = sinh(y - c)/(cosh y cosh c)
        return constants((self.radius * np.sinh(y - centre) / (np.cosh(y) * np.sinh(centre)), weights))

    @property
    def _mean(self) -> float:
        return self.cap.threshold

    @property
    def _along(self) -> Law:
        w, weights = self.cap.quadrature()
        return np.tanh(w / 2), weights

    def _draw(self, shape: tuple[int, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        return self.cap.draw(shape, draws)
