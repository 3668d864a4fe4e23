"""Noise that a curator needs at least, with explicit constants.

One query of width 1 (its largest change when one user's value is replaced). Z is the noise, c its mean,
q = e^-epsilon and s(t) = P(|Z - c| >= t), so that Var Z = int 2t s(t) dt. Comparing Z with Z - 1 and Z + 1 on
half-lines,
    s(t + 1) >= q (s(t) - 2 delta) for t > 0,  and  s(t) >= q (2 - 2 delta - P(|Z - c| > 1 - t)) for 0 < t <= 1.
The first gives s(t + j) >= q^j (s(t) + d) - d with d = 2 delta / (e^epsilon - 1); the second couples t and 1 - t.
Keep N terms of sum_j 2 (t + j) s(t + j) for t < 1/2 and N - 1 for t > 1/2: their sum is least where
s(t) = s(1 - t) = 2 q (1 - delta) / (1 + q) =: b, and its integral over t is
    V = sum_{j < N} (j + 1/4) (q^j (b + d) - d) + sum_{j < N - 1} (j + 3/4) (q^j (b + d) - d).
"""

import math

import numpy as np

from torchdp import checks

MOST_TERMS = 10**7


def least_noise_variance(epsilon: float, delta: float = 0.0) -> float:
    """A lower bound V on Var Z / width^2 for every (epsilon, delta)-DP mechanism x -> q(x) + Z, Z independent of x.

    The V of this file's head, at its best N; width: the largest change of q when one user's value is replaced.
    delta = 0: V = 1 / (2 sinh^2(epsilon/2)), attained by the discrete Laplace noise in multiples of the width.
    Not tight for large delta: the best noise in quarters of the width (a linear program) has 1.00 times V at (epsilon,
    delta) = (1, 1e-3), 1.29 times at (1, 0.1), 3.9 times at (0.5, 0.3), 4.0 times at (3, 0.05).

    epsilon > 0; delta in [0, 1). Raises ValueError.
    Guarantees: no additive noise that is (epsilon, delta)-DP for replace-one has a smaller variance.
    Source: ours, in place of Edmonds, Nikolov, Ullman (2020), Lemma 26, which names no constant and lacks a square.
    """
    epsilon = checks.positive("epsilon", epsilon)
    delta = checks.below_one("delta", delta)
    q = math.exp(-epsilon)
    if delta == 0:
        return 2 * q / math.expm1(-epsilon) ** 2
    d = 2 * delta * q / -math.expm1(-epsilon)
    b = 2 * q * (1 - delta) / (1 + q)
    if d == 0 or b == 0:  # epsilon is so large that both underflow
        return 0.0
    terms = math.ceil((math.log(b + d) - math.log(d)) / epsilon)
    if terms > MOST_TERMS:
        raise ValueError(f"epsilon = {epsilon:g} and delta = {delta:g} need {terms:g} terms; raise epsilon")
    j = np.arange(terms, dtype=np.float64)
    s = q**j * (b + d) - d
    return float(((j + 0.25) * s).sum() + ((j + 0.75) * s)[:-1].sum())


def additive_noise_bound(norm: float, epsilon: float, delta: float = 0.0) -> float:
    """Least error of an (epsilon, delta)-DP mechanism h -> W h + Z, Z independent of the data: sqrt(2 V) * norm.

    h counts the users of each type; for averages divide the error by their number. With norm = min over v of
    gamma_(p)(W - v 1^T), the error is (sum_i sd(Z_i)^p)^{1/p}: p = 2 the root of the summed squared errors (Edmonds et
    al. divide it by sqrt m), p = inf the worst query's root mean squared error. For delta = 0: norm / sinh(epsilon/2).
    Every direction u has Var u^T Z >= V (width of u^T W)^2. So the columns of cov(Z)^{-1/2} W lie within V^{-1/2} of
    each other, hence in a ball of radius (2 V)^{-1/2} (Jung 1901), and with cov(Z)^{1/2} they factor W - v 1^T.

    norm: >= 0, such as ``factorize(W, p, shift=True).certificate.lower``; V: :func:`least_noise_variance`.
    Raises ValueError.
    Guarantees: no such mechanism has a smaller error (replace-one neighbours), for any W.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 28; Nikolov, Tang (2023), section 3, for p and the shift.
    """
    return math.sqrt(2 * least_noise_variance(epsilon, delta)) * checks.non_negative("norm", norm)
