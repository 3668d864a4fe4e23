"""How heavy the tails of a randomizer's noise are: two sub-Gaussian constants, by quadrature of the exact density."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from torchdp.root import TOLERANCE, least

Law = tuple[np.ndarray, np.ndarray]  # nodes of a centred distribution, and their weights


@dataclass(frozen=True)
class SubGaussian:
    """The smallest constants that hold for Z = <theta, Y - x> at every unit theta and every point x of the ball.

    psi2: E exp(Z^2/psi2^2) <= 2, the length that Ghazi et al. (2023) call sigma. proxy: E exp(l Z) <= exp(l^2 proxy/2)
    for every real l, a variance: the mean of n users' messages has proxy/n.
    """

    psi2: float
    proxy: float


def constants(law: Law) -> SubGaussian:
    """Both constants of one centred distribution."""
    return SubGaussian(psi2(law), proxy(law))


def psi2(law: Law) -> float:
    """The root s of E exp(Z^2/s^2) = 2, from above."""
    z, weights = law
    squares = z * z

    def found(square: float) -> float:
        return float(weights @ np.expm1(np.minimum(squares / square, 700)))

    # Var <= s^2 <= max Z^2/log 2, because exp(t) >= 1 + t.
    low, high = float(weights @ squares), float(squares.max()) / math.log(2)
    return math.sqrt(least(found, 1.0, low * (1 - 1e-9), high * (1 + 1e-9), TOLERANCE))


def proxy(law: Law) -> float:
    """The largest value of 2 log E exp(l Z)/l^2 over real l; its limit at l = 0 is the variance."""
    z, weights = law
    variance, reach = float(weights @ (z * z)), float(np.abs(z).max())
    low = math.log(min(1e-2 / math.sqrt(variance), 0.1 / reach))
    high = math.log(min(8 / math.sqrt(variance), 600 / reach))

    def ratio(rate: float) -> float:
        return 2 * math.log1p(float(weights @ _exponential_excess(rate * z))) / rate**2

    above = largest(lambda x: ratio(math.exp(x)), low, high, 33)
    return max(variance, above, largest(lambda x: ratio(-math.exp(x)), low, high, 33))


def largest(function: Callable[[float], float], low: float, high: float, points: int) -> float:
    """The largest value on [low, high]: a grid, then Brent's method around its best point."""
    grid = np.linspace(low, high, points)
    values = [function(float(x)) for x in grid]
    at = int(np.argmax(values))
    around = grid[max(at - 1, 0)], grid[min(at + 1, points - 1)]
    found = minimize_scalar(lambda x: -function(x), bounds=around, method="bounded", options={"xatol": 1e-6})
    return max(values[at], -float(found.fun))


def _exponential_excess(x: np.ndarray) -> np.ndarray:
    """e^x - 1 - x; near 0 by its series, where the difference would lose digits."""
    series = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8))))))
    return np.where(np.abs(x) < 0.05, series, np.expm1(x) - x)
