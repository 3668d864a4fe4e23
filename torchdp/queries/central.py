"""Central mechanisms for linear queries: Gaussian noise shaped by a factorization."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED, SOURCE
from torchdp.protocol import CuratorProtocol, Estimate, Layout, Tally
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.protocol import QueryProtocol
from torchdp.rounded import WIDEST, RoundedNormal


@dataclass(frozen=True, eq=False)
class CentralFactorization(QueryProtocol, CuratorProtocol[Tensor]):
    """The curator answers L (R h + N(0, (sigma / n)^2 I)) + shift, sigma calibrated to the diameter of R's columns.

    Replacing one of n users' values moves R h by at most diameter / n. The variance of query i is
    sigma^2 ||l_i||^2 / n^2 whatever the data. A tally is n R h, noisy.

    Where R is whole numbers but for what all types share (identity, binary tree, answers that are 0 or 1), the sum's
    noise is a rounded normal and the guarantee speaks of the numbers that leave, up to ``RoundedNormal``'s sigma.

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
        """Standard deviation of the noise of sum_users R_x in each coordinate, before it is rounded."""
        return self._sigma(self.delta * ROUNDED if self.rounded else self.delta)

    def _sigma(self, delta: float) -> float:
        diameter = self.queries.diameter
        return gaussian_sigma(self.epsilon, delta, diameter) if diameter > 0 else 0.0

    @cached_property
    def whole(self) -> Tensor | None:
        """R less its first column, where these are whole numbers: (r, k)."""
        apart = self.queries.right - self.queries.right[:, :1]
        whole = apart.round()
        close = (apart - whole).abs().max() <= 1e-14 * self.queries.right.abs().max()
        return whole if bool(close & (whole != 0).any()) else None

    @cached_property
    def _largest(self) -> float:
        """In size, of the whole numbers."""
        return 0.0 if self.whole is None else float(self.whole.abs().max())

    @cached_property
    def rounded(self) -> RoundedNormal | None:
        """The noise of whole numbers; None for others, and where its tables are too coarse for epsilon and delta."""
        if self.whole is None or not (sigma := self._sigma(self.delta * ROUNDED)) <= WIDEST:
            return None
        normal = RoundedNormal.fine(sigma)
        try:
            self._promise(normal, sigma)
        except ValueError:
            return None
        return normal

    def _promise(self, normal: RoundedNormal, sigma: float) -> Guarantee:
        kept = self.delta * ROUNDED
        mu = self.queries.diameter / sigma
        real = Guarantee(self.epsilon, kept, Model.CENTRAL, Neighbours.REPLACE_ONE, False, SOURCE, mu=mu)
        return real.rounded(len(self.queries.right) * normal.variation, self.delta)

    @property
    def guarantee(self) -> Guarantee:
        """Exact where two types at the diameter differ along the rows of L alone: the answers show nothing else."""
        if self.rounded:
            return self._promise(self.rounded, self.sigma)
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
        each = (self.rounded.variance if self.rounded else self.sigma**2) * self.queries.left.square().sum(
            1, keepdim=True
        )
        return each.expand_as(self.workload)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.queries.right.shape[0],), torch.float64)}

    def release(self, summary: Tensor, draws: Draws, shape: tuple[int, ...]) -> Tally:
        counts, n = self.counts(summary)
        if self.whole is not None and self.rounded:
            if n * self._largest > checks.MOST:
                raise ValueError(f"summary must count fewer users than {n}: their sums would not be exact")
            total = self.rounded.added(self.whole @ counts.double(), draws, shape)
            return Tally(n, {"sum": total + n * self.queries.right[:, 0]})
        total = self.queries.right @ counts.double()
        return Tally(n, {"sum": total + self.sigma * draws.normal((*shape, len(total)))})

    def analyse(self, tally: Tally) -> Estimate:
        value = self.check(tally)["sum"] / tally.n @ self.queries.left.mT + self.queries.shift
        error = self.variance[:, 0].sqrt() / tally.n
        return Estimate(value, error.expand_as(value), tally.n, bias=self.bias.abs().amax(1))
