"""Linear queries from shuffled sums of bits."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Tally
from torchdp.protocol.records import alike, tensor_of, users_of
from torchdp.queries.factored import FactoredQueries, squared_distances
from torchdp.queries.protocol import FactoredProtocol
from torchdp.shuffle.laws import MessageLaw
from torchdp.shuffle.search import Sensitivity
from torchdp.shuffle.sums import Shuffled
from torchdp.workloads import Workload


@dataclass(frozen=True, eq=False)
class ShuffledQueries(FactoredProtocol, Shuffled[Tensor]):
    """Users send the bits R_x of their type x to shuffled sums S, with noise; the answers are L S/n + shift.

    The variance of query i is ||l_i||^2 times that of one sum's noise, over n^2, whatever the data. ``calibrated``
    makes L of least norm: it uses that the shares of types add up to 1.

    queries: encoder and decoder, the encoder of zeros and ones; law: such as ``BoundedSum``; delta, epsilon: at which
    the guarantee is stated, without epsilon the smallest that is certified; absent: so many of ``law.users`` may send
    nothing, or collude. Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP of the shuffled messages for replacing one user's type, n public: no two columns of
        R differ in more bits than ``sensitivity`` says, and ``shuffle.delta_of`` certifies sums of which so many move.
    Source: that of the law.
    """

    queries: FactoredQueries
    law: MessageLaw
    delta: float
    epsilon: float | None = None
    absent: int = 0
    instances: int = field(init=False, repr=False)
    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        right = checks.instance("queries", self.queries, FactoredQueries).right
        if not bool(((right == 0) | (right == 1)).all()) or not bool(right.any()):
            raise ValueError("queries.right must hold zeros and ones: a user sends bits")
        object.__setattr__(self, "instances", len(right))
        checks.instance("law", self.law, MessageLaw).countable()
        least, most = self.law.variance(torch.tensor([0, self.law.users], dtype=torch.int64)).tolist()
        if least != most:
            raise ValueError(
                f"kind must have one variance whatever the bits, not that of {type(self.law).__name__}: errors are "
                "those of the noise alone; take CorrelatedSum"
            )
        checks.keep(self, delta=checks.fraction)
        checks.validated(self, "guarantee")

    @classmethod
    def calibrated(
        cls,
        workload: Tensor | Workload,
        kind: type[MessageLaw],
        users: int,
        epsilon: float,
        delta: float,
        bits: Tensor | None = None,
        absent: int = 0,
    ) -> "ShuffledQueries":
        """With the least noise of this kind at (epsilon, delta).

        Args:
            workload: (m, k), or a :class:`~torchdp.workloads.Workload`.
            kind: a law of ``torchdp.shuffle``, such as ``BoundedSum``; ``CorrelatedSum`` for few sums.
            users: n, public.
            epsilon: of the shuffled messages, > 0.
            delta: likewise, in (0, 1).
            bits: R, (r, k), zeros and ones, whose rows span the queries up to constants; None: one for each type.
            absent: as in the class.

        Raises TypeError, ValueError.
        """
        if not (isinstance(kind, type) and issubclass(kind, MessageLaw)):
            raise TypeError(f"kind must be a subclass of MessageLaw, such as BoundedSum, not {kind!r}")
        queries = FactoredQueries.spanned(workload, bits)
        law = kind.calibrated(
            users, epsilon, checks.fraction("delta", delta) * ROUNDED, _moved(queries.right), absent
        )
        return cls(queries, law, delta, epsilon, absent)

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
        if bool(wrong.any()):
            raise ValueError(f"summary must be of {self.law.users} users, as calibrated{checks.at(wrong)}")
        return counts

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        return self.queries.right.mT[x].bool()

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """All ``law.users`` send. O(k instances), whatever their number."""
        ones = (summary.double() @ self.queries.right.mT).round().long()
        return Tally(users_of(summary), {"total": self.law.noised(ones.expand(*shape, *ones.shape), draws)})

    def heard(self, tally: Tally) -> Tensor:
        n = alike(tally.n)
        return self.law.decode(tally["total"], n) / n

    @property
    def laplace(self) -> bool:
        return self.law.laplace

    @property
    def noise(self) -> float:
        return self.law.rmse**2


def _moved(bits: Tensor) -> Sensitivity:
    """The most bits in which two types differ."""
    apart = squared_distances(bits.double())
    return Sensitivity(len(bits), flips=max(1, round(float(apart.max()))))
