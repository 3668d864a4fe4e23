"""Several guarantees as one: basic composition, Gaussian noise exactly, curves of the others."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from torchdp import checks
from torchdp.privacy.accounting import Profile, mixed_epsilon
from torchdp.privacy.gaussian import ROUNDED, gaussian_epsilon
from torchdp.privacy.guarantee import Guarantee, alike, weakest_arithmetic

# What evaluation may round off a curve, relative, and of the terms whose difference it is; as in
# ``torchdp.shuffle.count_laws``.
_ROUNDING = 1e-10
_CANCELLATION = 1e-13


def compose(guarantees: Iterable[Guarantee], delta: float | None = None) -> Guarantee:
    """The joint guarantee of mechanisms that all use one user's data.

    Those whose mu is known are one Gaussian mechanism, mu^2 = sum of the mu_i^2.

    Args:
        guarantees: at least one. All must share model and neighbouring relation; other combinations
            are refused (ValueError), because what they promise together depends on how the
            mechanisms are joined.
        delta: None: the Gaussian mechanism, at the sum of its parts' deltas, and the others, their
            epsilons and deltas added up. In (0, 1): the least epsilon at it that their privacy loss
            distributions certify, worst pairs for those that are not Gaussian; then each mu, or
            (epsilon, delta), counts and nothing else of a mechanism.

    The result is an upper bound: the worst pairs of inputs of the parts need not coincide. Raises
    TypeError, ValueError; ImportError with ``delta``.

    Guarantees: holds also when later mechanisms are chosen after seeing earlier outputs, as long as
    their guarantees were fixed before; where these are chosen too, spend a ``Budget``.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006), Theorem 1; Dwork, Roth (2014),
    Theorem B.1; Dong, Roth, Su (2022), Corollary 3.3; Zhu, Dong, Wang (2022), Theorem 10.
    """
    if not isinstance(guarantees, Iterable):
        raise TypeError(f"guarantees must be several Guarantees, not {type(guarantees).__name__}")
    guarantees = list(guarantees)
    if not guarantees:
        raise ValueError("guarantees must hold at least one Guarantee")
    first = alike(guarantees)
    if len(guarantees) == 1 and delta is None:
        return first
    normal = [g for g in guarantees if g.mu is not None]
    others = [g for g in guarantees if g.mu is None]
    mu = math.hypot(*(g.mu or 0.0 for g in normal))
    variation = math.fsum(g.variation for g in normal)
    epsilon, total = _added(normal, others, mu, variation)
    if delta is None:
        delta = checks.below_one("delta", total)
        how = "basic composition, Dwork et al. (2006), of: "
        if mu:
            how = "Gaussian noise as one, Dong, Roth, Su (2022), Corollary 3.3; " + how
    else:
        delta = checks.fraction("delta", delta)
        # Basic composition promises nothing at a delta below the parts' own.
        if total > delta:
            epsilon = math.inf
        epsilon = min(epsilon, _certified(others, mu, variation, delta))
        if epsilon == math.inf and all(g.epsilon < math.inf for g in guarantees):
            raise ValueError(
                f"no epsilon holds at delta = {delta:g}, the guarantees' own add up to {total:g}"
            )
        how = "privacy loss distributions, Doroshenko et al. (2022), of: "
    # A part with a delta of its own is near to no mechanism of delta = 0 or of a mu.
    near = all(g.pure for g in others)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        model=first.model,
        neighbours=first.neighbours,
        exact=False,
        source=how + "; ".join(g.source for g in guarantees),
        arithmetic=weakest_arithmetic(guarantees),
        mu=None if others else mu,
        variation=math.fsum(g.variation for g in guarantees) if near else 0.0,
    )


def for_groups(guarantee: Guarantee, size: int) -> Guarantee:
    """What ``size`` users who change together are promised, or one who holds so many rows.

    Of Gaussian noise its mu times size, at the same delta; of others epsilon times size, and delta
    times 1 + e^epsilon + ... + e^((size - 1) epsilon).

    Args:
        guarantee: for one user, or one row.
        size: >= 1.

    Raises TypeError, ValueError.

    Guarantees: data sets that differ in ``size`` users are so many steps of one user apart.
    Source: Dwork, Roth (2014), Theorem 2.2; Dong, Roth, Su (2022), Theorem 2.14, for mu; Vadhan
    (2017), Lemma 2.2, for delta.
    """
    alike([guarantee])
    size = checks.integer("size", size, 1)
    epsilon = size * guarantee.epsilon
    mu = None
    variation = 0.0
    if guarantee.mu is None:
        steps = [math.exp(min(step * guarantee.epsilon, 700.0)) for step in range(size)]
        delta = guarantee.delta * math.fsum(steps) * (1 + 1e-12)
        delta = checks.below_one(f"delta for groups of {size}", delta)
    else:
        mu = size * guarantee.mu
        delta = guarantee.delta
        variation = guarantee.variation
        epsilon = gaussian_epsilon(mu, checks.fraction("delta", delta), variation)
    return replace(
        guarantee,
        epsilon=epsilon,
        delta=delta,
        exact=False,
        source=f"for groups of {size}, Dwork, Roth (2014), Theorem 2.2: {guarantee.source}",
        mu=mu,
        variation=variation,
    )


def _added(
    normal: list[Guarantee], others: list[Guarantee], mu: float, variation: float
) -> tuple[float, float]:
    """Epsilon and delta of basic composition, the Gaussian parts as one where that is less."""
    delta = math.fsum(g.delta for g in normal + others)
    plain = math.fsum(g.epsilon for g in others)
    gaussian = math.fsum(g.epsilon for g in normal)
    kept = math.fsum(g.delta for g in normal)
    # At the delta that they have together, as one mechanism they mostly need less epsilon.
    if len(normal) > 1 and 0 < kept < 1:
        gaussian = min(gaussian, gaussian_epsilon(mu, kept, variation))
    return plain + gaussian, delta


def _certified(others: list[Guarantee], mu: float, variation: float, delta: float) -> float:
    """The least epsilon at ``delta``: the others' own on a Gaussian curve, or by distributions."""
    plain = math.fsum(g.epsilon for g in others)
    # The others keep their own deltas; what is left is for Gaussian noise alone.
    left = delta - math.fsum(g.delta for g in others)
    least = plain + gaussian_epsilon(mu, left, variation) if left > 0 else math.inf
    if not others or mu > 1e3 or any(g.epsilon > 700.0 for g in others):
        return least
    # Parts of equal promises have one worst curve, composed as often as it occurs.
    counted = Counter((g.epsilon, g.delta) for g in others)
    parts = [(_worst(*promise), times) for promise, times in counted.items()]
    if mu:
        parts.append((gaussian_profile(1 / mu), 1))
    epsilon = mixed_epsilon(parts, delta * ROUNDED if variation else delta)
    # The distributions had ROUNDED of delta: what was kept must pay for the variation.
    if (1 + math.exp(min(epsilon, 700.0))) * variation > delta * (1 - ROUNDED):
        return least
    return min(least, epsilon)


