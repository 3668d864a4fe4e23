"""Sums of what clients show, each with a part of the noise, in integers: no curator is trusted."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape, Simulated
from torchdp.noise import Noise
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.protocol import Protocol, Relay, S
from torchdp.protocol.records import broadcast_users, tensor_of
from torchdp.secure.protocol import SecureSketch
from torchdp.secure.pure import PureSecureSketch
from torchdp.secure.sums import SecureSums, Words
from torchdp.sketching.coalition import AdaptiveCoalition
from torchdp.sketching.constructions import ones


@dataclass(frozen=True)
class Shown:
    """What a client shows: how many numbers, of what size, and how far one client moves them.

    Args:
        words: numbers.
        norm: their largest l_2 norm.
        entry: the largest of them in size.
        l2: the largest l_2 distance of what two clients show, which Gaussian noise hides.
        l1: the largest l_1 distance, which discrete Laplace noise hides, where delta may be 0.
    """

    words: int
    norm: float
    entry: float
    l2: float
    l1: float = 0.0

    def secure_sum(
        self,
        clients: int,
        epsilon: float,
        delta: float,
        corrupt: int | None = None,
        absent: int = 0,
    ) -> SecureSums:
        """The sum of what so many clients show, by two servers, its noise as of :class:`SharedSum`.

        Raises TypeError, ValueError where no noise or grid fits.
        """
        coalition = AdaptiveCoalition(corrupt, absent)
        if coalition.missing >= checks.integer("clients", clients, 1):
            raise ValueError(
                f"corrupt + absent = {coalition.missing} must be less than the {clients} clients: "
                "somebody's noise has to count"
            )
        # One row of +1: nothing is sketched, the sum is the release.
        sketch = ones(clients)
        given: dict[str, Any] = {"coalition": coalition, "entry": self.entry}
        # Gaussian noise hides l_2 distances and needs a delta; Laplace noise l_1, without one.
        if checks.non_negative("delta", delta) > 0:
            return SecureSketch(
                sketch, self.words, self.norm, epsilon, delta, sensitivity=self.l2, **given
            )
        # |v|_1 is at most d times the largest entry and, by Cauchy and Schwarz, sqrt(d) |v|_2.
        longest = min(self.words * self.entry, self.words**0.5 * self.norm)
        return PureSecureSketch(sketch, self.words, longest, epsilon, sensitivity=self.l1, **given)


class SharedSum(Relay[S, Words, SecureSums]):
    """The sum of what clients show, ``client_input(x)``, as integers under their noise.

    How they are drawn and added up says ``client``. What is estimated is the sum times ``scales``.
    Messages are :class:`Words`; the servers of ``secure_sum``, in one process or as roles of their
    own, add up shares of the same integers. Up to ``clients`` users take part; an analysis of fewer
    than clients - absent of them is refused. Numbers are truncated to the grid of ``client.ring``,
    which moves a sum of n by less than n units.

    Noise: (epsilon, delta) as for :class:`SecureSketch`; where delta is 0,
    :class:`PureSecureSketch`. corrupt: clients who know their own noise and collude with the
    reader, None as in ``AdaptiveCoalition``; absent: others, who may drop out.
    """

    clients: int
    epsilon: float
    delta: float
    corrupt: int | None
    absent: int

    @property
    @abstractmethod
    def shown(self) -> Shown:
        """Sizes and distances of what a client shows, which noise is calibrated to."""

    @property
    @abstractmethod
    def scales(self) -> Tensor:
        """What turns a sum of what clients show into the value: (words,)."""

    @abstractmethod
    def client_input(self, x: Tensor) -> Tensor:
        """What these clients show, neither rounded nor with noise: (n, words); unchecked."""

    @abstractmethod
    def total(self, summary: S) -> tuple[Tensor, Users]:
        """The sum of what these clients show, (*batch, words), and how many they are.

        Raises TypeError, ValueError.
        """

    @cached_property
    def client(self) -> SecureSums:  # type: ignore[override]
        """The sum of integers, by two servers. Raises ValueError where no noise or grid fits."""
        return self.shown.secure_sum(
            self.clients, self.epsilon, self.delta, self.corrupt, self.absent
        )

    @property
    def words(self) -> int:
        """Numbers that one client sends to each server."""
        return self.shown.words

    @property
    def level(self) -> float:
        """Standard deviation of the noise in each word of the sum, no client absent."""
        return float(self.client.row_variance.sqrt())

    def against(self, corrupt: int) -> "SharedSum[S]":
        """This protocol with so many corrupt clients, where it leaves open how many.

        Raises ValueError.
        """
        if self.corrupt is not None:
            return self
        return replace(cast(Any, self), corrupt=corrupt)

    def secure_sum(self, servers: int = 2) -> SecureSums:
        """``client`` by so many servers; its x is ``rows(x)`` of all clients.

        Raises TypeError, ValueError.
        """
        return self.client.secure_sum(servers)

    def rows(self, x: Rows) -> Tensor:
        """What some clients, who hold x, bring into ``secure_sum``: (k, words).

        Raises TypeError, ValueError.
        """
        # Checked as the question's own input, before it is turned into what clients show.
        held = self.validate(rows_of(x, self.held))
        return self.client_input(held.detach())

    def few(self, x: Tensor) -> Tensor:
        """x, if it is of at most as many clients as there are. Raises ValueError."""
        if len(x) > self.clients:
            raise ValueError(f"x must hold at most the {self.clients} clients, not {len(x)}")
        return x

    def randomize(self, x: Rows, *, first: int = 0, noise: Noise | None = None) -> Words:
        """What clients first, first + 1, ... who hold x share out.

        Raises ValueError, TypeError before any draw.
        """
        return self.client.speak(self.rows(x), first, noise)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        rows = map(self.client_input, x.split(self.client.at_once))
        return self.client.gathered(len(x), rows, draws)

    collect_groups = Protocol.collect_groups  # one sum after the other

    def validate_summary(self, summary: S) -> S:
        _, n = self.total(summary)  # refuses what no clients can have
        checks.people("n of the summary", n, 0, self.clients)
        return summary

    def sample_unchecked(self, summary: S, draws: Simulated, shape: Shape) -> Tally:
        total, n = self.total(summary)
        # Rounded once, where each of n clients truncates: at most n units apart.
        exact = (total.double() * self.client.ring.scale).round().long()
        whole = exact[..., None, :]  # the sketch of a plain sum has one row
        noise = self.client.noise_of(tensor_of(n)[..., None], (*shape, *whole.shape), draws)
        return Tally(n, {"words": whole + noise})

    def analyse(self, tally: Tally) -> Estimate:
        """Of the clients heard. Raises TypeError, ValueError where they are too few."""
        return self.released(self.client.analyse(tally))

    def released(self, found: Estimate) -> Estimate:
        """This protocol's estimate from that of its ``secure_sum``: ``analyse`` of its words."""
        # The sketch of a plain sum has one row.
        value = self.value(found.value[..., 0, :], found.n)
        errors = self.variances(found.n).sqrt().to(value)
        return self.estimated(value, errors.expand_as(value), found.n)

    def value(self, total: Tensor, n: Users) -> Tensor:
        """The estimate from the noisy sum of what n clients show."""
        return total * self.scales.to(total)

    def variances(self, n: Users) -> Tensor:
        """Of the estimate from n clients, whatever they hold: (*batch, *answer).

        Raises ValueError.
        """
        n = checks.people("n", n, 0, self.clients)
        # Each client who was heard added independent noise of this variance, in each word.
        variance = self.client.variance.to(tensor_of(n).device)
        return broadcast_users(n, 1) * variance * self.scales.to(variance).square()

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> Estimate:
        """These numbers as this protocol's kind of estimate."""
        return Estimate(value, error, n, stretch=self.client.stretch)

    def predicted_mse(self, summary: S) -> Tensor:
        """The same for all data of so many clients."""
        total, clients = self.total(summary)
        return self.variances(clients).to(total.device)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        # Alike for all data, so that the worst is any.
        variances = self.variances(n)
        return objective.of(variances, variances.ndim - 1)
