"""Sharper accounting for bits that users round at random, where their probabilities can move only a little.

A user holds a vector, rounds coordinate i to a one with probability q_i, and a one-type protocol adds D_i to the sum
of each coordinate. Replacing the vector moves q to q'. Composition of bit flips charges every coordinate as if its
bit had flipped for sure; but where sum_i (q_i - q_i')^2 <= change is known (a vector in a ball), most coordinates
barely move, and the noise needed is that of about ``change`` instances in the place of all.

Proof. Let a, b be the laws of D and 1 + D, and P_q = (1 - q) a + q b. For alpha > 1 the sum
M(q, q') = sum_y P_q^alpha P_q'^(1 - alpha) is jointly convex in (P_q, P_q'), so for |q - q'| = t it is largest at an
end of the segment: one of the two laws is a or b itself, the other lies at distance t from it. The four functions
M(t) that remain, sum base w^alpha and sum base w^(1 - alpha) with w = 1 + t (other/base - 1), base in {a, b}, are
convex. With G = sup over t in (0, 1] of ln M(t)/t^2, the product of all coordinates has
ln sum P^alpha Q^(1 - alpha) <= G change, and pointwise max(0, P - e^eps Q) <= c P^alpha Q^(1 - alpha) with
c = e^(-(alpha - 1) eps) (1 - 1/alpha)^alpha / (alpha - 1). Outcomes that a or b does not reach are left out of the
sums and their probability is added to delta.

G is bounded on all of (0, 1]: between two points of a grid, refined where it matters, M lies below its chord; near 0,
M'' is a sum of convex functions of t, at most the larger of its values at the ends.
Source: the argument above; Canonne, Kamath, Steinke (2020), Proposition 12, for the step from moments to delta.
"""

import math

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from torchdp import checks
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.shuffle.dominating import CountLaw, poisson_law
from torchdp.shuffle.one_type import PoissonSum

SOURCE = "composition of Poisson sums of rounded bits by moments; Canonne, Kamath, Steinke (2020), Proposition 12"
_NEAR = 0.01  # below this distance the second derivative bounds M
_GRID = np.geomspace(_NEAR, 1.0, 16)
_SLACK = 1e-3  # relative, of chords; where the bound near 0 is the largest it may lie above G by more
_ORDERS = np.log(np.geomspace(3.0, 1000.0, 20))  # ln alpha: from 3 on, w^(alpha - 2) is convex
_ROUNDING = 1e-9


def rounded_delta_of(
    protocol: PoissonSum, epsilon: float, instances: int, change: float, absent: int = 0
) -> float:
    """A delta at which ``instances`` sums of randomly rounded bits are (epsilon, delta)-DP.

    change: the largest sum over the instances of (q_i - q_i')^2, q_i the probability that a user's bit is one, over all
    pairs of values of that user; in (0, instances]. absent: users whose noise does not count. Raises ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector; an upper bound.
    Source: the module's proof.
    """
    law = poisson_law(protocol.mean * protocol._present(absent) / protocol.users)
    epsilon, change = checks.non_negative("epsilon", epsilon), _change(change, instances)
    return _delta(law, epsilon, instances, change)


def rounded_guarantee(
    protocol: PoissonSum, delta: float, instances: int, change: float, absent: int = 0
) -> Guarantee:
    """What ``instances`` sums of randomly rounded bits promise at this delta; arguments as in ``rounded_delta_of``.

    Raises ValueError: also where no epsilon up to 700 is certified.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector; an upper bound.
    Source: the module's proof.
    """
    law = poisson_law(protocol.mean * protocol._present(absent) / protocol.users)
    delta, change = checks.fraction("delta", delta), _change(change, instances)

    def excess(epsilon: float) -> float:
        return math.log(max(_delta(law, epsilon, instances, change), 1e-300) / delta)

    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 700:
            raise ValueError(f"delta = {delta} is not reached at any epsilon: add noise, or state a larger delta")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return Guarantee(high, delta, Model.SHUFFLE, Neighbours.REPLACE_ONE, False, SOURCE)


def calibrate_rounded(
    users: int, epsilon: float, delta: float, instances: int, change: float, absent: int = 0
) -> PoissonSum:
    """The Poisson protocol with the least noise that ``rounded_delta_of`` certifies at (epsilon, delta).

    Arguments as there. Raises ValueError.

    Guarantees: ``rounded_delta_of`` of the result is at most delta.
    Source: the module's proof.
    """
    users, absent = checks.integer("users", users, 1), checks.integer("absent", absent, 0)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    change = _change(change, instances)
    if absent >= users:
        raise ValueError(f"absent must be below the number of users, {users}, not {absent}")

    def excess(log_mean: float) -> float:
        return math.log(max(_delta(poisson_law(math.exp(log_mean)), epsilon, instances, change), 1e-300) / delta)

    low = high = math.log(max(1.0, 2 * change * math.log(1 / delta) / epsilon**2))
    while excess(low) < 0:
        low -= 1
    while excess(high) > 0:
        high += 1
    mean = math.exp(float(brentq(excess, low, high, xtol=1e-4)))
    while (
        _delta(poisson_law(mean), epsilon, instances, change) > delta
    ):  # the root is found to 1e-4: end on its safe side
        mean *= 1 + 1e-4
    return PoissonSum(users, mean * users / (users - absent))


