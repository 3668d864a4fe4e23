"""Accounting for numbers that users round at random to whole ones and that can move only a little.

Of its number u >= 0 a user sends j = floor u messages, or with probability u - j one more, and a
one-type protocol adds D. Replacing the user moves each u by x_i <= farthest, sum x_i^2 <= Gamma.
How large u may be is not used: each sum may have a range [0, s] of its own, s any real number.

The bound. For distributions P, Q let L = ln P/Q, M(z) = sum P^(1 + z) Q^(-z) over the outcomes that
both reach. Then h(t) = E_P (1 - e^(t - L))_+ e^(a t) has the Fourier transform M(z)/(z (z + 1)) at
z = a + 2 pi i k/T, and by Poisson's summation formula sum_j h(epsilon + j T) = (1/T) sum_k
e^(-2 pi i k epsilon/T) M(z_k)/(z_k (z_k + 1)). All terms on the left are >= 0, so for any a, T > 0
    delta(epsilon) <= lost + (1/T) sum_k |M(z_k)| e^(-a epsilon)/|z_k (z_k + 1)|.
Nothing is discretised. A pair of Gaussians, which only adds to delta, makes the sum end.

|M| of a product is at most exp(E_k), E_k = Gamma G_k + r sqrt(I Gamma), for all moves at once:
1. For fixed distances the divergence is largest where in each coordinate one of u, u' is whole:
   slide both together; while they stay in their cells, in the range or out of it, both
   distributions are affine in the slide, and the divergence is convex. Less that whole number,
   which is a shift, one distribution is that of D, the base, the other O_x = (1 - theta) (k + D) +
   theta (k + 1 + D), x = k + theta: two directions, two roles.
2. Inside a cell, (base, O_x) is what remains of a labelled choice between (base, O_x1) and
   (base, O_x2), x between: so x may be taken from one grid, and |M| lies below its chords. ln of a
   chord lies below its tangent.
3. Below the grid, M - 1 is a polynomial in x with Taylor's remainder.
4. Outcomes that the other does not reach are lost: at most l x for a coordinate, l sqrt(I Gamma) in
   all. So are the tails, cut where that costs little: given that D lies there, distributions of a
   unimodal D that are x apart differ by at most x times its mass at the cut.
One G_k for each frequency, the largest over x, bounds every pattern of moves.

Notation: d, masses of D; chi, c_2 of one step, by which a step of length x costs about chi x^2/2;
a, the order, Re z; s, the deviation of the Gaussians; wide = sqrt(I Gamma).

Source: the argument above.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from torchdp.privacy import gaussian_log_delta
from torchdp.shuffle.count_laws import Array, CountLaw, merged


class Setting(NamedTuple):
    """The period T, in deviations of the loss, and s a."""

    period: float
    smoothing: float


FAST = Setting(5.0, 0.15)
SHARP = Setting(10.0, 0.08)

# The last frequency, in 1/s.
REACH = 3.5

# Parts of delta that the cuts may cost.
SHARES = (1e-3, 2e-2, 5e-2, 0.1, 0.2)

# Variance, in ones, below which the loss is far from normal; and the skewness^2 of the noise above
# which it is too where a user moves by less than one step.
SKEWED = 50.0
LOPSIDED = 1 / 300

# Mass at a cut, times variance^2: more would show among the fourth powers of small moves.
FLAT = 1.0

# Ratio of neighbouring points of the grid, and points near its end, in parts of the last.
RATIO = 1.08
ENDS = (0.95, 0.97, 0.985, 0.995)

# ln a, about that of Gaussian noise: the best order of skewed noise is smaller.
WALK = np.arange(-4.0, 1.6, 0.5)

# Of ln a, tried on both sides.
TILT = 0.1

# What float64 may lose of a sum, relative and absolute.
ROUNDING = 1e-9
FLOOR = 1e-13

# T in s, at most: a rare outcome can make the loss deviate by far more.
LONGEST = 2000.0

# a in deviations of the loss: from there on delta is below e^-40, and the sum long.
FARTHEST = 9.0

# More outcomes than these are kept in blocks.
WIDTH = 2048

# Variances below this count as it, and values below TINY have no logarithm.
LEAST_VARIANCE = 1e-3
TINY = 1e-300


@dataclass(frozen=True)
class Cut:
    """D where it is followed.

    Args:
        mass: of its outcomes, (width,).
        beta: mass of its tails.
        lost: for each step of distance.
    """

    mass: Array
    beta: float
    lost: float


def cut_of(d: Array, rate: float, most: int) -> Cut | None:
    """The narrowest range beyond which at most ``rate`` is lost a step.

    most: steps that a user moves by. None where too few outcomes are left.
    """
    heavy = np.flatnonzero(d > rate / 4)
    if not len(heavy):
        return None
    first = int(heavy[0])
    end = int(heavy[-1]) + 1
    kept = d[first:end]
    if len(kept) <= most + 1:
        return None
    # Within the range a move of k steps leaves out the mass of k outcomes at an edge.
    steps = np.arange(1, most + 1)
    low_edge = float((np.cumsum(kept[:most]) / steps).max())
    high_edge = float((np.cumsum(kept[::-1][:most]) / steps).max())
    edges = max(low_edge, high_edge)
    outside = float(d[max(first - 1, 0) : first].sum() + d[end : end + 1].sum())
    return Cut(kept, float(d[:first].sum() + d[end:].sum()), edges + outside)


@dataclass(frozen=True, eq=False)
class Move:
    """One direction and role: base and O_x at each x of a grid, and the series near x = 0.

    Args:
        up: whether the base is Q, so that the power of O_x/base is 1 + z; else it is -z.
        base: masses of the base where O_1 is followed, (outcomes,).
        excess: O_1/base - 1 there, (outcomes,).
        mass: of the base for each x, (grid, outcomes).
        logs: ln O_x/base, (grid, outcomes).
        corner: mass of the outcome that is linear in x, (grid,).
        edge: minus the slope of the corner.
        beta: mass on which both distributions are the same.
    """

    up: bool
    base: Array
    excess: Array
    mass: Array
    logs: Array
    corner: Array
    edge: float
    beta: float

    @staticmethod
    def of_noise(cut: Cut, grid: Array, turned: bool, up: bool) -> "Move":
        """Of D up to the cut; turned: whether it moves down."""
        d = cut.mass[::-1] if turned else cut.mass
        if up:
            base = d
            excess = np.append(0.0, d[:-1]) / d - 1
            edge = 0.0
        else:
            base = d[1:]
            excess = d[:-1] / d[1:] - 1
            edge = float(d[0])
        if len(base) > WIDTH:
            bases, excesses = merged(base[None], excess[None], starts_of(base))
            base = bases[0]
            excess = excesses[0]
        with np.errstate(divide="ignore"):
            if grid[-1] > 1:
                mass, ratio = _farther(d, grid, up)
                logs = np.log(ratio)
                corner = np.zeros(len(grid))
            else:
                mass = np.broadcast_to(base, (len(grid), len(base)))
                logs = np.log1p(grid[:, None] * excess)
                corner = (1 - grid) * edge
        return Move(up, base, excess, mass, logs, corner, edge, cut.beta)

    @cached_property
    def moments(self) -> list[float]:
        """E excess^j under the base, j = 1, 2, 3."""
        return [float(self.base @ self.excess**j) for j in (1, 2, 3)]

    def moduli(self, a: float, step: float, count: int) -> Array:
        """|M| at z = a + i step k, k < count, and at each x of the grid: (count, grid)."""
        power = 1 + a if self.up else -a
        rest = self.corner + self.beta
        with np.errstate(invalid="ignore", over="ignore"):
            terms = self.mass * np.exp(power * self.logs)
            rows = [np.abs(terms.sum(1) + rest)]
            if count > 1:
                # O_x = 0 has no angle: its term is 0, or infinite and no bound is found.
                angles = np.where(np.isfinite(self.logs), self.logs, 0.0)
                turn = np.exp(1j * ((step if self.up else -step) * angles))
                terms = terms.astype(complex)
                for _ in range(1, count):
                    terms *= turn
                    rows.append(np.abs(terms.sum(1) + rest))
        return np.stack(rows)

    def near(self, z: Array, x: float) -> tuple[Array, Array]:
        """G and r for all distances up to x, at each z; their real parts are one number."""
        p = 1 + z if self.up else -z
        c1, c2, c3 = self.moments
        with np.errstate(over="ignore", invalid="ignore"):  # then no bound is found
            grown = np.maximum(1.0, (1 + x * self.excess) ** (float(p[0].real) - 4))
            fourth = float(self.base @ (self.excess**4 * grown))
            remainder = np.abs(p * (p - 1) * (p - 2) * (p - 3)) * x * x / 24 * fourth
            slope = p * c1 - self.edge
            # M - 1 less its slope, over x^2, is linear in x but for the remainder.
            curve_at_0 = p * (p - 1) * (c2 / 2)
            curve_at_x = p * (p - 1) * (c2 / 2 + x * (p - 2) * c3 / 6)
            largest = np.maximum(np.abs(curve_at_0), np.abs(curve_at_x)) + remainder
            real = np.maximum(curve_at_0.real, curve_at_x.real) + remainder
            rate = real + (np.abs(slope) + largest * x) ** 2 / 2
        return rate, np.maximum(0.0, slope.real)


def _farther(d: Array, grid: Array, up: bool) -> tuple[Array, Array]:
    """Masses of the base and O_x/base for any number of whole steps, (grid, outcomes) each.

    Outcomes below the shift are lost, or P has none there.
    """
    mass = np.repeat(d[None], len(grid), 0)
    moved = np.zeros((len(grid), len(d)))
    whole = np.minimum(grid.astype(int), len(d) - 1)
    for row, k in enumerate(whole):
        theta = grid[row] - k
        moved[row, k:] += (1 - theta) * d[: len(d) - k]
        moved[row, k + 1 :] += theta * d[: len(d) - k - 1]
        if not up:
            mass[row, :k] = 0.0
            mass[row, k] *= 1 - theta
    ratio = moved / d
    if not up:
        ratio[np.arange(len(grid)), whole] = d[0] / d[whole]
        ratio = np.where(mass > 0, ratio, 1.0)
    if len(d) > WIDTH:
        return merged(mass, ratio, starts_of(mass.max(0)))
    return mass, ratio


def starts_of(mass: Array) -> Array:
    """Where blocks begin: half of them evenly, half as the cube root of the mass: the loss varies."""
    half = WIDTH // 2
    weight = np.cumsum(np.cbrt(mass))
    weight = weight / weight[-1] + np.arange(1, len(mass) + 1) / len(mass)
    ends = weight[-1] * np.arange(half) / half
    return np.unique(np.searchsorted(weight, ends, side="right"))


def moved_delta(
    law: CountLaw, epsilon: float, instances: int, gamma: float, largest: float = 1.0
) -> float:
    """A delta at ``epsilon`` of sums with this unimodal noise, unchecked.

    Args:
        law: of D.
        epsilon: >= 0.
        instances: I, sums that a user takes part in.
        gamma: Gamma, squared movement of a user.
        largest: of a user's numbers, which move by no more.

    Guarantees: an upper bound, as the module's proof says.
    """
    farthest = min(largest, math.sqrt(gamma))
    y = np.arange(len(law.mass))
    variance = float(law.mass @ y**2 - (law.mass @ y) ** 2)
    variance = max(variance, LEAST_VARIANCE)
    wide = math.sqrt(instances * gamma)
    bound = _Bound(law.mass, variance, epsilon, gamma, wide, farthest)
    guess = math.exp(gaussian_log_delta(math.sqrt(variance / gamma), max(epsilon, 1e-9)))
    lost = SHARES[0] * max(guess, 1e-25)
    best = bound.delta(lost)
    # Tails that a Gaussian does not have.
    while best >= 1 and lost < 1e-2:
        lost *= 1e3
        best = bound.delta(lost)
    if 2 * FLOOR < best < 1 and _skewed(law.mass, farthest):
        best = bound.sharpest(best)
    return min(1.0, best + 2 * instances * law.lost)


def _skewed(mass: Array, farthest: float) -> bool:
    """Whether the sharp setting gains more than 0.2 % of the variance."""
    counts = np.arange(len(mass))
    away = counts - mass @ counts
    variance = float(mass @ away**2)
    if variance < SKEWED * max(1.0, farthest) ** 2:
        return True
    return farthest < 1 and float(mass @ away**3) ** 2 > LOPSIDED * variance**3


class _Followed(NamedTuple):
    """Noise within its cuts: what they cost, moves on a grid, chi, and ln a of the largest term."""

    lost: float
    moves: Callable[[Array], list[Move]]
    chi: float
    log_order: float


@dataclass(frozen=True, eq=False)
class _Bound:
    """The bound of delta for one noise, as a function of what its cuts may cost, and of the order.

    Args:
        mass: of D, (width,).
        variance: of D.
        epsilon: >= 0.
        gamma: Gamma.
        wide: sqrt(I Gamma), the largest sum of a user's moves.
        farthest: its largest move.
    """

    mass: Array
    variance: float
    epsilon: float
    gamma: float
    wide: float
    farthest: float

    def sharpest(self, best: float) -> float:
        """The least over what the cuts may cost, then over the order."""
        shares = SHARES[:1] if self.farthest >= 1 else SHARES
        best = min(best, self.delta(shares[0] * best, SHARP))
        kept = [self.followed(share * best) for share in shares]
        bounds = [self.at(followed, SHARP) for followed in kept]
        least = min(bounds)
        followed = kept[bounds.index(least)]
        # The best order is not that of the largest term alone: a parabola through three logarithms.
        left = math.log(max(self.at(followed, SHARP, -TILT), TINY))
        right = math.log(max(self.at(followed, SHARP, TILT), TINY))
        middle = math.log(max(least, TINY))
        bend = left + right - 2 * middle
        tilt = 0.0
        if bend > 0:
            tilt = TILT * min(max((left - right) / (2 * bend), -1.5), 1.5)
        turned = self.at(followed, SHARP, tilt)
        return min(best, least, math.exp(min(left, right)), turned)

    def delta(self, lost: float, setting: Setting = FAST) -> float:
        """The bound where cuts cost ``lost`` at most."""
        return self.at(self.followed(lost), setting)

    def at(self, followed: _Followed | None, setting: Setting, tilt: float = 0.0) -> float:
        """The bound at an order; 1 where nothing is followed.

        tilt: what ln a is moved by from where the largest term is least.
        """
        if followed is None:
            return 1.0
        a = math.exp(followed.log_order + tilt)
        return min(1.0, followed.lost + self._sum(followed.moves, followed.chi, a, setting))

    def followed(self, lost: float) -> _Followed | None:
        """What is left by cuts that cost ``lost`` at most; None where that is too little."""
        rate = min(lost / self.wide, 4 * FLAT / self.variance**2)
        cut = cut_of(self.mass, rate, math.ceil(self.farthest))
        if cut is None:
            return None
        d = cut.mass
        chi = float(((d[1:] - d[:-1]) ** 2 / d[1:]).sum())
        # That of uniform noise is 0.
        chi = max(chi, float(d[0]) / 100, float(d[-1]) / 100)
        # Symmetric noise has one direction.
        turns = (False,) if np.array_equal(d, d[::-1]) else (False, True)

        def moves(grid: Array) -> list[Move]:
            return [
                Move.of_noise(cut, grid, turned, up) for turned in turns for up in (True, False)
            ]

        return _Followed(cut.lost * self.wide, moves, chi, self._log_order(moves, chi))

    def _log_order(self, moves: Callable[[Array], list[Move]], chi: float) -> float:
        """ln a at which the largest term, that of k = 0, is least."""
        spread = self.gamma * chi
        start = max(min(self.epsilon / spread - 0.5, FARTHEST / math.sqrt(spread)), 1e-2)
        grid = _grid(_first(chi, start, self.farthest), self.farthest)
        real = moves(grid)

        def height(log_a: float) -> float:
            a = math.exp(log_a)
            value = float(self._exponents(real, a, 0.0, 1, grid)[0])
            return min(value - a * self.epsilon - math.log(a * (a + 1)), 1e30)

        places = math.log(start) + WALK
        best = int(np.argmin([height(place) for place in places]))
        low = places[max(0, best - 1)]
        high = places[min(len(places) - 1, best + 1)]
        found = minimize_scalar(
            height, bounds=(low, high), method="bounded", options={"xatol": 0.03}
        )
        return float(found.x)

    def _sum(
        self, moves: Callable[[Array], list[Move]], chi: float, a: float, setting: Setting
    ) -> float:
        """The sum over the frequencies at this order, and what is beyond the last."""
        s = setting.smoothing / a
        period = min(setting.period * math.sqrt(self.gamma * chi + s * s), LONGEST * s)
        step = 2 * math.pi / period
        count = math.ceil(REACH / (s * 2 * math.pi / period)) + 1
        last = complex(a, 2 * math.pi * (count - 1) / period)
        grid = _grid(_first(chi, abs(last), self.farthest), self.farthest)
        E = self._exponents(moves(grid), a, step, count, grid)
        w = step * np.arange(count)
        gaussian = (a * a + a - w * w) * s * s / 2
        with np.errstate(over="ignore"):
            kernel = np.abs((a + 1j * w) * (a + 1 + 1j * w))
            terms = np.exp(E + gaussian - a * self.epsilon) / kernel
            tail = np.exp(E[0] + gaussian[-1] - a * self.epsilon) / (math.pi * w[-1])
        total = (terms[0] + 2 * terms[1:].sum()) / period + tail
        if not math.isfinite(total):
            return 1.0
        return float(min(1.0, total * (1 + ROUNDING) + FLOOR))

    def _exponents(
        self, moves: list[Move], a: float, step: float, count: int, grid: Array
    ) -> Array:
        """E_k at z = a + i step k, (count,)."""
        z = a + 1j * step * np.arange(count)
        rates = np.zeros(count)
        slopes = np.zeros(count)
        # A user's moves may be of several kinds: the largest of each counts.
        for move in moves:
            near, slope = move.near(z, float(grid[0]))
            far = _chords(grid, move.moduli(a, step, count))
            rates = np.maximum(rates, np.maximum(near, far))
            slopes = np.maximum(slopes, slope)
        exponents = self.gamma * rates + self.wide * slopes
        # |M(z)| <= M(a)
        return np.minimum(exponents, exponents[0])


def _first(chi: float, order: float, farthest: float) -> float:
    """The first point of the grid: below it Taylor's remainder is small."""
    return min(0.2 / (max(order, 1.0) * math.sqrt(chi)), 0.08 * farthest, 0.5)


