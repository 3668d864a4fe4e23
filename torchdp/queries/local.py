"""The local factorization mechanism for linear queries."""

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.protocol import Crowd, Relay, Tally
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.protocol import FactoredProtocol
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, check_client


@dataclass(frozen=True, eq=False)
class LocalFactorization(FactoredProtocol, Relay[Tensor, Tensor, BallRandomizer]):
    """Each user sends its column of R through a randomizer of the ball; the analyst applies L to the mean message.

    With E Y = R_x and Cov Y = variance I + outer R_x R_x^T the answer to query i has, from one user of type x, the
    variance variance ||l_i||^2 + outer <l_i, R_x>^2: for an isotropic randomizer gamma_2^2 variance at most, whatever
    the data. Its bias is what the factorization leaves out, at most alpha.

    queries: encoder and decoder. client: what users run, of dimension r, its radius at least the encoder's;
    ``calibrated`` makes one. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with any unbiased randomizer in the place of their Lemma 9.
    """

    queries: FactoredQueries
    client: BallRandomizer

    def __post_init__(self) -> None:
        queries = checks.instance("queries", self.queries, FactoredQueries)
        check_client(self.client, len(queries.right), queries.radius)

    @classmethod
    def calibrated(cls, queries: FactoredQueries, *, epsilon: float) -> "LocalFactorization":
        """By PrivUnit of this epsilon. Raises ValueError, TypeError."""
        radius = checks.instance("queries", queries, FactoredQueries).radius * (1 + 1e-12)
        return cls(queries, PrivUnit(queries.right.shape[0], epsilon, radius or 1.0))

    def client_input(self, x: Tensor) -> Tensor:
        """Columns of R, (n, r)."""
        return self.queries.right.mT.index_select(0, x)

    @cached_property
    def variance(self) -> Tensor:
        along = (self.queries.left @ self.queries.right).square()
        return super().variance + self.client.moments.outer * along

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.subgaussian.proxy * self.queries.left.square().sum(1)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_crowd(self.queries.right.mT, self.summary(x), draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.client.sample_unchecked(Crowd.shared(self.queries.right.mT, summary), draws, shape)

    def heard(self, tally: Tally) -> Tensor:
        return tally["sum"] / tally.users(1)

    @property
    def noise(self) -> float:
        return self.client.moments.variance

    def half_width(self, n: int, failure: float = 0.05) -> float:
        """h such that with probability 1 - ``failure`` all answers are within h, whatever the data of the n users.

        h = max_i ||l_i|| (2 proxy log(2 m / failure) / n)^{1/2} + (largest bias), by the randomizer's variance proxy.
        Guarantees: P(largest error > h) <= failure.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with its constants.
        """
        n, failure = checks.integer("n", n, 1), checks.fraction("failure", failure)
        m = len(self.workload)
        tail = math.sqrt(2 * self.client.subgaussian.proxy * math.log(2 * m / failure) / n)
        return float(self.queries.left.norm(dim=1).max()) * tail + float(self.bias.abs().max())

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom :meth:`half_width` is at most alpha. Raises ValueError where the bias alone is not below it.

        Guarantees: that many users are enough, whatever their data.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10.
        """
        alpha, bias = checks.squarable("alpha", alpha), float(self.bias.abs().max())
        if bias >= alpha:
            raise ValueError(f"alpha must be above the bias {bias:g} of these factors, not {alpha!r}")
        return math.ceil(((self.half_width(1, failure) - bias) / (alpha - bias)) ** 2)
