"""Kernel density estimation by servers that see secret shares alone: a curator's accuracy without one."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.family import Features
from torchdp.density.means import OfFeatures, moved
from torchdp.protocol import Crowd, Users
from torchdp.protocol.records import beside
from torchdp.secure.shared_sum import SharedSum, Shown


@dataclass(frozen=True, eq=False)
class SecureKDE(SharedSum[Crowd], OfFeatures):
    """The means of the features f_i(x)_j/R over n clients, each in integers with its share of the noise.

    features: public. clients: n; epsilon; delta: in (0, 1), or 0 for discrete Laplace noise; corrupt clients collude,
    absent others may drop out, together fewer than n. ``estimate`` gives a ``Density``. Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's vector, n public: that of :class:`SecureSketch` or
        :class:`PureSecureSketch` on a plain sum, at the distance that ``features.movement`` allows, with room for the
        floats that features are computed in (``moved``).
    Source: Wagner (2025), Algorithm 1, whose shuffled bits an exact sum replaces; Balle, Wang (2018), Theorem 8.
    """

    features: Features
    clients: int
    epsilon: float
    delta: float = 0.0
    corrupt: int | None = field(default=None, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.validated(self, "client")  # clients and an epsilon that have no noise

    @property
    def shown(self) -> Shown:
        moves = moved(self.features)
        apart = 2 * min(moves.change, moves.flips) ** 0.5  # of f/R; ``moved`` speaks of (1 + f/R)/2
        return Shown(moves.instances, moves.instances**0.5, 1.0, apart, moves.instances**0.5 * apart)

    @property
    def scales(self) -> Tensor:
        return torch.full((self.words,), self.features.bound, dtype=torch.float64)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) in the domain, of at most ``clients`` clients. Raises TypeError, ValueError."""
        return self.few(self.features.family.validate(x))

    def client_input(self, x: Tensor) -> Tensor:
        return self.features.share(x).double().clamp_(-1, 1)

    def total(self, summary: Crowd) -> tuple[Tensor, Users]:
        summary = self._users(summary)
        return self.features.sums(summary)[0] / self.features.bound, summary.n

    def value(self, total: Tensor, n: Users) -> Tensor:
        return super().value(total, n) / beside(n, 1)

    def variances(self, n: Users) -> Tensor:
        return super().variances(n) / beside(n, 1) ** 2

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> Density:
        bound, stretch = self.features.bound, self.client.stretch
        kept = (value, error, n, 0.0, None, (-bound, bound), stretch)
        return Density(*kept, features=self.features, guarantee=self.guarantee)

    def _variances(self, summary: Crowd) -> tuple[Tensor, Tensor]:
        noise = self.predicted_mse(summary)
        return torch.zeros_like(noise), noise