def _grid(first: float, last: float) -> Array:
    """A geometric progression from first to last, whole numbers, and some points near the end."""
    count = math.ceil(math.log(last / first) / math.log(RATIO)) + 1
    progression = np.geomspace(first, last, count)
    whole = np.arange(1, int(last) + 1)
    points = np.concatenate([progression, whole, last * np.array(ENDS)])
    return np.unique(points[(points >= first) & (points <= last)])


def _chords(x: Array, modulus: Array) -> Array:
    """The largest ln |M|/x^2 on the grid and between its points, (rows,), of moduli (rows, grid).

    ln of a chord lies below its tangent A + B x in the middle.
    """
    x1 = x[:-1]
    x2 = x[1:]
    m1 = modulus[:, :-1]
    m2 = modulus[:, 1:]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        half = np.maximum((m1 + m2) / 2, TINY)
        B = (m2 - m1) / (x2 - x1) / half
        A = np.log(half) - B * ((x1 + x2) / 2)
        turning = np.clip(np.where(B != 0, -2 * A / B, x1), x1, x2)
        ends = np.maximum((A + B * x1) / x1**2, (A + B * x2) / x2**2)
        rates = np.maximum(ends, (A + B * turning) / turning**2)
    return np.where(np.isfinite(modulus).all(1), rates.max(1), np.inf)
