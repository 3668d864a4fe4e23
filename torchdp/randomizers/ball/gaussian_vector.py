"""Gaussian noise for a vector: the (epsilon, delta) reference."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol.records import combined
from torchdp.randomizers.ball.ball import BallMoments
from torchdp.randomizers.ball.lattice import UNIT, LatticeRandomizer, Lifted, Mixture
from torchdp.randomizers.ball.subgaussian import SubGaussian
from torchdp.randomizers.base import real_local


@dataclass(frozen=True)
class GaussianVector(LatticeRandomizer):
    """For x in R^dim with ||x|| <= radius the message x + N(0, sigma^2 I), at the smallest sigma for (epsilon, delta).

    Two points of the ball are at most 2 radius apart: sigma is that of the analytic Gaussian mechanism at this
    sensitivity. dim: a positive integer; epsilon in [1e-3, 30]; delta in (0, 1), a keyword, above what
    arithmetic costs; radius in [1e-140, 1e140]. Raises ValueError.

    ``sample_tally`` costs O(dim) for each repetition, whatever the number of users.

    Guarantees: (epsilon, delta)-LDP of the numbers that are sent, for any two points of the ball; no smaller sigma is
        (to 1e-8).
    Source: Balle, Wang (2018), Theorem 8.
    """

    delta: float = field(kw_only=True)
    _own = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, delta=checks.fraction)
        checks.within("epsilon", self.epsilon, 1e-3, 30)
        checks.validated(self, "guarantee")  # a delta that arithmetic would use up

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        return gaussian_sigma(self.epsilon, self.delta * ROUNDED, 2 * self.radius)

    @property
    def guarantee(self) -> Guarantee:
        source = "Balle, Wang (2018), Theorem 8, at sensitivity 2 radius, rounded"
        real = real_local(self.epsilon, source, self.delta * ROUNDED)
        return replace(real, mu=2 * self.radius / self.sigma).rounded(self.variation, self.delta)

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments: variance sigma^2 (1 + h^2/6); those of a normal, but for h^2."""
        return BallMoments(self.sigma**2 + self.step**2 / 6, 0.0, 3.0)

    @property
    def subgaussian(self) -> SubGaussian:
        """psi2 = sigma sqrt(8/3), proxy = sigma^2."""
        return SubGaussian(self.sigma * math.sqrt(8 / 3), self.sigma**2)

    @property
    def _unit(self) -> float:
        return self.sigma

    def _mixture(self, own: Tensor, lifted: Lifted) -> Mixture:
        """V = g + (radius/sigma) x'."""
        shift = self.radius / self.sigma
        return Mixture(None, shift, 8 * UNIT * shift)

    def _exactly(self, context: Any, own: list[int], G: list[Any], u: list[Any]) -> tuple[Any, Any]:
        return context.mpf(1), context.mpf(self.radius / self.sigma)

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        users, deviation = counts.double(), math.sqrt(self.moments.variance) / self.radius
        normal = draws.normal((*shape, *counts.shape[:-1], self.dim))
        return combined(users, points) + normal * (users.sum(-1, keepdim=True).sqrt() * deviation)
