"""Frequency moments and histograms: sums of encodings whose error does not grow with the number of clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise
from torchdp.privacy import Guarantee
from torchdp.regression.errors import NUMBERS_AT_ONCE
from torchdp.secure.shared_noise import SharedGaussian, SharedLaplace, SharedNoise


@dataclass(frozen=True)
class FrequencyMoments:
    """F_k = sum_i abs(x_i)^k for several orders k at once, x_i in [-D, D], by one noisy sum.

    Each client encodes (abs(x)/D)^k for every order, in [0, 1], and adds its share of the noise. From 0 to D all r
    encodings move by 1, and none moves further: the sensitivity is sqrt r in l_2 and r in l_1.

    clients: n; bound: D, larger values are cut to it; orders: distinct, > 0; epsilon; delta: in (0, 1), or 0 for
    Laplace noise; corrupt clients collude, absent others may drop out, together fewer than n. Raises ValueError.

    Guarantees: exactly (epsilon, delta)-DP for replacing one client's value, n public.
    Source: Balle, Wang (2018), Theorem 8; Dwork, McSherry, Nissim, Smith (2006), Theorem 1; the problem: Burkhardt,
    Keller, Orlandi, Schwiegelshohn (2025), section 4.1, corrected (see paper_moment_variance).
    """

    clients: int
    bound: float
    orders: tuple[float, ...]
    epsilon: float
    delta: float = 0.0
    corrupt: int = field(default=0, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)
        orders = checks.instance("orders", self.orders, (tuple, list))
        orders = tuple(checks.positive("orders", order) for order in orders)
        if not orders or len(set(orders)) < len(orders):
            raise ValueError("orders must hold at least one number, none twice")
        object.__setattr__(self, "orders", orders)
        _ = self.noise.level

    @cached_property
    def noise(self) -> SharedNoise:
        """The clients' noise on the encodings."""
        r = len(self.orders)
        return shared_noise(
            self.clients, math.sqrt(r), float(r), self.epsilon, self.delta, self.corrupt, self.absent
        )

    @property
    def guarantee(self) -> Guarantee:
        return self.noise.guarantee

    def guarantee_of(self, clients: int) -> Guarantee:
        """What the sum of so many clients' messages promises. Raises ValueError where nothing."""
        return self.noise.guarantee_of(clients)

    @property
    def standard_error(self) -> Tensor:
        """Root mean squared error of each moment, whatever the data and n: D^k times the noise's level, (r,)."""
        return self.noise.level * self._scales("cpu")

    def encode(self, x: Tensor) -> Tensor:
        """What clients with these values encode: (n,) -> (n, r), float64. Raises TypeError, ValueError."""
        x = checks.floating("x", x).double()
        if x.ndim != 1:
            raise ValueError(f"x must have shape (n,), one value for each client, not {tuple(x.shape)}")
        return (x.abs() / self.bound).clamp_max(1)[:, None] ** x.new_tensor(self.orders)

    def messages(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        """What clients with these values send, in the clear: (n, r), float64."""
        return self.noise.add_share(self.encode(x), noise=noise)

    def decode(self, total: Tensor, clients: int) -> Tensor:
        """The moments of so many clients from the sum of their messages: (*batch, r) -> (*batch, r), unbiased.

        Raises ValueError for fewer than n - absent, whose noise does not suffice; TypeError.
        """
        self.noise.heard(clients)
        total = checks.floating("total", total).double()
        if total.ndim == 0 or total.shape[-1] != len(self.orders):
            raise ValueError(f"total must have shape (..., {len(self.orders)}), not {tuple(total.shape)}")
        return total * self._scales(total.device)

    def estimate(self, x: Tensor, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()) -> Tensor:
        """Private moments of n values: (*sample_shape, r); the law of summed messages, the noise drawn at once."""
        if checks.floating("x", x).shape != (self.clients,):
            raise ValueError(
                f"x must have shape ({self.clients},), one value for each client, not {tuple(x.shape)}"
            )
        parts = x.split(max(1, NUMBERS_AT_ONCE // len(self.orders)))
        total = torch.stack([self.encode(part).sum(0) for part in parts]).sum(0)
        return self.decode(self.noise.add_sum(total, noise=noise, sample_shape=sample_shape), self.clients)

    def _scales(self, device: torch.device | str) -> Tensor:
        return self.bound ** torch.tensor(self.orders, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class SecureHistogram:
    """How many clients hold each of k types, by one noisy sum of indicator vectors.

    Two indicators are sqrt 2 apart in l_2 and 2 in l_1. The counts add up to the public n, and so do the estimates:
    the noise of the total is spread evenly, which takes a share 1/k of the variance away.

    clients: n; types: k >= 2; epsilon; delta: in (0, 1), or 0 for Laplace noise; corrupt clients collude, absent
    others may drop out, together fewer than n. Raises ValueError.

    Guarantees: exactly (epsilon, delta)-DP for replacing one client's type, n public.
    Source: Balle, Wang (2018), Theorem 8; Dwork, McSherry, Nissim, Smith (2006), Theorem 1.
    """

    clients: int
    types: int
    epsilon: float
    delta: float = 0.0
    corrupt: int = field(default=0, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.integer("types", self.types, 2)
        _ = self.noise.level

    @cached_property
    def noise(self) -> SharedNoise:
        """The clients' noise on the indicators."""
        return shared_noise(self.clients, math.sqrt(2), 2.0, self.epsilon, self.delta, self.corrupt, self.absent)

    @property
    def guarantee(self) -> Guarantee:
        return self.noise.guarantee

    def guarantee_of(self, clients: int) -> Guarantee:
        """What the sum of so many clients' messages promises. Raises ValueError where nothing."""
        return self.noise.guarantee_of(clients)

    @property
    def standard_error(self) -> float:
        """Root mean squared error of each count, whatever the counts and n."""
        return self.noise.level * math.sqrt(1 - 1 / self.types)

    def messages(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        """What clients of types x in [0, k) send, in the clear: (n,) -> (n, k), float64."""
        x = checks.indices("x", x, self.types)
        if x.ndim != 1:
            raise ValueError(f"x must have shape (n,), one type for each client, not {tuple(x.shape)}")
        return self.noise.add_share(torch.nn.functional.one_hot(x, self.types).double(), noise=noise)

    def decode(self, total: Tensor, clients: int) -> Tensor:
        """The counts of so many clients from the sum of their messages: (*batch, k) -> (*batch, k), adding up to them.

        Unbiased. Raises ValueError for fewer than n - absent, whose noise does not suffice; TypeError.
        """
        self.noise.heard(clients)
        total = checks.floating("total", total).double()
        if total.ndim == 0 or total.shape[-1] != self.types:
            raise ValueError(f"total must have shape (..., {self.types}), not {tuple(total.shape)}")
        return total + (clients - total.sum(-1, keepdim=True)) / self.types

    def estimate(self, counts: Tensor, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()) -> Tensor:
        """Private counts where counts[x] clients hold x: (*sample_shape, k); the law of summed messages.

        Raises TypeError, ValueError.
        """
        counts = checks.counts("counts", counts, self.types)
        if int(counts.sum()) != self.clients:
            raise ValueError(f"counts must add up to the {self.clients} clients")
        total = self.noise.add_sum(counts.double(), noise=noise, sample_shape=sample_shape)
        return self.decode(total, self.clients)


def paper_moment_variance(bound: float, order: float, epsilon: float, delta: float) -> float:
    """Variance of F_k's Gaussian noise as printed: 2 D^k ln(1.25/delta)/epsilon^2. Raises ValueError.

    What is wrong: the sensitivity is D^k, so that D^(2k) is needed; with D > 1 it is not (epsilon, delta)-DP, with D
    < 1 it wastes noise. The printed Laplace scale, 2 D^k/epsilon, is twice what is needed.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4.1.
    """
    power = checks.positive("bound", bound) ** checks.positive("order", order)
    return 2 * power * math.log(1.25 / checks.fraction("delta", delta)) / checks.positive("epsilon", epsilon) ** 2


def shared_noise(
    clients: int, l2: float, l1: float, epsilon: float, delta: float, corrupt: int, absent: int
) -> SharedNoise:
    """Gaussian noise at the l_2 sensitivity, or, for delta = 0, Laplace noise at the l_1 sensitivity."""
    if checks.non_negative("delta", delta) == 0:
        return SharedLaplace(clients, l1, epsilon, corrupt, absent=absent)
    return SharedGaussian(clients, l2, epsilon, delta, corrupt, absent=absent)
