"""Dominating pairs of the shuffled bit sums: how far one user's bit can move everything that the analyst sees.

A profile maps any epsilons to the hockey-stick curve H(P||Q) = sum_y max(0, P(y) - e^epsilon Q(y)) of distributions P,
Q. One instance of a protocol is (epsilon, delta)-private exactly when every pair that its neighbouring data sets
produce has H <= delta; a pair whose curve lies nowhere below theirs may stand in for them, also under composition
(``torchdp.privacy.accounting`` has the proof). All curves here are rounded up: what float64 may lose is added.

A user's change is one of two pairs in each instance, 0 -> 1 and 1 -> 0, hence two profiles, except where one curve
covers both. Others' bits are fixed and known to the adversary; noise that they do not add is left out by the caller.
"""

import math

import numpy as np

from torchdp import checks
from torchdp.privacy.accounting import Profile
from torchdp.shuffle.count_laws import CountLaw, negative_binomial_law, plus_geometric

# Relative rounding of a curve, and of the tail masses whose difference it is; tests compare with 50 digits.
_ROUNDING, _CANCELLATION = 1e-10, 1e-13


def pair_profile(masses: np.ndarray, losses: np.ndarray, lost: float) -> Profile:
    """The curve of a pair (P, Q): P puts ``masses`` on outcomes with ln P/Q = ``losses``, and ``lost`` where Q = 0.

    H(e^epsilon) = lost + sum over losses > epsilon of masses (1 - e^(epsilon - loss)).
    masses >= 0 and finite losses, of one shape, in any order.
    """
    order = np.argsort(losses, kind="stable")
    losses, masses = losses[order], masses[order]
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)  # P of the losses from here on
    below = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)  # Q of them

    def profile(epsilons: np.ndarray) -> np.ndarray:
        epsilons = np.minimum(np.asarray(epsilons, dtype=np.float64), 700.0)
        first = np.searchsorted(losses, epsilons, side="right")
        curve = np.maximum(above[first] - np.exp(epsilons) * below[first], 0.0)
        return np.minimum(lost + curve * (1 + _ROUNDING) + _CANCELLATION * above[first], 1.0)

    return profile


def one_type_profiles(law: CountLaw) -> tuple[Profile, Profile]:
    """(1 + D, D) and (D, 1 + D): the view is x + D + a known number, D the noise and x the user's bit.

    The first loses ln Pr[D = y - 1]/Pr[D = y] at y, the second its negative, and all of Pr[D = 0].

    Guarantees: exact for up to 8,192 counts, nowhere below for more (``CountLaw.neighbours``). Shuffled identical
    messages are their number: the sum of the bits and of n shares of D. The others' bits shift it by a known number,
    which changes no divergence.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """
    a, b, loss = law.neighbours()
    return (
        pair_profile(b, -loss, float(law.mass[-1]) + law.lost),
        pair_profile(a, loss, float(law.mass[0]) + law.lost),
    )


def correlated_profiles(
    ratio: float, flood_shape: float, flood_ratio: float, *, shape: float = 1.0
) -> tuple[Profile, Profile]:
    """The view U = x + Z1 + Z3, V = Z2 + Z3 of correlated noise: bits (1, 0), and bits (0, 1).

    Z1, Z2 ~ NB(shape, ratio), Z3 ~ NB(flood_shape, flood_ratio), independent; the other users' bits shift U by a
    known number. Let w = ratio, d = U - V, m = min(Z1, Z2).
    shape = 1: under x = 0, d is discrete Laplace and independent of m, Pr[m = j] ~ w^(2 j). Let t = V - max(0, -d).
    Where d >= 1, both bits give (d, t) the same distribution but for its mass, 1/(1 + w) under x = 1 and w/(1 + w)
    under x = 0. Where d <= 0, x = 0 has mass 1/(1 + w) and t ~ Z3 + m, x = 1 has mass w/(1 + w) and t - 1 ~ Z3 + m.
    shape < 1, when absent users leave part of the noise: the adversary is given m too. Where d >= 1, both bits have
    the same Z2 = m and Z3, while Z1 is one less under x = 1. Where d <= 0, both have the same Z1 = m; under x = 1,
    Z2 is one more and Z3 one less. With z the larger of Z1, Z2 under x = 0 the losses of (0, 1) are
    ln Pr[Z = z]/Pr[Z = z - 1] on Z1 > Z2, and ln Pr[Z = z]/Pr[Z = z + 1] with the flood's own on Z1 <= Z2.
    Raises ValueError.

    Guarantees: exact at shape = 1, for any bits of the other users; an upper bound at shape < 1.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorem 1, and Ghazi et al. (2021), Lemma 9, here without slack.
    """
    return _signed_profiles(
        checks.fraction("ratio", ratio), shape, negative_binomial_law(flood_shape, flood_ratio)
    )


