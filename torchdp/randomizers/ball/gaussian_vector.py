"""Gaussian noise for a vector: the (epsilon, delta) reference."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.randomizers.ball.ball import MOST_MISSED, BallMoments, BallRandomizer
from torchdp.randomizers.ball.subgaussian import SubGaussian
from torchdp.randomizers.base import real_local

FARTHEST = 13.26  # sqrt(-2 log 2^-127), hardly less


@dataclass(frozen=True)
class GaussianVector(BallRandomizer):
    """For x in R^dim with ||x|| <= radius the message x + N(0, sigma^2 I), at the smallest sigma for (epsilon, delta).

    Two points of the ball are at most 2 radius apart: sigma is that of the analytic Gaussian mechanism at this
    sensitivity. dim: a positive integer; epsilon in [1e-3, 30]; delta in (0, 1), a keyword, above 1e-30 or so, where
    the normals that are drawn end; radius in [1e-140, 1e140]. Raises ValueError.

    ``drawn`` costs O(dim) for each repetition, whatever the number of users.

    Guarantees: (epsilon, delta)-LDP, for any two points of the ball; no smaller sigma is (to 1e-8).
    Source: Balle, Wang (2018), Theorem 8.
    """

    delta: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))
        if not 1e-3 <= self.epsilon <= 30:
            raise ValueError(f"epsilon must lie in [0.001, 30] for this randomizer, not {self.epsilon!r}")
        self._refuse_missed(min(MOST_MISSED, self.delta / 1024))

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        return gaussian_sigma(self.epsilon, self.delta, 2 * self.radius)

    @property
    def guarantee(self) -> Guarantee:
        source = "Balle, Wang (2018), Theorem 8, at sensitivity 2 radius"
        return replace(real_local(self.epsilon, source, self.delta), mu=2 * self.radius / self.sigma)

    @property
    def missed(self) -> float:
        """Two coordinates of noise end at a circle of radius 13.26; another point's is moved by 2 radius/sigma."""
        return self._chance_missed(self.delta)

    def _chance_missed(self, delta: float) -> float:
        reach = max(0.0, FARTHEST - 1 / gaussian_sigma(self.epsilon, delta))
        return min(1.0, (self.dim + 1) // 2 * math.exp(-reach * reach / 2))

    @property
    def _remedy(self) -> str:
        delta = self.delta
        while self._chance_missed(delta) > min(MOST_MISSED, delta / 1024):
            delta *= 10
        return f"take delta = {delta:.1e}"

    @property
    def moments(self) -> BallMoments:
        """Exact moments: variance sigma^2, those of a normal."""
        return BallMoments(self.sigma**2, 0.0, 3.0)

    @property
    def subgaussian(self) -> SubGaussian:
        """psi2 = sigma sqrt(8/3), proxy = sigma^2."""
        return SubGaussian(self.sigma * math.sqrt(8 / 3), self.sigma**2)

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        norms = torch.linalg.vector_norm(users, dim=-1, keepdim=True) / self.radius
        return draws.normal(tuple(users.shape)).mul_(self.sigma).add_(users / norms.clamp_min(1))

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        users = counts.double()
        return users @ points + draws.normal((*shape, self.dim)) * (users.sum().sqrt() * self.sigma / self.radius)
