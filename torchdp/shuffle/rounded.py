"""What sums promise where users round at random, by whichever is sharper: bits that flip, or chances that move.

A user holds a vector and rounds coordinate i to a one with probability q_i. Replacing the vector may flip every bit,
and ``delta_of`` composes so many flips; it also moves the probabilities by ``change`` = sum_i (q_i - q_i')^2, which may
be far less, and ``BitSum.moved_delta`` says what that costs: ``torchdp.shuffle.moments`` for one-type noise, exactly
for a curator's Gaussian noise. Other protocols count flips alone.
"""

import math
from collections.abc import Iterator

from torchdp import checks
from torchdp.privacy import Guarantee, Neighbours, gaussian_sigma
from torchdp.shuffle.accounting import delta_of, epsilon_of
from torchdp.shuffle.bitsum import BitSum
from torchdp.shuffle.calibrate import Kind, calibrate, crossing

SOURCE = "sums of rounded bits: flips composed after Doroshenko et al. (2022), Algorithm 1, or their movement"
_TOLERANCE = 1e-4  # relative, of noise and of epsilon


def rounded_delta_of(
    protocol: BitSum, epsilon: float, instances: int, change: float, absent: int = 0, *, flips: int | None = None
) -> float:
    """A delta at which ``instances`` sums of randomly rounded bits are (epsilon, delta)-DP.

    change: the largest sum over the instances of (q_i - q_i')^2, q_i the probability that a user's bit is one, over all
    pairs of values of that user; in (0, instances]. absent: users whose noise does not count. flips: the most bits that
    can differ, all of them if None. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector; an upper bound, at most ``delta_of`` of the flips.
    Source: ``shuffle.moments``, ``shuffle.accounting``.
    """
    epsilon = checks.non_negative("epsilon", epsilon)
    instances, change, flips = _checked(protocol, instances, change, flips)
    return min(_deltas(protocol, epsilon, instances, change, absent, flips))


def rounded_guarantee(
    protocol: BitSum,
    delta: float,
    instances: int,
    change: float,
    absent: int = 0,
    *,
    flips: int | None = None,
    epsilon: float | None = None,
) -> Guarantee:
    """What ``instances`` sums of randomly rounded bits promise at this delta; arguments as in ``rounded_delta_of``.

    epsilon: at which it is stated; None: the smallest that is certified, rounded up by up to 1 %. Raises ValueError
    where it is not certified, or no epsilon up to 700 is.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector; an upper bound.
    Source: as ``rounded_delta_of``.
    """
    delta = checks.fraction("delta", delta)
    instances, change, flips = _checked(protocol, instances, change, flips)
    if epsilon is None:
        epsilon = _smallest(protocol, delta, instances, change, absent, flips)
    else:
        epsilon = checks.positive("epsilon", epsilon)
        if not any(each <= delta for each in _deltas(protocol, epsilon, instances, change, absent, flips)):
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {delta:g}) is not certified for this protocol; add noise"
            )
    return Guarantee(epsilon, delta, protocol.model, Neighbours.REPLACE_ONE, False, SOURCE)


def calibrate_rounded(
    kind: type[Kind],
    users: int,
    epsilon: float,
    delta: float,
    instances: int,
    change: float,
    absent: int = 0,
    *,
    flips: int | None = None,
) -> Kind:
    """The protocol of this kind with the least noise that ``rounded_delta_of`` certifies at (epsilon, delta).

    kind: as in ``calibrate``; other arguments as in ``rounded_delta_of``. Raises ValueError, TypeError.

    Guarantees: ``rounded_delta_of`` of the result is at most delta: it is computed last.
    Source: as there.
    """
    instances, change, flips = _checked(kind, instances, change, flips)
    protocol = calibrate(kind, users, epsilon, delta, flips, absent)
    if not (protocol.counts_movement and change < flips and delta > 0):
        return protocol
    start = gaussian_sigma(epsilon, delta, math.sqrt(change)) * math.sqrt(users / (users - absent))

    def excess(log_noise: float) -> float:
        made = kind.of_rmse(users, math.exp(log_noise))
        return math.log(max(made.moved_delta(epsilon, instances, change, absent), 1e-300) / delta)

    noise = math.exp(crossing(excess, math.log(1.08 * start)))
    while (moved := kind.of_rmse(users, noise)).moved_delta(epsilon, instances, change, absent) > delta:
        noise *= 1 + _TOLERANCE / 4  # the root is found to a tolerance: end on its safe side
    return min(protocol, moved, key=lambda each: each.rmse)


def _deltas(
    protocol: BitSum, epsilon: float, instances: int, change: float, absent: int, flips: int
) -> Iterator[float]:
    if protocol.counts_movement and change < flips:
        yield protocol.moved_delta(epsilon, instances, change, absent)
    yield delta_of(protocol, epsilon, flips, absent)


def _smallest(protocol: BitSum, delta: float, instances: int, change: float, absent: int, flips: int) -> float:
    """The smallest epsilon that is certified."""
    least = epsilon_of(protocol, delta, flips, absent)
    if protocol.counts_movement and change < flips:
        top = min(least, 700.0)
        low, high = 0.0, min(1.0, top)
        while (above := protocol.moved_delta(high, instances, change, absent) > delta) and high < top:
            low, high = high, min(2 * high, top)
        while not above and high - low > _TOLERANCE * high:
            middle = (low + high) / 2
            more = protocol.moved_delta(middle, instances, change, absent) > delta
            low, high = (middle, high) if more else (low, middle)
        least = least if above else min(least, high)
    if math.isinf(least):
        raise ValueError(f"delta = {delta:g} is not reached at any epsilon: add noise, or state a larger delta")
    if least == 0:
        raise ValueError(f"delta = {delta:g} is kept at every epsilon > 0; state a smaller delta")
    return least


def _checked(protocol: object, instances: int, change: float, flips: int | None) -> tuple[int, float, int]:
    instances, change = checks.integer("instances", instances, 1), checks.positive("change", change)
    if change > instances:
        raise ValueError(f"change must be at most the number of instances, {instances}, not {change}")
    if not isinstance(protocol, type):  # ``calibrate`` checks a kind
        checks.instance("protocol", protocol, BitSum)
    if flips is None:
        return instances, change, instances
    if checks.integer("flips", flips, 1) > instances:
        raise ValueError(f"flips must be at most the number of instances, {instances}, not {flips}")
    return instances, change, flips
