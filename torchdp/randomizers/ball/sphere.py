"""Coordinates of random points of the unit sphere: uniform, and with one cap made e^epsilon times
as likely.

(1 + T)/2 for a coordinate T of a uniform point is a symmetric Beta variable. The density of its
logit is smooth and log-concave on the whole line, which makes every step exact to rounding, from
the circle to millions of dimensions: tails by quadrature, quantiles as a smooth table of a
normal's. The side of the cap is decided by a normal with one side of a threshold made e^epsilon
times as likely, by inversion.
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

THRESHOLD_PANELS = 6  # of the integral for a threshold
AT_ONCE = 2**14  # thresholds of a batch
STEPS, TOLERANCE = 4, 2.0**-51  # of Newton's method; of the logarithm of a rapidity
WIDE = 200.0  # densities down to e^-200: expectations of exp(a T^2) near 2 need them
# A tail ends where its density has fallen by e^-CUT; on PANELS panels its integral is exact to
# rounding.
PANELS, CUT = 24, 45.0
# The table: z = -REACH, ..., REACH, quintic in between (beyond, with probability 2e-44, the ends).
REACH, STEPS_PER_UNIT = 14, 64


def cap_chance(epsilon: float, survival: float) -> int:
    """Of 2^63 integers those that lead to a set of this share, e^epsilon times as likely as the
    rest; rounded down.
    """
    growth, share = exponential(epsilon), Fraction(survival)
    return math.floor(TOTAL * growth * share / (1 + (growth - 1) * share))


def tilted(
    shape: tuple[int, ...], draws: Draws, threshold: float, chance: int, survival: float
) -> Tensor:
    """N(0, 1) given >= threshold with probability chance/2^63, given < threshold otherwise;
    float64, by inversion.

    The uniform number within either part has 126 bits near both of its ends, so that no tail ends
    before 2^-127 of it and none is cut off at the threshold. survival: P(N(0, 1) >= threshold).
    """
    word = draws.words(shape)
    near = draws.exponential(shape).neg_().exp_().mul_(0.5)
    return inverted(word.bitwise_and(TOTAL - 1) < chance, word < 0, near, threshold, survival)


def inverted(
    above: Tensor, ends_here: Tensor, near: Tensor, threshold: float, survival: float
) -> Tensor:
    """N(0, 1) on either side of the threshold at a share ``near`` < 1/2 of that side's mass from
    one of its ends.

    ends_here: from infinity; else from the threshold.
    """
    far = 1 - near
    outer, inner = torch.where(ends_here, near, far), torch.where(ends_here, far, near)
    # P(|N| further out on its side)
    beyond = torch.where(above, outer * survival, outer * (1 - survival))
    before = survival + inner * (1 - survival)  # P(N > z), below the threshold
    lower = ~above & (beyond > 0.5)
    z = torch.special.ndtri(torch.where(lower, before, beyond))
    return torch.where(
        above, (-z).clamp_min(threshold), torch.where(lower, -z, z).clamp_max(threshold)
    )


@entrywise(epsilon=ball_epsilon)
def threshold(epsilon: Tensor) -> Tensor:
    """k = E tau for the tilted normal tau of threshold k, the cap's in many dimensions.

    Newton's method on a concave function, monotone and quadratic.
    """
    growth, k = log_excess(epsilon), torch.zeros_like(epsilon)
    while True:
        odds = growth + torch.special.log_ndtr(-k)
        more = odds.clamp_min(0) + torch.log1p((-odds.abs()).exp())  # log(1 + e^odds)
        mean = (growth - k * k / 2 - math.log(2 * math.pi) / 2 - more).exp()
        rising = mean > k * (1 + 1e-15)
        if not bool(rising.any()):
            return k
        k = torch.where(rising, mean, k)


def log_excess(epsilon: Tensor) -> Tensor:
    """log(e^epsilon - 1)."""
    return epsilon + (-torch.expm1(-epsilon)).log()


def sided(own: Tensor, threshold: float, chance: int, survival: float) -> tuple[Tensor, Tensor]:
    """A normal whose side of the threshold is chosen by ``chance`` of 2^63, (n,), and how near an
    end its share lies.

    own: (n, 2): side and end to count from, share of the side's mass.
    """
    side, near = own[:, 0], own[:, 1].bitwise_and(MOST).double().add_(0.5).mul_(2.0**-64)
    return inverted(side.bitwise_and(MOST) < chance, side < 0, near, threshold, survival), near


def placed(context: Any, own: list[int], chance: int) -> tuple[bool, Any]:
    """``sided`` without error: whether beyond the threshold, and the share of that side further
    out.
    """
    side, place = own[0] >> 192, own[1] % (1 << 255)
    near = (2 * place + 1) * context.mpf(2) ** -257
    return side % (1 << 63) < chance, near if side >> 63 else 1 - near


@dataclass(frozen=True)
class LogitBeta:
    """w = log(B/(1 - B)) for B ~ Beta(p, p): its density is proportional to s(w)^p s(-w)^p, s the
    logistic function.

    p > 0. Computed in float64 by numpy; ``quantile`` in torch.
    """

    p: float

    def log_ratio(self, w: np.ndarray, step: np.ndarray) -> np.ndarray:
        """log of the density at w + step over that at w; no digits cancel for w, step >= 0."""
        both = np.sinh(step / 2) ** 2 * (2 - np.cosh(w / 2) ** -2.0) + np.tanh(w / 2) * np.sinh(
            step
        )
        return -self.p * np.log1p(both)

    def tail_length(self, w: np.ndarray, cut: float) -> np.ndarray:
        """A step beyond w at which the density is below e^-cut of its value at w."""
        length = np.full_like(w, 1 / (2 * self.p))
        while (short := self.log_ratio(w, length) > -cut).any():
            length = np.where(short, 1.25 * length, length)
        return length

    def tail(self, w: np.ndarray) -> np.ndarray:
        """P(logit >= w) over the density at w, by quadrature; for w near 0 or beyond."""
        length = self.tail_length(w, CUT)
        steps, weights = panel_rule(PANELS)
        return length * (np.exp(self.log_ratio(w[..., None], length[..., None] * steps)) @ weights)

    @property
    def log_total(self) -> float:
        """log of the whole mass, for the density divided by its value at 0, where it is largest."""
        return math.log(2 * self.tail(np.zeros(())))

    def log_survival(self, w: np.ndarray) -> np.ndarray:
        """log P(logit >= w), for w near 0 or beyond."""
        return self.log_ratio(np.zeros(()), w) + np.log(self.tail(w)) - self.log_total

    def quadrature(self, start: float, stop: float) -> tuple[np.ndarray, np.ndarray]:
        """60 nodes in [start, stop] and their probabilities, exact to rounding where 2p is an
        integer.

        In the angle arctan(e^(w/2)) the density is then a polynomial in sine and cosine.
        """
        if start >= 0:  # angles near 0 keep more digits than those near pi/2
            w, mass = self.quadrature(-stop, -start)
            return -w, mass
        ends, (grid, weights) = np.arctan(np.exp([start / 2, stop / 2])), panel_rule(3)
        angles = ends[0] + (ends[1] - ends[0]) * grid
        w = 2 * np.log(np.tan(angles))
        density = np.exp(self.log_ratio(np.zeros(()), w) - self.log_total) * 4 / np.sin(2 * angles)
        return w, (ends[1] - ends[0]) * weights * density

    def quantile(self, z: Tensor) -> Tensor:
        """The increasing function of a standard normal z that has this distribution, float64; |z| >
        14 counts as 14.
        """
        table = _table(self.p, z.device)
        position = (z.double().clamp(-REACH, REACH) + REACH) * STEPS_PER_UNIT
        index = position.long().clamp_max(len(table) - 1)
        t = position - index
        a, b, c, d, e, f = table[index].unbind(-1)
        return a + t * (b + t * (c + t * (d + t * (e + t * f))))


@lru_cache
def panel_rule(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]: so many equal panels of 20 Gauss-Legendre nodes. Not to be
    written to.
    """
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return ((np.arange(panels)[:, None] + (nodes + 1) / 2) / panels).ravel(), np.tile(
        weights / 2 / panels, panels
    )


