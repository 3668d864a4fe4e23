"""Central mechanisms for linear queries: Gaussian noise shaped by a factorization, discrete Laplace noise on counts."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED, SOURCE
from torchdp.protocol import CuratorProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.records import farthest, tensor_of, users_of
from torchdp.protocol.rounded_sum import VARIATION, RoundedSum, exact_sums
from torchdp.queries.factored import FactoredQueries, squared_distances
from torchdp.queries.protocol import FactoredProtocol

LAPLACE_SOURCE = "Ghosh, Roughgarden, Sundararajan (2012); Dwork, McSherry, Nissim, Smith (2006)"
LARGEST_COUNT = 2**20  # of what a user adds to a sum
MOST_USERS = 2**33  # whose sums float64 holds exactly


@dataclass(frozen=True, eq=False)
class CentralFactorization(FactoredProtocol, CuratorProtocol[Tensor]):
    """The curator answers L (R h + N(0, (sigma / n)^2 I)) + shift, sigma calibrated to the diameter of R's columns.

    Replacing one of n users' values moves R h by at most diameter / n. The variance of query i is
    sigma^2 ||l_i||^2 / n^2 whatever the data. A tally is n R h, noisy.

    R's entries are rounded to 2^-45 of the largest, their sums are exact, and whole steps of the noise leave
    (:class:`RoundedSum`).

    queries: encoder and decoder; epsilon > 0; delta in (0, 1). Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP in the central model, for replacing one user's value, n public, of what leaves.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Balle, Wang (2018), Theorem 8, for sigma.
    """

    queries: FactoredQueries
    epsilon: float
    delta: float
    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        checks.instance("queries", self.queries, FactoredQueries)
        checks.keep(self, epsilon=checks.positive, delta=checks.fraction)

    @cached_property
    def sums(self) -> RoundedSum:
        """R h, and its noise."""
        reach = float(self.queries.right.norm(dim=0).max())
        return RoundedSum.least(self._multiplier, self.queries.diameter, reach, len(self.queries.right))

    @cached_property
    def _multiplier(self) -> float:
        return gaussian_sigma(self.epsilon, self.delta * ROUNDED)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of sum_users R_x in each coordinate."""
        return self.sums.sigma

    @cached_property
    def guarantee(self) -> Guarantee:
        mu = 1 / self._multiplier if self.sigma else 0.0
        kept = self.delta * ROUNDED
        real = Guarantee(self.epsilon, kept, Model.CENTRAL, Neighbours.REPLACE_ONE, False, SOURCE, mu=mu)
        return real.leaving(self.sums.size * VARIATION, self.delta)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.queries.right.shape[0],), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"sum": self.sums.limits(n)}

    def release(self, summary: Tensor, draws: Draws, shape: tuple[int, ...]) -> Tally:
        whole = exact_sums(self.queries.right, summary, self.sums.step)
        return Tally(users_of(summary), {"sum": self.sums.released(whole, draws, shape)})

    def heard(self, tally: Tally) -> Tensor:
        return tally["sum"] / tally.users(1)

    @property
    def noise(self) -> float:
        return self.sigma**2


@dataclass(frozen=True, eq=False)
class CentralLaplace(FactoredProtocol, CuratorProtocol[Tensor]):
    """The curator answers L (S + Z)/n + shift, S = n R h sums of whole numbers, Z discrete Laplace noise: pure privacy.

    P(Z = z) is in proportion to e^(-rate |z|) in each sum, rate = epsilon/D, D the largest l_1 distance of two columns
    of R. The variance of query i is ||l_i||^2/(2 sinh^2(rate/2) n^2) whatever the data: less than that of Gaussian
    noise where a user moves few sums. What leaves are whole numbers.

    Args:
        queries: encoder and decoder (``FactoredQueries.spanned``); the encoder of whole numbers up to 2^20.
        epsilon: > 0, up to 700.

    Raises ValueError, TypeError.

    Guarantees: epsilon-DP in the central model, for replacing one user's value, n public; delta is what the distance
        of the tables' draws costs, ``Guarantee.pure``.
    Source: Ghosh, Roughgarden, Sundararajan (2012), for one sum; Dwork, McSherry, Nissim, Smith (2006), for l_1.
    """

    queries: FactoredQueries
    epsilon: float
    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        right = checks.instance("queries", self.queries, FactoredQueries).right
        checks.keep(self, epsilon=checks.positive)
        checks.within("epsilon", self.epsilon, 0, 700.0, ": nothing would be hidden")
        if bool((right != right.round()).any()) or float(right.abs().max()) > LARGEST_COUNT:
            raise ValueError(
                f"queries.right must hold whole numbers up to {LARGEST_COUNT}: what users add to sums"
            )
        if self.distance == 0:
            raise ValueError("queries.right must tell two types apart: there is nothing to hide")

    @cached_property
    def distance(self) -> int:
        """D, a whole number."""
        right = self.queries.right
        if bool(((right == 0) | (right == 1)).all()):  # then both norms are one
            return int(squared_distances(right).max())
        return int(torch.cdist(right.mT, right.mT, p=1).max())

    @property
    def rate(self) -> float:
        """epsilon/D, rounded down."""
        return math.nextafter(self.epsilon / self.distance, 0.0)

    @cached_property
    def guarantee(self) -> Guarantee:
        pure = Guarantee(self.epsilon, 0.0, Model.CENTRAL, Neighbours.REPLACE_ONE, False, LAPLACE_SOURCE)
        sums = len(self.queries.right)
        variation = laplace.variation(1, sums * laplace.mean_clusters(1.0, self.rate))
        cost = (1 + math.exp(self.epsilon)) * variation
        return pure.rounded(variation, cost * (1 + 1e-6)) if cost < 0.5 else pure

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.queries.right.shape[0],), torch.int64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        reach = float(self.queries.right.abs().max()) * n
        noise = farthest(math.sqrt(self.noise), 1 / self.rate)
        return {"sum": Limits(-reach - noise, reach + noise)}

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (*batch, k) of up to 2^33 users, whose sums are exact. Raises TypeError, ValueError."""
        counts = super().validate_summary(summary)
        many = tensor_of(users_of(counts)) > MOST_USERS
        if bool(many.any()):
            raise ValueError(f"summary must count at most 2^33 users{checks.at(many)}: sums would not be exact")
        return counts

    def release(self, summary: Tensor, draws: Draws, shape: tuple[int, ...]) -> Tally:
        whole = (summary.double() @ self.queries.right.mT).long()
        sums = whole.expand(*shape, *whole.shape).clone(memory_format=torch.contiguous_format)
        laplace.add_shares(sums.view(-1), 1.0, self.rate, draws)
        return Tally(users_of(summary), {"sum": sums})

    def heard(self, tally: Tally) -> Tensor:
        return tally["sum"].double() / tally.users(1)

    @property
    def laplace(self) -> bool:
        return True

    @property
    def noise(self) -> float:
        return laplace.variance(self.rate)
