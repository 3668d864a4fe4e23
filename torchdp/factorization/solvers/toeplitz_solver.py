"""Banded strategies with one row of coefficients, for workloads that treat all steps alike: O(steps x bands)."""

import math

import numpy as np
from scipy.optimize import minimize


def banded_toeplitz(first: np.ndarray, bands: int, p: float) -> np.ndarray:
    """c, (bands,), of norm 1: C[t, s] = c_{t-s} of least l_p norm of W C^{-1}'s row norms, W[t, s] = first_{t-s}.

    Row t of W C^{-1} holds b_0, ..., b_t, b(x) = first(x) / c(x), so its squared norm is a running sum of squares; a
    column's norm is that of c. c_j = prod_{i <= j} (logistic function of x_i) falls, so c(x) has no root in the unit
    disc; L-BFGS with d b = -(first / c^2) d c.
    """
    from scipy.special import expit, logit

    ratio = 2.0 * np.arange(1, bands)
    x = np.asarray(logit((ratio - 1) / ratio))
    if bands > 1:
        x = minimize(_objective, x, (first, p / 2), jac=True, method="L-BFGS-B", options={"maxcor": 30}).x
    c = np.cumprod(np.concatenate([[1.0], expit(x)]))
    return np.asarray(c / np.linalg.norm(c))


def _objective(x: np.ndarray, first: np.ndarray, power: float) -> tuple[float, np.ndarray]:
    """log of the l_power norm of the squared row norms times ||c||^2, and its gradient."""
    from scipy.signal import lfilter
    from scipy.special import expit

    rates, n = expit(x), len(first)
    c = np.cumprod(np.concatenate([[1.0], rates]))
    b = lfilter([1.0], c, first)
    twice = lfilter([1.0], c, b)
    rows = np.cumsum(b * b)
    if power == math.inf:
        value, slopes = rows[-1], np.eye(1, n, n - 1)[0]
    else:
        value = float(np.linalg.norm(rows / rows[-1], power)) * rows[-1]
        slopes = (rows / value) ** (power - 1)
    of_b = 2 * b * np.cumsum(slopes[::-1])[::-1]
    of_c = np.array([-(of_b[j:] @ twice[: n - j]) for j in range(len(c))]) / value + 2 * c / (c @ c)
    of_x = np.cumsum((of_c * c)[:0:-1])[::-1] * (1 - rates)
    return math.log(value) + math.log(c @ c), of_x
