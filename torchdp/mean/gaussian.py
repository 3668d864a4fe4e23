"""Protocols for points of a bounded domain, a curator's Gaussian noise, and the mean.

Notation: K is the domain; x = c + A u its points, u in a ball of radius R; Cov(estimate) = B B^T.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.shapes import Encoding, NormError, encoding, least_error_shape
from torchdp.draws import Draws, Shape
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import (
    Crowd,
    CuratorProtocol,
    Estimate,
    Layout,
    Limits,
    Objective,
    Protocol,
    Tally,
    Users,
)
from torchdp.protocol.records import broadcast_users, users_on, weighted_sum
from torchdp.protocol.rounded_sum import BLOCK, RoundedSum, in_blocks, released_guarantee

# Up to here float64 holds all integers.
EXACT = 2**53


class PointsProtocol(Protocol[Crowd]):
    """Users hold points of ``domain``, (n, d), and send them as vectors u of a ball."""

    domain: Domain
    shape: NoiseShape

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball."""
        return encoding(self.domain, self.shape)

    @property
    def home(self) -> torch.device:
        return self.shape.root.device

    @property
    def held(self) -> tuple[int]:
        return (self.domain.dimension,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) with n >= 1, in the domain.

        Integers become float64, exactly: those beyond 2^53 in size are refused. Raises TypeError,
        ValueError.
        """
        points = super().validate(x)
        if not x.is_floating_point():
            # Compared as integers: 2^53 + 1 is 2^53 among floats.
            whole = x.long()
            if not torch.equal(whole.clamp(-EXACT, EXACT), whole):
                raise ValueError(
                    "x holds integers beyond 2^53 in size, which float64 rounds; change the unit"
                )
        return self.domain.to(points.device).validate(points)


class MeanProtocol(PointsProtocol):
    """The unbiased mean of n points of ``domain``, under noise of a covariance known beforehand."""

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.shape.root.shape[1],), torch.float64)}

    @abstractmethod
    def noise_root(self, n: Users) -> Tensor:
        """B, (d, r) or (*batch, d, r): Cov(estimate) = B B^T for n users, whatever their data."""

    def error(self, n: int, p: float | None = None) -> NormError:
        """The l_p error for n users; p: the shape's own where it is not given."""
        return NormError(self.noise_root(n), self.shape.p if p is None else p)

    def exact(self, summary: Crowd) -> Tensor:
        return self.validate_summary(summary).mean

    def predicted_mse(self, summary: Crowd) -> Tensor:
        return self.noise_root(self.validate_summary(summary).n).square().sum(-1)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """The same for all data."""
        errors = self.noise_root(n).square().sum(-1)
        return objective.of(errors, errors.ndim - 1)

    def analyse(self, tally: Tally) -> Estimate:
        tally = self.check(tally)
        mean = tally["sum"] / tally.users(1)
        value = self.encoding.centre + mean @ self.shape.root.mT
        error = self.noise_root(tally.n).norm(dim=-1).expand_as(value)
        estimate = Estimate(value, error, tally.n)
        return replace(estimate, population=partial(self._of_population, estimate, tally.users(1)))

    def _of_population(self, estimate: Estimate, n: float | Tensor) -> Estimate:
        """Of points between low and high of mean m, Var <= (high - m)(m - low), by coordinates.

        A released mean tells no more of their variance: it is that of points at both ends. One
        released beside the mean, as by ``GaussianCovariance``, gives a narrower interval.
        Source: Bhatia, Davis (2000), Theorem 1.
        """
        axes = torch.eye(self.domain.dimension).to(self.domain.spanning())
        origin = torch.zeros_like(axes[0])
        high = self.domain.supports(axes, origin).to(estimate.value)
        low = -self.domain.supports(-axes, origin).to(estimate.value)
        # A noisy mean may lie outside, where the bound would be negative.
        m = estimate.value.clamp(low, high)
        return estimate.with_sampling((high - m) * (m - low) / n)


