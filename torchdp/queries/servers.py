"""Linear queries by servers that do not all collude: L applied to a secure sum of columns of R.

Notation: L, R and shift of ``FactoredQueries``; R_x, column x of R; l_i, row i of L; n users.
"""

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Shape, Simulated
from torchdp.protocol import Estimate, Tally
from torchdp.protocol.protocol import Protocol, Relay
from torchdp.protocol.records import users_of
from torchdp.queries.channel import Question
from torchdp.queries.protocol import FactoredProtocol, FactoredQueries
from torchdp.queries.release import through
from torchdp.secure.pure import PureSecureSketch
from torchdp.secure.shared_sum import Shown
from torchdp.secure.sums import SecureSums, Words


@dataclass(frozen=True, eq=False)
class SecureQueries(FactoredProtocol, Relay[Tensor, Words, SecureSums]):
    """The answers L S/n + shift, S the secure sum of the columns R_x of n clients.

    Each client adds its part of the noise. Clients truncate R_x to the grid of ``client.ring``;
    ``bias`` includes what that moves. The variance of query i is v ||l_i||^2 / n whatever the data,
    v the variance of one client's noise, the least for the largest distance of two columns: whoever
    drops out takes its noise along. With nobody corrupt or absent n v is the variance of the noise
    that a curator adds: the error is that of ``CentralFactorization``; with delta = 0 that of
    Laplace noise.

    For servers that are processes of their own, ``client`` is a ``Session``'s question,
    ``client_input(x)`` is what organisations submit, and ``released`` reads the answers off what
    the analyst gets. State ``corrupt`` then: the clients of the largest organisation.

    Args:
        queries: encoder and decoder; the encoder of any real numbers.
        clients: users that the noise is made for.
        epsilon: > 0.
        delta: in (0, 1) for Gaussian noise, by l_2 distance; 0 for discrete Laplace noise, by l_1.
        corrupt: clients who know their own noise and collude with the reader.
        absent: others, who may drop out; together fewer than ``clients``.

    Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's type, n public: that of
    :class:`SecureSketch` or :class:`PureSecureSketch` on a plain sum, at the largest distance of
    two columns before truncation.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Burkhardt, Keller, Orlandi, Schwiegelshohn
    (2025), Theorem 4.4, for the sum.
    """

    queries: FactoredQueries
    clients: int
    epsilon: float
    delta: float = 0.0
    _: KW_ONLY
    corrupt: int | None = None
    absent: int = 0

    def __post_init__(self) -> None:
        checks.instance("queries", self.queries, FactoredQueries)
        checks.validated(self, "client")  # clients and an epsilon that have no noise

    @classmethod
    def of(
        cls,
        question: Question,
        clients: int,
        epsilon: float,
        delta: float = 0.0,
        queries: FactoredQueries | None = None,
        *,
        corrupt: int | None = None,
        absent: int = 0,
    ) -> Any:
        """The protocol that answers a question.

        queries: factors of ``question.queries``, None: its vectors. Raises TypeError, ValueError.
        """
        if queries is None:
            queries = cls.vectors_of(question)
        channel = cls(queries, clients, epsilon, delta, corrupt=corrupt, absent=absent)
        return through(question, channel)

    @cached_property
    def client(self) -> SecureSums:  # type: ignore[override]
        """The sum of columns of R, by two servers; ``client.secure_sum(servers)`` by more."""
        right = self.queries.right
        l2 = checks.positive("diameter of queries", self.queries.diameter)
        l1 = 0.0  # which Gaussian noise does not read
        if self.laplace:
            # What floats lose here is far below the slack that the sum leaves for rounding.
            l1 = float(torch.cdist(right.mT, right.mT, p=1).max())
        shown = Shown(len(right), self.queries.radius, float(right.abs().max()), l2, l1)
        return shown.secure_sum(self.clients, self.epsilon, self.delta, self.corrupt, self.absent)

    @cached_property
    def bias(self) -> Tensor:
        """(m, k): of the columns as they come into the sum."""
        ring = self.client.ring
        columns = ring.to_reals(ring.to_words(self.queries.right))
        return replace(self.queries, right=columns).bias

    @property
    def noise(self) -> float:
        return float(self.client.variance)

    @property
    def laplace(self) -> bool:
        return self.delta == 0

    def cumulants(self, counts: Tensor) -> tuple[Tensor, Tensor] | None:
        """Of discrete Laplace noise: each client adds its part."""
        client = self.client
        if not isinstance(client, PureSecureSketch):
            return None
        part = client.part * laplace.fourth_cumulant(client.rate) / client.ring.scale**4
        fourth = counts.sum(-1, keepdim=True) * part
        return torch.zeros_like(fourth), fourth

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types of at most ``clients`` users. Raises TypeError, ValueError."""
        x = super().validate(x)
        checks.integer("x, the number of its users,", len(x), 1, self.clients)
        return x

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (*batch, k) of at most ``clients`` users. Raises TypeError, ValueError."""
        return checks.counts("summary", super().validate_summary(summary), self.held, self.clients)

    def client_input(self, x: Tensor) -> Tensor:
        """What clients who hold types x bring into ``client``: columns of R, (n, r)."""
        return self.queries.right.mT.to(x.device)[x]

    collect_groups = Protocol.collect_groups  # one sum after the other

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        """O(k r), whatever n: weighted sums of integers, and the noise of n clients."""
        columns = self.client.ring.to_words(self.queries.right.mT)
        # GPUs multiply no matrices of integers.
        sums = (summary.cpu() @ columns.cpu()).to(summary.device)[..., None, :]
        # Each client adds its part of the noise, whatever its type.
        clients = summary.sum(-1, keepdim=True)
        noise = self.client.noise_of(clients, (*shape, *sums.shape), draws)
        return Tally(users_of(summary), {"words": sums + noise})

    def heard(self, tally: Tally) -> Tensor:
        """m, (*batch, r). Raises ValueError where more than ``absent`` dropped out."""
        return self.client.analyse(tally).value[..., 0, :] / tally.users(1)

    def released(self, found: Estimate) -> Estimate:
        """The answers from an estimate of ``client``: ``analyse`` of the same words.

        Raises ValueError for an estimate of other noise.
        """
        if (found.standard_error != self.client.row_variance.sqrt()).any():
            raise ValueError(
                "found must be of this client and its noise: state corrupt as the session counts it"
            )
        # Values are whole steps of the ring, so that they come back as the same words.
        words = (found.value * self.client.ring.scale).long()
        return self.analyse(Tally(found.n, {"words": words}))
