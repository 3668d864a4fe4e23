"""Sums of what clients show, each with a part of the noise: central accuracy without a curator."""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Simulated
from torchdp.memory import rows_at_once
from torchdp.privacy import Guarantee
from torchdp.protocol import Estimate, Layout, Limits, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.protocol import S
from torchdp.secure.protocol import SecureSketch
from torchdp.secure.pure import PureSecureSketch
from torchdp.secure.shared_noise import SharedGaussian, SharedLaplace, SharedNoise
from torchdp.secure.sums import SecureSums
from torchdp.sketching.coalition import AdaptiveCoalition
from torchdp.sketching.constructions import ones


class SharedSum(MessageProtocol[S, Tensor]):
    """Clients send ``contribution(x)`` and their part of ``noise``: (n, words), float64. The tally is their plain sum.

    Up to ``clients`` users take part; an analysis of fewer than n - absent of them is refused.
    """

    clients: int

    @property
    @abstractmethod
    def noise(self) -> SharedNoise:
        """The clients' noise, at the sensitivity of what they show."""

    @property
    @abstractmethod
    def words(self) -> int:
        """Numbers that one client sends to each server."""

    @abstractmethod
    def contribution(self, x: Tensor) -> Tensor:
        """What these clients encode, noise not yet added: (n, words), float64; unchecked."""

    @property
    @abstractmethod
    def norm_and_entry(self) -> tuple[float, float]:
        """The largest l_2 norm of what a client shows, and the largest entry in size."""

    @abstractmethod
    def total(self, summary: S) -> tuple[Tensor, Users]:
        """The sum of what these clients show, (words,), and how many they are. Raises TypeError, ValueError."""

    def validate_summary(self, summary: S) -> S:
        self.total(summary)  # refuses what no clients can have
        return summary

    @abstractmethod
    def variances(self, n: Users) -> Tensor:
        """Of the estimate from n clients: (*answer), whatever they hold."""

    @abstractmethod
    def value(self, total: Tensor, n: Users) -> Tensor:
        """The estimate from the noisy sum of what n clients show."""

    def analyse(self, tally: Tally) -> Estimate:
        """Of the clients heard, unbiased. Raises TypeError, ValueError where they are too few."""
        value = self.value(self.heard(tally), tally.n)
        return self.estimated(value, self.variances(tally.n).sqrt().to(value).expand_as(value), tally.n)

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> Estimate:
        """These numbers as this protocol's kind of estimate."""
        return Estimate(value, error, n, stretch=self.noise.stretch)

    @property
    def guarantee(self) -> Guarantee:
        return self.noise.guarantee

    def guarantee_of(self, clients: int) -> Guarantee:
        """The guarantee of the sum of so many clients' messages. Raises ValueError where nothing."""
        return self.noise.guarantee_of(clients)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.words,), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"sum": Limits.around(n * self.norm_and_entry[1] + self.noise.farthest(n))}

    @property
    def bits_per_user(self) -> int:
        return 64 * self.words

    def secure_sum(self, servers: int = 2) -> SecureSums:
        """The same sum by servers that see shares only, on integers: x of it is ``contribution(x)`` of all clients.

        Its estimate's one row is this protocol's tally, Tally(n, {"sum": value[0]}); the noise has this variance times
        its ``grid_factor``, Gaussian or, where delta is 0, discrete Laplace.
        """
        noise, (norm, entry) = self.noise, self.norm_and_entry
        coalition = AdaptiveCoalition(noise.corrupt, noise.absent)
        given: dict[str, Any] = {
            "servers": servers,
            "coalition": coalition,
            "sensitivity": noise.sensitivity,
            "entry": entry,
        }
        if isinstance(noise, SharedGaussian):
            return SecureSketch(ones(self.clients), self.words, norm, noise.epsilon, noise.delta, **given)
        longest = min(self.words * entry, math.sqrt(self.words) * norm)
        return PureSecureSketch(ones(self.clients), self.words, longest, noise.epsilon, **given)

    def rows(self, x: Tensor) -> Tensor:
        """What some clients, who hold x, bring into ``secure_sum``: (k, words). Raises TypeError, ValueError."""
        return self.contribution(self.validate(x))

    def released(self, found: Estimate) -> Estimate:
        """This protocol's estimate from that of its ``secure_sum``, whose variance has a ``grid_factor`` more."""
        return self.analyse(Tally(found.n, {"sum": found.value[0]}))

    def few(self, x: Tensor) -> Tensor:
        """x, if it is of at most as many clients as there are. Raises ValueError."""
        if len(x) > self.clients:
            raise ValueError(f"x must hold at most the {self.clients} clients, not {len(x)}")
        return x

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        return self.noise.add_share(self.contribution(x), draws)

    def tally(self, messages: Tensor) -> Tally:
        messages = checks.floating("messages", messages)
        if messages.ndim != 2 or messages.shape[1] != self.words:
            raise ValueError(f"messages must have shape (n, {self.words}), not {tuple(messages.shape)}")
        return Tally(len(messages), {"sum": messages.double().sum(0)})

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """The noise of all these clients is drawn at once."""
        parts = [self.contribution(part).sum(0) for part in x.split(rows_at_once(self.words))]
        return Tally(len(x), {"sum": self.noise.add_sum(torch.stack(parts).sum(0), len(x), draws, ())})

    def sample_unchecked(self, summary: S, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        total, n = self.total(summary)
        return Tally(n, {"sum": self.noise.add_sum(total, n, draws, shape)})

    def heard(self, tally: Tally) -> Tensor:
        """The sum, if the noise in it suffices for ``guarantee``. Raises TypeError, ValueError."""
        self.noise.heard(self.check(tally).n)
        return tally["sum"]

    def predicted_mse(self, summary: S) -> Tensor:
        """The same for all data of so many clients."""
        total, clients = self.total(summary)
        return self.variances(clients).to(total.device)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        each = self.variances(checks.people("n", n, 1))
        return checks.instance("objective", objective, Objective).of(each, each.ndim - 1)

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack_vectors(messages, self.words)

    def decode(self, data: bytes) -> Tensor:
        return wire.unpack_vectors(data, self.words)


def shared_noise(
    clients: int, l2: float, l1: float, epsilon: float, delta: float, corrupt: int, absent: int
) -> SharedNoise:
    """Gaussian noise at the l_2 sensitivity, or, for delta = 0, Laplace noise at the l_1 sensitivity."""
    if checks.non_negative("delta", delta) == 0:
        return SharedLaplace(clients, l1, epsilon, corrupt, absent=absent)
    return SharedGaussian(clients, l2, epsilon, delta, corrupt, absent=absent)
