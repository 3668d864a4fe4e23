"""Noise under a sum, in equal shares of the clients: what secure addition of encodings needs."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.privacy.gaussian import LARGEST
from torchdp.protocol.interval import laplace_stretch
from torchdp.protocol.records import farthest
from torchdp.protocol.users import Users, beside, tensor_of


class SharedNoise(ABC):
    """Noise that each of n clients adds to its encoding: that of n - corrupt - absent of them protects any one client.

    ``corrupt`` clients who know their own noise collude with the reader; beside them ``absent`` clients may drop out.
    """

    clients: int
    sensitivity: float
    epsilon: float
    corrupt: int
    model: Model
    absent: int
    scale: float = 0.0  # over which the noise's tails fall by a factor e, where they are not a normal variable's

    @property
    def honest(self) -> int:
        """n - corrupt - absent, the clients whose noise is left in the worst case."""
        return self.clients - self.corrupt - self.absent

    @property
    def level(self) -> float:
        """Standard deviation of all the noise of the sum, no client absent."""
        return float(self.level_of(self.clients))

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The guarantee while at most ``absent`` clients are missing."""

    @abstractmethod
    def level_of(self, clients: Users, answer: int = 0) -> float | Tensor:
        """Standard deviation of the noise in a sum of so many clients' messages.

        answer: dimensions behind those of a batch.
        """

    def farthest(self, clients: Users) -> float | Tensor:
        """What the noise in a sum of so many clients' messages stays below, but with a chance of 1e-300."""
        return farthest(self.level_of(1) * beside(clients) ** 0.5, self.scale)

    def stretch(self, level: float) -> float:
        """How far the ends of an interval lie over those of normal noise of this deviation."""
        return 1.0

    @abstractmethod
    def guarantee_of(self, clients: int) -> Guarantee:
        """The guarantee of a sum of so many clients' messages to each of them. Raises ValueError where nothing."""

    @abstractmethod
    def add_share(self, shown: Tensor, draws: Draws) -> Tensor:
        """What clients send, (n, words), each with its part of the noise; unchecked."""

    @abstractmethod
    def add_sum(self, total: Tensor, clients: Users, draws: Draws, shape: tuple[int, ...]) -> Tensor:
        """What so many show summed, (*batch, words), and noise: (*shape, *batch, words), by distribution; unchecked."""

    def heard(self, clients: Users) -> None:
        """Refuses ``clients`` whose noise does not suffice for ``guarantee``. Raises ValueError."""
        least = int(tensor_of(checks.people("clients", clients, 0, self.clients)).min())
        if least < self.clients - self.absent:
            raise ValueError(
                f"clients = {least} of {self.clients} were heard, the noise lets absent = {self.absent} drop out: "
                "their sum has a weaker guarantee (guarantee_of); start again with those who are there"
            )

    def _check(self) -> None:
        checks.integer("clients", self.clients, 1)
        gone = checks.integer("corrupt", self.corrupt, 0) + checks.integer("absent", self.absent, 0)
        if gone >= self.clients:
            raise ValueError(
                f"corrupt + absent = {gone} must be less than the {self.clients} clients: somebody's noise has to count"
            )
        if self.model not in (Model.LINEAR_TRANSFORM, Model.CENTRAL) or (gone and self.model is Model.CENTRAL):
            raise ValueError("model must be Model.LINEAR_TRANSFORM, or Model.CENTRAL with corrupt = absent = 0")
        checks.positive("sensitivity", self.sensitivity)
        checks.within("epsilon", checks.positive("epsilon", self.epsilon), 1e-100, LARGEST)


