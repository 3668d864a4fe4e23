"""Composition of hockey-stick curves: privacy loss distributions that never claim too much.

Notation: a profile is a curve epsilon -> delta; a loss distribution is a ``PLDPmf`` of the package
dp_accounting, the distribution of ln P/Q(y), y ~ P, on multiples of ``step``.
The curve of a pair of distributions is H(epsilon) = sum_y max(0, P(y) - e^epsilon Q(y)).
Composition is monotone in it: for products P x P', Q x Q', H(epsilon) = E over y' ~ P' of
H_{P,Q}(epsilon - ln P'/Q'(y')), so exchanging the factors one by one for pairs whose curves lie
nowhere below only raises the whole; the same holds when later factors are chosen after seeing
earlier outcomes. In t = e^epsilon a curve is convex, falls from 1 at t = 0 and stays above 1 - t;
so does the largest of several curves and so does the chord through its points, and every such
function is the curve of some pair. Hence: take the largest of the curves, connect its dots, compose
that pair with itself.
Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Algorithm 1; Zhu, Dong, Wang (2022),
Theorem 10.
"""

import functools
import heapq
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchdp import checks

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

Profile = Callable[[np.ndarray], np.ndarray]
"""A privacy curve: delta at each epsilon, float64 arrays of one shape."""
# of the tails that a composition leaves out: they are counted as lost privacy
_CUT = 1e-13
# e to this power is a float, and beyond it curves are taken to be flat
_LARGEST = 700.0
# compositions whose tails cost less than finding where to cut them
_FEW = 24
# grid steps within the total variation of one instance: 40 in a deviation of its loss
_STEPS = 16
# of one instance, on either side: what a transform of a grid costs is bounded
_MOST_POINTS = 1 << 17
# how far above the worst mixture of directions the certified value may lie
_TIGHT = 0.01
# epsilons at which a curve is looked at, evenly spaced in their logarithms
_REACH = 400


def rounding(instances: int) -> float:
    """What composed deltas gain for the rounding of Fourier transforms: 1e-12 + 1e-15 instances.

    A transform's values have errors of a few 1e-16, their powers ``instances`` times as much.
    Measured against tilted transforms, which lose nothing, the sums have error at most 8e-17
    instances.
    """
    return 1e-12 + 1e-15 * instances


def largest_curve(profiles: Sequence[Profile], epsilons: np.ndarray) -> np.ndarray:
    """The pointwise maximum of the profiles: a curve that dominates each of them."""
    return np.max([profile(epsilons) for profile in profiles], axis=0)


def composed_delta(profiles: Sequence[Profile], instances: int, epsilon: float) -> float:
    """The smallest delta certified at ``epsilon`` for compositions of the worst of the profiles.

    Args:
        profiles: one that covers every change of a user's data, or two, of which each instance has
            one or the other.
        instances: how many are composed.
        epsilon: at least 0.

    Raises ValueError, ImportError.

    Guarantees: never below the truth, and at one instance the curve itself. With two profiles every
    number of instances of the first is covered.
    """
    epsilon = checks.non_negative("epsilon", epsilon)
    instances = _count(profiles, instances)
    here, lost = largest_curve(profiles, np.array([epsilon, _LARGEST]))
    if instances == 1:
        return float(here)
    # A loss that is infinite with certainty: there is no finite part to compose.
    if lost == 1:
        return 1.0
    return min(
        1.0,
        _worst(profiles, instances, lambda pmf: pmf.get_delta_for_epsilon(epsilon))
        + rounding(instances),
    )


def composed_epsilon(profiles: Sequence[Profile], instances: int, delta: float) -> float:
    """The smallest epsilon certified at ``delta`` for compositions of the worst of the profiles.

    math.inf where no epsilon will do. Arguments as in ``composed_delta``; delta in (0, 1). Raises
    ValueError, ImportError.

    Guarantees: never below the truth.
    """
    delta = checks.fraction("delta", delta)
    instances = _count(profiles, instances)
    low = 0.0
    high = _LARGEST
    at_low, at_high = largest_curve(profiles, np.array([low, high]))
    if at_high > delta:
        return math.inf
    if instances > 1:
        target = max(delta - rounding(instances), 0.0)
        return float(_worst(profiles, instances, lambda pmf: pmf.get_epsilon_for_delta(target)))
    if at_low <= delta:
        return 0.0
    # the curve falls: keep the end that is certified
    while high - low > 1e-12 * high:
        # 64 parts a round: one call on an array costs little more than one on a number.
        points = np.linspace(low, high, 65)
        first = int(np.argmax(largest_curve(profiles, points) <= delta))
        low = points[first - 1]
        high = points[first]
    return float(high)


def mixed_epsilon(parts: "Sequence[tuple[Profile, int]]", delta: float) -> float:
    """The smallest epsilon certified at ``delta`` for each profile composed as often as stated.

    All of them together; math.inf where no epsilon will do. Each profile covers every change of a
    user's data. Raises ValueError, ImportError.

    Guarantees: never below the truth.
    """
    delta = checks.fraction("delta", delta)
    scales = [_scale([profile], _count([profile], times)) for profile, times in parts]
    finest = min(step for step, _ in scales)
    farthest = max(end for _, end in scales)
    # One grid for all, as fine as the finest needs, as long as the most points allow.
    step = max(finest, farthest / _MOST_POINTS)
    losses = []
    for (profile, times), (_, end) in zip(parts, scales, strict=True):
        nodes = _nodes(step, end)
        loss = _connected(step, nodes, profile(nodes * step))
        losses.append(_power(loss, times))
    lost = rounding(sum(times for _, times in parts))
    return float(_joined(losses).get_epsilon_for_delta(max(delta - lost, 0.0)))


