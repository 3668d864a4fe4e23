"""Frequency moments and histograms: sums whose error does not grow with the number of clients."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdp import checks
from torchdp.memory import rows_at_once
from torchdp.protocol import Limits, Tally, Users
from torchdp.protocol.records import broadcast_users, tensor_of, users_of
from torchdp.secure.shared_sum import SharedSum, Shown

# of ten: D^k and its square are floats, with room for sums
LARGEST_POWER = 140


@dataclass(frozen=True)
class FrequencyMoments(SharedSum[Tally]):
    """F_k = sum_i abs(x_i)^k for several orders k at once, x_i in [-D, D], by one noisy sum.

    Each client shows (abs(x)/D)^k for every order, in [0, 1], in integers with its share of the
    noise. From 0 to D all r numbers move by 1, and none moves further: the sensitivity is sqrt r in
    l_2 and r in l_1. A summary is the tally of what the clients show, before any rounding and
    noise.

    Args:
        clients: n.
        bound: D, larger values are cut to it.
        orders: r distinct numbers > 0.
        epsilon: > 0.
        delta: in (0, 1), or 0 for discrete Laplace noise.
        corrupt: clients who collude.
        absent: others, who may drop out; together fewer than n.

    Raises ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's value, n public: that of
    :class:`SecureSketch` or
        :class:`PureSecureSketch` on a plain sum, at the exact sensitivity before rounding.
    Source: Balle, Wang (2018), Theorem 8; Ghosh, Roughgarden, Sundararajan (2012); the problem:
    Burkhardt, Keller,
        Orlandi, Schwiegelshohn (2025), section 4.1, corrected.
    """

    clients: int
    bound: float
    orders: tuple[float, ...]
    epsilon: float
    delta: float = 0.0
    corrupt: int | None = field(default=None, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)
        orders = checks.instance("orders", self.orders, (tuple, list))
        orders = tuple(checks.positive("orders", order) for order in orders)
        if not orders or len(set(orders)) < len(orders):
            raise ValueError("orders must hold at least one number, none twice")
        # D^k = 10^(k log10 D): of a D below 1 its inverse must be a float as well.
        if max(orders) * abs(math.log10(self.bound)) > LARGEST_POWER:
            raise ValueError(
                f"bound = {self.bound:g} to the power of orders up to {max(orders):g} has a square "
                "that is no float; measure in a unit in which bound is about 1"
            )
        object.__setattr__(self, "orders", orders)
        checks.validated(self, "client")  # clients and an epsilon that have no noise

    @property
    def shown(self) -> Shown:
        r = len(self.orders)
        # Of r numbers in [0, 1] none moves by more than 1, and from 0 to D all of them do.
        return Shown(r, math.sqrt(r), 1.0, math.sqrt(r), float(r))

    @property
    def scales(self) -> Tensor:
        """D^k of each order: (r,)."""
        return self.bound ** torch.tensor(self.orders, dtype=torch.float64)

    @property
    def held(self) -> tuple[()]:
        return ()

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) numbers, of at most ``clients`` clients. Raises TypeError, ValueError."""
        return self.few(checks.floating("x", super().validate(x)))

    def client_input(self, x: Tensor) -> Tensor:
        orders = x.new_tensor(self.orders, dtype=torch.float64)
        # Divided before the power is taken: abs(x)^k may overflow, (abs(x)/D)^k lies in [0, 1].
        sizes = (x.detach().double().abs() / self.bound).clamp_max(1)
        return sizes[:, None] ** orders

    def summary_unchecked(self, x: Tensor) -> Tally:
        parts = [self.client_input(part).sum(0) for part in x.split(rows_at_once(self.words))]
        return Tally(len(x), {"sum": torch.stack(parts).sum(0)})

    def total(self, summary: Tally) -> tuple[Tensor, Users]:
        layout = {"sum": ((self.words,), torch.float64)}
        try:
            tally = checks.instance("summary", summary, Tally)
            tally = tally.checked(layout, lambda n: {"sum": Limits(0.0, n)})
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"summary must be what this protocol's own verb makes: {error}"
            ) from None
        if tally["sum"].ndim != tensor_of(tally.n).ndim + 1:
            raise ValueError(
                f"summary must hold {self.words} sums, not {tuple(tally['sum'].shape)}"
            )
        return tally["sum"], tally.n

    def exact(self, summary: Tally) -> Tensor:
        return self.total(summary)[0] * self.scales.to(summary["sum"])


@dataclass(frozen=True)
class SecureHistogram(SharedSum[Tensor]):
    """How many clients hold each of k types, by one noisy sum of indicator vectors.

    Two indicators are sqrt 2 apart in l_2 and 2 in l_1. The counts add up to the public n, and so
    do the estimates: the noise of the total is spread evenly, which takes a share 1/k of the
    variance away.

    Args:
        clients: n.
        types: k >= 2.
        epsilon: > 0.
        delta: in (0, 1), or 0 for discrete Laplace noise.
        corrupt: clients who collude.
        absent: others, who may drop out; together fewer than n.

    Raises ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's type, n public, as of
    :class:`FrequencyMoments`.
    Source: Balle, Wang (2018), Theorem 8; Ghosh, Roughgarden, Sundararajan (2012).
    """

    clients: int
    types: int
    epsilon: float
    delta: float = 0.0
    corrupt: int | None = field(default=None, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.integer("types", self.types, 2)
        checks.validated(self, "client")  # clients and an epsilon that have no noise

    @property
    def shown(self) -> Shown:
        # Two indicators differ by 1 in two places.
        return Shown(self.types, 1.0, 1.0, math.sqrt(2), 2.0)

    @property
    def scales(self) -> Tensor:
        return torch.ones(self.types, dtype=torch.float64)

    @property
    def held(self) -> int:
        return self.types

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types, of at most ``clients`` clients. Raises TypeError, ValueError."""
        return self.few(super().validate(x))

    def client_input(self, x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x, self.types).double()

    def validate_summary(self, summary: Tensor) -> Tensor:
        """``summary``, (types,) whole numbers of at most ``clients`` users, not all 0.

        Raises TypeError, ValueError.
        """
        users = checks.users("summary", summary, self.types)
        return checks.counts("summary", users, self.types, self.clients)

    def total(self, summary: Tensor) -> tuple[Tensor, Users]:
        counts = checks.users("summary", summary, self.types, most=self.clients)
        clients = counts.sum(-1, keepdim=True).round().long()
        return counts, users_of(clients)

    def exact(self, summary: Tensor) -> Tensor:
        return self.total(summary)[0]

    def variances(self, n: Users) -> Tensor:
        """A share 1 - 1/k of the noise's."""
        # Independent noise in k counts, less its own mean, has 1 - 1/k of its variance.
        return super().variances(n) * (1 - 1 / self.types)

    def value(self, total: Tensor, n: Users) -> Tensor:
        # What the counts lack of the public n is the sum of the noise: its mean is taken off each.
        missing = broadcast_users(n, 1) - total.sum(-1, keepdim=True)
        return total + missing / self.types
