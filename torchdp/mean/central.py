"""The Gaussian noise mechanism for the mean of points of a bounded domain."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.draws import Draws, Simulated
from torchdp.mean.mechanism import MeanMechanism
from torchdp.noise import Noise
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma


@dataclass(frozen=True)
class GaussianMean(MeanMechanism):
    """The curator releases the mean plus N(0, (multiplier diameter / n)^2 A A^T), A the root of the shape.

    In u = A^+ (x - c) one user's replacement moves the mean by at most diameter / n, so the release is Gaussian
    noise of deviation ``multiplier`` on a sensitivity of 1, and whatever follows from that: mu-Gaussian DP with mu =
    1 / multiplier, zCDP with rho = mu^2 / 2, and the exact delta of every epsilon.

    multiplier > 0; delta in (0, 1): where the guarantee is stated. :func:`gaussian_mean` and
    :func:`concentrated_mean` find the multiplier. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public; rho-zCDP.
    Source: Nikolov, Tang (2023), Theorem 15; Bun, Steinke (2016), Proposition 1.6; Balle, Wang (2018), Theorem 8.
    """

    multiplier: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "multiplier", checks.positive("multiplier", self.multiplier))
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))

    @property
    def rho(self) -> float:
        """1 / (2 multiplier^2): every Renyi divergence of order alpha between neighbours is at most rho alpha."""
        return 1 / (2 * self.multiplier**2)

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``, by the exact curve of Gaussian noise; exact: two points at the diameter are known."""
        found = gaussian_guarantee(self.multiplier, self.delta, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
        source = f"Nikolov, Tang (2023), Theorem 15; {found.source}"
        return Guarantee(found.epsilon, found.delta, found.model, found.neighbours, self._attained, source)

    def noise_root(self, n: int) -> Tensor:
        """B = (multiplier diameter / n) A: Cov(estimate) = B B^T exactly, for Gaussian noise."""
        return self.multiplier * self.encoding.diameter / checks.integer("n", n, 1) * self.shape.root

    @property
    def _attained(self) -> bool:
        return 0 < self.encoding.diameter <= self.encoding.widest * (1 + 1e-6)

    def _total(self, x: Tensor, noise: Noise) -> Tensor:
        total = sum(
            (u.sum(0) for u in self.encoding.chunks(x)), self.shape.root.new_zeros(self.shape.root.shape[1])
        )
        return total + self._noise((), noise)

    def _total_counts(
        self, points: Tensor, counts: Tensor, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        return counts.double() @ self.encoding(points) + self._noise(shape, Simulated(generator, points.device))

    def _noise(self, shape: tuple[int, ...], draws: Draws) -> Tensor:
        return self.multiplier * self.encoding.diameter * draws.normal((*shape, self.shape.root.shape[1]))


def gaussian_mean(domain: Domain, shape: NoiseShape, epsilon: float, delta: float) -> GaussianMean:
    """The mechanism with the least noise that is (epsilon, delta)-DP. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP.
    Source: Balle, Wang (2018), Theorem 8.
    """
    return GaussianMean(domain, shape, gaussian_sigma(epsilon, delta), delta)


def concentrated_mean(domain: Domain, shape: NoiseShape, rho: float, delta: float) -> GaussianMean:
    """The mechanism with the least noise that is rho-zCDP; delta: where its exact (epsilon, delta) is stated.

    Guarantees: rho-zCDP.
    Source: Nikolov, Tang (2023), Theorem 15; Bun, Steinke (2016), Proposition 1.6.
    """
    return GaussianMean(domain, shape, 1 / math.sqrt(2 * checks.positive("rho", rho)), delta)
