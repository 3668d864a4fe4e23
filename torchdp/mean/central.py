"""The Gaussian noise mechanism for the mean of points of a bounded domain."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.shapes import least_error_shape
from torchdp.draws import Draws
from torchdp.mean.gaussian import GaussianRelease
from torchdp.mean.protocol import MeanProtocol
from torchdp.protocol import Crowd, Tally, Users
from torchdp.protocol.rounded_sum import BLOCK, RoundedSum
from torchdp.protocol.users import beside, combined


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

    @cached_property
    def sums(self) -> RoundedSum:
        """Of u."""
        own = self.encoding
        return RoundedSum.least(self.multiplier, own.diameter * (1 + 1e-12), own.radius, self.shape.root.shape[1])

    def noise_root(self, n: Users) -> Tensor:
        """B = (sigma/n) A: Cov(estimate) = B B^T, for Gaussian noise of deviation sigma of ``sums``."""
        return self.sums.sigma / beside(checks.people("n", n, 1), 2) * self.shape.root

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        """In one pass: a block holds at most so many users of each group, whose sum is a ``RoundedSum`` of its own."""
        n, zero = torch.bincount(groups, minlength=size), x.new_zeros(size, self.sums.size, dtype=torch.float64)
        parts = zip(x.split(BLOCK), groups.split(BLOCK), strict=True)
        whole = self.sums.blocks((zero.index_add(0, own, self.encoding(some)) for some, own in parts), n)
        return Tally(n, {"sum": self.sums.released(whole, draws) * (n > 0)[:, None]})

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        whole = self.sums.blocks((combined(counts, u) for u, counts in self.encoded(summary)), summary.n)
        return Tally(summary.n, {"sum": self.sums.released(whole, draws, shape)})