def _delta(law: CountLaw, epsilon: float, instances: int, change: float) -> float:
    a, b = law.mass[1:], law.mass[:-1]  # Pr[D = y], Pr[1 + D = y] where both are known
    outside = law.mass[0] + law.mass[-1] + 2 * law.lost
    logs = {"a": -law.step, "b": law.step}  # ln other/base
    bases = ((a, np.expm1(logs["a"])), (b, np.expm1(logs["b"])))

    def log_delta(log_order: float, slack: float = _SLACK) -> float:
        alpha, rate = math.exp(log_order), 0.0
        for base, ratio in bases:
            for power in (alpha, 1 - alpha):
                rate = max(rate, _rate(base, ratio, power, rate, slack))
        moments = change * rate * (1 + _ROUNDING) + instances * alpha * outside
        return moments - (alpha - 1) * epsilon + alpha * math.log1p(-1 / alpha) - math.log(alpha - 1)

    values = [log_delta(order, 0.1) for order in _ORDERS]  # near enough to see where the best lies
    best = int(np.argmin(values))
    if not values[best] < 0:
        return 1.0
    bounds = _ORDERS[max(0, best - 1)], _ORDERS[min(len(_ORDERS) - 1, best + 1)]
    if math.isfinite(max(values[max(0, best - 1) : best + 2])):
        found = minimize_scalar(log_delta, bounds=bounds, method="bounded", options={"xatol": 0.01})
        values.append(float(found.fun))
    return min(1.0, instances * outside + math.exp(min(values)))


def _rate(base: np.ndarray, excess: np.ndarray, power: float, known: float, slack: float) -> float:
    """sup over t in (0, 1] of ln M(t)/t^2, M(t) = sum base (1 + t excess)^power, less its slope at 0 (see _delta).

    Or ``known`` where it is larger. An upper bound: too large by up to ``slack``, relative, or what the second
    derivative says of t < _NEAR, where that is more.
    """

    def gain(t: np.ndarray) -> np.ndarray:  # M - 1, never below what it would be with M(0) = 1
        with np.errstate(over="ignore", divide="ignore"):
            return np.maximum(np.exp(power * np.log1p(t[:, None] * excess)) @ base - 1, 0.0)

    with np.errstate(over="ignore", divide="ignore"):
        bend = (base * excess**2) @ np.exp(np.minimum((power - 2) * np.log1p(_NEAR * excess), 700.0))
    near = abs(power * (power - 1)) / 2 * max(float(base @ excess**2), float(bend))
    t, c = _GRID, gain(_GRID)
    if not np.isfinite(c).all():
        return math.inf
    while True:  # quarter the intervals whose chords promise more than their ends reach
        highest = _chords(t, c)
        reached = max(known, near, float((np.log1p(c) / t**2).max()))
        loose = highest > (1 + slack) * reached
        if not loose.any():
            return max(known, near, float(highest.max()))
        start, width = t[:-1][loose], np.diff(t)[loose]
        between = (start + width * np.array([[0.25], [0.5], [0.75]])).ravel()
        t, c = np.concatenate([t, between]), np.concatenate([c, gain(between)])
        order = np.argsort(t)
        t, c = t[order], c[order]


def _chords(t: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The largest ln(1 + u + v t)/t^2 on each interval, u + v t the chord of c, or a little more.

    ln(1 + c)/t^2 <= (ln(1 + c1)/c1) max c/t^2 with the maximum at an end or between.
    """
    t1, t2, c1, c2 = t[:-1], t[1:], c[:-1], c[1:]
    v = (c2 - c1) / (t2 - t1)
    u = c1 - v * t1
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.clip(np.where(v != 0, -2 * u / v, t1), t1, t2)
        shrink = np.where(c1 > 0, np.log1p(c1) / c1, 1.0)
    return shrink * np.maximum.reduce([(u + v * t) / t**2 for t in (t1, t2, between)])


def _change(change: float, instances: int) -> float:
    instances, change = checks.integer("instances", instances, 1), checks.positive("change", change)
    if change > instances:
        raise ValueError(f"change must be at most the number of instances, {instances}, not {change}")
    return change