def loss_distributions(profiles: Sequence[Profile], instances: int) -> "list[PLDPmf]":
    """The privacy loss of each profile, and of their maximum, rounded up on one grid.

    To be composed ``instances`` times. Raises ValueError, ImportError.

    Guarantees: hockey-stick curves nowhere below the profiles'.
    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Algorithm 1.
    """
    step, end = _scale(profiles, _count(profiles, instances))
    nodes = _nodes(step, end)
    curves = [profile(nodes * step) for profile in profiles]
    if len(curves) > 1:
        curves.append(np.max(curves, axis=0))
    return [_connected(step, nodes, curve) for curve in curves]


def _connected(step: float, nodes: np.ndarray, curve: np.ndarray) -> "PLDPmf":
    """The least loss distribution with a curve nowhere below this one, given at step * nodes."""
    with checks.needing("composition of several instances", "dp-accounting"):
        from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots as connect
    # The true curve falls, so the running minimum of values above it is still above it.
    return connect(step, nodes, np.minimum.accumulate(curve))


def _power(loss: "PLDPmf", times: int) -> "PLDPmf":
    """So many of one loss together."""
    if times > 1:
        loss = loss.self_compose(times, _CUT if times > _FEW else 0.0)
    return loss.to_dense_pmf()


def _joined(losses: "Sequence[PLDPmf]") -> "PLDPmf":
    """The loss of all of them together."""
    return functools.reduce(lambda left, right: left.compose(right), losses)


def _worst(
    profiles: Sequence[Profile], instances: int, value: "Callable[[PLDPmf], float]"
) -> float:
    """An upper bound of ``value`` over compositions of j first and instances - j second pairs.

    j in [low, high] is dominated by low first pairs, instances - high second ones, and the maximum
    of both curves for the rest; neighbouring ends are computed. Ranges whose bound is more than
    _TIGHT above the largest value found are halved.
    """
    losses = loss_distributions(profiles, instances)
    if len(losses) == 1:
        return value(_power(losses[0], instances))

    @functools.cache
    def power(which: int, times: int) -> "PLDPmf":
        return _power(losses[which], times)

    def bound(low: int, high: int) -> float:
        # Nothing lies between neighbours: both ends are mixtures that occur.
        if high - low == 1:
            return max(bound(low, low), bound(high, high))
        parts = [(0, low), (1, instances - high), (2, high - low)]
        return value(_joined([power(which, times) for which, times in parts if times]))

    attained = max(bound(0, 0), bound(instances, instances))
    # a heap of ranges, that of the largest bound first
    ranges = [(-bound(0, instances), 0, instances)]
    while -ranges[0][0] > (1 + _TIGHT) * attained:
        _, low, high = heapq.heappop(ranges)
        middle = (low + high) // 2
        attained = max(attained, bound(middle, middle))
        heapq.heappush(ranges, (-bound(low, middle), low, middle))
        heapq.heappush(ranges, (-bound(middle, high), middle, high))
    return max(attained, -ranges[0][0])


def _count(profiles: Sequence[Profile], instances: int) -> int:
    for profile in checks.several("profiles", profiles, object):
        checks.function("each of profiles", profile)
    if not 1 <= len(profiles) <= 2:
        raise ValueError(
            f"profiles must hold one curve, or one for each direction, not {len(profiles)}"
        )
    return checks.integer("instances", instances, 1, 2**31)


def _scale(profiles: Sequence[Profile], instances: int) -> tuple[float, float]:
    """A step fit for the curves, and where they are flat."""
    reach = np.concatenate([[0.0], np.geomspace(1e-12, _LARGEST, _REACH)])
    curve = largest_curve(profiles, reach)
    # above the curve of equal distributions
    gained = largest_curve(profiles, -reach) + np.expm1(-reach)
    flat = curve - curve[-1] <= max(1e-3 * curve[-1], 1e-14 / instances)
    low = gained <= max(1e-7 * curve[0], 1e-12)
    end = reach[max(int(np.argmax(flat)), int(np.argmax(low)))]
    # curve[0], at epsilon 0, is the total variation of one instance.
    return max(min(0.01, curve[0] / _STEPS), end / _MOST_POINTS, 1e-10), end


def _nodes(step: float, end: float) -> np.ndarray:
    """Multiples of the step: all near zero, sparser beyond, out to where the curves are flat."""
    last = math.ceil(end / step) + 1
    near = min(last, 32 * _STEPS)  # more than ten deviations
    offsets = np.geomspace(1, max(last - near, 1), _REACH).astype(np.int64)
    far = near + np.unique(offsets)
    nodes = np.concatenate([np.arange(near + 1), far[far <= last]])
    return np.concatenate([-nodes[:0:-1], nodes])
