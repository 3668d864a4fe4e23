"""Linear queries where somebody is trusted: a curator's noise, and shuffled sums of bits.

Notation: L, R and shift of ``FactoredQueries``; R_x, column x of R; l_i, row i of L; h, the shares
of the types of n users.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Draws, Shape, Simulated
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED, SOURCE
from torchdp.protocol import CuratorProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.records import alike, noise_limit, tensor_of, users_of
from torchdp.protocol.rounded_sum import VARIATION, RoundedSum, exact_sums
from torchdp.queries.channel import Question
from torchdp.queries.protocol import FactoredProtocol, FactoredQueries, squared_distances
from torchdp.queries.release import through
from torchdp.shuffle.laws import MessageLaw, message_law
from torchdp.shuffle.search import Sensitivity
from torchdp.shuffle.sums import Shuffled
from torchdp.workloads import Workload

LAPLACE_SOURCE = "Ghosh, Roughgarden, Sundararajan (2012); Dwork, McSherry, Nissim, Smith (2006)"

# Of what a user adds to a sum.
LARGEST_COUNT = 2**20

# Users whose sums float64 holds exactly: 2^33 times LARGEST_COUNT is 2^53.
MOST_USERS = 2**33


@dataclass(frozen=True, eq=False)
class CentralFactorization(FactoredProtocol, CuratorProtocol[Tensor]):
    """The curator answers L (R h + N(0, (sigma / n)^2 I)) + shift.

    sigma is calibrated to the diameter of R's columns. Replacing one of n users' values moves R h
    by at most diameter / n. The variance of query i is sigma^2 ||l_i||^2 / n^2 whatever the data. A
    tally is n R h, noisy.

    R's entries are rounded to 2^-45 of the largest, their sums are exact, and whole steps of the
    noise leave (:class:`RoundedSum`).

    queries: encoder and decoder; epsilon > 0; delta in (0, 1). Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP in the central model, for replacing one user's value, n public,
    of what leaves.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Balle, Wang (2018), Theorem 8, for sigma.
    """

    queries: FactoredQueries
    epsilon: float
    delta: float
    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        checks.instance("queries", self.queries, FactoredQueries)
        checks.keep(self, epsilon=checks.positive, delta=checks.fraction)

    @classmethod
    def of(
        cls,
        question: Question,
        epsilon: float,
        delta: float,
        queries: FactoredQueries | None = None,
    ) -> Any:
        """The release that answers a question.

        queries: factors of ``question.queries``, None: the vectors as they are. Raises TypeError,
        ValueError.
        """
        return through(question, cls(queries or cls.vectors_of(question), epsilon, delta))

    @cached_property
    def sums(self) -> RoundedSum:
        """R h, and its noise."""
        queries = self.queries
        return RoundedSum.least(
            self._multiplier, self.queries.diameter, queries.radius, len(queries.right)
        )

    @cached_property
    def _multiplier(self) -> float:
        """sigma for a diameter of 1: the rest of delta pays for the tables of the draws."""
        return gaussian_sigma(self.epsilon, self.delta * ROUNDED)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of sum_users R_x in each coordinate."""
        return self.sums.sigma

    @cached_property
    def guarantee(self) -> Guarantee:
        # Where all columns of R are the same there is no noise, and nothing to hide.
        mu = 1 / self._multiplier if self.sigma else 0.0
        kept = self.delta * ROUNDED
        real = Guarantee(
            self.epsilon, kept, Model.CENTRAL, Neighbours.REPLACE_ONE, False, SOURCE, mu=mu
        )
        return real.leaving(self.sums.size * VARIATION, self.delta)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.queries.right.shape[0],), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"sum": self.sums.limits(n)}

    def release(self, summary: Tensor, draws: Draws, shape: Shape) -> Tally:
        whole = exact_sums(self.queries.right, summary, self.sums.step)
        return Tally(users_of(summary), {"sum": self.sums.released(whole, draws, shape)})

    @property
    def noise(self) -> float:
        return self.sigma**2


