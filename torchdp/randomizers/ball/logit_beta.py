"""The logit of a symmetric Beta variable: tails by quadrature, quantiles as a smooth table of a normal's.

(1 + T)/2 for a coordinate T of a uniform point of the sphere is such a variable. The logit's density is smooth and
log-concave on the whole line, which makes every step exact to rounding, from the circle to millions of dimensions.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.special import expit, log_ndtr
from torch import Tensor

# A tail ends where its density has fallen by e^-CUT; on PANELS panels its integral is exact to rounding.
PANELS, CUT = 24, 45.0
# The table: z = -REACH, ..., REACH, quintic in between (beyond, with probability 2e-44, the ends).
REACH, STEPS_PER_UNIT = 14, 64


@dataclass(frozen=True)
class LogitBeta:
    """w = log(B/(1 - B)) for B ~ Beta(p, p): its density is proportional to s(w)^p s(-w)^p, s the logistic function.

    p > 0. Computed in float64 by numpy; ``quantile`` in torch.
    """

    p: float

    def log_ratio(self, w: np.ndarray, step: np.ndarray) -> np.ndarray:
        """log of the density at w + step over that at w; no digits cancel for w, step >= 0."""
        both = np.sinh(step / 2) ** 2 * (2 - np.cosh(w / 2) ** -2.0) + np.tanh(w / 2) * np.sinh(step)
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
        """60 nodes in [start, stop] and their probabilities, exact to rounding where 2p is an integer.

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
        """The increasing function of a standard normal z that has this distribution, float64; |z| > 14 counts as 14."""
        table = _table(self.p, z.device)
        position = (z.double().clamp(-REACH, REACH) + REACH) * STEPS_PER_UNIT
        index = position.long().clamp_max(len(table) - 1)
        t = position - index
        a, b, c, d, e, f = table[index].unbind(-1)
        return a + t * (b + t * (c + t * (d + t * (e + t * f))))


@lru_cache
def panel_rule(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]: so many equal panels of 20 Gauss-Legendre nodes. Not to be written to."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return ((np.arange(panels)[:, None] + (nodes + 1) / 2) / panels).ravel(), np.tile(weights / 2 / panels, panels)


@lru_cache(maxsize=64)
def _table(p: float, device: torch.device) -> Tensor:
    """Coefficients (cells, 6) of the quintics that match value, slope and curvature of the quantile at the nodes."""
    signs = zip((-1, 1, -1), _upper_quantiles(LogitBeta(p)), strict=True)
    value, slope, curvature = (np.concatenate([sign * upper[:0:-1], upper]) for sign, upper in signs)
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

    Newton's method on log P(logit >= w) = log P(normal >= z): the left side is concave, so it is monotone after one
    step. If g(w) is the density, w' = phi(z)/g(w) and w'' = -w' (z + w' g'(w)/g(w)).
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
