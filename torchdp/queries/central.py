"""Central mechanisms for linear queries: Gaussian noise shaped by a factorization."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED, SOURCE
from torchdp.protocol import CuratorProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.rounded_sum import VARIATION, RoundedSum, exact_sums
from torchdp.protocol.users import users_of
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.protocol import FactoredProtocol


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