@dataclass(frozen=True, eq=False)
class GaussianRelease(PointsProtocol, CuratorProtocol[Crowd]):
    """Gaussian noise of deviation ``multiplier`` on a sensitivity of 1, and what follows from it.

    Users hold points of ``domain``, (n, d); a summary is a crowd of such points; n is public.
    Points outside the domain are refused: see ``Domain.project``.

    It is mu-Gaussian DP with mu = 1/multiplier, zCDP with rho = mu^2/2, and has the exact delta of
    every epsilon. What leaves are whole steps (:class:`RoundedSum`), to which the guarantee refers.

    Args:
        domain: K.
        shape: an ellipsoid for the noise, any: a bad one costs accuracy, not privacy.
        multiplier: > 0; ``calibrated`` finds it.
        delta: in (0, 1), where the guarantee is stated.

    Raises TypeError, ValueError.
    Source: Bun, Steinke (2016), Proposition 1.6; Balle, Wang (2018), Theorem 8.
    """

    domain: Domain
    shape: NoiseShape
    multiplier: float
    delta: float

    def __post_init__(self) -> None:
        checks.validated(self, "encoding")  # a shape that does not fit the domain
        checks.keep(self, multiplier=checks.positive, delta=checks.fraction)

    def encoded(self, summary: Crowd) -> Iterator[tuple[Tensor, Tensor]]:
        """Vectors u, (k, r) or (*batch, k, r), and their users, (*batch, k), block by block."""
        for points, counts in in_blocks(summary.rows, summary.counts):
            u = self.encoding(points.flatten(0, -2))
            yield u.view(*points.shape[:-1], -1), counts

    @classmethod
    def calibrated(
        cls,
        domain: Domain,
        shape: NoiseShape,
        *,
        delta: float,
        epsilon: float | None = None,
        rho: float | None = None,
        **own: int,
    ) -> Self:
        """The least noise that is (epsilon, delta)-DP, or rho-zCDP.

        Args:
            delta: in (0, 1); with rho, where epsilon is stated.
            epsilon: > 0, or None with rho.
            rho: > 0, or None with epsilon.
            own: what else the class has, as the order of ``GaussianMoments``.

        Raises ValueError, TypeError.
        Guarantees: (epsilon, delta)-DP; rho-zCDP.
        """
        return cls(domain, shape, least_multiplier(delta, epsilon, rho), delta, **own)

    @property
    def rho(self) -> float:
        """1 / (2 multiplier^2): Renyi divergences of neighbours are at most rho alpha."""
        return 1 / (2 * self.multiplier**2)

    @property
    @abstractmethod
    def sums(self) -> RoundedSum:
        """What the curator adds up, and its noise."""

    def limits(self, n: Users) -> dict[str, Limits]:
        return dict.fromkeys(self.layout, self.sums.limits(n))

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``, by the exact curve of Gaussian noise, of the whole steps that leave."""
        normal = released_guarantee(self.multiplier, self.delta, self.sums.size)
        source = f"Nikolov, Tang (2023), Theorem 15; {normal.source}"
        # The diameter of an encoding may be a bound.
        return replace(normal, exact=False, source=source)


def least_multiplier(delta: float, epsilon: float | None, rho: float | None) -> float:
    """Of the least Gaussian noise that is (epsilon, delta)-DP, or rho-zCDP.

    Raises ValueError, TypeError.
    Source: Balle, Wang (2018), Theorem 8; Bun, Steinke (2016), Proposition 1.6.
    """
    if epsilon is not None and rho is None:
        return gaussian_sigma(epsilon, checks.fraction("delta", delta) * ROUNDED)
    if rho is not None and epsilon is None:
        return 1 / math.sqrt(2 * checks.positive("rho", rho))
    raise TypeError("epsilon or rho must be given beside delta, and not both")


@dataclass(frozen=True, eq=False)
class GaussianMean(GaussianRelease, MeanProtocol):
    """The curator releases the mean plus N(0, (multiplier diameter / n)^2 A A^T).

    A is the root of the shape. In u = A^+ (x - c) one user's replacement moves the mean by at most
    diameter / n. A tally is the noisy sum of u.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public;
    rho-zCDP.
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

        ``calibrated`` with ``least_error_shape``. Raises ValueError, TypeError. Guarantees: as
        ``calibrated``.
        """
        shape = least_error_shape(domain, p)
        return cls.calibrated(domain, shape, delta=delta, epsilon=epsilon, rho=rho)

    @cached_property
    def sums(self) -> RoundedSum:
        """Of u."""
        distance = self.encoding.diameter * (1 + 1e-12)  # what rounding takes off a diameter
        r = self.shape.root.shape[1]
        return RoundedSum.least(self.multiplier, distance, self.encoding.radius, r)

    def noise_root(self, n: Users) -> Tensor:
        """B = (sigma/n) A, sigma the deviation of ``sums``."""
        n = users_on(self.home, checks.people("n", n, 1))
        return self.sums.sigma / broadcast_users(n, 2) * self.shape.root

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        """In one pass; the sum of each group is a ``RoundedSum`` of its own."""
        n = torch.bincount(groups, minlength=size)
        zero = x.new_zeros(size, self.sums.size, dtype=torch.float64)
        blocks = zip(x.split(BLOCK), groups.split(BLOCK), strict=True)
        # A block holds at most BLOCK users of each group, as the bound of its rounding demands.
        whole = self.sums.blocks(
            (zero.index_add(0, group, self.encoding(points)) for points, group in blocks), n
        )
        noisy = self.sums.released(whole, draws)
        # A group of nobody has nothing to hide: how many users a group has is public.
        some = (n > 0).to(noisy.device)
        return Tally(n, {"sum": noisy * some[:, None]})

    def release(self, summary: Crowd, draws: Draws, shape: Shape) -> Tally:
        return self._noised(summary.n, self._whole(summary), draws, shape)

    def added(self, x: Tensor) -> Tally:
        return Tally(len(x), {"whole": self._whole(Crowd.of(x))})

    def noised(self, total: Tally, draws: Draws) -> Tally:
        self.sums.check(total.n)
        return self._noised(total.n, total["whole"], draws)

    def _whole(self, summary: Crowd) -> Tensor:
        """Sums of u in whole steps, (*batch, size)."""
        sums = (weighted_sum(counts, u) for u, counts in self.encoded(summary))
        return self.sums.blocks(sums, summary.n)

    def _noised(self, n: Users, whole: Tensor, draws: Draws, shape: Shape = ()) -> Tally:
        return Tally(n, {"sum": self.sums.released(whole, draws, shape)})
