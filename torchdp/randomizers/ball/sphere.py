"""Coordinates of random points of the sphere: uniform, or with a cap e^epsilon times as likely.

(1 + T)/2 for a coordinate T of a uniform point is a symmetric Beta variable. The density of its
logit is smooth and log-concave on the whole line, which makes every step exact to rounding, from
the circle to millions of dimensions: tails by quadrature, quantiles as a smooth table of a
normal's. The side of the cap is decided by a normal with one side of a threshold made e^epsilon
times as likely, by inversion.

Notation: T = tanh(y) is a coordinate and w = 2y its logit; s = ``survival`` is the share of the
sphere on the cap T >= gamma; p = (dim - 1)/2 is the parameter of Beta(p, p).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from scipy.special import expit, log_ndtr, ndtri
from torch import Tensor

from torchdp import checks
from torchdp.batch import added, entrywise
from torchdp.draws import MOST, Draws
from torchdp.randomizers.alphabet.chances import TOTAL, exponential
from torchdp.randomizers.base import ball_epsilon
from torchdp.root import root

# Thresholds of a batch: each holds 120 nodes of an integral.
AT_ONCE = 2**14

# Equal panels, of 20 nodes each, of the integral for a threshold.
THRESHOLD_PANELS = 6

# Newton steps from the threshold of many dimensions; a bracket settles the last bits.
STEPS = 4

# Of the logarithm of a rapidity, absolute.
TOLERANCE = 2.0**-51

# Densities down to e^-200: expectations of exp(a T^2) near 2 need them.
WIDE = 200.0

# A tail ends where its density has fallen by e^-CUT. Its integral on PANELS panels is exact to
# rounding.
CUT = 45.0
PANELS = 24

# The table of quantiles has nodes z = -REACH, ..., REACH. Beyond, with probability 2e-44, the ends
# are used.
REACH = 14
STEPS_PER_UNIT = 64

# The logit at which the density is largest.
CENTRE = np.zeros(())

LOG_ROOT_2PI = math.log(2 * math.pi) / 2


def cap_chance(epsilon: float, survival: float) -> int:
    """Integers, of 2^63, that lead to a set of this share made e^epsilon times as likely.

    Rounded down: the private side.
    """
    growth = exponential(epsilon)
    share = Fraction(survival)
    mass = 1 + (growth - 1) * share
    return math.floor(TOTAL * growth * share / mass)


def tilted(
    shape: tuple[int, ...], draws: Draws, threshold: float, chance: int, survival: float
) -> Tensor:
    """N(0, 1), float64, at or above the threshold with probability chance/2^63.

    The uniform number within either part has 126 bits near both of its ends, so that no tail ends
    before 2^-127 of it and none is cut off at the threshold. survival: P(N(0, 1) >= threshold).
    """
    word = draws.words(shape)
    near = draws.exponential(shape).neg_().exp_().mul_(0.5)
    return inverted(word.bitwise_and(TOTAL - 1) < chance, word < 0, near, threshold, survival)


def inverted(
    above: Tensor, ends_here: Tensor, near: Tensor, threshold: float, survival: float
) -> Tensor:
    """The normal at a given share of the mass on its side of the threshold, float64.

    Args:
        above: whether it is at or above the threshold, (n,).
        ends_here: whether the share counts from infinity; else from the threshold, (n,).
        near: the share, in (0, 1/2), (n,).
        threshold: of the normal.
        survival: P(N(0, 1) >= threshold).
    """
    far = 1 - near
    outer = torch.where(ends_here, near, far)
    inner = torch.where(ends_here, far, near)
    beyond = torch.where(above, outer * survival, outer * (1 - survival))
    upper_tail = survival + inner * (1 - survival)  # P(N(0, 1) > z) below the threshold
    # Inversion keeps the digits of a tail below 1/2 only.
    from_above = ~above & (beyond > 0.5)
    tail = torch.where(from_above, upper_tail, beyond)
    z = torch.special.ndtri(tail)
    below = torch.where(from_above, -z, z).clamp_max(threshold)
    return torch.where(above, (-z).clamp_min(threshold), below)


@entrywise(epsilon=ball_epsilon)
def threshold(epsilon: Tensor) -> Tensor:
    """k = E tau for the tilted normal tau of threshold k, the cap's in many dimensions.

    Newton's method on a concave function, monotone and quadratic.
    """
    growth = log_excess(epsilon)
    k = torch.zeros_like(epsilon)
    while True:
        odds = growth + torch.special.log_ndtr(-k)
        remainder = torch.log1p((-odds.abs()).exp())
        log_mass = odds.clamp_min(0) + remainder  # log(1 + e^odds)
        mean = (growth - k * k / 2 - LOG_ROOT_2PI - log_mass).exp()
        rising = mean > k * (1 + 1e-15)
        if not bool(rising.any()):
            return k
        k = torch.where(rising, mean, k)


def log_excess(epsilon: Tensor) -> Tensor:
    """log(e^epsilon - 1)."""
    return epsilon + (-torch.expm1(-epsilon)).log()


def sided(own: Tensor, threshold: float, chance: int, survival: float) -> tuple[Tensor, Tensor]:
    """A normal on a side that ``chance`` of 2^63 decides, (n,), and its share of that side's mass.

    own: (n, 2) words: the first says the side and the end to count from, the second the share.
    """
    side = own[:, 0]
    place = own[:, 1].bitwise_and(MOST).double()
    near = (place + 0.5) * 2.0**-64
    return inverted(side.bitwise_and(MOST) < chance, side < 0, near, threshold, survival), near


def placed(context: Any, own: list[int], chance: int) -> tuple[bool, Any]:
    """``sided`` without error: whether above the threshold, and the share of that side beyond."""
    side = own[0] >> 192
    above = side % (1 << 63) < chance
    place = own[1] % (1 << 255)
    near = (2 * place + 1) * context.mpf(2) ** -257
    return above, near if side >> 63 else 1 - near


@dataclass(frozen=True)
class LogitBeta:
    """w = log(B/(1 - B)) for B ~ Beta(p, p), p > 0.

    Its density is proportional to s(w)^p s(-w)^p, s the logistic function. Computed in float64 by
    numpy; ``quantile`` in torch.
    """

    p: float

    def log_ratio(self, w: np.ndarray, step: np.ndarray) -> np.ndarray:
        """log of the density at w + step over that at w; no digits cancel for w, step >= 0."""
        # cosh^2((w + step)/2)/cosh^2(w/2) - 1
        growth = np.sinh(step / 2) ** 2 * (2 - np.cosh(w / 2) ** -2.0)
        growth = growth + np.tanh(w / 2) * np.sinh(step)
        return -self.p * np.log1p(growth)

    def tail_length(self, w: np.ndarray, cut: float) -> np.ndarray:
        """A step beyond w at which the density is below e^-cut of its value at w."""
        length = np.full_like(w, 1 / (2 * self.p))
        short = self.log_ratio(w, length) > -cut
        while short.any():
            length = np.where(short, 1.25 * length, length)
            short = self.log_ratio(w, length) > -cut
        return length

    def tail(self, w: np.ndarray) -> np.ndarray:
        """P(logit >= w) over the density at w, by quadrature; for w near 0 or beyond."""
        length = self.tail_length(w, CUT)
        nodes, weights = panel_rule(PANELS)
        ratio = np.exp(self.log_ratio(w[..., None], length[..., None] * nodes))
        return length * (ratio @ weights)

    @property
    def log_total(self) -> float:
        """log of the whole mass, for the density divided by its value at 0, where it is largest."""
        return math.log(2 * self.tail(CENTRE))

    def log_survival(self, w: np.ndarray) -> np.ndarray:
        """log P(logit >= w), for w near 0 or beyond."""
        return self.log_ratio(CENTRE, w) + np.log(self.tail(w)) - self.log_total

    def quadrature(self, start: float, stop: float) -> tuple[np.ndarray, np.ndarray]:
        """60 nodes in [start, stop] and their probabilities.

        In the angle arctan(e^(w/2)) the density is a polynomial in sine and cosine where 2p is an
        integer: exact to rounding.
        """
        if start >= 0:  # angles near 0 keep more digits than those near pi/2
            w, mass = self.quadrature(-stop, -start)
            return -w, mass
        first, last = np.arctan(np.exp([start / 2, stop / 2]))
        grid, weights = panel_rule(3)
        angles = first + (last - first) * grid
        w = 2 * np.log(np.tan(angles))
        density = np.exp(self.log_ratio(CENTRE, w) - self.log_total)
        density = 4 * density / np.sin(2 * angles)  # of the angle
        return w, (last - first) * weights * density

    def quantile(self, z: Tensor) -> Tensor:
        """The increasing function of a standard normal z that has this distribution, float64.

        |z| > 14 counts as 14.
        """
        table = _table(self.p, z.device)
        position = (z.double().clamp(-REACH, REACH) + REACH) * STEPS_PER_UNIT
        cell = position.long().clamp_max(len(table) - 1)
        t = position - cell
        value, *coefficients = table[cell].flip(-1).unbind(-1)
        for coefficient in coefficients:  # Horner's rule
            value = coefficient + t * value
        return value


@lru_cache
def panel_rule(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]: equal panels of 20 Gauss-Legendre nodes. Read-only."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    starts = np.arange(panels)[:, None]
    grid = (starts + (nodes + 1) / 2) / panels
    return grid.ravel(), np.tile(weights / 2 / panels, panels)


@lru_cache(maxsize=64)
def _table(p: float, device: torch.device) -> Tensor:
    """Coefficients (cells, 6), from the constant on, of quintics between nodes of the quantile.

    They match its value, slope and curvature at the nodes.
    """
    quantile, first, second = _upper_quantiles(LogitBeta(p))
    h = 1 / STEPS_PER_UNIT
    # The quantile and its curvature are odd functions of z, the slope is even.
    value = np.concatenate([-quantile[:0:-1], quantile])
    slope = h * np.concatenate([first[:0:-1], first])
    curvature = h * h * np.concatenate([-second[:0:-1], second])
    rise = value[1:] - value[:-1]
    s0 = slope[:-1]
    s1 = slope[1:]
    c0 = curvature[:-1]
    c1 = curvature[1:]
    cubic = 10 * rise - 6 * s0 - 4 * s1 - 1.5 * c0 + 0.5 * c1
    quartic = -15 * rise + 8 * s0 + 7 * s1 + 1.5 * c0 - c1
    quintic = 6 * rise - 3 * (s0 + s1) - 0.5 * (c0 - c1)
    table = np.stack([value[:-1], s0, c0 / 2, cubic, quartic, quintic], -1)
    return torch.from_numpy(table).to(device)


def _upper_quantiles(logit: LogitBeta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantile, first and second derivative at z = 0, 1/64, ..., 14.

    Newton's method on log P(logit >= w) = log P(normal >= z): the left side is concave, so it is
    monotone after one step. If g(w) is the density, w' = phi(z)/g(w) and w'' = -w'
    (z + w' g'(w)/g(w)).
    """
    z = np.arange(REACH * STEPS_PER_UNIT + 1) / STEPS_PER_UNIT
    target = log_ndtr(-z)
    log_total = logit.log_total

    def newton_step(w: np.ndarray) -> np.ndarray:
        mass = logit.tail(w)  # survival over density
        return (logit.log_ratio(CENTRE, w) + np.log(mass) - log_total - target) * mass

    w = np.zeros_like(z)
    converged = False
    while not converged:
        step = newton_step(w)
        w = w + step
        converged = np.abs(step).max() <= 1e-9 * np.abs(w).max()
    w = w + newton_step(w)
    inverse_hazard = np.exp(-z * z / 2 - LOG_ROOT_2PI - target)
    slope = logit.tail(w) * inverse_hazard
    score = logit.p * expit(-w) - logit.p * expit(w)  # g'(w)/g(w)
    return w, slope, -slope * (z + slope * score)


