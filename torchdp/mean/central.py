"""The Gaussian noise mechanism for the mean of points of a bounded domain."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.shapes import least_error_shape
from torchdp.draws import Draws
from torchdp.mean.gaussian import GaussianRelease
from torchdp.mean.protocol import MeanProtocol
from torchdp.protocol import Crowd, Estimate, Layout, Tally


@dataclass(frozen=True, eq=False)
class GaussianMean(MeanProtocol, GaussianRelease):
    """The curator releases the mean plus N(0, (multiplier diameter / n)^2 A A^T), A the root of the shape.

    In u = A^+ (x - c) one user's replacement moves the mean by at most diameter / n. A tally is the noisy sum of u.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public; rho-zCDP.
    Source: Nikolov, Tang (2023), Theorem 15.
    """

    @classmethod
    def tuned(
        cls,
        domain: Domain,
        p: float = 2.0,
        *,
        delta: float,
        epsilon: float | None = None,
        rho: float | None = None,
    ) -> "GaussianMean":
        """Of the least (E ||error||_p^2)^{1/2} of our shapes, at every n and for all data.

        ``calibrated`` with ``least_error_shape``. Raises ValueError, TypeError. Guarantees: as ``calibrated``.
        """
        return cls.calibrated(domain, least_error_shape(domain, p), delta=delta, epsilon=epsilon, rho=rho)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.shape.root.shape[1],), torch.float64)}

    @property
    def deviation(self) -> float:
        """Of the noise on every coordinate of the sum of u."""
        return self.multiplier * self.encoding.diameter

    @property
    def attained(self) -> bool:
        return 0 < self.encoding.diameter <= self.encoding.widest * (1 + 1e-6)

    def noise_root(self, n: int) -> Tensor:
        """B = (multiplier diameter / n) A: Cov(estimate) = B B^T exactly, for Gaussian noise."""
        return self.deviation / checks.integer("n", n, 1) * self.shape.root

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        total = self.shape.root.new_zeros(self.shape.root.shape[1])
        for u, counts in self.encoded(summary):
            total = total + counts @ u
        return Tally(summary.n, {"sum": total + self.deviation * draws.normal((*shape, len(total)))})

    def analyse(self, tally: Tally) -> Estimate:
        return self.decoded(self.check(tally)["sum"], tally.n)
