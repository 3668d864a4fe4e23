"""Distributions of integer noise, their draws, and the dominating pairs of shuffled sums.

A distribution is followed until what is left cannot matter. Of its draws only those that are not 0
are made, and where they lie; from tables of 128 bits.

A profile maps any epsilons to the hockey-stick curve H(P||Q) = sum_y max(0, P(y) - e^epsilon Q(y))
of distributions P, Q. One instance of a protocol is (epsilon, delta)-private exactly when every
pair that its neighbouring data sets produce has H <= delta; a pair whose curve lies nowhere below
theirs may stand in for them, also under composition (``torchdp.privacy.accounting`` has the proof).
All curves here are rounded up: what float64 may lose is added.

A user's change is one of two pairs in each instance, 0 -> 1 and 1 -> 0, hence two profiles, except
where one curve covers both. Others' bits are fixed and known to the adversary; noise that they do
not add is left out by the caller.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.kernels import inversion
from torchdp.kernels.inversion import Table
from torchdp.privacy.accounting import Profile
from torchdp.rounded import guide

Array = np.ndarray

# Masses are followed until they fall below e^-FAR of the largest; the rest counts as lost privacy.
FAR = 100.0
_MOST_COUNTS = 1 << 24

# Blocks of neighbouring counts; a distribution on more than four times as many is kept in blocks.
BLOCKS = 1 << 11

# Blocks of a side of correlated noise, two losses each, where absent users leave more.
_BLOCKS_OF_A_SIDE = 48

# Largest mean of one draw of a table: it then has fewer than 2^12 thresholds.
MOST_RATE = 2.0**14

# Up to this ratio a table of cluster sizes has fewer than 2^15 thresholds.
MOST_RATIO = 0.996

# Rates are rounded up: more noise of one kind is no less private.
SURELY = 1 + 2.0**-50

# Above the distance of any table here from its distribution, (thresholds + 3) 2^-129.
OF_A_DRAW = 2.0**-113

# Relative rounding of a curve, and of the tail masses whose difference it is; tests compare with 50
# digits.
_ROUNDING = 1e-10
_CANCELLATION = 1e-13

# e^epsilon is a finite float64 up to here.
_LARGEST_EPSILON = 700.0


class NotFollowed(ValueError):
    """Noise that spreads over more counts than its distribution is followed on."""


@dataclass(frozen=True)
class CountLaw:
    """The distribution of a count D >= 0.

    Args:
        first: least count that is followed.
        mass: Pr[D = first + i], (width,).
        step: ln Pr[D = first + i + 1]/Pr[D = first + i], (width - 1,).
        lost: a bound of what lies outside of [first, first + width).
    """

    first: int
    mass: Array
    step: Array
    lost: float

    def neighbours(self) -> tuple[Array, Array, Array]:
        """A pair of distributions that dominates (D, 1 + D) where both are known.

        Returns:
            Its masses a and b, and the losses ln a/b: the pair itself for up to 4 BLOCKS counts;
            beyond, that of ``merged`` blocks. For wide distributions this costs 3e-5 of the
            noise's deviation.
        """
        a = self.mass[1:]
        b = self.mass[:-1]
        if len(a) <= 4 * BLOCKS:
            return a, b, self.step
        # The first outcomes stay alone: there a negative binomial's losses vary most.
        alone = BLOCKS // 4
        block = -(-len(a) // (BLOCKS - alone))
        starts = np.concatenate([np.arange(alone), np.arange(alone, len(a), block)])
        mass, ratio = merged(b[None], np.exp(self.step)[None], starts)
        return (mass * ratio)[0], mass[0], np.log(ratio[0])


def merged(mass: Array, ratio: Array, starts: Array) -> tuple[Array, Array]:
    """Fewer outcomes of a pair (P, Q), for each row: Q's ``mass``, and P's over it.

    Each outcome is split into two, of the least and the largest ratio of its block, such that both
    masses stay: who forgets which of the two it was has the outcome back. Those of one block and
    ratio are one outcome.
    """
    total = np.add.reduceat(mass, starts, axis=1)
    total_of_p = np.add.reduceat(mass * ratio, starts, axis=1)
    low = np.minimum.reduceat(np.where(mass > 0, ratio, np.inf), starts, axis=1)
    high = np.maximum.reduceat(np.where(mass > 0, ratio, -np.inf), starts, axis=1)
    # Blocks without mass keep none at any ratio.
    low = np.where(total > 0, low, 1.0)
    high = np.where(total > 0, high, 1.0)
    mean = total_of_p / np.where(total > 0, total, 1.0)
    width = np.where(high > low, high - low, 1.0)
    share = np.clip((mean - low) / width, 0.0, 1.0)
    split = np.concatenate([total * (1 - share), total * share], 1)
    return split, np.concatenate([low, high], 1)


def poisson_law(mean: float) -> CountLaw:
    """D ~ Poisson(mean): Pr[D = y]/Pr[D = y - 1] = mean/y."""
    return _count_law(lambda y: np.log(mean / y), math.floor(mean), math.sqrt(mean), 0.0)


def negative_binomial_law(shape: float, ratio: float) -> CountLaw:
    """D ~ NB(shape r, ratio p): Pr[D = y]/Pr[D = y - 1] = p (y - 1 + r)/y, mean r p/(1 - p)."""
    mode = math.floor(max(0.0, (shape - 1) * ratio / (1 - ratio)))
    deviation = math.sqrt(shape * ratio) / (1 - ratio)
    return _count_law(lambda y: np.log((y - 1 + shape) * ratio / y), mode, deviation, ratio)


def _count_law(
    step: Callable[[Array], Array], mode: int, deviation: float, limit: float
) -> CountLaw:
    """The distribution around its mode. Raises NotFollowed.

    Args:
        step: ln Pr[D = y]/Pr[D = y - 1] at counts y.
        mode: the likeliest count.
        deviation: of D.
        limit: of Pr[D = y]/Pr[D = y - 1] as y grows.

    Where the ratios fall with y (all but NB of shape < 1) each step outside is at least FAR/width
    away from 0; at shape < 1 the ratios rise to ``limit``. Either way at most e^-FAR
    (2 width + 1/(1 - limit)) is outside.
    """
    width = 32.0 + 16.0 * deviation
    while True:
        low = max(0, math.floor(mode - width))
        high = math.ceil(mode + width)
        if high - low > _MOST_COUNTS:
            raise NotFollowed(
                f"the noise spreads over {high - low} counts; at most {_MOST_COUNTS} can be "
                "followed: take less of it, by a larger epsilon or delta"
            )
        steps = step(np.arange(low + 1, high + 1, dtype=np.float64))
        below = -np.cumsum(steps[: mode - low][::-1])[::-1]
        above = np.cumsum(steps[mode - low :])
        logs = np.concatenate([below, [0.0], above])
        if (low == 0 or logs[0] < -FAR) and logs[-1] < -FAR:
            break
        width *= 2
    kept = np.flatnonzero(logs >= -FAR)
    first = int(kept[0])
    last = int(kept[-1])
    mass = np.exp(logs[first : last + 1])
    lost = math.exp(-FAR) * (2 * (high - low + 1) + 1 / (1 - limit))
    return CountLaw(low + first, mass / mass.sum(), steps[first:last], lost)


def plus_geometric(law: CountLaw, ratio: float) -> CountLaw:
    """That of D + G, Pr[G = j] = (1 - ratio) ratio^j. Raises NotFollowed."""
    more = math.ceil(-FAR / math.log(ratio))
    if more > _MOST_COUNTS:
        raise NotFollowed(
            f"ratio is too close to 1: its noise spreads over more than {_MOST_COUNTS} counts"
        )
    from scipy.signal import lfilter  # here, because loading it takes half a second

    # h(y) = (1 - ratio) g(y) + ratio h(y - 1): nothing is subtracted.
    mass = lfilter([1 - ratio], [1, -ratio], np.append(law.mass, np.zeros(more)))
    last = int(np.flatnonzero(mass > math.exp(-2 * FAR))[-1])
    mass = mass[: 1 + last]
    lost = law.lost + 2 * more * math.exp(-FAR)
    return CountLaw(law.first, mass / mass.sum(), np.diff(np.log(mass)), lost)


def scattered_poisson(cells: int, places: int, mean: float, draws: Draws) -> Tensor:
    """Places of Poisson(mean) points in each of ``cells`` cells at each of ``places`` places: int32.

    Their total is Poisson too, and given the total they lie anywhere with equal chance: nothing is
    drawn for the cells that stay empty.

    Guarantees: means up to 1e-15 above; the total is within ``variation_of`` of this distribution,
    for uniform words.
    """
    rate = cells * places * mean * SURELY
    if rate == 0:
        return draws.below(places, (0,)).int()
    pieces = max(1, math.ceil(rate / MOST_RATE))
    total = tabulated(pieces, inversion.poisson, rate / pieces, draws).sum()
    return draws.below(places, (int(total),)).int()


def variation_of(users: int, points: float) -> float:
    """Above the total variation distance of all points, however many users speak at a time."""
    return (users + points / MOST_RATE) * OF_A_DRAW


def tabulated(size: int, law: Callable[[Any], Table], parameter: Hashable, draws: Draws) -> Tensor:
    """Draws of law(parameter), (size,), int64."""
    out = torch.empty(size, dtype=torch.int64, device=draws.device)
    guide(law, parameter, str(draws.device)).fill(out, draws)
    return out


def scattered_negative_binomial(
    cells: int, places: int, shape: float, ratio: float, draws: Draws
) -> Tensor:
    """Places of NB(shape, ratio) points in each of ``cells`` cells at each of ``places``: int32.

    NB(shape, ratio) is the total of Poisson(-shape log(1 - ratio)) clusters of logarithmic sizes,
    Pr[k] = -ratio^k / (k log(1 - ratio)), k >= 1: the clusters are scattered, nothing is drawn for
    empty cells.
    Source: Quenouille (1949).
    """
    clusters = -shape * math.log1p(-ratio)
    where = scattered_poisson(cells, places, clusters, draws)
    return torch.repeat_interleave(where, logarithmic(len(where), ratio, draws))


def logarithmic(size: int, ratio: float, draws: Draws) -> Tensor:
    """Draws of Pr[k] = -ratio^k / (k log(1 - ratio)), k = 1, 2, ...: (size,), int64.

    From a table up to ratio 0.996; beyond, where no table holds them, geometric with ratio q = 1 -
    (1 - ratio)^U, U uniform on (0, 1), in floats. Source: Kemp (1981), algorithm LK.
    """
    if ratio <= MOST_RATIO:
        return tabulated(size, inversion.logarithmic, ratio, draws).add_(1)
    u = 1 - draws.uniform((size,))
    log_q = torch.log1p(-torch.exp(u * math.log1p(-ratio)))
    return 1 + (draws.exponential((size,)) / -log_q).floor().long()


def pair_profile(masses: Array, losses: Array, lost: float) -> Profile:
    """The curve of a pair (P, Q).

    Args:
        masses: of P on outcomes that Q reaches too, (outcomes,), in any order.
        losses: ln P/Q there, finite, (outcomes,).
        lost: mass of P where Q = 0.

    H(e^epsilon) = lost + sum over losses > epsilon of masses (1 - e^(epsilon - loss)).
    """
    order = np.argsort(losses, kind="stable")
    losses = losses[order]
    masses = masses[order]
    masses_of_q = masses * np.exp(-losses)
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)  # P of the losses from here on
    below = np.append(np.cumsum(masses_of_q[::-1])[::-1], 0.0)  # Q of them

    def profile(epsilons: Array) -> Array:
        epsilons = np.minimum(np.asarray(epsilons, dtype=np.float64), _LARGEST_EPSILON)
        first = np.searchsorted(losses, epsilons, side="right")
        curve = np.maximum(above[first] - np.exp(epsilons) * below[first], 0.0)
        return np.minimum(lost + curve * (1 + _ROUNDING) + _CANCELLATION * above[first], 1.0)

    return profile


def one_type_profiles(law: CountLaw) -> tuple[Profile, Profile]:
    """(1 + D, D) and (D, 1 + D): the view is x + D + a known number, D the noise and x the user's
    bit.

    The first loses ln Pr[D = y - 1]/Pr[D = y] at y, the second its negative, and all of Pr[D = 0].

    Guarantees: exact for up to 8,192 counts, nowhere below for more (``CountLaw.neighbours``).
    Shuffled identical messages are their number: the sum of the bits and of n shares of D. The
    others' bits shift it by a known number, which changes no divergence.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """
    a, b, loss = law.neighbours()
    up = pair_profile(b, -loss, float(law.mass[-1]) + law.lost)
    down = pair_profile(a, loss, float(law.mass[0]) + law.lost)
    return up, down


