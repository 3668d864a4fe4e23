"""Any local protocol behind a shuffler: the curve of its privacy blanket, by summed inversion.

n users run one randomizer with chances R_x, c = min_x R_x, gamma the sum of c, W_x = R_x/c.
Neighbours replace the value of one user, x_0 by x_1; the others' are arbitrary.

**Theorem 1.** delta(epsilon) <= (1/n) max over x_0, x_1 of E (Z_1 + ... + Z_n)_+, Z_i independent,
each W_x0(Y) - e^epsilon W_x1(Y) for Y of density c, and 0 with chance 1 - gamma.
*Proof.* R_x = c + (R_x - c): each other user draws from c/gamma with chance gamma, else from its
own rest. Give away who drew from the rest, and what: the shuffle is made from this and the other
messages. M ~ Binomial(n - 1, gamma) of these are independent draws from c/gamma, mixed with the
message of R_x0 or R_x1. Beside K = M + 1 independent draws the density of this bag is (1/K) sum_i
gamma W_x(y_i). The divergence is thus E_M (gamma/K) E (sum_{i <= K} V_i)_+, V = W_x0 - e^epsilon
W_x1 under c/gamma, and P(M = K - 1)/K = P(Binomial(n, gamma) = K)/(n gamma). It is convex in the
pair, so data that are random and values that are given away do not raise it.

**Theorem 2.** With M(z) = E e^(z Z), z_k = a + 2 pi i k/T, for all a, T > 0 and s >= 0
    E (Z_1 + ... + Z_n)_+ <= (1/T) sum_k M(z_k)^n e^(s^2 z_k^2/2)/z_k^2.
*Proof.* g(t) = E (S + s G - t)_+ e^(a t), S the sum and G a standard normal, is continuous, >= 0
and integrable, with Fourier transform M(z)^n e^(s^2 z^2/2)/z^2. By Poisson's summation formula the
right side is sum_j g(j T) >= g(0) = E (S + s G)_+ >= E S_+, by Jensen's inequality.

Beyond w_K = 2 pi K/T what is left is at most (M(a)^n/pi) e^(s^2 (a^2 - w_K^2)/2) min(1/w_K, 1/(s^2
w_K^3)), since |M(z)| <= M(a). Nothing is discretised, and the time does not grow with n. Z takes
five values (``privacy.blanket``).

Source: Balle, Bell, Gascon, Nissim (2019) for theorem 1; theorem 2 is that of ``inversion`` for
another kernel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.privacy.accounting import Profile, loss_distributions
from torchdp.privacy.blanket import Blanket
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Estimate, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.protocol import Same
from torchdp.protocol.records import tensor_of
from torchdp.root import least
from torchdp.shuffle.count_laws import Array
from torchdp.shuffle.response import response_profile
from torchdp.shuffle.search import least_epsilon

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SOURCE = "Balle, Bell, Gascon, Nissim (2019), of the client's own chances, by summed inversion"

# Relative accuracy of local epsilons that are searched for.
FOUND = 1e-4

# The exact curve of bits takes time in n^(1/2), about a second here. Of more users it is that of so
# many of them, the others' messages given away: soon more than the blanket's, whose time does not
# grow. Beyond EXACT_HELPS times as many users it is not tried.
MOST_EXACT = 2**20
EXACT_HELPS = 8

# Of an epsilon that a client states twice.
ROUNDING = 1e-9

# s a, and the last frequency, in 1/s.
SMOOTHING = 0.03
REACH = 6.5

# T, in deviations of the tilted sum and in 1/a.
PERIOD = 9.0
DECAY = 16.0
MOST_TERMS = 20_000

# Orders a over the largest value; then around the best of them.
ORDERS = np.geomspace(1e-9, 60.0, 120)
NEARER = np.linspace(-1.0, 1.0, 33)

# Relative rounding of a sum, and of ln M, which n multiplies.
SUM_ROUNDING = 1e-9
EACH = 2.0**-48

# Epsilon of a randomizer, beyond which no crowd is said to hide it.
LARGEST = 30.0

# e^epsilon is a finite float64 up to here.
LARGEST_EXPONENT = 700.0


def blanket_delta(blanket: Blanket, epsilon: float, n: int) -> float:
    """A delta at ``epsilon`` >= 0 of n users who run one randomizer of this blanket, unchecked.

    Guarantees: an upper bound for replacing one user's value, by theorems 1 and 2, whatever the
        others hold.
    """
    if epsilon >= blanket.epsilon:
        return 0.0
    if blanket.epsilon > LARGEST:
        return 1.0
    mass, value = _values(blanket, epsilon)
    # (sum Z)_+ <= sum Z_+: that of one user
    alone = float(mass @ np.maximum(value, 0.0)) * (1 + SUM_ROUNDING)
    crowd = positive_part(mass, value, n) / n
    if crowd < 0:  # no bound of what is not below 0, so nothing is said of a crowd
        return min(1.0, alone)
    return min(1.0, alone, crowd)


def _values(blanket: Blanket, epsilon: float) -> tuple[Array, Array]:
    """Chances and values of Z: of one set alone, of the other, of both, of neither, and 0."""
    growth = math.expm1(blanket.epsilon)
    alone = blanket.member - blanket.both
    gamma = 1 - growth * blanket.member
    # Below 0 by rounding alone: see Blanket.
    neither = max(gamma - 2 * alone - blanket.both, 0.0)
    first = math.exp(epsilon) * math.expm1(blanket.epsilon - epsilon)
    second = -math.expm1(blanket.epsilon + epsilon)
    both = -math.exp(blanket.epsilon) * math.expm1(epsilon)
    mass = np.array([alone, alone, blanket.both, neither, growth * blanket.member])
    value = np.array([first, second, both, -math.expm1(epsilon), 0.0])
    return mass, value


def positive_part(mass: Array, value: Array, n: int) -> float:
    """A bound of E (Z_1 + ... + Z_n)_+, by theorem 2, unchecked.

    Args:
        mass: chances of the values of Z, (m,), adding up to 1.
        value: Z's, (m,).
        n: >= 1.
    """
    top = float(value.max())
    if top <= 0:
        return 0.0
    a = _order(mass, value, n, top)
    log_moment = float(_log_moments(mass, value, np.array([a]))[0])
    tilted = mass * np.exp(a * value - log_moment)
    mean = float(tilted @ value)
    size = float(tilted @ np.abs(value))
    scale = n * log_moment + SUM_ROUNDING + n * EACH * (1 + a * size)
    if not scale < LARGEST_EXPONENT:
        return math.inf
    deviation = math.sqrt(n * float(tilted @ (value - mean) ** 2))
    s = SMOOTHING / a
    period = PERIOD * deviation + DECAY / a
    count = min(math.ceil(REACH / s * period / (2 * math.pi)) + 1, MOST_TERMS)
    w = 2 * math.pi / period * np.arange(count)
    z = a + 1j * w
    # Frequencies of either sign are each other's conjugates.
    signs = np.where(w > 0, 2.0, 1.0)
    kernel = np.exp(s * s * z * z / 2) / (z * z) * signs / period
    ratio = 1 + np.expm1(1j * np.outer(w, value)) @ tilted  # M(z)/M(a)
    with np.errstate(divide="ignore"):
        total = float((np.exp(n * np.log(ratio)) * kernel).real.sum())
    relative = SUM_ROUNDING + n * EACH * (1 + np.abs(z) * size)
    lost = float(relative @ np.abs(kernel))
    end = float(w[-1])
    decay = min(1 / end, 1 / (s * s * end**3))
    tail = math.exp(s * s * (a * a - end * end) / 2) / math.pi * decay
    return math.exp(scale) * (total + tail + lost)


def _log_moments(mass: Array, value: Array, a: Array) -> Array:
    """ln M(a), (orders,)."""
    return np.log1p(mass @ np.expm1(np.outer(value, a)))


def _order(mass: Array, value: Array, n: int, top: float) -> float:
    """About the least n ln M(a) - 2 ln a, the order at which the largest term of the sum is least."""

    def heights(grid: Array) -> Array:
        return n * _log_moments(mass, value, grid) - 2 * np.log(grid)

    rough = ORDERS / top
    best = rough[np.argmin(heights(rough))]
    near = best * (ORDERS[1] / ORDERS[0]) ** NEARER
    return float(near[np.argmin(heights(near))])


@dataclass(frozen=True)
class Amplified(Same[Any, Any, MessageProtocol[Any, Any]]):
    """The local protocol ``client``, behind a shuffler that mixes the users' messages.

    Users, messages, tallies, estimates and errors are the client's; only the guarantee is another
    one, and what keeps it: messages of many users leave in random order, and tallies
    of too few users are refused. Where each user speaks alone, on its own device, the shuffler must
    be a real one. A tally shows what its own users sent: tallies that leave one by one hide each
    user among those of one tally alone, and ``add`` does not see it. Add only those whose messages
    one shuffler mixed.

    Args:
        client: a local protocol of one message a user; delta = 0 but for what arithmetic costs.
        users: so many send at least, one of whom is replaced.
        delta: at which the guarantee is stated, in (0, 1).
        epsilon: likewise; None: the smallest that is certified.
        absent: of ``users``, so many may send nothing, or tell what they sent.

    Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP of the bag of messages for replacing one user's value, whatever
        the others hold: of the client's own chances (``client.blanket``), not of its epsilon alone;
        of two types at most the exact curve of ``RandomizedResponseSum``, of up to 2^20 of the
        users.
    Source: Balle, Bell, Gascon, Nissim (2019); theorem 2 of this module, with proof.
    """

    client: MessageProtocol[Any, Any]
    users: int
    delta: float
    epsilon: float | None = None
    absent: int = 0

    def __post_init__(self) -> None:
        local = checks.instance("client", self.client, MessageProtocol).guarantee
        local_model = local.model is Model.LOCAL and local.neighbours is Neighbours.REPLACE_ONE
        if not (local_model and local.pure):
            raise ValueError(
                "client must be private by each message alone, with delta = 0, for replacing a "
                f"user's value, not of {local}; take PrivUnit in the place of GaussianVector"
            )
        hidden = self._hidden
        if hidden.epsilon < local.epsilon * (1 - ROUNDING):
            raise ValueError(
                f"client must have a blanket of its guarantee's epsilon = {local.epsilon:.6g} or "
                f"more, not of {hidden.epsilon:.6g}: a class with a guarantee of its own needs a "
                "blanket of its own, such as Blanket.unknown(epsilon)"
            )
        checks.keep(self, users=partial(checks.integer, least=1), delta=checks.fraction)
        checks.integer("absent", self.absent, 0, self.users - 1)
        if self.epsilon is not None:
            checks.keep(self, epsilon=checks.positive)
            checks.validated(self, "guarantee")

    @staticmethod
    def calibrated(
        kind: Callable[[float], MessageProtocol[Any, Any]],
        users: int,
        epsilon: float,
        delta: float,
        absent: int = 0,
        largest: float = 15.0,
    ) -> "Amplified":
        """That of the largest local epsilon, to 1e-4 of it, whose crowd is (epsilon, delta)-DP.

        Args:
            kind: the client of a local epsilon, ``lambda e: RandomizedResponse(64, e)``.
            users: so many send at least.
            epsilon: of the crowd, positive.
            delta: likewise, in (0, 1).
            absent: as in the class.
            largest: local epsilon that is tried.

        Raises TypeError, ValueError.

        Guarantees: (epsilon, delta)-DP, certified for the client that is returned.
        """
        epsilon = checks.positive("epsilon", epsilon)
        largest = checks.positive("largest", largest)
        checks.function("kind", kind)

        def spent(inverse: float) -> float:
            """The part of delta that the crowd of a local epsilon of 1/inverse needs."""
            crowd = Amplified(kind(1 / inverse), users, delta, None, absent)
            return crowd.delta_at(epsilon) / crowd._kept

        local = epsilon
        if largest > epsilon:
            inverse = least(spent, 1.0, 1 / largest, 1 / epsilon, FOUND, (False, False))
            if not math.isnan(inverse):
                local = 1 / inverse
        return Amplified(kind(local), users, delta, epsilon, absent)

    @cached_property
    def guarantee(self) -> Guarantee:
        """At delta. Raises ValueError where the epsilon asked for is not certified."""
        local = self.client.guarantee
        epsilon = self.epsilon
        if epsilon is None:
            epsilon = 0.0
            if self.delta_at(0.0) > self._kept:
                epsilon = least_epsilon(self.delta_at, self._kept, local.epsilon)
        elif self.delta_at(epsilon) > self._kept:
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {self.delta:g}) is not certified for this "
                f"client and {self._present} users; take a client of less epsilon, or "
                "Amplified.calibrated"
            )
        shuffled = Model.SHUFFLE
        one = Neighbours.REPLACE_ONE
        mixed = Guarantee(epsilon, self._kept, shuffled, one, False, SOURCE, local.arithmetic)
        return mixed.rounded(self._variation, self.delta) if local.variation else mixed

    def delta_at(self, epsilon: float) -> float:
        """A delta that holds at ``epsilon`` >= 0, but for what the client's arithmetic costs."""
        epsilon = checks.non_negative("epsilon", epsilon)
        of_blanket = blanket_delta(self._hidden, epsilon, self._present)
        of_bits = self._hidden.bit and self._present <= EXACT_HELPS * MOST_EXACT
        if not of_bits or of_blanket == 0:
            return of_blanket
        exact = float(self._bits(np.array([epsilon]))[0])
        return min(of_blanket, exact)

    def curve(self, epsilons: Array) -> Array:
        """delta at each epsilon, below 0 too: for ``privacy.composed_epsilon([protocol.curve], ...)``.

        The truth is convex in e^epsilon and nowhere above what is certified at a point, so nowhere
        above the lower convex hull of these points, which is returned.

        Guarantees: nowhere below the curve of any two neighbours, in either direction, of what
            leaves.
        """
        epsilons = np.asarray(epsilons, dtype=np.float64)
        at, place = np.unique(np.clip(epsilons, -700.0, 700.0), return_inverse=True)
        sizes, same = np.unique(np.abs(at), return_inverse=True)
        arithmetic = (1 + np.exp(sizes)) * self._variation
        deltas = np.array([self.delta_at(float(size)) for size in sizes])
        above = np.minimum(deltas + arithmetic, 1.0)[same]
        # H(-epsilon) = 1 - e^-epsilon + e^-epsilon H(epsilon), of the other direction
        whole = np.where(at < 0, -np.expm1(at) + np.exp(at) * above, above)
        return lower_hull(np.exp(at), np.minimum(whole, 1.0))[place].reshape(epsilons.shape)

    def distribution(self, times: int = 1) -> "PrivacyLossDistribution":
        """The privacy loss of one use, for dp_accounting, on a grid fit for ``times`` uses.

        Raises ValueError, ImportError.

        Guarantees: dominates what neighbours show, in both directions (``privacy.accounting``).
        """
        losses = loss_distributions([self.curve], times)[0]
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        return PrivacyLossDistribution(losses)

    @cached_property
    def _hidden(self) -> Blanket:
        return self.client.blanket

    @property
    def _present(self) -> int:
        return self.users - self.absent

    @property
    def _variation(self) -> float:
        return self.client.guarantee.variation * self.users

    @property
    def _kept(self) -> float:
        """Of delta, for the theorem's real numbers."""
        return self.delta * ROUNDED if self.client.guarantee.variation else self.delta

    @cached_property
    def _bits(self) -> Profile:
        """The exact curve of a client of two types."""
        # A less likely flip gives less privacy, and so do fewer users.
        flip = 1 / (1 + math.exp(self._hidden.epsilon))
        return response_profile(min(self._present, MOST_EXACT), flip * (1 - 2.0**-50))

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Any:
        """In a random order of the users, which is as secret as their noise."""
        return self.client.randomize_unchecked(x[draws.permutation(len(x))], draws)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """Counts do not show the order; sums of floats do, in their last bits."""
        if any(dtype.is_floating_point for _, dtype in self.layout.values()):
            x = x[draws.permutation(len(x))]
        return self.client.collect_unchecked(x, draws)

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        order = draws.permutation(len(x))
        return self.client.collect_groups(x[order], groups[order], size, draws)

    def whole(self, tally: Tally) -> Tally:
        """``tally``, if of the users that the guarantee counts on. Raises TypeError, ValueError."""
        tally = self.check(tally)
        too_small = tensor_of(tally.n) < self._present
        if too_small.any():
            raise ValueError(
                f"tally must be of at least {self._present} users, whose messages hide each "
                f"other{checks.at(too_small)}"
            )
        return tally

    def analyse(self, tally: Tally) -> Estimate:
        return self.client.analyse(self.whole(tally))

    def exact(self, summary: Any) -> Tensor:
        return self.client.exact(summary)

    def predicted_mse(self, summary: Any) -> Tensor:
        return self.client.predicted_mse(summary)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        return self.client.worst_unchecked(n, objective)


def lower_hull(x: Array, y: Array) -> Array:
    """The largest convex function below the points (x, y), at x, which increases."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a = kept[-2]
            b = kept[-1]
            # The slope rises at b: it stays.
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return np.interp(x, x[kept], y[kept])
