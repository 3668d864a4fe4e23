"""The channel of Ghazi et al. (2023): each user sends its vector twice, at half the budget each.

Notation: z and z', the means of the two messages; L, R, left and right of ``FactoredQueries``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape, Simulated
from torchdp.privacy import Guarantee, compose
from torchdp.protocol import Crowd, Layout, Limits, MessageProtocol, Tally, Users
from torchdp.protocol.quadratic import QuadraticError
from torchdp.queries.channel import Question
from torchdp.queries.pair_variance import noise_moments
from torchdp.queries.protocol import FactoredProtocol, FactoredQueries
from torchdp.queries.release import through
from torchdp.randomizers import PrivUnit


@dataclass(frozen=True, eq=False)
class Twice(FactoredProtocol, MessageProtocol[Tensor, Tensor]):
    """Users send their column of R twice, each time at epsilon/2: forms are those of z and z'.

    With v the variance of one message and J = diag(weights), L = I: z^T J z' has the variance
    2 v ||J s||^2 / n + v^2 sum weights^2 / n^2, exactly, more than that of one message at the full
    budget (about four times where epsilon is small). A message is (2, r).

    Args:
        queries: encoder and decoder; of the vectors as they are by :meth:`of`.
        epsilon: of both messages together, > 0.

    Raises TypeError, ValueError.

    Guarantees: epsilon-LDP for each user (basic composition of two messages at epsilon/2).
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11.
    """

    queries: FactoredQueries
    epsilon: float
    # Cov is that of the mean of both: the noise of one message has twice as much.
    squares = 4.0

    def __post_init__(self) -> None:
        checks.instance("queries", self.queries, FactoredQueries)
        checks.keep(self, epsilon=checks.positive)
        checks.validated(self, "randomizer")

    @classmethod
    def of(cls, question: Question, epsilon: float) -> "Twice":
        """The protocol that answers a question of pairs. Raises TypeError, ValueError."""
        return through(question, cls(cls.vectors_of(question), epsilon))

    @cached_property
    def randomizer(self) -> PrivUnit:
        """What a user runs for each of the two messages."""
        return PrivUnit(len(self.queries.right), self.epsilon / 2, self.queries.radius or 1.0)

    @property
    def guarantee(self) -> Guarantee:
        return compose([self.randomizer.guarantee] * 2)

    @property
    def noise(self) -> float:
        # Of the mean of two messages of independent noise.
        return self.randomizer.moments.variance / 2

    def third(self, counts: Tensor, T: Tensor) -> Tensor:
        unit = self.queries.right.mT / self.randomizer.radius
        # Two independent noises, each halved: 2/8 of one message's third cumulant.
        return counts @ noise_moments(self.randomizer).third_of(unit, self.queries.left, T) / 4

    def heard(self, tally: Tally) -> Tensor:
        return (tally["first"] + tally["second"]) / (2 * tally.users(1))

    @property
    def bits_per_user(self) -> float:
        return 2 * self.randomizer.bits_per_user

    @property
    def layout(self) -> Layout:
        vector = ((len(self.queries.right),), torch.float64)
        return {"first": vector, "second": vector}

    def limits(self, n: Users) -> dict[str, Limits]:
        return dict.fromkeys(self.layout, self.randomizer.limits(n)["sum"])

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        vectors = self.queries.right.mT.to(x.device)[x]
        randomize = self.randomizer.randomize_unchecked
        # Each copy has noise of its own: the product of the means is unbiased for that reason.
        return torch.stack([randomize(vectors, draws) for _ in range(2)], 1)

    def tally(self, messages: Tensor) -> Tally:
        """Messages (n, 2, r)."""
        first, second = self._copies(messages).unbind(1)
        tally = self.randomizer.tally
        sums = {"first": tally(first)["sum"], "second": tally(second)["sum"]}
        return Tally(len(messages), sums)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        counts = self.summary_unchecked(x)
        vectors = self.queries.right.mT.to(x.device)
        collect = self.randomizer.collect_crowd
        return Tally(len(x), {name: collect(vectors, counts, draws)["sum"] for name in self.layout})

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        crowd = Crowd.shared(self.queries.right.mT, summary)
        sample = self.randomizer.sample_unchecked
        return Tally(crowd.n, {name: sample(crowd, draws, shape)["sum"] for name in self.layout})

    def encode(self, messages: Tensor) -> bytes:
        return self.randomizer.encode(self._copies(messages).flatten(0, 1))

    def decode(self, data: bytes) -> Tensor:
        copies = self.randomizer.decode(data)
        if len(copies) % 2:
            raise ValueError(
                f"data must hold two copies of each user's vector, not {len(copies)} in all"
            )
        return copies.view(-1, 2, len(self.queries.right))

    def _copies(self, messages: Tensor) -> Tensor:
        r = len(self.queries.right)
        if checks.real("messages", messages).ndim != 3 or messages.shape[1] != 2:
            raise ValueError(f"messages must have shape (n, 2, {r}), not {tuple(messages.shape)}")
        return messages

    def _read(self, total: Tensor, n: float | Tensor) -> Tensor:
        return total / n @ self.queries.left.mT + self.queries.shift

    def form(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """The product of the two means, whose noise is independent."""
        n = tally.users(1)
        product = self._read(tally["first"], n) * self._read(tally["second"], n)
        return (weights * product + linear * self.mean(tally)).sum(-1)

    def form_errors(self, tally: Tally) -> Callable[[Tensor, Tensor, Tensor], QuadraticError]:
        of_mean = super().form_errors(tally)
        z = self.mean(tally)

        def error(weights: Tensor, linear: Tensor, value: Tensor) -> QuadraticError:
            # z1^T J z2 = m^T J m - d^T J d for the mean m = (z1 + z2)/2 and d = (z1 - z2)/2, of
            # mean 0 and of the same covariance as m.
            mean = of_mean(weights, linear, value)
            curved = mean.curved
            at_mean = ((weights * z + linear) * z).sum(-1) - curved.sum(-1)
            return QuadraticError(curved, mean.linear, -curved, at_mean - value, mean.slack)

        return error
