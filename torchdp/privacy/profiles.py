"""Curves of the two worst mechanisms: all that are epsilon-private, and Gaussian noise. They are rounded up."""

import math

import numpy as np
from scipy.special import log_ndtr

from torchdp import checks
from torchdp.privacy.accounting import Profile

_ROUNDING, _CANCELLATION = 1e-10, 1e-13  # as in ``torchdp.shuffle.dominating``


def pure_profile(epsilon: float) -> Profile:
    """Binary randomized response at ``epsilon``: the worst among all epsilon-private mechanisms. Raises ValueError.

    H(e^x) = max(1 - e^x, (e^epsilon - e^x)/(1 + e^epsilon), 0). epsilon >= 0; at 0 the curve of equal laws.

    Guarantees: dominates every epsilon-private mechanism, and is the least curve that does.
    Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3.
    """
    epsilon = checks.non_negative("epsilon", epsilon)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        x = np.minimum(np.asarray(epsilons, dtype=np.float64), 700.0)
        middle = -np.expm1(x - epsilon) / (1 + math.exp(-epsilon)) * (1 + _ROUNDING)
        return np.minimum(np.maximum(np.maximum(-np.expm1(x), middle), 0.0), 1.0)

    return profile


def gaussian_profile(sigma: float) -> Profile:
    """N(1, sigma^2) against N(0, sigma^2): Phi(m/2 - x/m) - e^x Phi(-m/2 - x/m), m = 1/sigma. Raises ValueError.

    Guarantees: exact.
    Source: Balle, Wang (2018), Theorem 8.
    """
    m = 1 / checks.positive("sigma", sigma)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        x = np.minimum(np.asarray(epsilons, dtype=np.float64), 700.0)
        above, below = log_ndtr(m / 2 - x / m), log_ndtr(-m / 2 - x / m)
        curve = -np.exp(above) * np.expm1(np.minimum(x + below - above, 0.0))
        return np.minimum(curve * (1 + _ROUNDING) + _CANCELLATION * np.exp(above), 1.0)

    return profile