@dataclass(frozen=True, eq=False)
class CentralLaplace(FactoredProtocol, CuratorProtocol[Tensor]):
    """The curator answers L (S + Z)/n + shift, Z discrete Laplace noise: pure privacy.

    S = n R h are sums of whole numbers. P(Z = z) is in proportion to e^(-rate |z|) in each sum,
    rate = epsilon/D, D the largest l_1 distance of two columns of R. The variance of query i is
    ||l_i||^2/(2 sinh^2(rate/2) n^2) whatever the data: less than that of Gaussian noise where a
    user moves few sums. What leaves are whole numbers.

    Args:
        queries: encoder and decoder (``FactoredQueries.spanned``); the encoder of whole numbers up
            to 2^20.
        epsilon: > 0, up to 700.

    Raises ValueError, TypeError.

    Guarantees: epsilon-DP in the central model, for replacing one user's value, n public; delta is
    what the distance of the tables' draws costs, ``Guarantee.pure``.
    Source: Ghosh, Roughgarden, Sundararajan (2012), for one sum; Dwork, McSherry, Nissim, Smith
    (2006), for l_1.
    """

    queries: FactoredQueries
    epsilon: float
    power: ClassVar[int] = 2
    step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        right = checks.instance("queries", self.queries, FactoredQueries).right
        checks.keep(self, epsilon=checks.positive)
        if (right != right.round()).any() or float(right.abs().max()) > LARGEST_COUNT:
            raise ValueError(
                f"queries.right must hold whole numbers up to {LARGEST_COUNT}: what users add to "
                "sums"
            )
        if self.distance == 0:
            raise ValueError("queries.right must tell two types apart: there is nothing to hide")
        least = laplace.LEAST_RATE * self.distance
        remedy = ": wider noise is not drawn exactly, and less would hide nothing"
        checks.within("epsilon", self.epsilon, least, 700.0, remedy)

    @classmethod
    def of(cls, question: Question, epsilon: float, bits: Tensor | None = None) -> Any:
        """The release that answers a question from sums of ``bits``.

        As ``FactoredQueries.spanned`` takes them. Raises TypeError, ValueError.
        """
        W = cls.queries_of(question)
        return through(question, cls(FactoredQueries.spanned(W, bits), epsilon))

    @cached_property
    def distance(self) -> int:
        """D, a whole number."""
        right = self.queries.right
        if ((right == 0) | (right == 1)).all():  # then both norms are one
            return int(squared_distances(right).max())
        return int(torch.cdist(right.mT, right.mT, p=1).max())

    @property
    def rate(self) -> float:
        """epsilon/D, rounded down."""
        # A smaller rate is wider noise: rounding is to the private side.
        return math.nextafter(self.epsilon / self.distance, 0.0)

    @cached_property
    def guarantee(self) -> Guarantee:
        return laplace_guarantee(self.epsilon, len(self.queries.right), self.rate)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.queries.right.shape[0],), torch.int64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        reach = float(self.queries.right.abs().max()) * n
        noise = noise_limit(math.sqrt(self.noise), 1 / self.rate)
        return {"sum": Limits(-reach - noise, reach + noise)}

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (*batch, k) of up to 2^33 users, whose sums are exact.

        Raises TypeError, ValueError.
        """
        counts = super().validate_summary(summary)
        too_many = tensor_of(users_of(counts)) > MOST_USERS
        if too_many.any():
            raise ValueError(
                f"summary must count at most 2^33 users{checks.at(too_many)}: sums would not be "
                "exact"
            )
        return counts

    def release(self, summary: Tensor, draws: Draws, shape: Shape) -> Tally:
        # Exact: no partial sum of 2^33 users and counts of 2^20 is beyond 2^53.
        exact = (summary.double() @ self.queries.right.mT).long()
        # Each of the releases draws noise of its own, in place.
        sums = exact.expand(*shape, *exact.shape).clone(memory_format=torch.contiguous_format)
        laplace.add_shares(sums.view(-1), 1.0, self.rate, draws)
        return Tally(users_of(summary), {"sum": sums})

    @property
    def laplace(self) -> bool:
        return True

    @property
    def noise(self) -> float:
        return laplace.variance(self.rate)

    def cumulants(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        cumulants = counts.new_tensor(
            [0.0, laplace.fourth_cumulant(self.rate)], dtype=torch.float64
        )
        third, fourth = cumulants
        return third, fourth


@dataclass(frozen=True, eq=False)
class ShuffledQueries(FactoredProtocol, Shuffled[Tensor]):
    """Users send the bits R_x of their type x to shuffled sums S, with noise.

    The answers are L S/n + shift. The variance of query i is ||l_i||^2 times that of one sum's
    noise, over n^2, whatever the data. ``calibrated`` makes L of least norm: it uses that the
    shares of types add up to 1.

    Args:
        queries: encoder and decoder, the encoder of zeros and ones.
        law: the messages' distribution, such as ``BoundedSum``.
        delta: at which the guarantee is stated.
        epsilon: likewise; None: the smallest that is certified.
        absent: so many of ``law.users`` may send nothing, or collude.

    Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP of the shuffled messages for replacing one user's type, n
    public: no two columns of R differ in more bits than ``sensitivity`` says, and
    ``shuffle.delta_of`` certifies sums of which so many move.
    Source: that of the law.
    """

    queries: FactoredQueries
    law: MessageLaw
    delta: float
    epsilon: float | None = None
    absent: int = 0
    instances: int = field(init=False, repr=False)
    power: ClassVar[int] = 2
    step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        right = checks.instance("queries", self.queries, FactoredQueries).right
        if not ((right == 0) | (right == 1)).all() or not right.any():
            raise ValueError("queries.right must hold zeros and ones: a user sends bits")
        object.__setattr__(self, "instances", len(right))
        law = checks.instance("law", self.law, MessageLaw)
        law.countable()
        none, every = law.variance(torch.tensor([0, law.users], dtype=torch.int64)).tolist()
        if none != every:
            raise ValueError(
                f"kind must have one variance whatever the bits, not that of {type(law).__name__}: "
                "errors are those of the noise alone; take CorrelatedSum"
            )
        checks.keep(self, delta=checks.fraction)
        checks.validated(self, "guarantee")

    @classmethod
    def calibrated(
        cls,
        workload: Tensor | Workload | FactoredQueries,
        kind: type[MessageLaw],
        users: int,
        epsilon: float,
        delta: float,
        bits: Tensor | None = None,
        absent: int = 0,
    ) -> "ShuffledQueries":
        """With the least noise of this kind at (epsilon, delta).

        Args:
            workload: (m, k), a :class:`~torchdp.workloads.Workload`, or factors of one, whose
                encoder is of bits.
            kind: of the messages' distribution, such as ``BoundedSum``; ``CorrelatedSum`` for a
                small number of sums.
            users: n, public.
            epsilon: of the shuffled messages, > 0.
            delta: likewise, in (0, 1).
            bits: R, (r, k), zeros and ones, whose rows span the queries up to constants; None: one
                for each type.
            absent: as in the class.

        Raises TypeError, ValueError.
        """
        message_law(kind)
        if isinstance(workload, FactoredQueries):
            queries = workload
        else:
            queries = FactoredQueries.spanned(workload, bits)
        # The rest of delta pays for the tables that noise is drawn from.
        kept = checks.fraction("delta", delta) * ROUNDED
        law = kind.calibrated(users, epsilon, kept, _moved(queries.right), absent)
        return cls(queries, law, delta, epsilon, absent)

    @classmethod
    def of(
        cls,
        question: Question,
        kind: type[MessageLaw],
        users: int,
        epsilon: float,
        delta: float,
        bits: Tensor | None = None,
        absent: int = 0,
    ) -> Any:
        """The protocol that answers a question, with the arguments of :meth:`calibrated`."""
        W = cls.queries_of(question)
        return through(question, cls.calibrated(W, kind, users, epsilon, delta, bits, absent))

    @property
    def sensitivity(self) -> Sensitivity:
        return _moved(self.queries.right)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types, 1 to ``law.users`` of them. Raises TypeError, ValueError."""
        return self.few(super().validate(x))

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (*batch, k) of ``law.users`` users. Raises TypeError, ValueError."""
        counts = super().validate_summary(summary)
        wrong = tensor_of(users_of(counts)) != self.law.users
        if wrong.any():
            raise ValueError(
                f"summary must be of {self.law.users} users, as calibrated{checks.at(wrong)}"
            )
        return counts

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        return self.queries.right.mT.to(x.device)[x].bool()

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        """All ``law.users`` send. O(k instances), whatever their number."""
        sums = summary.double() @ self.queries.right.mT.to(summary.device)
        ones = sums.round().long()
        totals = self.law.noised(ones.expand(*shape, *ones.shape), draws)
        return Tally(users_of(summary), {"total": totals})

    def heard(self, tally: Tally) -> Tensor:
        n = alike(tally.n)
        return self.law.decode(tally["total"], n) / n

    @property
    def laplace(self) -> bool:
        return self.law.laplace

    @property
    def noise(self) -> float:
        return self.law.rmse**2

    def cumulants(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        return self.law.cumulants(counts.double() @ self.queries.right.mT)


def laplace_guarantee(epsilon: float, numbers: int, rate: float) -> Guarantee:
    """A curator's, of so many numbers under discrete Laplace noise drawn from tables."""
    pure = Guarantee(epsilon, 0.0, Model.CENTRAL, Neighbours.REPLACE_ONE, False, LAPLACE_SOURCE)
    variation = laplace.variation(1, numbers * laplace.mean_clusters(1.0, rate))
    # What events gain by a distance in variation on either side of the inequality.
    cost = (1 + math.exp(epsilon)) * variation
    if cost >= 0.5:
        # At so large an epsilon nothing is known of the integers drawn: the promise is one of real
        # numbers, as its arithmetic says.
        return pure
    return pure.rounded(variation, cost * (1 + 1e-6))


def _moved(bits: Tensor) -> Sensitivity:
    """The most bits in which two types differ."""
    # Of bits the squared distance is the number of those that differ.
    differing = float(squared_distances(bits.double()).max())
    return Sensitivity(len(bits), flips=max(1, round(differing)))