def correlated_profiles(
    ratio: float, flood_shape: float, flood_ratio: float, *, shape: float = 1.0
) -> tuple[Profile, Profile]:
    """The view U = x + Z1 + Z3, V = Z2 + Z3 of correlated noise: bits (1, 0), and bits (0, 1).

    Args:
        ratio: w in (0, 1), of Z1, Z2 ~ NB(shape, w).
        flood_shape: > 0, of Z3 ~ NB(flood_shape, flood_ratio); all are independent.
        flood_ratio: in (0, 1).
        shape: in (0, 1]; below 1 for what absent users leave.

    The other users' bits shift U by a known number. Let d = U - V, m = min(Z1, Z2).
    shape = 1: under x = 0, d is discrete Laplace and independent of m, Pr[m = j] ~ w^(2 j). Let t =
    V - max(0, -d). Where d >= 1, both bits give (d, t) the same distribution but for its mass,
    1/(1 + w) under x = 1 and w/(1 + w) under x = 0. Where d <= 0, x = 0 has mass 1/(1 + w) and t ~
    Z3 + m, x = 1 has mass w/(1 + w) and t - 1 ~ Z3 + m. shape < 1, when absent users leave part of
    the noise: the adversary is given m too. Where d >= 1, both bits have the same Z2 = m and Z3,
    while Z1 is one less under x = 1. Where d <= 0, both have the same Z1 = m; under x = 1, Z2 is
    one more and Z3 one less. With z the larger of Z1, Z2 under x = 0 the losses of (0, 1) are ln
    Pr[Z = z]/Pr[Z = z - 1] on Z1 > Z2, and ln Pr[Z = z]/Pr[Z = z + 1] with the flood's own on Z1 <=
    Z2. Raises NotFollowed.

    Guarantees: exact at shape = 1, for any bits of the other users; an upper bound at shape < 1.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorem 1, and Ghazi et al. (2021), Lemma 9, here
    without slack.
    """
    flood = negative_binomial_law(flood_shape, flood_ratio)
    if shape == 1:
        # The smaller of Z1 and Z2, geometric of ratio^2, hides what the flood hides.
        flood = plus_geometric(flood, ratio**2)
    up, down = one_type_profiles(flood)
    return _sides(ratio, shape, up, down)


