"""Kernel density estimation in the shuffle model: one bit sum for each random feature."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.errors import MeanSquaredError, kernel_means
from torchdp.density.family import Features
from torchdp.draws import Simulated
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.shuffle import BitSum, ExactSum, PureSum, RandomizedResponseSum, calibrate_rounded, rounded_guarantee

ROUNDING = 4e-6  # relative, of a sum of squared differences of float32 numbers


@dataclass(frozen=True, eq=False)
class ShuffledKDE:
    """n users round their features to bits, b_ij ~ Bernoulli((1 + f_i(x)_j / R)/2); their sums are released.

    F~_ij = R (2 B~_ij - n), B~_ij the protocol's estimate of sum_u b_uij, and K~(y) = sum_ij F~_ij g_i(y)_j / (n I).
    ``collect`` goes through what every user does; ``sample`` draws the release at once, exactly in law. A curator in
    the shuffler's place (``CentralGaussianSum``, ``ExactSum``) adds up the features themselves: nothing is rounded.

    features: public. protocol: for n = protocol.users users, as ``calibrated_kde`` makes it. delta, epsilon: at which
    the guarantee is stated; without epsilon the smallest that is certified is searched for, rounded up by up to 1 %.
    Raises TypeError, and ValueError where no guarantee is certified.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, n public: ``features.composed`` instances of the
    protocol composed. Given everybody's bits the instances are independent, and hockey-stick divergences are jointly
    convex: the worst pair of the user's bit vectors bounds the mixture that rounding makes. With one-type noise, and
    with a curator's, the better of this and of ``features.movement``, 4e-6 up for float32
    (``shuffle.rounded_delta_of``). The former holds whatever the chances of the bits are, the latter for those that are
    stated: they are right to 2^-32 for the number that a feature was computed to (on a CPU to 2^-60,
    ``rounding.rounded``).
    Source: Wagner (2025), Algorithm 1 and Theorem 3.1, here with exact composition.
    """

    features: Features
    protocol: BitSum
    delta: float
    epsilon: float | None = None

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("protocol", self.protocol, BitSum)
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        _ = self.guarantee  # refused here, not when users have spoken

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """What the release promises; None for ``ExactSum``."""
        if isinstance(self.protocol, ExactSum):
            return None
        protocol = self.protocol
        if not isinstance(protocol, _OWN_NUMBER):
            protocol = replace(protocol, users=1)  # its noise has one law, however many there are
        instances, change, flips = _moved(self.features)
        return _guarantee(protocol, self.delta, instances, change, flips=flips, epsilon=self.epsilon)

    @property
    def messages_per_user(self) -> float:
        """Expected number of messages of one user, at most."""
        return self.features.instances * self.protocol.messages_per_user

    @property
    def bits_per_user(self) -> float:
        """Expected length of what one user sends, at most."""
        return self.messages_per_user * self.protocol.bits_per_message(self.features.instances)

    def collect(self, x: Tensor, *, noise: Noise | None = None) -> Density:
        """The release from each user's own messages, part by part: (n, d), n = protocol.users. O(n instances).

        noise: None for the system's, as real data need; a ``SeededNoise`` in tests. Estimates of parts of the users add
        up to that of all, since every analyst here is affine in what arrives.
        Raises TypeError, ValueError, before anything is drawn.
        """
        x = self._present(x)
        draws = source(noise, x.device)
        if self.protocol.sums_numbers:
            return self._release(self.protocol.drawn(self.features._expected_ones(x), draws))
        estimates = torch.zeros(self.features.instances, dtype=torch.float64, device=x.device)
        for part in self.features.parts(x):
            estimates += self.protocol.collect(self.features._bits(part, draws), noise=draws)
        return self._release(estimates)

    def sample(self, x: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()) -> Density:
        """The same in law, from the number of ones of each instance: only the rounding is done for each user.

        (n, d), n = protocol.users; sums of shape (*sample_shape, instances). Raises TypeError, ValueError.
        """
        x, shape = self._present(x), checks.sample_shape(sample_shape)
        draws = Simulated(generator, x.device)
        return self._release(self.protocol.drawn(self._ones(x, draws, shape), draws))

    def predicted_mse(self, x: Tensor, y: Tensor) -> MeanSquaredError:
        """E (K~(y) - mean_u k(x_u, y))^2 over rounding and privacy noise, these features given: (n, d), (q, d) -> (q,).

        feature: (sum_j F_j g_j/(n I) - mean_u k(x_u, y))^2, F the exact sums of f; rounding: sum_j g_j^2 (n R^2 - sum_u
        f_uj^2)/(n I)^2, none with a curator; privacy: 4 R^2 sum_j g_j^2 E Var(B~_j)/(n I)^2. It is exact and not
        private: it reads x.
        """
        x, y = self._present(x).detach(), y.detach() if isinstance(y, Tensor) else y
        right = self.features.right(y).double()
        total, squares = torch.zeros((2, self.features.instances), dtype=torch.float64, device=x.device)
        for part in self.features.parts(x):
            left = self.features._left(part).double()
            total += left.sum(0)
            squares += left.square().sum(0)
        n, bound = self.protocol.users, self.features.bound
        weights = right.square() / (n * self.features.repetitions) ** 2
        feature = (
            right @ total / (n * self.features.repetitions) - kernel_means(self.features.family, x, y)
        ).square()
        ends = self.protocol.variance(torch.tensor([0, n], device=x.device))  # the variance is affine in the ones
        variance = ends[0] + (ends[1] - ends[0]) * (1 + total / (n * bound)) / 2
        rounding = (n * bound**2 - squares).clamp_min(0) * (not self.protocol.sums_numbers)
        return MeanSquaredError(feature, weights @ rounding, 4 * bound**2 * (weights @ variance))

    def _ones(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        """What the protocol adds up, (*shape, instances)."""
        if self.protocol.sums_numbers:
            return self.features._expected_ones(x).expand(*shape, -1)
        return self.features._ones(x, draws, shape)

    @property
    def _rounding(self) -> float:
        """The largest variance that rounding adds to a coordinate of one user."""
        return 0.0 if self.protocol.sums_numbers else self.features.rounding

    def _release(self, estimates: Tensor) -> Density:
        n, bound = self.protocol.users, self.features.bound
        users = torch.tensor(float(n), dtype=torch.float64, device=estimates.device)
        variance = users.new_tensor(n * self._rounding + 4 * bound**2 * self.protocol.rmse**2)
        return Density(self.features, bound * (2 * estimates - n), users, variance, self.guarantee)

    def _present(self, x: Tensor) -> Tensor:
        x = self.features.family.users(x)
        if len(x) != self.protocol.users:
            raise ValueError(
                f"x must have {self.protocol.users} rows, one for each user that the protocol's noise counts on, not "
                f"{len(x)}; calibrate the protocol anew for the users who take part"
            )
        return x


def calibrated_kde(
    features: Features, kind: type[BitSum], users: int, epsilon: float, delta: float, absent: int = 0
) -> ShuffledKDE:
    """The protocol of this kind with the least noise that is certified to make the release (epsilon, delta)-DP.

    kind: such as ``shuffle.PoissonSum``. absent: so many users are corrupt, and their noise is not counted on. Raises
    as ``shuffle.calibrate``.
    """
    features = checks.instance("features", features, Features)
    users, absent = checks.integer("users", users, 1), checks.integer("absent", absent, 0)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    instances, change, flips = _moved(features)
    own = absent > 0 or kind in _OWN_NUMBER
    protocol = _calibrated(kind, users if own else 1, epsilon, delta, instances, change, absent, flips=flips)
    return ShuffledKDE(features, protocol if own else replace(protocol, users=users), delta, epsilon)


def _moved(features: Features) -> tuple[int, float, int]:
    """All sums, how far a user's probabilities move in them, and how many of its bits may flip.

    With room for waves in float32: a chance is right to 3e-7 at a given angle, those of its cosine and sine to 5e-7.
    Features that are linear in x carry the rounding of a matrix product too; that of float64 vectors is far below.
    """
    change = min(features.movement * (1 + ROUNDING), float(features.instances))
    return features.instances, change, features.composed


_OWN_NUMBER = (RandomizedResponseSum, PureSum)  # what these guarantee depends on how many users there are
_guarantee = lru_cache(maxsize=1024)(rounded_guarantee)
_calibrated = lru_cache(maxsize=1024)(calibrate_rounded)
