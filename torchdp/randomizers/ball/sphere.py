"""Coordinates of random points of the unit sphere: uniform, and with one cap made e^epsilon times as likely."""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from torchdp import checks
from torchdp.batch import added, entrywise
from torchdp.draws import Draws
from torchdp.randomizers.alphabet.chances import TOTAL
from torchdp.randomizers.ball.logit_beta import CUT, LogitBeta, panel_rule
from torchdp.randomizers.ball.tilted import cap_chance, log_excess, threshold, tilted
from torchdp.randomizers.base import ball_epsilon
from torchdp.root import root

PANELS, AT_ONCE = 6, 2**14  # of the integral for a threshold; thresholds of a batch
STEPS, TOLERANCE = 4, 2.0**-51  # of Newton's method; of the logarithm of a rapidity
WIDE = 200.0  # densities down to e^-200: expectations of exp(a T^2) near 2 need them


def uniform_coordinate(dim: int, z: Tensor) -> tuple[Tensor, Tensor]:
    """(T, sqrt(1 - T^2)) for a coordinate T of a uniform point of the sphere in R^dim; T increases with normal z."""
    if dim == 1:
        zero = torch.zeros_like(z, dtype=torch.float64)
        return torch.where(z < 0, -1.0, zero + 1), zero
    half = LogitBeta((dim - 1) / 2).quantile(z) / 2  # T = tanh(half)
    return half.tanh(), half.cosh().reciprocal()


def log_half_gamma(p: Tensor) -> Tensor:
    """log Gamma(p + 1/2)/Gamma(p), p > 0, to a few units in the last place: a series at p + 32, then down to p."""
    shift = torch.ones_like(p)
    for j in range(32):
        shift = shift * ((p + j) / (p + j + 0.5))
    v = 1 / (p + 32)
    w = v * v
    return shift.log() - v / 8 * (1 - w / 24 * (1 - 3 * w / 10 * (1 - 85 * w / 84))) + (p + 32).log() / 2


@entrywise(AT_ONCE, dim=partial(checks.within, low=2, high=checks.MOST), epsilon=ball_epsilon)
def rapidity(dim: Tensor, epsilon: Tensor) -> Tensor:
    """artanh of the fixed point gamma = E T of ``CapLaw``; it keeps all digits of small gamma, and of 1 - gamma.

    It is where log(w/gamma - s), w = E[T; T >= gamma] for uniform V, is log 1/(e^epsilon - 1). The difference would
    lose all digits near gamma = 1. As an integral it loses none: that of sech(t)^(dim + 1)/tanh(t)^2 over t >= y,
    divided by (dim - 1) times that of sech^(dim - 1) over the line.
    """
    level = math.log(math.sqrt(math.pi)) - log_half_gamma((dim - 1) / 2) + (dim - 1).log() - log_excess(epsilon)
    x = (threshold(epsilon) / dim.sqrt()).asinh().log()  # that of many dimensions

    def excess(log_y: Tensor, integral: Tensor) -> Tensor:
        return integral.log() - (dim + 1) / 2 * torch.log1p(sinh(log_y.exp()).square()) - level

    for _ in range(STEPS):  # Newton's method
        y = x.exp()
        integral = _beyond(dim, y)
        x = x + (excess(x, integral) * y.tanh().square() * integral / y).clamp(-1, 1)
    found = root(lambda x: excess(x, _beyond(dim, x.exp())), x - TOLERANCE / 2, x + TOLERANCE / 2, TOLERANCE)
    return found.exp()


def _beyond(dim: Tensor, y: Tensor) -> Tensor:
    """The integral of (cosh(y)/cosh(t))^(dim + 1)/tanh(t)^2 over t >= y: in log t, to where it has fallen by e^-CUT."""
    grid, weights = (torch.from_numpy(each).to(y.device)[:, None] for each in panel_rule(PANELS))
    # cosh far = cosh y e^c, and sinh^2(far/2) = (cosh y (e^c - 1) + 2 sinh^2(y/2))/2 loses no digit for small y
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
    """The coordinate T = <V, u> in PrivUnit: V uniform on the sphere of R^dim, reweighted on the cap <V, u> >= gamma.

    Relative to the uniform distribution the density is c1 = e^epsilon c0 on the cap and c0 elsewhere, c0 = 1/(1 +
    (e^epsilon - 1) s), s the cap's share of the sphere. gamma is the fixed point gamma = E T, which makes E T as large
    as possible and Var T = (1 - gamma^2)/dim: the noise of V/gamma is (1 - gamma^2)/(dim gamma^2) in every direction.
    dim: an integer >= 2; epsilon in [1e-6, 50].

    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers (2018), PrivUnit; Asi, Feldman, Talwar (2022), optimality; the
    fixed point: kernels/privunit/README.md.
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

        The cap is the set above the (1 - s)-quantile, so rounding in gamma never moves mass across its edge.
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

        T = cos a, P = J(a)/J(pi) for J the integral of sin^(dim - 2) from 0 on, by the recurrence k J_k = (k - 1)
        J_(k - 2) - sin^(k - 1) cos; Newton's method from a float. O(dim).
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
        """Nodes 2 artanh T and weights for expectations under this distribution, off the cap and on it."""
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
