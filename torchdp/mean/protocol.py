"""What protocols about points of a bounded domain have in common."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.shapes import Encoding, Measured, NormError, encoding
from torchdp.draws import Simulated
from torchdp.memory import rows_at_once
from torchdp.protocol import Crowd, Estimate, Layout, Objective, Protocol, Tally, Users
from torchdp.protocol.rounded_sum import in_blocks
from torchdp.randomness import keyed_generator

EXACT = 2**53  # up to here float64 holds all integers
WIDTHS = 1 << 14  # draws of the noise for the width of a domain


class DomainProtocol(Protocol[Crowd]):
    """Users hold points of ``domain``, (n, d); a summary is a crowd of such points; n is public.

    domain: K. shape: an ellipsoid for the noise, any: a bad one costs accuracy, not privacy. Points outside the domain
    are refused: see ``Domain.project``.
    """

    domain: Domain
    shape: NoiseShape

    def __post_init__(self) -> None:
        """Refuses a shape that does not fit the domain. Raises TypeError, ValueError."""
        checks.instance("encoding", self.encoding, Encoding)

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball. Raises TypeError, ValueError where domain and shape do not fit."""
        return encoding(self.domain, self.shape)

    @property
    def held(self) -> tuple[int]:
        return (self.domain.dimension,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) with n >= 1, in the domain and on the shape's device. Raises TypeError, ValueError.

        Integers become float64, exactly: those beyond 2^53 in size are refused.
        """
        given = x
        x = super().validate(x)
        if not given.is_floating_point():
            # As integers: 2^53 + 1 is 2^53 among floats.
            whole = given.long()
            if not torch.equal(whole.clamp(-EXACT, EXACT), whole):
                raise ValueError("x holds integers beyond 2^53 in size, which float64 rounds; change the unit")
        device = self.shape.root.device
        if x.device != device:
            raise ValueError(f"x is on {x.device}, the shape on {device}; move one to the other")
        return self.domain.validate(x)

    def encoded(self, summary: Crowd) -> Iterator[tuple[Tensor, Tensor]]:
        """Vectors (k, r) or (*batch, k, r) and how many users hold each, (*batch, k), float64, block by block."""
        for some, counts in in_blocks(summary.rows, summary.counts):
            yield self.encoding(some.flatten(0, -2)).view(*some.shape[:-1], -1), counts


class MeanProtocol(DomainProtocol):
    """The mean of n points without bias, under noise whose covariance is the same whatever the data."""

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.shape.root.shape[1],), torch.float64)}

    @abstractmethod
    def noise_root(self, n: Users) -> Tensor:
        """B, (d, r) or (*batch, d, r), with Cov(estimate) = B B^T for n users, whatever their data."""

    def error(self, n: int, p: float | None = None) -> NormError:
        """The l_p error for n users; p: the shape's own where it is not given."""
        return NormError(self.noise_root(n), self.shape.p if p is None else p)

    def projected(self, found: Estimate) -> Tensor:
        """The nearest point to ``found.value`` of the domain's convex hull: biased, and never further off in l_2.

        ``projected_error`` says how far at most. Raises TypeError.
        """
        return self.domain.hull.project(checks.instance("found", found, Estimate).value)

    def projected_error(self, n: int) -> Measured:
        """An upper bound on (E ||projected - mean||_2^2)^{1/2} for n users, whatever their data.

        For the projection z of m + Z on a convex K that holds m, <m + Z - z, m - z> <= 0, so ||z - m||^2 <= <Z, z - m>
        <= max_{y in K} <Z, y> - <Z, m>. In the mean that is E h_K(Z), h_K the support function, here by Monte Carlo
        with normal noise; or E ||Z||^2 where this is less. No dimension enters for a simplex but log d.

        Guarantees: an upper bound, up to the standard error; for a ``LocalMean`` as n grows.
        Source: the inequality above; Dwork, Nikolov, Talwar (2015), "Efficient algorithms for privately releasing
        marginals via convex relaxations", section 3, for the idea.
        """
        plain, root = self.error(n, 2.0).floor, self.noise_root(n)
        generator = keyed_generator(b"torchdp.mean.projected_error", root.device)
        count = min(WIDTHS, max(256, rows_at_once(max(root.shape))))
        # Normal noise: of a local mean's sums by the central limit.
        Z = Simulated(generator).normal((count, root.shape[1])) @ root.mT
        # around any point: <Z, point> is of mean 0, and with it the error is larger
        widths = self.domain.supports(Z, self.domain.spanning().mean(0))
        width = float(widths.mean())
        if width >= plain**2:
            return Measured(plain)
        return Measured(math.sqrt(width), float(widths.std()) / math.sqrt(count) / (2 * math.sqrt(width)))

    def exact(self, summary: Crowd) -> Tensor:
        return self.validate_summary(summary).mean

    def predicted_mse(self, summary: Crowd) -> Tensor:
        return self.noise_root(self.validate_summary(summary).n).square().sum(-1)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """(): the same for all data."""
        root = self.noise_root(n)
        return checks.instance("objective", objective, Objective).of(root.square().sum(-1), root.ndim - 2)

    def analyse(self, tally: Tally) -> Estimate:
        mean = self.check(tally)["sum"] / tally.users(1)
        value = self.encoding.centre + mean @ self.shape.root.mT
        found = Estimate(value, self.noise_root(tally.n).norm(dim=-1).expand_as(value), tally.n)
        return replace(found, population=partial(self._of_population, found, tally.users(1)))

    def _of_population(self, found: Estimate, n: float | Tensor) -> Estimate:
        """Of points between low and high whose mean is m, Var <= (high - m)(m - low) in each coordinate.

        A released mean tells no more of their variance: it is that of points at both ends. One released beside the
        mean, as by ``GaussianCovariance``, gives a narrower interval.
        Source: Bhatia, Davis (2000), Theorem 1.
        """
        axes = torch.eye(self.domain.dimension).to(self.domain.spanning())
        origin = torch.zeros_like(axes[0])
        high = self.domain.supports(axes, origin).to(found.value)
        low = -self.domain.supports(-axes, origin).to(found.value)
        mean = found.value.clamp(low, high)
        return found.with_sampling((high - mean) * (mean - low) / n)
