"""Central mechanisms for linear queries: Gaussian noise shaped by a factorization."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.noise import Noise
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import SOURCE
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.mechanism import Answers, Errors, QueryMechanism, users


@dataclass(frozen=True)
class CentralFactorization(QueryMechanism):
    """The curator answers L (R h + N(0, (sigma / n)^2 I)) + shift, sigma calibrated to the diameter of R's columns.

    Replacing one of n users' values moves R h by at most diameter / n. The variance of query i is
    sigma^2 ||l_i||^2 / n^2 whatever the data.

    queries: encoder and decoder; epsilon > 0; delta in (0, 1). Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP in the central model, for replacing one user's value, n public; attained where
    ``guarantee.exact`` says so.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Balle, Wang (2018), Theorem 8, for sigma.
    """

    queries: FactoredQueries
    epsilon: float
    delta: float
    workload: Tensor = field(init=False)

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
        return Guarantee(self.epsilon, self.delta, Model.CENTRAL, Neighbours.REPLACE_ONE, exact, SOURCE)

    @cached_property
    def errors(self) -> Errors:
        variance = self.sigma**2 * self.queries.left.square().sum(1, keepdim=True)
        return Errors(self.queries.bias, variance.expand_as(self.workload), power=2)

    def _answer(self, types: Tensor, noise: Noise) -> Answers:
        return self._answers(torch.bincount(types, minlength=self.workload.shape[1]), (), noise)

    def answer_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Answers:
        counts = checks.counts("counts", counts, self.workload.shape[1])
        return self._answers(counts, checks.sample_shape(sample_shape), Simulated(generator, self.workload.device))

    def _answers(self, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Answers:
        n, r = users(counts), self.queries.right.shape[0]
        encoded = (self.queries.right @ counts.double() + self.sigma * draws.normal((*shape, r))) / n
        value = encoded @ self.queries.left.mT + self.queries.shift
        error = self.errors.variance[:, 0].sqrt() / n
        return Answers(value, error.expand_as(value), self.errors.bias.abs().amax(1), n)