def uniform_coordinate(dim: int, z: Tensor) -> tuple[Tensor, Tensor]:
    """(T, sqrt(1 - T^2)) for a coordinate of a uniform point of R^dim's sphere; T rises with z."""
    if dim == 1:
        zero = torch.zeros_like(z, dtype=torch.float64)
        return torch.where(z < 0, -1.0, zero + 1), zero
    y = LogitBeta((dim - 1) / 2).quantile(z) / 2
    return y.tanh(), y.cosh().reciprocal()


def log_half_gamma(p: Tensor) -> Tensor:
    """log Gamma(p + 1/2)/Gamma(p), p > 0, to a few units in the last place.

    A series at p + 32, then down to p.
    """
    shift = torch.ones_like(p)
    for j in range(32):
        shift = shift * ((p + j) / (p + j + 0.5))
    v = 1 / (p + 32)
    w = v * v
    # Nested: each bracket is the rest of Stirling's series over the term before.
    series = 1 - 3 * w / 10 * (1 - 85 * w / 84)
    series = v / 8 * (1 - w / 24 * series)
    return shift.log() - series + (p + 32).log() / 2


@entrywise(AT_ONCE, dim=partial(checks.within, low=2, high=checks.MOST), epsilon=ball_epsilon)
def rapidity(dim: Tensor, epsilon: Tensor) -> Tensor:
    """artanh of the fixed point gamma = E T of ``CapLaw``, with all digits of gamma and 1 - gamma.

    It is where log(w/gamma - s), w = E[T; T >= gamma] for uniform V, is log 1/(e^epsilon - 1). The
    difference would lose all digits near gamma = 1. As an integral it loses none: that of
    sech(t)^(dim + 1)/tanh(t)^2 over t >= y, divided by (dim - 1) times that of sech^(dim - 1) over
    the line.
    """
    log_line = math.log(math.sqrt(math.pi)) - log_half_gamma((dim - 1) / 2)
    log_scale = log_line + (dim - 1).log()
    level = log_scale - log_excess(epsilon)

    def excess(log_y: Tensor, integral: Tensor) -> Tensor:
        log_cosh_square = torch.log1p(sinh(log_y.exp()).square())
        fallen = (dim + 1) / 2 * log_cosh_square
        return integral.log() - fallen - level

    log_y = (threshold(epsilon) / dim.sqrt()).asinh().log()  # right in many dimensions
    for _ in range(STEPS):  # Newton's method
        y = log_y.exp()
        integral = _beyond(dim, y)
        step = excess(log_y, integral) * y.tanh().square() * integral / y
        log_y = log_y + step.clamp(-1, 1)
    # Its last bits are those of the safe end of a bracket, whatever the guess.
    safe = root(
        lambda log_y: excess(log_y, _beyond(dim, log_y.exp())),
        log_y - TOLERANCE / 2,
        log_y + TOLERANCE / 2,
        TOLERANCE,
    )
    return safe.exp()


