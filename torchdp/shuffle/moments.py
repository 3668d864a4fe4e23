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

G is bounded on all of (0, 1]: M^(1/alpha), or M^(1/(alpha - 1)) of the negative power, is a norm of w, or of 1/w, so
convex in t: between two points of a grid, refined where it matters, it lies below its chord. Near 0, M'' is a sum of
convex functions of t, at most the larger of its values at the ends.
Source: the argument above; Canonne, Kamath, Steinke (2020), Proposition 12, for the step from moments to delta.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar

from torchdp.shuffle.count_laws import CountLaw

_NEAR = 0.01  # below this distance the second derivative bounds M
_GRID = np.geomspace(_NEAR, 1.0, 16)
_SLACK = 1e-3  # relative, of chords; where the bound near 0 is the largest it may lie above G by more
_ORDERS = np.log(np.geomspace(3.0, 1000.0, 12))  # ln alpha: from 3 on, w^(alpha - 2) is convex
_ROUNDING = 1e-9


def moments_delta(law: CountLaw, epsilon: float, instances: int, change: float) -> float:
    """A delta at ``epsilon`` of ``instances`` sums with noise of this law where a user moves by ``change``, unchecked.

    Guarantees: as the module's proof says, for every law of D.
    """
    outside = law.mass[0] + law.mass[-1] + 2 * law.lost
    a, b, loss = law.neighbours()  # Pr[D = y], Pr[1 + D = y] where both are known, or a pair that dominates them
    bases = (_Base(a, np.expm1(-loss)), _Base(b, np.expm1(loss)))

    def log_delta(log_order: float, slack: float = _SLACK) -> float:
        alpha, rate = math.exp(log_order), 0.0
        for base in bases:
            for power in (alpha, 1 - alpha):
                rate = max(rate, base.rate(power, rate, slack))
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


def least_moments_delta(epsilon: float) -> float:
    """What ``moments_delta`` never goes below, however much noise there is: c of the proof at the largest order."""
    alpha = math.exp(_ORDERS[-1])
    return math.exp(-(alpha - 1) * epsilon + alpha * math.log1p(-1 / alpha) - math.log(alpha - 1))


class _Base:
    """One of the two laws, a or b, and ``excess``, the other's ratio to it less 1: (width,) each."""

    def __init__(self, mass: np.ndarray, excess: np.ndarray) -> None:
        self.mass, self.excess, self.spread = mass, excess, float(mass @ excess**2)
        self.logs = self.logarithms(_GRID)  # for every power

    def logarithms(self, t: np.ndarray) -> np.ndarray:
        """ln w: (points, width)."""
        with np.errstate(divide="ignore"):
            return np.log1p(t[:, None] * self.excess)

    def rate(self, power: float, known: float, slack: float) -> float:
        """sup over t in (0, 1] of ln M(t)/t^2, M(t) = sum mass (1 + t excess)^power, less its slope at 0.

        Or ``known`` where it is larger. An upper bound: too large by up to ``slack``, relative, or what the second
        derivative says of t < _NEAR, where that is more.
        """

        order = abs(power)

        def gain(logs: np.ndarray) -> np.ndarray:  # M^(1/order) - 1, not below 0
            with np.errstate(over="ignore"):
                return np.expm1(np.log1p(np.maximum(np.exp(power * logs) @ self.mass - 1, 0.0)) / order)

        with np.errstate(over="ignore"):
            bend = (self.mass * self.excess**2) @ np.exp(np.minimum((power - 2) * self.logs[0], 700.0))
        near = abs(power * (power - 1)) / 2 * max(self.spread, float(bend))
        t, c = _GRID, gain(self.logs)
        if not np.isfinite(c).all():
            return math.inf
        while True:  # quarter the intervals whose chords promise more than their ends reach
            highest = order * _chords(t, c)
            reached = max(known, near, order * float((np.log1p(c) / t**2).max()))
            loose = highest > (1 + slack) * reached
            if not loose.any():
                return max(known, near, float(highest.max()))
            start, width = t[:-1][loose], np.diff(t)[loose]
            between = (start + width * np.array([[0.25], [0.5], [0.75]])).ravel()
            t, c = np.concatenate([t, between]), np.concatenate([c, gain(self.logarithms(between))])
            place = np.argsort(t)
            t, c = t[place], c[place]


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
