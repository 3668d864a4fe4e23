"""Banded strategies with one row of coefficients, O(steps x bands), and scales for their columns, O(steps^3)."""

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


def column_scales(W: np.ndarray, c: np.ndarray, period: int) -> np.ndarray:
    """d, (n,): C[t, s] = c_{t-s} d_s of least ||W C^{-1}||_F, a user of one fixed order moving C G by 1 at most.

    So the squared norms of columns i, i + period, ... add up to 1 for every i; len(c) <= period. With v = 1 / d the
    error is v^T H v, H = (W^T W) * (T T^T), T the inverse of c's Toeplitz matrix: L-BFGS over log d, each class of
    columns scaled to its sum.
    """
    from scipy.linalg import toeplitz
    from scipy.signal import lfilter

    n, start = len(W), np.eye(1, len(W))[0]
    T = np.tril(toeplitz(lfilter([1.0], c, start)))
    H, place = (W.T @ W) * (T @ T.T), np.arange(n) % period
    squares = np.append(np.full(max(n - len(c), 0), c @ c), np.cumsum(c * c)[: min(n, len(c))][::-1])

    def sums(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.bincount(place, x, period)[place])

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        sizes = np.exp(2 * x) * squares
        whole = sums(sizes)
        v = np.exp(-x) * np.sqrt(whole)
        value = v @ H @ v
        slope = 2 * v * (H @ v) / value
        return math.log(value), sums(slope / whole) * sizes - slope

    x = minimize(objective, np.zeros(n), jac=True, method="L-BFGS-B", options={"maxcor": 30}).x
    return np.asarray(np.exp(x) / np.sqrt(sums(np.exp(2 * x) * squares)))


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