def unlimited_flood_profiles(ratio: float, *, shape: float = 1.0) -> tuple[Profile, Profile]:
    """The limit of ``correlated_profiles`` as the flood grows: it masks V, and what is left is the sign of d - 1/2.

    At shape = 1 this is binary randomized response at -ln ratio, whichever the bits. Raises ValueError.

    Guarantees: no flood makes both curves smaller.
    """
    return _signed_profiles(checks.fraction("ratio", ratio), shape, None)


def _signed_profiles(w: float, shape: float, flood: CountLaw | None) -> tuple[Profile, Profile]:
    """The pairs of ``correlated_profiles``; no flood stands for an unlimited one."""
    if checks.positive("shape", shape) > 1:
        raise ValueError(f"shape must be at most 1, not {shape!r}; more noise than NB(1, ratio) hides no less")
    if flood is None:
        return _sides(w, shape, _equal_laws, _equal_laws)
    return _sides(w, shape, *one_type_profiles(plus_geometric(flood, w * w) if shape == 1 else flood))


def _sides(w: float, shape: float, up: Profile, down: Profile) -> tuple[Profile, Profile]:
    """The same from the flood's own pair in both directions."""
    if shape == 1:
        small, large, loss = np.array([w / (1 + w)]), np.array([1 / (1 + w)]), np.array([-math.log(w)])
        return _two_sides(large, loss, small, -loss, up, 0.0), _two_sides(small, -loss, large, loss, down, 0.0)
    law = negative_binomial_law(shape, w)  # its mode is 0, so it starts at 0
    below = np.cumsum(law.mass)[:-1]  # Pr[Z <= z]
    lost = 2 * (law.lost + float(law.mass[-1]))
    return (
        _two_sides(law.mass[:-1] * below, -law.step, law.mass[1:] * below, law.step, up, lost),
        _two_sides(law.mass[1:] * below, law.step, law.mass[:-1] * below, -law.step, down, lost),
    )


def _two_sides(
    known: np.ndarray, losses: np.ndarray, hidden: np.ndarray, shifts: np.ndarray, flood: Profile, lost: float
) -> Profile:
    """``known`` masses of P with ``losses``; ``hidden`` ones with ``shifts`` besides the loss of the flood's pair."""
    open_side = pair_profile(known, losses, lost)
    hidden, shifts = _fewer(hidden, shifts)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        epsilons = np.asarray(epsilons, dtype=np.float64)
        closed = sum(mass * flood(epsilons - shift) for mass, shift in zip(hidden, shifts, strict=True))
        return np.minimum(open_side(epsilons) + (1 + _ROUNDING) * closed, 1.0)

    return profile


def _fewer(masses: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most 64 losses: an outcome between two of them is split so that P and Q keep their masses.

    Then whoever is told the part can forget it again, so that no curve falls.
    """
    low, high = losses.min(), losses.max()
    if len(losses) <= 64 or not low < high:
        return masses, losses
    most = losses[np.argmax(masses)] if len(losses) else low
    offsets = np.concatenate([[0.0], np.geomspace(1e-6, 1, 63)]) * (high - low)
    grid = low + offsets if most - low < high - most else np.sort(high - offsets)
    grid[0], grid[-1] = low, high
    right = np.clip(np.searchsorted(grid, losses), 1, len(grid) - 1)
    share = np.expm1(grid[right - 1] - losses) / np.expm1(grid[right - 1] - grid[right])  # of the right one
    share = np.clip(share, 0.0, 1.0)
    split = np.bincount(right, share * masses, len(grid)) + np.bincount(right - 1, (1 - share) * masses, len(grid))
    return split, grid


def _equal_laws(epsilons: np.ndarray) -> np.ndarray:
    return np.maximum(-np.expm1(np.minimum(epsilons, 700.0)), 0.0)
