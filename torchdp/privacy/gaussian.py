"""The analytic Gaussian mechanism: the exact privacy of Gaussian noise, and its calibration."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise, functions
from torchdp.privacy.guarantee import Guarantee, Model, Neighbours
from torchdp.root import root

SOURCE = "Balle, Wang (2018), Theorem 8"
# log delta is evaluated to better than this (tests compare with 60 digits): calibration stays on
# the safe side.
ROUNDING = 1e-10
# of sigma: an epsilon found from it, to rounding, is not above the one asked for
SAFE = 1e-11
# the share of delta that the real mechanism may spend whose integers are released
ROUNDED = 1 - 2.0**-40
# epsilons above promise nothing, and their noise would be lost to rounding
LARGEST = 1e6
# of an integral over [0, 1], by Gauss and Legendre
_POINTS, _MASSES = np.polynomial.legendre.leggauss(8)
NODES = (_POINTS + 1) / 2
WEIGHTS = _MASSES / 2
# of Halley's method, which then is right to rounding for nearly all
STEPS = 3
# of the logarithm of epsilon
TOLERANCE = 2.0**-43
# of the logarithm of sigma
OF_SIGMA = 2.0**-38


@entrywise(
    of_floats=True, sigma=checks.positive, epsilon=checks.non_negative, sensitivity=checks.positive
)
def gaussian_log_delta(sigma: Numbers, epsilon: Numbers, sensitivity: Numbers = 1.0) -> Numbers:
    """log of the smallest delta for which adding N(0, sigma^2 I) is (epsilon, delta)-DP.

    delta = Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D), with
    D the largest l_2 distance between the answers on neighbouring data, evaluated as
    phi(a) (M(a) - M(a + D/sigma)), a = epsilon sigma/D - D/(2 sigma), M = (1 - Phi)/phi the Mills
    ratio, which never overflows and loses no digits in the far tail. Numbers, or batches that
    broadcast. Raises TypeError, ValueError.

    Guarantees: exact; no smaller delta holds at this epsilon.
    Source: Balle, Wang (2018), Theorem 8.
    """
    return log_delta(sensitivity / sigma, epsilon)


def log_delta(ratio: Numbers, epsilon: Numbers) -> Numbers:
    """``gaussian_log_delta`` at D/sigma = ``ratio`` > 0; float64 tensors, or floats.

    Each entry by itself, with the same bits in any batch.
    """
    on = functions(ratio)
    # Finite: an infinite a times its Mills ratio, 0, would be no number.
    a = on.clip(epsilon / ratio - ratio / 2, None, 1e160)
    b = a + ratio

    def near() -> Numbers:
        # For ratio < 1/2 M(a) - M(b) would lose digits; the integral of -M'(t) = 1 - t M(t) over
        # [a, b] loses none.
        nodes: Any = NODES
        weights: Any = WEIGHTS
        if isinstance(ratio, Tensor):
            shape = (-1, *[1] * ratio.ndim)
            nodes = torch.from_numpy(NODES).to(ratio.device).view(shape)
            weights = torch.from_numpy(WEIGHTS).to(ratio.device).view(shape)
        u = a / math.sqrt(2) + ratio / math.sqrt(2) * nodes  # t/sqrt 2
        slope = 1 - math.sqrt(math.pi) * on.added(weights * u * on.erfcx(u))
        return _log_density(a) + on.log(on.clip(ratio * slope, 5e-324))

    def likely() -> Numbers:
        # For a < 0 delta is large: the plain difference, in logarithms, loses nothing.
        above = on.log_ndtr(-a)
        below = on.log_ndtr(-b)
        return above + on.log1p(-on.exp(epsilon + below - above))

    def far() -> Numbers:
        mills = on.erfcx(a / math.sqrt(2)) - on.erfcx(b / math.sqrt(2))
        return _log_density(a) + on.log(on.clip(math.sqrt(math.pi / 2) * mills, 5e-324))

    return on.chosen(ratio < 0.5, near, lambda: on.chosen(a < 0, likely, far))


def _log_density(a: Numbers) -> Numbers:
    return -a * a / 2 - math.log(2 * math.pi) / 2


def _asked(name: str, value: Any) -> float:
    number = checks.positive(name, value)
    if number > LARGEST:
        raise ValueError(
            f"{name} must be at most {LARGEST:g}, not {number:g}: "
            "noise for it would protect no user"
        )
    return number


@entrywise(of_floats=True, epsilon=_asked, delta=checks.fraction, sensitivity=checks.positive)
def gaussian_sigma(epsilon: Numbers, delta: Numbers, sensitivity: Numbers = 1.0) -> Numbers:
    """The smallest sigma for which adding N(0, sigma^2 I) is (epsilon, delta)-DP.

    Args:
        epsilon: > 0; above 1e6 refused.
        delta: in (0, 1).
        sensitivity: the largest l_2 distance between the answers on neighbouring data.

    Numbers, or batches that broadcast and are solved together. Stable for epsilon in [1e-3, 30] and
    delta down to 1e-15. Raises TypeError, ValueError.

    Guarantees: delta(sigma) <= delta, and delta(sigma (1 - 1e-8)) > delta.
    Source: Balle, Wang (2018), Theorem 8 and Algorithm 1 (here by :func:`root`).
    """
    on = functions(epsilon)
    target = _kept(delta)
    # From too much noise: delta is below e^-t^2/2, t = epsilon sigma - 1/(2 sigma), and below
    # 1/(sigma sqrt(2 pi)).
    t = on.sqrt(-2 * target)
    enough = 2 * epsilon / (t + on.sqrt(t * t + 2 * epsilon))
    log_ratio = on.log(on.maximum(enough, math.sqrt(2 * math.pi) * delta))
    for _ in range(STEPS):  # the slope of delta in the ratio is phi(a), and phi'(a) = -a phi(a)
        ratio = on.exp(log_ratio)
        a = epsilon / ratio - ratio / 2
        value = log_delta(ratio, epsilon)
        slope = ratio * on.exp(_log_density(a) - value)
        bend = 1 + a * (a + ratio) - slope
        log_ratio = log_ratio - _halley((value - target) / slope, bend)

    def excess(log_sigma: Numbers) -> Numbers:
        return log_delta(on.exp(-log_sigma), epsilon) - target

    near = root(excess, -log_ratio - OF_SIGMA / 2, -log_ratio + OF_SIGMA / 2, OF_SIGMA)
    return sensitivity * on.exp(near + SAFE)


def _halley(step: Numbers, bend: Numbers) -> Numbers:
    """Newton's step f/f' made one of third order; bend: f''/f'."""
    # Far from the root the bend may be anything: within a factor 2 of Newton's own step.
    return step / functions(step).clip(1 - step * bend / 2, 0.5, 2.0)


