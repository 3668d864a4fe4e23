"""Accounting for numbers that users round at random to whole ones, where these can move only a
little.

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

Source: the argument above.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import minimize_scalar

from torchdp.privacy import gaussian_log_delta
from torchdp.shuffle.count_laws import CountLaw, merged

Setting = tuple[float, float]
FAST, SHARP = (5.0, 0.15), (10.0, 0.08)  # T in deviations of the loss; s a
REACH = 3.5  # the last frequency, in 1/s
SHARES = (1e-3, 2e-2, 5e-2, 0.1, 0.2)  # of delta that the cuts may cost
SKEWED = 50.0  # variance, in ones, below which the loss is far from normal
# skewness^2 of the noise, above which it is too where a user moves by less than one step
LOPSIDED = 1 / 300
# mass at a cut, times variance^2: more would show among the fourth powers of small moves
FLAT = 1.0
RATIO = 1.08  # of neighbouring points of the grid
ENDS = (0.95, 0.97, 0.985, 0.995)  # of the largest distance, in the grid too
WALK = np.arange(-4.0, 1.6, 0.5)  # ln a, about that of Gaussian noise: skewed noise wants less
TILT = 0.1  # of ln a, tried on both sides
ROUNDING, FLOOR = 1e-9, 1e-13  # of a sum, relative and absolute
LONGEST = 2000.0  # T in s: a rare outcome can make the loss deviate by far more
FARTHEST = 9.0  # a in deviations of the loss: from there on delta is below e^-40, and the sum long
Array = np.ndarray
WIDTH = 2048  # outcomes beyond which they are told by blocks


@dataclass(frozen=True)
class Cut:
    """D where it is followed, the mass of its tails, and what is lost for each step of distance."""

    mass: Array
    beta: float
    lost: float


def cut_of(law: CountLaw, rate: float, most: int) -> Cut | None:
    """The narrowest range beyond which at most ``rate`` is lost a step; None where too few outcomes
    are left.
    """
    d = law.mass
    light = np.flatnonzero(d > rate / 4)
    if not len(light):
        return None
    a, b = int(light[0]), int(light[-1]) + 1
    kept = d[a:b]
    if len(kept) <= most + 1:
        return None
    count = np.arange(1, most + 1)
    edges = max(float((np.cumsum(part[:most]) / count).max()) for part in (kept, kept[::-1]))
    outside = (float(d[a - 1]) if a else 0.0) + (float(d[b]) if b < len(d) else 0.0)
    return Cut(kept, float(d[:a].sum() + d[b:].sum()), edges + outside)


class Move:
    """One direction and role: base masses and ln(O_x/base) at each x of the grid, and the series
    near 0.

    up: whether the base is Q, so that the power is 1 + z; else -z. excess: O_1/base - 1 on the kept
    outcomes; corner: of the outcome that is linear in x, edge its slope; beta: mass on which both
    distributions are the same.
    """

    def __init__(
        self,
        grid: Array,
        base: Array,
        excess: Array,
        up: bool,
        edge: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        self.up, self.beta, self.edge = up, beta, edge
        if len(base) > WIDTH:
            base, excess = (each[0] for each in merged(base[None], excess[None], starts_of(base)))
        self.base, self.excess = base, excess
        self.moments = [float(base @ excess**j) for j in (1, 2, 3)]
        with np.errstate(divide="ignore"):
            self.mass: Array = np.broadcast_to(base, (len(grid), len(base)))
            self.logs = np.log1p(np.minimum(grid, 1.0)[:, None] * excess)
            self.corner: Array = (1 - grid) * self.edge

    @staticmethod
    def of_noise(cut: Cut, grid: Array, turned: bool, up: bool) -> "Move":
        """Of D up to the cut; turned: whether it moves down."""
        d = cut.mass[::-1] if turned else cut.mass
        one = np.concatenate([[0.0], d[:-1]])
        base, excess = (d, one / d - 1) if up else (d[1:], d[:-1] / d[1:] - 1)
        move = Move(grid, base, excess, up, 0.0 if up else float(d[0]), cut.beta)
        if grid[-1] > 1:
            with np.errstate(divide="ignore"):
                move.mass, move.logs = move._farther(d, grid)
            move.corner = np.zeros(len(grid))
        return move

    def _farther(self, d: Array, grid: Array) -> tuple[Array, Array]:
        """The same for any number of whole steps: outcomes below the shift are lost, or P has none
        there.
        """
        mass, other = np.repeat(d[None], len(grid), 0), np.zeros((len(grid), len(d)))
        for row, x in enumerate(grid):
            k = min(int(x), len(d) - 1)
            theta = x - k
            other[row, k:] += (1 - theta) * d[: len(d) - k]
            other[row, k + 1 :] += theta * d[: len(d) - k - 1]
            if not self.up:
                mass[row, :k] = 0.0
                mass[row, k] *= 1 - theta
        ratio = other / d
        if not self.up:
            k = np.minimum(grid.astype(int), len(d) - 1)
            ratio[np.arange(len(grid)), k] = d[0] / d[k]
            ratio = np.where(mass > 0, ratio, 1.0)
        if len(d) > WIDTH:
            mass, ratio = merged(mass, ratio, starts_of(mass.max(0)))
        return mass, np.log(ratio)

    def moduli(self, a: float, step: float, count: int) -> Iterator[Array]:
        """|M| at each x of the grid, for z = a + i step k, k = 0, ..., count - 1."""
        power = 1 + a if self.up else -a
        with np.errstate(invalid="ignore", over="ignore"):
            terms = self.mass * np.exp(power * self.logs)
            rest = self.corner + self.beta
            yield np.abs(terms.sum(1) + rest)
            if count == 1:
                return
            turns = (step if self.up else -step) * np.where(np.isfinite(self.logs), self.logs, 0.0)
            turn, terms = np.exp(1j * turns), terms.astype(complex)
            for _ in range(1, count):
                terms *= turn
                yield np.abs(terms.sum(1) + rest)

    def near(self, z: Array, x: float) -> tuple[Array, Array]:
        """G and r for all distances up to x, at each z; their real parts are one number."""
        p = 1 + z if self.up else -z
        c1, c2, c3 = self.moments
        with np.errstate(over="ignore", invalid="ignore"):  # then no bound is found
            grown = np.maximum(1.0, (1 + x * self.excess) ** (float(p[0].real) - 4))
            fourth = float(self.base @ (self.excess**4 * grown))
            rest = np.abs(p * (p - 1) * (p - 2) * (p - 3)) * x * x / 24 * fourth
            slope = p * c1 - self.edge
            curves = np.stack([p * (p - 1) * (c2 / 2 + at * (p - 2) * c3 / 6) for at in (0.0, x)])
            largest = np.abs(curves).max(0) + rest
            rate = curves.real.max(0) + rest + (np.abs(slope) + largest * x) ** 2 / 2
        return rate, np.maximum(0.0, slope.real)


def starts_of(mass: Array, width: int = WIDTH) -> Array:
    """Where blocks begin: half of them evenly, half as the cube root of the mass asks, for the
    loss' variance.
    """
    weight = np.cumsum(np.cbrt(mass))
    weight = weight / weight[-1] + np.arange(1, len(mass) + 1) / len(mass)
    return np.unique(
        np.searchsorted(weight, weight[-1] * np.arange(width // 2) / (width // 2), side="right")
    )


def moved_delta(
    law: CountLaw, epsilon: float, instances: int, gamma: float, largest: float = 1.0
) -> float:
    """A delta at ``epsilon`` of ``instances`` sums with this unimodal noise, where a user moves by
    ``gamma``.

    largest: of its numbers, which move by no more. Unchecked.
    Guarantees: an upper bound, as the module's proof says.
    """
    farthest = min(largest, math.sqrt(gamma))
    y = np.arange(len(law.mass))
    variance = float(law.mass @ y**2 - (law.mass @ y) ** 2)
    guess = math.exp(gaussian_log_delta(math.sqrt(max(variance, 1e-3) / gamma), max(epsilon, 1e-9)))
    wide, most = math.sqrt(instances * gamma), math.ceil(farthest)

    def cut_at(lost: float, setting: Setting = FAST, tilt: float = 0.0) -> float:
        cut = cut_of(law, min(lost / wide, 4 * FLAT / max(variance, 1e-3) ** 2), most)
        if cut is None:
            return 1.0
        d = cut.mass
        chi = float(((d[1:] - d[:-1]) ** 2 / d[1:]).sum())  # c_2 of one step
        chi = max(chi, float(d[0]) / 100, float(d[-1]) / 100)  # that of uniform noise is 0
        # symmetric noise has one direction
        turns = (False,) if np.array_equal(d, d[::-1]) else (False, True)

        def moves(grid: Array) -> Iterator[Move]:
            return (
                Move.of_noise(cut, grid, turned, up) for turned in turns for up in (True, False)
            )

        found = _delta(moves, chi, epsilon, wide, gamma, farthest, setting, tilt)
        return min(1.0, cut.lost * wide + found)

    lost = SHARES[0] * max(guess, 1e-25)
    while (best := cut_at(lost)) >= 1 and lost < 1e-2:  # tails that a Gaussian does not have
        lost *= 1e3
    if 2 * FLOOR < best < 1 and _skewed(law.mass, max(1.0, farthest), farthest):
        best = _sharpest(cut_at, best, farthest)
    return min(1.0, best + 2 * instances * law.lost)


class Bound(Protocol):
    """A bound whose cuts cost so much of delta, at most."""

    def __call__(self, lost: float, setting: Setting = FAST, tilt: float = 0.0) -> float: ...


def _skewed(mass: Array, one: float, farthest: float) -> bool:
    """Whether the sharp setting gains more than 0.2 % of the variance; one: counts that a bit is
    worth.
    """
    off = np.arange(len(mass)) - mass @ np.arange(len(mass))
    variance = float(mass @ off**2)
    return variance < SKEWED * one**2 or (
        farthest < 1 and float(mass @ off**3) ** 2 > LOPSIDED * variance**3
    )


def _sharpest(cut_at: Bound, best: float, farthest: float) -> float:
    """The least bound over what the cuts may cost, then over the order: not that of the largest
    term alone.
    """
    shares = SHARES[:1] if farthest >= 1 else SHARES
    best = min(best, cut_at(shares[0] * best, SHARP, 0.0))
    tried = {share * best: cut_at(share * best, SHARP, 0.0) for share in shares}
    lost = min(tried, key=tried.__getitem__)
    logs = [math.log(max(cut_at(lost, SHARP, tilt), 1e-300)) for tilt in (-TILT, TILT)]
    middle, (left, right) = math.log(max(tried[lost], 1e-300)), logs
    bend = left + right - 2 * middle
    tilt = TILT * min(max((left - right) / (2 * bend), -1.5), 1.5) if bend > 0 else 0.0
    return min(best, tried[lost], math.exp(min(logs)), cut_at(lost, SHARP, tilt))


def _delta(
    make: Callable[[Array], Iterator[Move]],
    chi: float,
    epsilon: float,
    wide: float,
    gamma: float,
    farthest: float,
    setting: Setting,
    tilt: float = 0.0,
) -> float:
    """The bound for all moves that ``make`` makes for a grid.

    tilt: what ln a is moved by from where the largest term is least.
    """
    longest, gaussian = setting
    start = max(min(epsilon / (gamma * chi) - 0.5, FARTHEST / math.sqrt(gamma * chi)), 1e-2)

    def exponents(moves: list[Move], a: float, step: float, count: int, grid: Array) -> Array:
        rates, slopes = np.zeros((2, count))
        for each in moves:  # the largest of each apart: a user's moves may be of several kinds
            near, slope = each.near(a + 1j * step * np.arange(count), float(grid[0]))
            far = _chords(grid, np.stack(list(each.moduli(a, step, count))))
            rates, slopes = np.maximum(rates, np.maximum(near, far)), np.maximum(slopes, slope)
        found = gamma * rates + wide * slopes
        return np.minimum(found, found[0])

    rough = _grid(_first(chi, start, farthest), farthest)
    real = list(make(rough))

    def height(log_a: float) -> float:
        a = math.exp(log_a)
        value = float(exponents(real, a, 0.0, 1, rough)[0])
        return min(value - a * epsilon - math.log(a * (a + 1)), 1e30)

    places = math.log(start) + WALK
    best = int(np.argmin([height(place) for place in places]))
    around = places[max(0, best - 1)], places[min(len(places) - 1, best + 1)]
    found = minimize_scalar(height, bounds=around, method="bounded", options={"xatol": 0.03})
    a = math.exp(float(found.x) + tilt)
    s = gaussian / a
    period = min(longest * math.sqrt(gamma * chi + s * s), LONGEST * s)
    count = math.ceil(REACH / (s * 2 * math.pi / period)) + 1
    grid = _grid(
        _first(chi, abs(complex(a, 2 * math.pi * (count - 1) / period)), farthest), farthest
    )
    E = exponents(list(make(grid)), a, 2 * math.pi / period, count, grid)
    w = 2 * math.pi / period * np.arange(count)
    logs = E + (a * a + a - w * w) * s * s / 2 - a * epsilon
    with np.errstate(over="ignore"):
        terms = np.exp(logs) / np.abs((a + 1j * w) * (a + 1 + 1j * w))
        tail = np.exp(E[0] + (a * a + a - w[-1] ** 2) * s * s / 2 - a * epsilon) / (math.pi * w[-1])
    total = (terms[0] + 2 * terms[1:].sum()) / period + tail
    return float(min(1.0, total * (1 + ROUNDING) + FLOOR)) if math.isfinite(total) else 1.0


def _first(chi: float, order: float, farthest: float) -> float:
    """The first point of the grid: below it Taylor's remainder is small."""
    return min(0.2 / (max(order, 1.0) * math.sqrt(chi)), 0.08 * farthest, 0.5)


def _grid(first: float, last: float) -> Array:
    """From ``first`` to ``last``: a geometric progression, all whole numbers, and some points near
    the end.
    """
    count = math.ceil(math.log(last / first) / math.log(RATIO)) + 1
    points = np.concatenate(
        [np.geomspace(first, last, count), np.arange(1, int(last) + 1), last * np.array(ENDS)]
    )
    return np.unique(points[(points >= first) & (points <= last)])


def _chords(x: Array, modulus: Array) -> Array:
    """The largest ln |M|/x^2 over the grid and between its points, for each row of moduli."""
    x1, x2, m1, m2 = x[:-1], x[1:], modulus[:, :-1], modulus[:, 1:]
    at = (x1 + x2) / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        half = np.maximum((m1 + m2) / 2, 1e-300)
        B = (m2 - m1) / (x2 - x1) / half
        A = np.log(half) - B * at
        turning = np.clip(np.where(B != 0, -2 * A / B, x1), x1, x2)
        rates = np.maximum(
            np.maximum((A + B * x1) / x1**2, (A + B * x2) / x2**2), (A + B * turning) / turning**2
        )
    return np.where(np.isfinite(modulus).all(1), rates.max(1), np.inf)
