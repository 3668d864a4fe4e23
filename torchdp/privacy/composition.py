"""Several guarantees as one: basic composition, Gaussian noise exactly, and privacy loss distributions."""

import math
from collections import Counter
from collections.abc import Iterable

from torchdp import checks
from torchdp.privacy.accounting import Profile, mixed_epsilon
from torchdp.privacy.gaussian import gaussian_guarantee
from torchdp.privacy.guarantee import Guarantee, alike, weaker
from torchdp.privacy.profiles import gaussian_profile, pure_profile

_LARGEST_MU = 1e3  # beyond, Gaussian noise protects nobody, and its curve is out of reach


def compose(guarantees: Iterable[Guarantee], delta: float | None = None) -> Guarantee:
    """What mechanisms promise together where one user's data enters each of them.

    Those whose mu is known are one Gaussian mechanism, mu^2 = sum of the mu_i^2. delta None: this one, at the sum of
    its parts' deltas, and the others, their epsilons and deltas added up. delta in (0, 1): the least epsilon at it
    that their privacy loss distributions certify, worst pairs for those that are not Gaussian; then each mu, or
    (epsilon, delta), counts and nothing else of a mechanism.

    All must share model and neighbouring relation; other combinations are refused (ValueError), because what
    they promise together depends on how the mechanisms are joined. The result is an upper bound: the worst
    pairs of inputs of the parts need not coincide. Raises TypeError, ValueError; ImportError with ``delta``.

    Guarantees: holds also when later mechanisms are chosen after seeing earlier outputs, as long as their guarantees
    were fixed before; where these are chosen too, spend a ``Budget``.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006), Theorem 1; Dwork, Roth (2014), Theorem B.1; Dong, Roth,
    Su (2022), Corollary 3.3; Zhu, Dong, Wang (2022), Theorem 10.
    """
    if not isinstance(guarantees, Iterable):
        raise TypeError(f"guarantees must be several Guarantees, not {type(guarantees).__name__}")
    guarantees = list(guarantees)
    if not guarantees:
        raise ValueError("guarantees must hold at least one Guarantee")
    first = alike(guarantees)
    if len(guarantees) == 1 and delta is None:
        return first
    mu = math.hypot(*(g.mu for g in guarantees if g.mu is not None))
    whole = _added(guarantees, mu)
    if delta is None:
        epsilon, delta = whole[0], checks.below_one("delta", whole[1])
        how = "basic composition, Dwork et al. (2006), of: "
        if mu:
            how = "Gaussian noise as one, Dong, Roth, Su (2022), Corollary 3.3; " + how
    else:
        epsilon, delta = _certified(guarantees, mu, checks.fraction("delta", delta), whole), float(delta)
        how = "privacy loss distributions, Doroshenko et al. (2022), of: "
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        model=first.model,
        neighbours=first.neighbours,
        exact=False,
        source=how + "; ".join(g.source for g in guarantees),
        arithmetic=weaker(guarantees),
        mu=mu if all(g.mu is not None for g in guarantees) else None,
    )


def _added(guarantees: list[Guarantee], mu: float) -> tuple[float, float]:
    """Epsilon and delta of basic composition, the Gaussian parts taken as one."""
    delta, epsilon = math.fsum(g.delta for g in guarantees), math.fsum(g.epsilon for g in guarantees)
    normal = [g for g in guarantees if g.mu is not None]
    kept = math.fsum(g.delta for g in normal)
    if len(normal) > 1 and 0 < mu <= _LARGEST_MU and 0 < kept < 1:
        together = gaussian_guarantee(1.0, kept, mu, normal[0].model, normal[0].neighbours).epsilon
        epsilon = min(epsilon, math.fsum([together, *(g.epsilon for g in guarantees if g.mu is None)]))
    return epsilon, delta


def _certified(guarantees: list[Guarantee], mu: float, delta: float, added: tuple[float, float]) -> float:
    """The least epsilon at ``delta``: added up, with the curve of all Gaussian noise, or by loss distributions."""
    first, others = guarantees[0], [g for g in guarantees if g.mu is None]
    plain, left = math.fsum(g.epsilon for g in others), delta - math.fsum(g.delta for g in others)
    known = [added[0]] if added[1] <= delta else []
    if mu <= _LARGEST_MU and left > 0:
        known.append(
            plain + (gaussian_guarantee(1.0, left, mu, first.model, first.neighbours).epsilon if mu else 0)
        )
    if mu <= _LARGEST_MU and others and all(g.epsilon <= 700.0 for g in others):
        counted = Counter((g.epsilon, g.delta) for g in others)
        parts = [(_worst(*promise), times) for promise, times in counted.items()]
        known.append(mixed_epsilon([*parts, (gaussian_profile(1 / mu), 1)] if mu else parts, delta))
    if min(known, default=math.inf) == math.inf and all(g.epsilon < math.inf for g in guarantees):
        raise ValueError(f"no epsilon holds at delta = {delta:g}, the guarantees' own add up to {added[1]:g}")
    return min(known, default=math.inf)


def _worst(epsilon: float, delta: float) -> Profile:
    """The curve of the worst (epsilon, delta)-private mechanism: delta is lost, the rest is epsilon-private.

    Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3.
    """
    pure = pure_profile(epsilon)
    return lambda epsilons: delta + (1 - delta) * pure(epsilons)