def unlimited_flood_profiles(ratio: float, *, shape: float = 1.0) -> tuple[Profile, Profile]:
    """The limit of ``correlated_profiles`` as the flood grows.

    It masks V, and what is left is the sign of d - 1/2: at shape = 1 binary randomized response at
    -ln ratio, whichever the bits. Raises NotFollowed.

    Guarantees: no flood makes both curves smaller.
    """
    return _sides(ratio, shape, _equal_distributions, _equal_distributions)


def _sides(w: float, shape: float, up: Profile, down: Profile) -> tuple[Profile, Profile]:
    """The pairs of ``correlated_profiles`` from the flood's own pair in both directions."""
    # The bound holds for no larger shape.
    if checks.positive("shape", shape) > 1:
        raise ValueError(
            f"shape must be at most 1, not {shape!r}; more noise than NB(1, ratio) hides no less"
        )
    if shape == 1:
        small = np.array([w / (1 + w)])
        large = np.array([1 / (1 + w)])
        loss = np.array([-math.log(w)])
        return (
            _two_sides(large, loss, small, -loss, up, 0.0),
            _two_sides(small, -loss, large, loss, down, 0.0),
        )
    law = negative_binomial_law(shape, w)  # its mode is 0, so it starts at 0
    at_most = np.cumsum(law.mass)[:-1]  # Pr[Z <= z]
    stays = law.mass[:-1] * at_most
    rises = law.mass[1:] * at_most
    lost = 2 * (law.lost + float(law.mass[-1]))
    return (
        _two_sides(stays, -law.step, *_in_blocks(rises, law.step), up, lost),
        _two_sides(rises, law.step, *_in_blocks(stays, -law.step), down, lost),
    )