def _kept(delta: Numbers) -> Numbers:
    """log delta, less what evaluation may round away."""
    on = functions(delta)
    log = on.log(delta)
    return log - ROUNDING * on.clip(-log, None, 1.0)


def gaussian_guarantee(
    sigma: float,
    delta: float,
    sensitivity: float,
    model: Model,
    neighbours: Neighbours,
    variation: float | None = None,
) -> Guarantee:
    """The guarantee of adding N(0, sigma^2 I): its epsilon at this delta.

    Args:
        sigma: at least a thousandth of the sensitivity.
        delta: in (0, 1). Where epsilon is 0 and a smaller delta holds too, the guarantee is not
            exact.
        sensitivity: the largest l_2 distance between the answers on neighbouring data.
        model: who is trusted.
        neighbours: which data sets are neighbours.
        variation: of adding round(sigma g), g standard normals, to integers, for the integers that
            leave: the total variation distance of all the noise of a release from its distribution,
            for which delta keeps 2^-40 of itself. X + round(sigma g) = round(X + sigma g) is a
            function of the Gaussian mechanism, in any dimension, and mu is that mechanism's.

    Raises ValueError.

    Guarantees: exact (epsilon, delta)-DP; mu-Gaussian differential privacy, mu = sensitivity/sigma;
    of integers at most what Gaussian noise spends.
    Source: Balle, Wang (2018), Theorem 8; Dong, Roth, Su (2022), for mu; ``Guarantee.rounded``.
    """
    delta = checks.fraction("delta", delta)
    if variation is not None:
        real = gaussian_guarantee(sigma, delta * ROUNDED, sensitivity, model, neighbours)
        return real.rounded(variation, delta)
    if checks.positive("sensitivity", sensitivity) > 1e3 * checks.positive("sigma", sigma):
        raise ValueError(
            f"sigma must be at least a thousandth of sensitivity = {sensitivity:g}, not {sigma:g}"
        )
    mu = sensitivity / sigma
    epsilon = gaussian_epsilon(mu, delta)
    return Guarantee(epsilon, delta, model, neighbours, epsilon > 0, SOURCE, mu=mu)


@entrywise(
    of_floats=True, mu=checks.non_negative, delta=checks.fraction, variation=checks.non_negative
)
def gaussian_epsilon(mu: Numbers, delta: Numbers, variation: Numbers = 0.0) -> Numbers:
    """The least epsilon at ``delta`` of outputs within ``variation`` of a mu-Gaussian mechanism's.

    Args:
        mu: >= 0, sensitivity/sigma.
        delta: in (0, 1).
        variation: total variation distance, >= 0.

    math.inf for mu above 1000, and where the variation takes more than 2^-40 of delta. Numbers, or
    batches that broadcast and are solved together. Raises TypeError, ValueError.

    Guarantees: delta_mu(epsilon) + (1 + e^epsilon) variation <= delta, as in ``Guarantee.rounded``.
    Source: Balle, Wang (2018), Theorem 8.
    """
    on = functions(mu)
    target = _kept(on.where(variation > 0, delta * ROUNDED, delta))
    # No division by mu = 0; beyond 1e3 the answer is infinite in the end.
    ratio = on.clip(mu, 5e-324, 1e3)
    # Where delta is enough at epsilon = 0, log epsilon has no root.
    free = log_delta(ratio, 0 * ratio) <= target
    # From too large an epsilon, at which Phi(-a) is small enough by itself.
    near = ratio * on.sqrt(-2 * target) + ratio * ratio / 2
    # the slope of delta is -e^epsilon Phi(-b), and e^epsilon phi(b) = phi(a)
    for _ in range(STEPS + 1):
        value = log_delta(ratio, near)
        a = near / ratio - ratio / 2
        slope = on.exp(near + on.log_ndtr(-a - ratio) - value)
        bend = 1 + slope - on.exp(_log_density(a) - value) / (ratio * slope)
        near = on.maximum(near + _halley((value - target) / slope, -bend), 1e-3 * near)
    log = on.where(free, 0.0, on.log(near))

    def excess(log_epsilon: Numbers) -> Numbers:
        return on.where(free, -log_epsilon, log_delta(ratio, on.exp(log_epsilon)) - target)

    log_epsilon = root(excess, log - TOLERANCE / 2, log + TOLERANCE / 2, TOLERANCE)
    epsilon = on.where(free, 0.0, on.exp(log_epsilon))
    paid = (1 + on.exp(on.clip(epsilon, None, 700.0))) * variation <= delta * (1 - ROUNDED)
    return on.where((mu <= 1e3) & paid, epsilon, math.inf)
