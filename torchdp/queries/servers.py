"""Linear queries where servers are trusted that do not all collude: L applied to a secure sum of columns of R."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.noise import Noise
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.protocol import Protocol, Relay
from torchdp.protocol.records import tensor_of, users_of
from torchdp.queries.protocol import FactoredProtocol, FactoredQueries
from torchdp.secure.pure import PureSecureSketch
from torchdp.secure.shared_sum import Shown
from torchdp.secure.sums import SLACK, SecureSums, Words


@dataclass(frozen=True, eq=False)
class SecureQueries(FactoredProtocol, Relay[Tensor, Words, SecureSums]):
    """The answers L S/n + shift, S the secure sum of the columns R_x of n clients, each with its part of the noise.

    Clients truncate R_x to the grid of ``client.ring``, which ``bias`` includes. The variance of query i is v ||l_i||^2
    / n whatever the data, v the variance of one client's noise. With nobody corrupt or absent n v is the variance of
    the noise that a curator adds: the error is that of ``CentralFactorization``; with delta = 0 that of Laplace noise.

    For servers that are processes of their own, ``client`` is the question of a ``Session``, ``rows(x)`` are what
    organisations submit, and ``released`` reads the answers off what the analyst gets.

    queries: encoder and decoder; client: a plain sum of the columns, whose noise hides the two farthest; ``calibrated``
    makes one. Raises TypeError, ValueError.

    Guarantees: the client's own, for replacing one client's type, n public.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem
        4.4, for the sum.
    """

    queries: FactoredQueries
    client: SecureSums

    def __post_init__(self) -> None:
        right = checks.instance("queries", self.queries, FactoredQueries).right
        client = checks.instance("client", self.client, SecureSums)
        sketch = client.sketch
        if (client.columns, sketch.height, sketch.copies) != (len(right), 1, 1) or bool((sketch.signs < 0).any()):
            raise ValueError(f"client must be a plain sum, sketching.ones, of {len(right)} columns")
        client.rows(right.mT)  # no larger than the noise is made for
        allowed = 2 * client.bound if client.sensitivity is None else client.sensitivity
        if _farthest(self.queries, client.NORM) > allowed * (1 + SLACK):
            raise ValueError(
                f"client must have a sensitivity of at least the largest l_{client.NORM} distance of two columns of "
                f"queries.right, not {allowed:g}: its noise would not hide them"
            )

    @classmethod
    def calibrated(
        cls,
        queries: FactoredQueries,
        clients: int,
        epsilon: float,
        delta: float = 0.0,
        *,
        corrupt: int | None = None,
        absent: int = 0,
    ) -> "SecureQueries":
        """With the least noise at (epsilon, delta) for the largest distance of two columns of R.

        Args:
            queries: encoder and decoder; the encoder of any real numbers, of which two types' differ.
            clients: users that the noise is made for.
            epsilon: > 0.
            delta: in (0, 1) for Gaussian noise, by l_2 distance; 0 for discrete Laplace noise, by l_1.
            corrupt: clients who collude with the reader; None: none, or as a ``Session`` says.
            absent: others, who may drop out; together fewer than ``clients``.

        Raises TypeError, ValueError.
        """
        right = checks.instance("queries", queries, FactoredQueries).right
        if bool((right == right[:, :1]).all()):
            raise ValueError("queries.right must tell two types apart: there is nothing to hide")
        largest = float(right.abs().max())
        l1 = 0.0 if delta else _farthest(queries, PureSecureSketch.NORM)
        shown = Shown(len(right), queries.radius, largest, queries.diameter, l1)
        return cls(queries, shown.secure_sum(clients, epsilon, delta, corrupt, absent))

    @cached_property
    def truncated(self) -> FactoredQueries:
        """``queries`` with the columns as they come into the sum."""
        ring = self.client.ring
        return replace(self.queries, right=ring.to_reals(ring.to_words(self.queries.right)))

    @property
    def bias(self) -> Tensor:
        return self.truncated.bias

    @property
    def noise(self) -> float:
        return float(self.client.variance)

    @property
    def laplace(self) -> bool:
        return isinstance(self.client, PureSecureSketch)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types of at most ``client.sketch.clients`` users. Raises TypeError, ValueError."""
        x = super().validate(x)
        if len(x) > self.client.sketch.clients:
            raise ValueError(f"x must hold at most the {self.client.sketch.clients} clients, not {len(x)}")
        return x

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (*batch, k) of at most so many users. Raises TypeError, ValueError."""
        counts = super().validate_summary(summary)
        self._shares(counts)
        return counts

    def client_input(self, x: Tensor) -> Tensor:
        """Columns of R, (n, r)."""
        return self.queries.right.mT.index_select(0, x)

    def rows(self, x: Rows) -> Tensor:
        """What some clients, who hold types x, bring into ``client``: (n, r). Raises TypeError, ValueError."""
        return self.client_input(self.validate(rows_of(x, self.held)))

    def randomize(self, x: Rows, *, first: int = 0, noise: Noise | None = None) -> Words:
        """What clients first, first + 1, ... who hold x share out. Raises ValueError, TypeError before any draw."""
        return self.client.speak(self.rows(x), first, noise)

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        return Protocol.collect_groups(self, x, groups, size, draws)  # one sum after the other

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """O(k r), whatever n: integers, weighted with counts, and the noise of so many clients."""
        columns = self.client.ring.to_words(self.queries.right.mT).long()
        whole = (summary[..., None] * columns).sum(-2, keepdim=True)
        n = users_of(summary)
        noise = self.client.noise_of(tensor_of(n)[..., None], (*shape, *whole.shape), draws)
        return Tally(n, {"words": (whole + noise).to(self.client.ring.dtype)})

    def heard(self, tally: Tally) -> Tensor:
        """m, (*batch, r). Raises ValueError where more were absent than the noise allows."""
        return self.client.analyse(tally).value[..., 0, :] / tally.users(1)

    def released(self, found: Estimate) -> Estimate:
        """The answers from an estimate of ``client``: ``analyse`` of the same words."""
        words = (found.value * self.client.ring.scale).to(self.client.ring.dtype)
        return self.analyse(Tally(found.n, {"words": words}))

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        return super().worst_mse(checks.people("n", n, 1, self.client.sketch.clients), objective)

    def _shares(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        h, n = super()._shares(summary)
        clients = self.client.sketch.clients
        many = n[..., 0].round() > clients  # numbers of users need not be whole
        if bool(many.any()):
            raise ValueError(f"summary must be of at most the {clients} clients{checks.at(many)}")
        return h, n


def _farthest(queries: FactoredQueries, norm: int) -> float:
    """The largest l_1 or l_2 distance of two columns of R, rounded up."""
    if norm == 2:
        return queries.diameter
    right = queries.right
    rounding = len(right) * 2.0**-52
    return float(torch.cdist(right.mT, right.mT, p=1).max()) * (1 + rounding)
