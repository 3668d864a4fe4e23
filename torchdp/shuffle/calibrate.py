"""The least noise whose certified delta is at most the target."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from scipy.optimize import brentq, minimize_scalar

from torchdp import checks
from torchdp.privacy import gaussian_sigma
from torchdp.privacy.accounting import Profile, composed_delta, rounding
from torchdp.shuffle.accounting import delta_of
from torchdp.shuffle.bitsum import BitSum
from torchdp.shuffle.correlated import CorrelatedSum
from torchdp.shuffle.dominating import pure_profile, unlimited_flood_profiles
from torchdp.shuffle.one_type import NegativeBinomialSum, PoissonSum
from torchdp.shuffle.pure import PureSum, pure_sum
from torchdp.shuffle.references import CentralGaussianSum
from torchdp.shuffle.response import RandomizedResponseSum

Kind = TypeVar("Kind", bound=BitSum)
LARGEST = 700.0  # e^epsilon is a float64 up to here
_TOLERANCE = 1e-4  # of the noise, relative


def calibrate(kind: type[Kind], users: int, epsilon: float, delta: float, instances: int, absent: int = 0) -> Kind:
    """The protocol of this kind with the least noise that is (epsilon, delta)-DP over ``instances`` instances.

    kind: RandomizedResponseSum, PoissonSum, NegativeBinomialSum (ratio 1/2: half the messages of Poisson noise at the
    same variance, see ``calibrate_negative_binomial``), CorrelatedSum (see ``calibrate_correlated``), PureSum (within
    ``pure_sum``'s slack), CentralGaussianSum. users: n, public. epsilon > 0, delta: for all instances together, where
    one user's bits may change in each. delta = 0 is for PureSum and RandomizedResponseSum. absent: users whose noise
    does not count. Noise is found to 1e-4. Raises ValueError, TypeError.

    Guarantees: ``delta_of`` of the result at epsilon is at most delta; where noise is searched for it is computed last.
    """
    users, instances = checks.integer("users", users, 1), checks.integer("instances", instances, 1)
    absent, epsilon = checks.integer("absent", absent, 0), checks.positive("epsilon", epsilon)
    if epsilon > LARGEST:
        raise ValueError(f"epsilon must be at most {LARGEST:g}, not {epsilon:g}: no such promise protects anybody")
    if absent >= users:
        raise ValueError(f"absent must be below the number of users, {users}, not {absent}")
    if not (isinstance(kind, type) and issubclass(kind, BitSum)):
        raise TypeError(f"kind must be a class of bitsum protocols, such as PoissonSum, not {kind!r}")
    protocol: BitSum
    if checks.non_negative("delta", delta) == 0:
        protocol = _without_delta(kind, users, epsilon / instances, absent)
    elif kind is CentralGaussianSum:
        protocol = CentralGaussianSum(users, gaussian_sigma(epsilon, delta, math.sqrt(instances)))
    elif kind in (RandomizedResponseSum, PoissonSum, NegativeBinomialSum):
        protocol = _calibrated(lambda noise: kind.of_rmse(users, noise), epsilon, delta, instances, absent)
    elif kind is CorrelatedSum:
        protocol = calibrate_correlated(users, epsilon, delta, instances, absent)
    elif kind is PureSum:
        each = _largest(lambda e: (pure_profile(e),), epsilon, _delta(delta, instances), instances)
        protocol = _pure(users, each, absent)
    else:
        raise TypeError(
            f"kind {kind.__name__} has no noise to calibrate; see calibrate's docstring for those that do"
        )
    return cast(Kind, protocol)


def calibrate_negative_binomial(
    users: int, epsilon: float, delta: float, instances: int, absent: int = 0, *, ratio: float = 0.5
) -> NegativeBinomialSum:
    """The least shape at this ratio: 1 - ratio times the messages of Poisson noise of that variance.

    Larger ratios send fewer messages and need more variance. Other arguments as in ``calibrate``. Raises ValueError.

    Guarantees: as ``calibrate``.
    """
    ratio = checks.fraction("ratio", ratio)
    return _calibrated(
        lambda noise: NegativeBinomialSum.of_rmse(users, noise, ratio), epsilon, delta, instances, absent
    )


def calibrate_correlated(
    users: int, epsilon: float, delta: float, instances: int, absent: int = 0, *, share: float = 0.05
) -> CorrelatedSum:
    """Noise ratio e^(-(1 - share) e), e the largest that unlimited flood makes private; then the smallest flood.

    share in (0, 1): what is spent on a flood that is not unlimited, about the relative increase of the RMSE. The flood
    is NB(shape, e^(-c e)), c in [0.02, 1.5] chosen for the fewest messages. Arguments otherwise as in ``calibrate``.
    Raises ValueError.

    Guarantees: as ``calibrate``.
    """
    share, delta = checks.fraction("share", share), _delta(delta, instances)
    left = (users - absent) / users
    limit = _largest(lambda e: unlimited_flood_profiles(math.exp(-e), shape=left), epsilon, delta, instances)
    ratio = math.exp(-(1 - share) * limit)

    def family(c: float) -> Callable[[float], CorrelatedSum]:
        flood = math.exp(-c * limit)
        return lambda noise: CorrelatedSum(users, ratio, noise**2 * (1 - flood) ** 2 / flood, flood)

    def messages(log_c: float) -> float:
        protocol = family(math.exp(log_c))
        try:
            return protocol(_root(protocol, 10 / limit, epsilon, delta, instances, absent)).messages_per_user
        except ValueError:  # a flood over more counts than can be followed
            return math.inf

    bounds = (math.log(0.02), math.log(1.5))
    best = minimize_scalar(messages, bounds=bounds, method="bounded", options={"maxiter": 6, "xatol": 0.3})
    return least_noise(family(math.exp(float(best.x))), 10 / limit, epsilon, delta, instances, absent)


def least_noise(
    family: Callable[[float], Kind], start: float, epsilon: float, delta: float, instances: int, absent: int = 0
) -> Kind:
    """The protocol of the smallest ``noise`` > 0 found with delta_of(family(noise), epsilon, ...) <= delta.

    family: a protocol for every noise, by and large more private with more noise; start: a guess of the noise.
    Raises ValueError.

    Guarantees: the certified delta of what is returned is at most ``delta``: it is computed last, so nothing rests on
    the family being monotone.
    """
    noise = _root(family, start, epsilon, delta, instances, absent)
    while (certified := delta_of(family(noise), epsilon, instances, absent)) > delta:
        one, other = (_largest_alone(family(noise * x), epsilon, instances, absent) for x in (1.0, 1.01))
        slope = math.log(max(one / other, 1.01)) / math.log(1.01)  # of log delta against log noise
        noise *= math.exp(max(1.1 * math.log(certified / delta) / slope, _TOLERANCE))
    return family(noise)


def _calibrated(
    family: Callable[[float], Kind], epsilon: float, delta: float, instances: int, absent: int
) -> Kind:
    delta = _delta(delta, instances)
    return least_noise(
        family, gaussian_sigma(epsilon, delta, math.sqrt(instances)), epsilon, delta, instances, absent
    )


def _root(
    family: Callable[[float], BitSum], start: float, epsilon: float, delta: float, instances: int, absent: int
) -> float:
    """Where either direction alone has this delta, to _TOLERANCE: a lower bound of the noise needed, nearly tight."""

    def excess(log_noise: float) -> float:
        return math.log(_largest_alone(family(math.exp(log_noise)), epsilon, instances, absent) / delta)

    return math.exp(crossing(excess, math.log(start)) + _TOLERANCE / 2)


def _largest_alone(protocol: BitSum, epsilon: float, instances: int, absent: int) -> float:
    """The larger delta of all instances changing in one direction: what ``delta_of`` bounds, but for mixtures."""
    return max(1e-300, *(composed_delta([curve], instances, epsilon) for curve in protocol.profiles(absent)))


def _largest(
    profiles: Callable[[float], Sequence[Profile]], epsilon: float, delta: float, instances: int
) -> float:
    """The largest e with composed_delta(profiles(e), ...) <= delta, to _TOLERANCE / 10 and on the safe side."""

    def excess(log_inverse: float) -> float:
        return math.log(max(composed_delta(profiles(math.exp(-log_inverse)), instances, epsilon), 1e-300) / delta)

    root = crossing(excess, math.log(instances / epsilon))
    while excess(root) > 0:
        root += _TOLERANCE / 10
    return math.exp(-root)


def crossing(excess: Callable[[float], float], start: float) -> float:
    """A point near which ``excess`` falls through 0."""
    low, high, width = start, start, 0.02
    while excess(high) > 0:
        low, high, width = high, high + width, min(3 * width, 1.0)
    width = 0.02
    while low == high or excess(low) <= 0:
        low, high, width = low - width, low, min(3 * width, 1.0)
    return float(brentq(excess, low, high, xtol=_TOLERANCE / 2, rtol=1e-15))


def _without_delta(kind: type[BitSum], users: int, epsilon: float, absent: int) -> BitSum:
    if kind is RandomizedResponseSum:
        return RandomizedResponseSum(users, 1 / (1 + math.exp(epsilon)))
    if kind is PureSum:
        return _pure(users, epsilon, absent)
    raise ValueError(
        f"delta = 0 needs pure differential privacy, which {kind.__name__} does not give at any noise; "
        "take PureSum, or state a delta > 0"
    )


def _pure(users: int, epsilon: float, absent: int) -> PureSum:
    """``epsilon``-private in one instance with ``absent`` users away."""
    left = epsilon - math.log(users / (users - absent))
    if left <= 0:
        raise ValueError(
            f"absent = {absent} of {users} users alone cost PureSum {epsilon - left:.3g} in each instance, more than "
            f"the {epsilon:.3g} there is; expect fewer to be absent, or take another protocol"
        )
    return pure_sum(users, left)


def _delta(delta: float, instances: int) -> float:
    delta, instances = checks.fraction("delta", delta), checks.integer("instances", instances, 1)
    least = 10 * rounding(instances)
    if instances > 1 and delta < least:
        raise ValueError(
            f"delta must be at least {least:.2g} in {instances} instances, where rounding ends, not {delta:g}"
        )
    return delta