def _beyond(dim: Tensor, y: Tensor) -> Tensor:
    """The integral of (cosh(y)/cosh(t))^(dim + 1)/tanh(t)^2 over t >= y.

    In log t, to the ``end`` where it has fallen by e^-CUT: cosh(end) = cosh(y) e^c.
    """
    nodes, weights = panel_rule(THRESHOLD_PANELS)
    grid = torch.from_numpy(nodes).to(y.device)[:, None]
    # sinh^2(end/2) = (cosh y (e^c - 1) + 2 sinh^2(y/2))/2 loses no digit for small y.
    rise = (y.exp() + (-y).exp()) * torch.expm1(CUT / (dim + 1))
    square = rise / 4 + sinh(y / 2).square()  # sinh^2(end/2)
    end = 2 * square.sqrt().asinh()
    length = (end / y).log()
    t = y * (length * grid).exp()
    log_cosh_ratio = torch.log1p(sinh(y).square()) - torch.log1p(sinh(t).square())
    fallen = ((dim + 1) / 2 * log_cosh_ratio).exp()
    mass = torch.from_numpy(weights).to(y.device)[:, None]
    return length * added(mass * fallen * t / t.tanh().square())


def sinh(x: Tensor) -> Tensor:
    """By expm1: torch.sinh has other bits for an entry in a batch than for the same entry alone."""
    e = torch.expm1(x)
    return e / 2 * (1 + 1 / (1 + e))