def _worst(epsilon: float, delta: float) -> Profile:
    """The curve of the worst (epsilon, delta)-private mechanism: delta is lost, the rest is pure.

    Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3.
    """
    pure = pure_profile(epsilon)
    return lambda epsilons: delta + (1 - delta) * pure(epsilons)


def pure_profile(epsilon: float) -> Profile:
    """Binary randomized response at ``epsilon``: the worst among all epsilon-private mechanisms.

    H(e^x) = max(1 - e^x, (e^epsilon - e^x)/(1 + e^epsilon), 0). epsilon >= 0; at 0 the curve of
    equal distributions. Raises ValueError.

    Guarantees: dominates every epsilon-private mechanism, and is the least curve that does.
    Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3.
    """
    epsilon = checks.non_negative("epsilon", epsilon)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        x = np.minimum(epsilons, 700.0)
        # The fraction divided by e^epsilon above and below, which then does not overflow.
        middle = -np.expm1(x - epsilon) / (1 + math.exp(-epsilon)) * (1 + _ROUNDING)
        return np.clip(np.maximum(-np.expm1(x), middle), 0.0, 1.0)

    return profile


def gaussian_profile(sigma: float) -> Profile:
    """N(1, sigma^2) against N(0, sigma^2): Phi(m/2 - x/m) - e^x Phi(-m/2 - x/m), m = 1/sigma.

    Raises ValueError.

    Guarantees: exact.
    Source: Balle, Wang (2018), Theorem 8.
    """
    m = 1 / checks.positive("sigma", sigma)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        x = np.minimum(epsilons, 700.0)
        above = log_ndtr(m / 2 - x / m)
        below = log_ndtr(-m / 2 - x / m)
        # Phi(a) (1 - e^(x + log Phi(b) - log Phi(a))): Phi(b) underflows before its product does.
        curve = -np.exp(above) * np.expm1(np.minimum(x + below - above, 0.0))
        # Upward, by what the difference may have lost: the curve must not lie below the truth.
        return np.minimum(curve * (1 + _ROUNDING) + _CANCELLATION * np.exp(above), 1.0)

    return profile
