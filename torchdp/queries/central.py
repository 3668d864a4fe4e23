"""Central mechanisms for linear queries: Gaussian noise shaped by a factorization."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import SOURCE
from torchdp.protocol import CuratorProtocol, Estimate, Layout, Tally
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.protocol import QueryProtocol


@dataclass(frozen=True, eq=False)
class CentralFactorization(QueryProtocol, CuratorProtocol[Tensor]):
    """The curator answers L (R h + N(0, (sigma / n)^2 I)) + shift, sigma calibrated to the diameter of R's columns.

    Replacing one of n users' values moves R h by at most diameter / n. The variance of query i is
    sigma^2 ||l_i||^2 / n^2 whatever the data. A tally is n R h, noisy.

    queries: encoder and decoder; epsilon > 0; delta in (0, 1). Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP in the central model, for replacing one user's value, n public; attained where
    ``guarantee.exact`` says so.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Balle, Wang (2018), Theorem 8, for sigma.
    """

    queries: FactoredQueries
    epsilon: float
    delta: float
    workload: Tensor = field(init=False)
    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", checks.instance("queries", self.queries, FactoredQueries).workload)
        object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise of sum_users R_x in each coordinate."""
        diameter = self.queries.diameter
        return gaussian_sigma(self.epsilon, self.delta, diameter) if diameter > 0 else 0.0

    @property
    def guarantee(self) -> Guarantee:
        """Exact where two types at the diameter differ along the rows of L alone: the answers show nothing else."""
        L, R = self.queries.left, self.queries.right.mT
        seen = R @ torch.linalg.pinv(L, rtol=1e-9) @ L
        widest = float(torch.cdist(seen, seen, compute_mode="donot_use_mm_for_euclid_dist").max())
        exact = self.sigma > 0 and widest >= self.queries.diameter * (1 - 1e-9)
        mu = self.queries.diameter / self.sigma if self.sigma > 0 else 0.0
        return Guarantee(self.epsilon, self.delta, Model.CENTRAL, Neighbours.REPLACE_ONE, exact, SOURCE, mu=mu)

    @property
    def bias(self) -> Tensor:
        return self.queries.bias

    @property
    def variance(self) -> Tensor:
        each = self.sigma**2 * self.queries.left.square().sum(1, keepdim=True)
        return each.expand_as(self.workload)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.queries.right.shape[0],), torch.float64)}

    def release(self, summary: Tensor, draws: Draws, shape: tuple[int, ...]) -> Tally:
        counts, n = self.counts(summary)
        total = self.queries.right @ counts.double()
        return Tally(n, {"sum": total + self.sigma * draws.normal((*shape, len(total)))})

    def analyse(self, tally: Tally) -> Estimate:
        value = self.check(tally)["sum"] / tally.n @ self.queries.left.mT + self.queries.shift
        error = self.variance[:, 0].sqrt() / tally.n
        return Estimate(value, error.expand_as(value), tally.n, bias=self.bias.abs().amax(1))
