"""The analytic Gaussian mechanism: the exact privacy of Gaussian noise, and its calibration."""

import math

import numpy as np
from scipy.special import erfcx, log_ndtr

from torchdp import checks
from torchdp.privacy.guarantee import Guarantee, Model, Neighbours
from torchdp.privacy.root import root

SOURCE = "Balle, Wang (2018), Theorem 8"
# log delta is evaluated to better than this (tests compare with 60 digits): calibration stays on the safe side.
ROUNDING = 1e-10
SAFE = 1e-11  # of sigma: an epsilon found from it, to rounding, is not above the one asked for
ROUNDED = 1 - 2.0**-40  # the share of delta that the real mechanism may spend whose integers are released
LARGEST = 1e6  # epsilons beyond promise nothing, and their noise would be lost to rounding
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def gaussian_log_delta(sigma: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """log of the smallest delta for which adding N(0, sigma^2 I) is (epsilon, delta)-DP.

    delta = Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D), with D the
    largest l_2 distance between the answers on neighbouring data, evaluated as
    phi(a) (M(a) - M(a + D/sigma)), a = epsilon sigma/D - D/(2 sigma), M = (1 - Phi)/phi the Mills ratio, which
    never overflows and loses no digits in the far tail. Raises ValueError.

    Guarantees: exact; no smaller delta holds at this epsilon.
    Source: Balle, Wang (2018), Theorem 8.
    """
    sigma, epsilon = checks.positive("sigma", sigma), checks.non_negative("epsilon", epsilon)
    ratio = checks.positive("sensitivity", sensitivity) / sigma
    a = epsilon / ratio - ratio / 2
    b = a + ratio
    if ratio < 0.5:  # M(a) - M(b) would lose digits: the integral of -M'(t) = 1 - t M(t) loses none
        t = a + ratio * (_NODES + 1) / 2
        slope = (1 / t) ** 2 if a > 1e4 else 1 - t * math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
        return _log_normal_density(a) + math.log(max(ratio / 2 * float(_WEIGHTS @ slope), 5e-324))
    if a < 0:  # more than half: the plain difference, in logarithms, loses nothing
        return float(log_ndtr(-a)) + math.log1p(-math.exp(epsilon + float(log_ndtr(-b) - log_ndtr(-a))))
    mills_difference = math.sqrt(math.pi / 2) * float(erfcx(a / math.sqrt(2)) - erfcx(b / math.sqrt(2)))
    return _log_normal_density(a) + math.log(max(mills_difference, 5e-324))


def _log_normal_density(a: float) -> float:
    return -a * a / 2 - math.log(2 * math.pi) / 2


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest sigma for which adding N(0, sigma^2 I) is (epsilon, delta)-DP, found by root finding.

    epsilon > 0, delta in (0, 1); sensitivity: the largest l_2 distance between the answers on neighbouring
    data. Stable for epsilon in [1e-3, 30] and delta down to 1e-15; above 1e6 refused. Raises ValueError.

    Guarantees: delta(sigma) <= delta, and delta(sigma (1 - 1e-8)) > delta.
    Source: Balle, Wang (2018), Theorem 8 and Algorithm 1 (here by :func:`root`).
    """
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    if epsilon > LARGEST:
        raise ValueError(
            f"epsilon must be at most {LARGEST:g}, not {epsilon:g}: noise for it would protect nobody"
        )
    target = _kept(delta)

    def excess(log_sigma: float) -> float:
        return gaussian_log_delta(math.exp(log_sigma), epsilon) - target

    return checks.positive("sensitivity", sensitivity) * math.exp(root(excess, -1.0, 1.0) + SAFE)


def _kept(delta: float) -> float:
    """log delta, less what evaluation may round away."""
    return math.log(delta) - ROUNDING * min(1.0, -math.log(delta))


def gaussian_guarantee(
    sigma: float, delta: float, sensitivity: float, model: Model, neighbours: Neighbours
) -> Guarantee:
    """The guarantee of adding N(0, sigma^2 I) at this delta: the epsilon with delta(epsilon) = delta.

    Where that is 0 and a smaller delta holds too, the guarantee is not exact. Raises ValueError.

    Guarantees: exact (epsilon, delta)-DP; mu-Gaussian differential privacy, mu = sensitivity/sigma.
    Source: Balle, Wang (2018), Theorem 8; Dong, Roth, Su (2022), for mu.
    """
    delta = checks.fraction("delta", delta)
    if checks.positive("sensitivity", sensitivity) > 1e3 * checks.positive("sigma", sigma):
        raise ValueError(f"sigma must be at least a thousandth of sensitivity = {sensitivity:g}, not {sigma:g}")
    mu = sensitivity / sigma
    epsilon = gaussian_epsilon(mu, delta)
    return Guarantee(epsilon, delta, model, neighbours, epsilon > 0, SOURCE, mu=mu)


def gaussian_epsilon(mu: float, delta: float, variation: float = 0.0) -> float:
    """The least epsilon at ``delta`` of what is within total variation ``variation`` of a mu-Gaussian mechanism's law.

    mu >= 0; math.inf beyond 1000, and where the variation takes more than 2^-40 of delta.

    Guarantees: delta_mu(epsilon) + (1 + e^epsilon) variation <= delta, as in ``Guarantee.rounded``.
    Source: Balle, Wang (2018), Theorem 8.
    """
    target = _kept(delta * ROUNDED if variation else delta)

    def excess(log_epsilon: float) -> float:
        return gaussian_log_delta(1.0, math.exp(log_epsilon), mu) - target

    if mu > 1e3:
        return math.inf
    epsilon = 0.0
    if mu > 0 and gaussian_log_delta(1.0, 0.0, mu) > target:
        epsilon = math.exp(root(excess, -1.0, 1.0))
    paid = (1 + math.exp(min(epsilon, 700.0))) * variation <= delta * (1 - ROUNDED)
    return epsilon if paid else math.inf


def rounded_guarantee(
    sigma: float, delta: float, sensitivity: float, variation: float, model: Model, neighbours: Neighbours
) -> Guarantee:
    """The guarantee of adding round(sigma g), g standard normals, to integers, for the integers that leave.

    X + round(sigma g) = round(X + sigma g): a function of the Gaussian mechanism, in any dimension. variation: total
    variation distance of all the noise of a release from its law, for which delta keeps 2^-40 of itself. mu is that
    of the Gaussian mechanism. Raises ValueError.

    Guarantees: (epsilon, delta)-DP of integers drawn within ``variation``; at most what Gaussian noise spends.
    Source: Balle, Wang (2018), Theorem 8, of which rounding is a function; ``Guarantee.rounded``.
    """
    real = gaussian_guarantee(sigma, checks.fraction("delta", delta) * ROUNDED, sensitivity, model, neighbours)
    return real.rounded(variation, delta)