def coordinate_size(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for expectations of functions of |T|; dim >= 2."""
    logit = LogitBeta((dim - 1) / 2)
    w, mass = logit.quadrature(0.0, float(logit.tail_length(CENTRE, WIDE)))
    return np.tanh(w / 2), 2 * mass


@dataclass(frozen=True)
class CapLaw:
    """The coordinate T = <V, u> in PrivUnit: V on the sphere of R^dim, with a likelier cap.

    Relative to the uniform distribution the density is c1 = e^epsilon c0 on the cap <V, u> >= gamma
    and c0 elsewhere, c0 = 1/(1 + (e^epsilon - 1) s), s the cap's share of the sphere. gamma is the
    fixed point gamma = E T, which makes E T as large as possible and Var T = (1 - gamma^2)/dim: the
    noise of V/gamma is (1 - gamma^2)/(dim gamma^2) in every direction.

    Args:
        dim: an integer >= 2.
        epsilon: in [1e-6, 50].

    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers (2018), PrivUnit; Asi, Feldman, Talwar
    (2022), optimality; the fixed point: kernels/privunit/README.md.
    """

    dim: int
    epsilon: float

    @property
    def uniform(self) -> LogitBeta:
        """The distribution of log((1 + T)/(1 - T)) = 2 artanh T for uniform V."""
        return LogitBeta((self.dim - 1) / 2)

    @cached_property
    def rapidity(self) -> float:
        """artanh(gamma)."""
        return rapidity(self.dim, self.epsilon)

    @property
    def threshold(self) -> float:
        """gamma = E T."""
        return math.tanh(self.rapidity)

    @cached_property
    def survival(self) -> float:
        """s, the cap's share of the sphere."""
        return math.exp(float(self.uniform.log_survival(np.array(2 * self.rapidity))))

    @cached_property
    def low_density(self) -> float:
        """c0, off the cap."""
        return 1 / (1 + math.expm1(self.epsilon) * self.survival)

    @cached_property
    def high_density(self) -> float:
        """c1 = e^epsilon c0, on the cap."""
        return math.exp(self.epsilon) * self.low_density

    @property
    def variance(self) -> float:
        """Var T/gamma^2 = (1 - gamma^2)/(dim gamma^2), the noise of V/gamma in every direction."""
        return 1 / (self.dim * math.sinh(self.rapidity) ** 2)

    @property
    def third_moment(self) -> float:
        """E Z^3 of the standardised coordinate Z = (T - gamma)/sqrt(Var T)."""
        d = self.dim
        scale = -math.sqrt(d) * (d + 3) / (d + 1)
        return scale * math.sinh(self.rapidity)

    @property
    def fourth_moment(self) -> float:
        """E Z^4."""
        d = self.dim
        r = math.sinh(self.rapidity) ** 2
        numerator = 3 * (d + 1) * (1 + r) + (d * d + 5 * d + 12) * r
        return d * numerator / ((d + 1) * (d + 2))

    def draw(self, shape: tuple[int, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        """Independent copies of (T, sqrt(1 - T^2)), float64.

        The cap is the set above the (1 - s)-quantile, so rounding in gamma never moves mass across
        its edge.
        """
        z = tilted(shape, draws, self.normal_threshold, self.chance, self.survival)
        return uniform_coordinate(self.dim, z)

    def draw_cap(self, shape: tuple[int, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        """The same of points of the cap alone, but for one in 2^63."""
        z = tilted(shape, draws, self.normal_threshold, TOTAL - 1, self.survival)
        return uniform_coordinate(self.dim, z)

    @property
    def normal_threshold(self) -> float:
        """z with P(N(0, 1) >= z) = s."""
        return -float(ndtri(self.survival))

    def exactly(self, context: Any, share: Any) -> tuple[Any, Any]:
        """(T, sqrt(1 - T^2)) with P(uniform coordinate >= T) = share, in the context's arithmetic.

        T = cos a, P = J(a)/J(pi) for J the integral of sin^(dim - 2) from 0 on, by the recurrence k
        J_k = (k - 1) J_(k - 2) - sin^(k - 1) cos; Newton's method from a float. O(dim).
        """
        z = -ndtri(float(share)) if share < 0.5 else ndtri(float(1 - share))
        t, height = uniform_coordinate(self.dim, torch.tensor(z, dtype=torch.float64))
        angle = context.atan2(context.mpf(float(height)), context.mpf(float(t)))
        degree = self.dim - 2
        for _ in range(5):  # each doubles the digits: 53 bits become more than the context's
            cosine, sine = context.cos_sin(angle)
            k = degree % 2
            if k:
                integral = 2 * context.sin(angle / 2) ** 2  # J_1 = 1 - cos
                whole = context.mpf(2)
                power = sine * sine
            else:
                integral = angle
                whole = context.pi
                power = sine
            while k < degree:
                k += 2
                integral = ((k - 1) * integral - power * cosine) / k
                whole = whole * (k - 1) / k
                power *= sine * sine
            angle -= (integral - share * whole) / sine**degree
        return context.cos(angle), context.sin(angle)

    @cached_property
    def chance(self) -> int:
        """Of 2^63 integers those that lead to the cap, rounded down: the private side."""
        return cap_chance(self.epsilon, self.survival)

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes 2 artanh T and weights for expectations under this distribution."""
        uniform = self.uniform
        lowest = -float(uniform.tail_length(np.array(0.0), WIDE))
        negative, far_mass = uniform.quadrature(lowest, 0.0)
        positive, near_mass = uniform.quadrature(0.0, 2 * self.rapidity)
        on_cap, cap_mass = self.cap_quadrature()
        low = self.low_density
        weights = [low * far_mass, low * near_mass, self.high_density * cap_mass]
        return np.concatenate([negative, positive, on_cap]), np.concatenate(weights)

    def cap_quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes 2 artanh T on the cap, and their probabilities for uniform V: they add up to s."""
        edge = 2 * self.rapidity
        length = float(self.uniform.tail_length(np.array(edge), WIDE))
        return self.uniform.quadrature(edge, edge + length)