def _in_blocks(masses: Array, losses: Array) -> tuple[Array, Array]:
    """P's masses and losses, merged: small blocks first, where a negative binomial's vary most."""
    starts = np.unique(np.geomspace(1, len(masses), _BLOCKS_OF_A_SIDE).astype(int)) - 1
    mass, ratio = merged((masses * np.exp(-losses))[None], np.exp(losses)[None], starts)
    return (mass * ratio)[0], np.log(ratio[0])


def _two_sides(
    known: Array, losses: Array, hidden: Array, shifts: Array, flood: Profile, lost: float
) -> Profile:
    """The curve of outcomes that show their side, and of those whose flood hides more.

    Args:
        known: masses of P that have ``losses``.
        losses: as many.
        hidden: masses of P whose loss is that of the flood's pair and ``shifts``.
        shifts: as many.
        flood: the curve of the flood's pair.
        lost: mass of P that is not followed.
    """
    open_side = pair_profile(known, losses, lost)

    def profile(epsilons: Array) -> Array:
        epsilons = np.asarray(epsilons, dtype=np.float64)
        terms = zip(hidden, shifts, strict=True)
        closed = sum(mass * flood(epsilons - shift) for mass, shift in terms)
        return np.minimum(open_side(epsilons) + (1 + _ROUNDING) * closed, 1.0)

    return profile


def _equal_distributions(epsilons: Array) -> Array:
    """The curve of two equal distributions: of a flood that hides all."""
    return np.maximum(-np.expm1(np.minimum(epsilons, _LARGEST_EPSILON)), 0.0)