@lru_cache(maxsize=64)
def _table(p: float, device: torch.device) -> Tensor:
    """Coefficients (cells, 6) of the quintics that match value, slope and curvature of the quantile
    at the nodes.
    """
    signs = zip((-1, 1, -1), _upper_quantiles(LogitBeta(p)), strict=True)
    value, slope, curvature = (
        np.concatenate([sign * upper[:0:-1], upper]) for sign, upper in signs
    )
    h = 1 / STEPS_PER_UNIT
    rise, s0, s1 = value[1:] - value[:-1], h * slope[:-1], h * slope[1:]
    c0, c1 = h * h * curvature[:-1], h * h * curvature[1:]
    cubic = 10 * rise - 6 * s0 - 4 * s1 - 1.5 * c0 + 0.5 * c1
    quartic = -15 * rise + 8 * s0 + 7 * s1 + 1.5 * c0 - c1
    quintic = 6 * rise - 3 * (s0 + s1) - 0.5 * (c0 - c1)
    table = np.stack([value[:-1], s0, c0 / 2, cubic, quartic, quintic], -1)
    return torch.from_numpy(table).to(device)


def _upper_quantiles(law: LogitBeta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantile, first and second derivative at z = 0, 1/64, ..., 14.

    Newton's method on log P(logit >= w) = log P(normal >= z): the left side is concave, so it is
    monotone after one step. If g(w) is the density, w' = phi(z)/g(w) and w'' = -w'
    (z + w' g'(w)/g(w)).
    """
    z = np.arange(REACH * STEPS_PER_UNIT + 1) / STEPS_PER_UNIT
    target = log_ndtr(-z)
    w, zero = np.zeros_like(z), np.zeros(())
    while True:
        mass = law.tail(w)  # survival over density
        step = (law.log_ratio(zero, w) + np.log(mass) - law.log_total - target) * mass
        w = w + step
        if np.abs(step).max() <= 1e-9 * np.abs(w).max():
            break
    mass = law.tail(w)
    w = w + (law.log_ratio(zero, w) + np.log(mass) - law.log_total - target) * mass
    slope = law.tail(w) * np.exp(-z * z / 2 - math.log(2 * math.pi) / 2 - target)
    score = law.p * expit(-w) - law.p * expit(w)
    return w, slope, -slope * (z + slope * score)


def uniform_coordinate(dim: int, z: Tensor) -> tuple[Tensor, Tensor]:
    """(T, sqrt(1 - T^2)) for a coordinate T of a uniform point of the sphere in R^dim; T increases
    with normal z.
    """
    if dim == 1:
        zero = torch.zeros_like(z, dtype=torch.float64)
        return torch.where(z < 0, -1.0, zero + 1), zero
    half = LogitBeta((dim - 1) / 2).quantile(z) / 2  # T = tanh(half)
    return half.tanh(), half.cosh().reciprocal()


def log_half_gamma(p: Tensor) -> Tensor:
    """log Gamma(p + 1/2)/Gamma(p), p > 0, to a few units in the last place: a series at p + 32,
    then down to p.
    """
    shift = torch.ones_like(p)
    for j in range(32):
        shift = shift * ((p + j) / (p + j + 0.5))
    v = 1 / (p + 32)
    w = v * v
    return (
        shift.log()
        - v / 8 * (1 - w / 24 * (1 - 3 * w / 10 * (1 - 85 * w / 84)))
        + (p + 32).log() / 2
    )


@entrywise(AT_ONCE, dim=partial(checks.within, low=2, high=checks.MOST), epsilon=ball_epsilon)
def rapidity(dim: Tensor, epsilon: Tensor) -> Tensor:
    """artanh of the fixed point gamma = E T of ``CapLaw``; it keeps all digits of small gamma, and
    of 1 - gamma.

    It is where log(w/gamma - s), w = E[T; T >= gamma] for uniform V, is log 1/(e^epsilon - 1). The
    difference would lose all digits near gamma = 1. As an integral it loses none: that of
    sech(t)^(dim + 1)/tanh(t)^2 over t >= y, divided by (dim - 1) times that of sech^(dim - 1) over
    the line.
    """
    level = (
        math.log(math.sqrt(math.pi))
        - log_half_gamma((dim - 1) / 2)
        + (dim - 1).log()
        - log_excess(epsilon)
    )
    x = (threshold(epsilon) / dim.sqrt()).asinh().log()  # that of many dimensions

    def excess(log_y: Tensor, integral: Tensor) -> Tensor:
        return integral.log() - (dim + 1) / 2 * torch.log1p(sinh(log_y.exp()).square()) - level

    for _ in range(STEPS):  # Newton's method
        y = x.exp()
        integral = _beyond(dim, y)
        x = x + (excess(x, integral) * y.tanh().square() * integral / y).clamp(-1, 1)
    found = root(
        lambda x: excess(x, _beyond(dim, x.exp())), x - TOLERANCE / 2, x + TOLERANCE / 2, TOLERANCE
    )
    return found.exp()


def _beyond(dim: Tensor, y: Tensor) -> Tensor:
    """The integral of (cosh(y)/cosh(t))^(dim + 1)/tanh(t)^2 over t >= y: in log t, to where it has
    fallen by e^-CUT.
    """
    grid, weights = (
        torch.from_numpy(each).to(y.device)[:, None] for each in panel_rule(THRESHOLD_PANELS)
    )
    # cosh far = cosh y e^c, and sinh^2(far/2) = (cosh y (e^c - 1) + 2 sinh^2(y/2))/2 loses no digit
    # for small y
    far = (y.exp() + (-y).exp()) * torch.expm1(CUT / (dim + 1)) / 4 + sinh(y / 2).square()
    length = (2 * far.sqrt().asinh() / y).log()
    t = y * (length * grid).exp()
    fallen = (dim + 1) / 2 * (torch.log1p(sinh(y).square()) - torch.log1p(sinh(t).square()))
    return length * added(weights * fallen.exp() * t / t.tanh().square())


def sinh(x: Tensor) -> Tensor:
    """By expm1: torch.sinh has other bits for an entry in a batch than for the same entry alone."""
    e = torch.expm1(x)
    return e / 2 * (1 + 1 / (1 + e))


def coordinate_size(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for expectations of functions of |T|; dim >= 2."""
    law = LogitBeta((dim - 1) / 2)
    w, mass = law.quadrature(0.0, float(law.tail_length(np.zeros(()), WIDE)))
    return np.tanh(w / 2), 2 * mass


@dataclass(frozen=True)
class CapLaw:
    """The coordinate T = <V, u> in PrivUnit: V uniform on the sphere of R^dim, reweighted on the
    cap <V, u> >= gamma.

    Relative to the uniform distribution the density is c1 = e^epsilon c0 on the cap and c0
    elsewhere, c0 = 1/(1 + (e^epsilon - 1) s), s the cap's share of the sphere. gamma is the fixed
    point gamma = E T, which makes E T as large as possible and Var T = (1 - gamma^2)/dim: the noise
    of V/gamma is (1 - gamma^2)/(dim gamma^2) in every direction. dim: an integer >= 2; epsilon in
    [1e-6, 50].

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
        return -math.sqrt(d) * (d + 3) / (d + 1) * math.sinh(self.rapidity)

    @property
    def fourth_moment(self) -> float:
        """E Z^4."""
        d, r = self.dim, math.sinh(self.rapidity) ** 2
        return d * (3 * (d + 1) * (1 + r) + (d * d + 5 * d + 12) * r) / ((d + 1) * (d + 2))

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
        start = -float(ndtri(float(share))) if share < 0.5 else float(ndtri(float(1 - share)))
        z = torch.tensor(start, dtype=torch.float64)
        t, height = (float(each) for each in uniform_coordinate(self.dim, z))
        angle, degree = context.atan2(context.mpf(height), context.mpf(t)), self.dim - 2
        for _ in range(5):
            cosine, sine = context.cos_sin(angle)
            k, whole = degree % 2, context.mpf(2) if degree % 2 else context.pi
            integral, power = (2 * context.sin(angle / 2) ** 2, sine * sine) if k else (angle, sine)
            while k < degree:
                k += 2
                integral, whole = ((k - 1) * integral - power * cosine) / k, whole * (k - 1) / k
                power *= sine * sine
            angle -= (integral - share * whole) / sine**degree
        return context.cos(angle), context.sin(angle)

    @cached_property
    def chance(self) -> int:
        """Of 2^63 integers those that lead to the cap, rounded down: the private side."""
        return cap_chance(self.epsilon, self.survival)

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes 2 artanh T and weights for expectations under this distribution, off the cap and on
        it.
        """
        uniform, edge = self.uniform, 2 * self.rapidity
        low = float(uniform.tail_length(np.array(0.0), WIDE))
        below = [uniform.quadrature(start, stop) for start, stop in ((-low, 0.0), (0.0, edge))]
        nodes, masses = self.cap_quadrature()
        weights = [self.low_density * mass for _, mass in below]
        return np.concatenate([*(w for w, _ in below), nodes]), np.concatenate(
            [*weights, self.high_density * masses]
        )

    def cap_quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes 2 artanh T on the cap, and their probabilities for uniform V: they add up to s."""
        edge = 2 * self.rapidity
        length = float(self.uniform.tail_length(np.array(edge), WIDE))
        return self.uniform.quadrature(edge, edge + length)
