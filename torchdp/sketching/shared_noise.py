"""Noise under a sum, in equal shares of the clients: what secure addition of encodings needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma


@dataclass(frozen=True)
class SharedGaussian:
    """Each of n clients adds N(0, sigma^2/(n - corrupt)) to each entry; what the others add hides one's encoding.

    Whatever ``corrupt`` clients know or withhold of their own noise, N(0, sigma^2) is left. sigma is that of the
    analytic Gaussian mechanism. clients: n; sensitivity: largest l_2 distance of two encodings; epsilon > 0; delta in
    (0, 1); corrupt < n, dropped clients among them; model: Model.LINEAR_TRANSFORM, or Model.CENTRAL with corrupt = 0,
    the same law from a curator. Raises ValueError.

    Guarantees: exactly (epsilon, delta)-DP for replacing one client's value, where the sensitivity is attained.
    Source: Balle, Wang (2018), Theorem 8; sums of normals are normal.
    """

    clients: int
    sensitivity: float
    epsilon: float
    delta: float
    corrupt: int = 0
    model: Model = Model.LINEAR_TRANSFORM

    def __post_init__(self) -> None:
        _check(self.clients, self.corrupt, self.model)
        checks.positive("sensitivity", self.sensitivity)
        checks.positive("epsilon", self.epsilon)
        checks.fraction("delta", self.delta)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise that counts, of the sum."""
        return gaussian_sigma(self.epsilon, self.delta, self.sensitivity)

    @property
    def level(self) -> float:
        """Standard deviation of all the noise of the sum: sigma sqrt(n/(n - corrupt))."""
        return self.sigma * math.sqrt(self.clients / (self.clients - self.corrupt))

    @property
    def guarantee(self) -> Guarantee:
        source = "Balle, Wang (2018), Theorem 8, at the exact sensitivity"
        return Guarantee(self.epsilon, self.delta, self.model, Neighbours.REPLACE_ONE, True, source)

    def add_share(self, encoded: Tensor, *, noise: Noise | None = None) -> Tensor:
        """Encodings (n, words) with each client's noise."""
        own = source(noise, encoded.device).normal(tuple(encoded.shape))
        return encoded + (self.sigma / math.sqrt(self.clients - self.corrupt)) * own

    def add_sum(self, total: Tensor, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()) -> Tensor:
        """A sum of encodings (words,) with the noise of all clients: (*sample_shape, words), exactly in law."""
        shape = (*checks.sample_shape(sample_shape), *total.shape)
        return total + self.level * source(noise, total.device).normal(shape)


@dataclass(frozen=True)
class SharedLaplace:
    """Each of n clients adds Gamma(1/(n - corrupt), b) - Gamma(1/(n - corrupt), b): n - corrupt make a Laplace(b).

    b = sensitivity/epsilon. clients: n; sensitivity: largest l_1 distance of two encodings; epsilon > 0; corrupt and
    model as in :class:`SharedGaussian`. Raises ValueError.

    Guarantees: exactly epsilon-DP for replacing one client's value, where the sensitivity is attained.
    Source: Dwork, McSherry, Nissim, Smith (2006), Theorem 1; Kotz, Kozubowski, Podgorski (2001), section 2.4.
    """

    clients: int
    sensitivity: float
    epsilon: float
    corrupt: int = 0
    model: Model = Model.LINEAR_TRANSFORM

    def __post_init__(self) -> None:
        _check(self.clients, self.corrupt, self.model)
        checks.positive("sensitivity", self.sensitivity)
        checks.positive("epsilon", self.epsilon)

    @property
    def scale(self) -> float:
        """b."""
        return self.sensitivity / self.epsilon

    @property
    def level(self) -> float:
        """Standard deviation of all the noise of the sum: b sqrt(2 n/(n - corrupt))."""
        return self.scale * math.sqrt(2 * self.clients / (self.clients - self.corrupt))

    @property
    def guarantee(self) -> Guarantee:
        source = "Dwork, McSherry, Nissim, Smith (2006), Theorem 1, at the exact sensitivity"
        return Guarantee(self.epsilon, 0.0, self.model, Neighbours.REPLACE_ONE, True, source)

    def add_share(self, encoded: Tensor, *, noise: Noise | None = None) -> Tensor:
        """Encodings (n, words) with each client's noise."""
        return encoded + self._difference(1.0, encoded.shape, source(noise, encoded.device))

    def add_sum(self, total: Tensor, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()) -> Tensor:
        """A sum of encodings (words,) with the noise of all clients: (*sample_shape, words), exactly in law."""
        shape = (*checks.sample_shape(sample_shape), *total.shape)
        return total + self._difference(float(self.clients), shape, source(noise, total.device))

    def _difference(self, clients: float, shape: Sequence[int], draws: Draws) -> Tensor:
        share = clients / (self.clients - self.corrupt)
        first, second = draws.gamma(torch.full((2, *shape), share, dtype=torch.float64, device=draws.device))
        return self.scale * (first - second)


def _check(clients: int, corrupt: int, model: Model) -> None:
    checks.integer("clients", clients, 1)
    if checks.integer("corrupt", corrupt, 0) >= clients:
        raise ValueError(f"corrupt must be less than the {clients} clients: somebody's noise has to count")
    if model not in (Model.LINEAR_TRANSFORM, Model.CENTRAL) or (corrupt and model is Model.CENTRAL):
        raise ValueError("model must be Model.LINEAR_TRANSFORM, or Model.CENTRAL with corrupt = 0")
