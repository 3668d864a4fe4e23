"""Local factorization mechanisms: each user's column of R, by a randomizer of the ball.

Notation: L, R and shift of ``FactoredQueries``; l_i, row i of L.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape, Simulated
from torchdp.privacy import Guarantee
from torchdp.protocol import Crowd, Relay, Tally
from torchdp.queries.channel import Question
from torchdp.queries.pair_variance import (
    NoiseMoments,
    noise_moments,
)
from torchdp.queries.protocol import FactoredProtocol, FactoredQueries
from torchdp.queries.release import through
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, check_client


@dataclass(frozen=True, eq=False)
class LocalFactorization(FactoredProtocol, Relay[Tensor, Tensor, BallRandomizer]):
    """Each user sends its column of R by a randomizer of the ball; L is applied to their mean.

    With E Y = R_x and Cov Y = variance I + outer R_x R_x^T the answer to query i has, from one user
    of type x, the variance variance ||l_i||^2 + outer <l_i, R_x>^2: for an isotropic randomizer
    gamma_2^2 variance at most, whatever the data. Its bias is what the factorization leaves out, at
    most alpha.

    queries: encoder and decoder. client: what users run, of dimension r, its radius at least the
    encoder's; ``calibrated`` makes one. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with any unbiased randomizer in the place
    of their Lemma 9.
    """

    queries: FactoredQueries
    client: BallRandomizer

    def __post_init__(self) -> None:
        queries = checks.instance("queries", self.queries, FactoredQueries)
        check_client(self.client, len(queries.right), queries.radius)

    @classmethod
    def of(cls, question: Question, epsilon: float) -> Any:
        """The protocol that answers a question from the vectors of its types, sent as they are.

        Raises TypeError, ValueError.
        """
        return through(question, cls.calibrated(cls.vectors_of(question), epsilon=epsilon))

    @property
    def guarantee(self) -> Guarantee:
        # Exact for the ball: these are k points of it.
        return replace(self.client.guarantee, exact=False)

    @classmethod
    def calibrated(cls, queries: FactoredQueries, *, epsilon: float) -> "LocalFactorization":
        """By PrivUnit of this epsilon. Raises ValueError, TypeError."""
        radius = checks.instance("queries", queries, FactoredQueries).radius * (1 + 1e-12)
        return cls(queries, PrivUnit(queries.right.shape[0], epsilon, radius or 1.0))

    def client_input(self, x: Tensor) -> Tensor:
        """Columns of R, (n, r)."""
        return self.queries.right.mT.to(x.device).index_select(0, x)

    @cached_property
    def variance(self) -> Tensor:
        along = (self.queries.left @ self.queries.right).square()
        return super().variance + self.client.moments.outer * along

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.subgaussian.proxy * self.queries.left.square().sum(1)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        columns = self.queries.right.mT.to(x.device)
        return self.client.collect_crowd(columns, self.summary_unchecked(x), draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        crowd = Crowd.shared(self.queries.right.mT, summary)
        return self.client.sample_unchecked(crowd, draws, shape)

    @property
    def noise(self) -> float:
        return self.client.moments.variance

    @cached_property
    def _moments(self) -> NoiseMoments | None:
        """Of the noise, where no two queries read one coordinate.

        Else what they add, a fraction 1/n, is left out.
        """
        if self._isotropic and isinstance(self.client, PrivUnit):
            return noise_moments(self.client)
        return None

    def _beyond(self, moments: NoiseMoments, weights: Tensor, slope: Tensor) -> Tensor:
        """What a user of each type adds to n^4 times the variance beyond normal noise.

        slope: n times that of s.
        """
        left = self.queries.left
        return moments.beyond_normal(self._unit, (slope / 2) @ left, weights @ left.square())

    @property
    def _unit(self) -> Tensor:
        """Columns of R in the unit ball, (k, r)."""
        return self.queries.right.mT / self.client.radius

    def third(self, counts: Tensor, T: Tensor) -> Tensor | None:
        if not isinstance(self.client, PrivUnit):
            return None
        return counts @ noise_moments(self.client).third_of(self._unit, self.queries.left, T)

    def beyond(self, counts: Tensor, weights: Tensor, slope: Tensor) -> Tensor | float:
        if self._moments is None:
            return 0.0
        n = counts.sum(-1)
        added = self._beyond(self._moments, weights, n[..., None] * slope)
        return (counts * added).sum(-1) / n**4

    def worst_form(self, n: float | Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """A user's own term is affine in the others' sum, so it is largest at one type."""
        if self._moments is None:
            return super().worst_form(n, weights, linear)
        users = torch.as_tensor(n, dtype=torch.float64, device=self.workload.device)
        worst = []
        own = []
        for point in self.points:
            slope = 2 * weights * point + linear
            straight, curved = self._variances(slope, weights, users)
            worst.append(straight + 2 * curved)
            added = self._beyond(self._moments, weights, users[..., None] * slope)
            own.append(added.amax(-1))
        return torch.stack(worst).amax(0) + torch.stack(own).amax(0) / users**3

    def half_width(self, n: int, failure: float = 0.05) -> float:
        """h: with probability 1 - ``failure`` all answers are within h, whatever the n users' data.

        h = max_i ||l_i|| (2 proxy log(2 m / failure) / n)^{1/2} + (largest bias), by the
        randomizer's variance proxy.
        Guarantees: P(largest error > h) <= failure.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with its constants.
        """
        n = checks.integer("n", n, 1)
        failure = checks.fraction("failure", failure)
        log = math.log(2 * len(self.workload) / failure)
        tail = math.sqrt(2 * self.client.subgaussian.proxy * log / n)
        longest = float(self.queries.left.norm(dim=1).max())
        return longest * tail + self._largest_bias

    @property
    def _largest_bias(self) -> float:
        return float(self.bias.abs().max())

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom :meth:`half_width` is at most alpha.

        Raises ValueError where the bias alone is not below it.

        Guarantees: that many users are enough, whatever their data.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10.
        """
        alpha = checks.squarable("alpha", alpha)
        bias = self._largest_bias
        if bias >= alpha:
            raise ValueError(
                f"alpha must be above the bias {bias:g} of these factors, not {alpha!r}"
            )
        tail = self.half_width(1, failure) - bias
        return math.ceil((tail / (alpha - bias)) ** 2)