@dataclass(frozen=True)
class SharedGaussian(SharedNoise):
    """Each of n clients adds N(0, sigma^2/(n - corrupt - absent)) to each entry.

    Whatever ``corrupt`` clients know of their own noise, and with ``absent`` others missing, N(0, sigma^2) is left.
    sigma is that of the analytic Gaussian mechanism. clients: n; sensitivity: largest l_2 distance of two encodings;
    epsilon > 0; delta in (0, 1); corrupt + absent < n; model: Model.LINEAR_TRANSFORM, or Model.CENTRAL with corrupt =
    absent = 0, the same distribution from a curator. Raises ValueError.

    Guarantees: exactly (epsilon, delta)-DP for replacing one client's value, where the sensitivity is attained and
        ``absent`` clients are missing; of k clients heard ``guarantee_of(k)``, exactly.
    Source: Balle, Wang (2018), Theorem 8; sums of normals are normal.
    """

    clients: int
    sensitivity: float
    epsilon: float
    delta: float
    corrupt: int = 0
    model: Model = Model.LINEAR_TRANSFORM
    absent: int = 0

    def __post_init__(self) -> None:
        self._check()
        checks.fraction("delta", self.delta)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise that counts, of the sum."""
        return gaussian_sigma(self.epsilon, self.delta, self.sensitivity)

    def level_of(self, clients: Users, answer: int = 0) -> float | Tensor:
        users = beside(checks.people("clients", clients, 0, self.clients), answer)
        return self.sigma * (users / self.honest) ** 0.5

    @property
    def guarantee(self) -> Guarantee:
        source, mu = "Balle, Wang (2018), Theorem 8, at the exact sensitivity", self.sensitivity / self.sigma
        return Guarantee(self.epsilon, self.delta, self.model, Neighbours.REPLACE_ONE, True, source, mu=mu)

    def guarantee_of(self, clients: int) -> Guarantee:
        """sigma sqrt((k - corrupt)/(n - corrupt - absent)) is left. Raises ValueError where that is nothing."""
        honest = checks.integer("clients", clients, self.corrupt + 1, self.clients) - self.corrupt
        if honest == self.honest:
            return self.guarantee
        left = self.sigma * math.sqrt(honest / self.honest)
        return gaussian_guarantee(left, self.delta, self.sensitivity, self.model, Neighbours.REPLACE_ONE)

    def add_share(self, shown: Tensor, draws: Draws) -> Tensor:
        return shown + self.level_of(1) * draws.normal(tuple(shown.shape))

    def add_sum(self, total: Tensor, clients: Users, draws: Draws, shape: tuple[int, ...]) -> Tensor:
        return total + self.level_of(clients, 1) * draws.normal((*shape, *total.shape))


@dataclass(frozen=True)
class SharedLaplace(SharedNoise):
    """Each of n clients adds Gamma(1/h, b) - Gamma(1/h, b), h = n - corrupt - absent: h of them make a Laplace(b).

    b = sensitivity/epsilon. clients: n; sensitivity: largest l_1 distance of two encodings; epsilon > 0; corrupt,
    absent and model as in :class:`SharedGaussian`. Raises ValueError.

    Guarantees: exactly epsilon-DP for replacing one client's value, where the sensitivity is attained.
    Source: Dwork, McSherry, Nissim, Smith (2006), Theorem 1; Kotz, Kozubowski, Podgorski (2001), section 2.4.
    """

    clients: int
    sensitivity: float
    epsilon: float
    corrupt: int = 0
    model: Model = Model.LINEAR_TRANSFORM
    absent: int = 0

    def __post_init__(self) -> None:
        self._check()

    @property
    def scale(self) -> float:  # type: ignore[override]
        """b."""
        return self.sensitivity / self.epsilon

    def level_of(self, clients: Users, answer: int = 0) -> float | Tensor:
        users = beside(checks.people("clients", clients, 0, self.clients), answer)
        return self.scale * (2 * users / self.honest) ** 0.5

    def stretch(self, level: float) -> float:
        return laplace_stretch(level)

    @property
    def guarantee(self) -> Guarantee:
        source = "Dwork, McSherry, Nissim, Smith (2006), Theorem 1, at the exact sensitivity"
        return Guarantee(self.epsilon, 0.0, self.model, Neighbours.REPLACE_ONE, True, source)

    def guarantee_of(self, clients: int) -> Guarantee:
        """epsilon while a whole Laplace is left; with less the density has a peak at 0. Raises ValueError."""
        self.heard(clients)
        return self.guarantee

    def add_share(self, shown: Tensor, draws: Draws) -> Tensor:
        return shown + self._difference(1, tuple(shown.shape), draws)

    def add_sum(self, total: Tensor, clients: Users, draws: Draws, shape: tuple[int, ...]) -> Tensor:
        return total + self._difference(clients, (*shape, *total.shape), draws)

    def _difference(self, clients: Users, shape: tuple[int, ...], draws: Draws) -> Tensor:
        share = torch.as_tensor(beside(clients, 1) / self.honest, dtype=torch.float64, device=draws.device)
        first, second = draws.gamma(share.expand(2, *shape))
        return self.scale * (first - second)
