"""Composition of hockey-stick curves: privacy loss distributions that never claim too much.

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
_CUT = 1e-13  # tails left out of a composition; counted as lost privacy
_LARGEST = 700.0  # e^epsilon stays finite
_STEPS = 16  # grid steps within the total variation of one instance: 40 in a deviation of its loss
_MOST_POINTS = 1 << 17  # of one instance, on either side
_TIGHT = 0.01  # how far above the worst mixture of directions the certified value may lie


def rounding(instances: int) -> float:
    """What is added to every composed delta for the rounding of the Fourier transforms: 1e-12 +
    1e-15 instances.

    A transform's values have errors of a few 1e-16, their powers ``instances`` times as much.
    Measured against tilted transforms, which lose nothing, the sums have error at most 8e-17
    instances.
    """
    return 1e-12 + 1e-15 * instances


def largest_curve(profiles: Sequence[Profile], epsilons: np.ndarray) -> np.ndarray:
    """The pointwise maximum of the profiles at ``epsilons``: a curve that dominates each of
    them.
    """
    return np.max([profile(np.asarray(epsilons, dtype=np.float64)) for profile in profiles], axis=0)


def composed_delta(profiles: Sequence[Profile], instances: int, epsilon: float) -> float:
    """The smallest delta certified at ``epsilon`` >= 0 for ``instances`` compositions of the worst
    of the profiles.

    profiles: one that covers every change of a user's data, or two, of which each instance has one
    or the other. Raises ValueError, ImportError.

    Guarantees: never below the truth, and at one instance the curve itself. With two profiles every
    number of instances of the first is covered.
    """
    epsilon, instances = checks.non_negative("epsilon", epsilon), _count(profiles, instances)
    here, lost = largest_curve(profiles, np.array([epsilon, _LARGEST]))
    if instances == 1 or lost == 1:
        return float(here if instances == 1 else lost)
    return min(
        1.0,
        _worst(profiles, instances, lambda pmf: pmf.get_delta_for_epsilon(epsilon))
        + rounding(instances),
    )


def composed_epsilon(profiles: Sequence[Profile], instances: int, delta: float) -> float:
    """The smallest epsilon >= 0 certified at ``delta`` for ``instances`` compositions of the worst
    of the profiles.

    math.inf where no epsilon will do. profiles: as in ``composed_delta``. Raises ValueError,
    ImportError.

    Guarantees: never below the truth.
    """
    delta, instances = checks.fraction("delta", delta), _count(profiles, instances)
    low, high = 0.0, _LARGEST
    ends = largest_curve(profiles, np.array([low, high]))
    if ends[1] > delta:
        return math.inf
    if instances > 1:
        target = max(delta - rounding(instances), 0.0)
        return float(_worst(profiles, instances, lambda pmf: pmf.get_epsilon_for_delta(target)))
    # the curve falls: keep the end that is certified
    while ends[0] > delta and high - low > 1e-12 * high:
        points = np.linspace(low, high, 65)
        first = int(np.argmax(largest_curve(profiles, points) <= delta))
        low, high = points[first - 1], points[first]
    return float(high) if ends[0] > delta else 0.0


def mixed_epsilon(parts: "Sequence[tuple[Profile, int]]", delta: float) -> float:
    """The smallest epsilon >= 0 certified at ``delta`` for each profile composed as often as
    stated, all together.

    math.inf where no epsilon will do. Each profile covers every change of a user's data. Raises
    ValueError, ImportError.

    Guarantees: never below the truth.
    """
    delta = checks.fraction("delta", delta)
    scales = [_scale([profile], _count([profile], times)) for profile, times in parts]
    step = max(min(each for each, _ in scales), max(end for _, end in scales) / _MOST_POINTS)
    losses = []
    for (profile, times), (_, end) in zip(parts, scales, strict=True):
        nodes = _nodes(step, end)
        one = _connected(step, nodes, profile(nodes * step))
        losses.append((one.self_compose(times, _CUT) if times > 1 else one).to_dense_pmf())
    whole = functools.reduce(lambda one, other: one.compose(other), losses)
    lost = rounding(sum(times for _, times in parts))
    return float(whole.get_epsilon_for_delta(max(delta - lost, 0.0)))


def loss_distributions(profiles: Sequence[Profile], instances: int) -> "list[PLDPmf]":
    """The privacy loss in one instance of each profile, and of their pointwise maximum, rounded up,
    on one grid.

    dp_accounting PLDPmf objects, to be composed ``instances`` times. Raises ValueError,
    ImportError.

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
    """The least loss distribution whose curve is nowhere below this one, given at ``step`` times
    the nodes.
    """
    with checks.needing("composition of several instances", "dp-accounting"):
        from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots as connect
    return connect(step, nodes, np.minimum.accumulate(np.asarray(curve)))


def _worst(
    profiles: Sequence[Profile], instances: int, value: "Callable[[PLDPmf], float]"
) -> float:
    """An upper bound of ``value`` over compositions of j first and instances - j second pairs, j =
    0..instances.

    j in [low, high] is dominated by low first pairs, instances - high second ones, and the maximum
    of both curves for the rest; neighbouring ends are computed. Ranges whose bound is more than
    _TIGHT above the largest value found are halved.
    """
    losses = loss_distributions(profiles, instances)
    if len(losses) == 1:
        return value(losses[0].self_compose(instances, _CUT))

    @functools.cache
    def power(which: int, times: int) -> "PLDPmf":
        return losses[which].self_compose(times, _CUT).to_dense_pmf()

    def bound(low: int, high: int) -> float:
        if high - low == 1:
            return max(bound(low, low), bound(high, high))
        parts = [(0, low), (1, instances - high), (2, high - low)]
        powers = [power(which, times) for which, times in parts if times]
        return value(functools.reduce(lambda one, other: one.compose(other), powers))

    attained = max(bound(0, 0), bound(instances, instances))
    ranges = [(-bound(0, instances), 0, instances)]
    while -ranges[0][0] > (1 + _TIGHT) * attained:
        _, low, high = heapq.heappop(ranges)
        middle = (low + high) // 2
        attained = max(attained, bound(middle, middle))
        for ends in ((low, middle), (middle, high)):
            heapq.heappush(ranges, (-bound(*ends), *ends))
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
    reach = np.concatenate([[0.0], np.geomspace(1e-12, _LARGEST, 400)])
    curve = largest_curve(profiles, reach)
    # above the curve of equal distributions
    gained = largest_curve(profiles, -reach) + np.expm1(-reach)
    flat = curve - curve[-1] <= max(1e-3 * curve[-1], 1e-14 / instances)
    low = gained <= max(1e-7 * curve[0], 1e-12)
    end = max(reach[int(np.argmax(flat))], reach[int(np.argmax(low))])
    return max(min(0.01, curve[0] / _STEPS), end / _MOST_POINTS, 1e-10), end


def _nodes(step: float, end: float) -> np.ndarray:
    """Multiples of the step: every one near zero, sparser beyond, out to where the curves are
    flat.
    """
    last = math.ceil(end / step) + 1
    near = min(last, 32 * _STEPS)  # more than ten deviations
    far = near + np.unique(np.geomspace(1, max(last - near, 1), 400).astype(np.int64))
    nodes = np.concatenate([np.arange(near + 1), far[far <= last]])
    return np.concatenate([-nodes[:0:-1], nodes])
