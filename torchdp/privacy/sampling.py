"""Gaussian noise on sums over sampled users: privacy loss distributions of dp_accounting."""

import math
from functools import partial
from typing import Any

import torch

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.privacy.accounting import rounding
from torchdp.privacy.gaussian import gaussian_epsilon, gaussian_sigma
from torchdp.privacy.guarantee import Guarantee, Model, Neighbours
from torchdp.root import TINY, least

STEP = 1e-3  # of the grid of privacy losses, at most
FINE = 0.25  # likewise, in chance / multiplier
# A large multiplier has small losses, which the grid's width adds to: finer by its square, but by no
# more than this, at which noise at epsilon = .1 is within 1e-3 of that of a fine grid.
FINER = 2.5
MOST = 1e5  # steps of one sum's loss
LEAST = 5.0  # powers of e below what one sum over all needs, where the search for less noise ends
TOLERANCE = 1e-4  # relative: noise is at most so much more than what the target needs
# A multiplier above and a delta below which losses are near enough to normal for a guess.
COMMON = 0.3
RARE = 0.1
COARSER = 8.0  # elsewhere the grid is large, and the search begins on one that costs so much less
ABOUT = 0.05  # relative: how far from such a guess the search goes first,
NEAR = 1e-3  # and how far from the coarser grid's root
SMALL = 1e-3  # a multiplier below which nothing is promised,
LOST = 1e4  # and a mean privacy loss of all sums above which nothing is
LEAST_CHANCE = 1e-9  # that loss distributions follow
MOST_TIMES = 2**24  # likewise
SOURCE = (
    "privacy loss distribution of the Poisson-subsampled Gaussian, "
    "Doroshenko et al. (2022); dp_accounting"
)


def sampled_guarantee(multiplier: float, chance: float, times: int, delta: float) -> Guarantee:
    """What ``times`` sums promise, each over users who are in it with chance ``chance``.

    Users are sampled independently of all else, and who is in a sum is secret. A sum may depend on
    those before. ``accounting.rounding(times)``, 1e-12 and more, of delta pays for the rounding of
    the Fourier transforms, which have no digits for less: for a smaller delta the guarantee is that
    of sums over all users, as if chance were 1.

    Args:
        multiplier: standard deviation of each sum's noise, in bounds of one user's part.
        chance: in [1e-9, 1].
        times: up to 2^24.
        delta: in (0, 1).

    Raises ValueError, ImportError.

    Guarantees: (epsilon, delta)-DP for adding or removing one user; an upper bound, by the width of
    the grid.
    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), connecting dots; Koskela, Jaelkoe,
    Honkela (2020).
    """
    epsilon = _epsilon(*_checked(chance, times, delta), checks.positive("multiplier", multiplier))
    if epsilon == math.inf:
        raise ValueError(f"multiplier is too small: no epsilon is found at delta = {delta:g}")
    return Guarantee(epsilon, delta, Model.CENTRAL, Neighbours.ADD_REMOVE, False, SOURCE)


@entrywise(
    epsilon=checks.positive,
    delta=checks.fraction,
    chance=partial(checks.within, low=LEAST_CHANCE, high=1.0),
    times=partial(checks.within, low=1, high=MOST_TIMES),
)
def sampled_multiplier(
    epsilon: Numbers, delta: Numbers, chance: Numbers, times: Numbers
) -> Numbers:
    """The least ``multiplier`` for which :func:`sampled_guarantee` is at most ``epsilon``.

    Found within 1e-4 of itself. Numbers, or batches that broadcast; each is found by itself, on the
    host. Raises TypeError, ValueError, ImportError.

    Guarantees: ``sampled_guarantee(multiplier, chance, times, delta).epsilon`` <= epsilon.
    Source: as there; the epsilon falls with the multiplier.
    """
    rows = torch.stack([epsilon, delta, chance, times], 1).tolist()
    return torch.tensor([_multiplier(*row) for row in rows], dtype=torch.float64).to(epsilon)


def _multiplier(epsilon: float, delta: float, chance: float, times: float) -> float:
    whole: Any = int(times) if times == int(times) else times  # a fraction is refused below
    chance, number, delta = _checked(chance, whole, delta)
    # where all are in each sum
    every = gaussian_sigma(epsilon, delta, math.sqrt(number)) * (1 + 1e-9)
    if chance == 1:
        return every
    # delta may allow that a user in any sum is seen
    floor = every / math.sqrt(number) * math.exp(-LEAST)
    found = partial(_epsilon, chance, number, delta)
    # if losses were normal: Bu et al. (2020)
    guess = math.log1p(max((every * chance) ** -2, TINY)) ** -0.5
    width = ABOUT
    if guess < COMMON or delta > RARE:
        coarse = partial(found, coarser=COARSER)
        guess = least(coarse, epsilon, every * math.exp(-0.5), every, TOLERANCE, floor=floor)
        width = NEAR
    # Sums over all users need the most noise, so no bracket goes beyond.
    high = min(guess * math.exp(width), every)
    low = min(guess * math.exp(-width), high * math.exp(-NEAR))
    return least(found, epsilon, low, high, TOLERANCE / 40, floor=floor)


def _checked(chance: float, times: int, delta: float) -> tuple[float, int, float]:
    chance = checks.within("chance", chance, LEAST_CHANCE, 1.0)
    times = checks.integer("times", times, 1, MOST_TIMES)
    return chance, times, checks.fraction("delta", delta)


def _epsilon(
    chance: float, times: int, delta: float, multiplier: float, coarser: float = 1.0
) -> float:
    """The epsilon of ``times`` sums, at most that of sums over all; math.inf for none.

    Each sum is a mixture of those over fewer and more users.
    """
    every = gaussian_epsilon(math.sqrt(times) / multiplier, delta)
    # Losses so large are not followed: no grid that can be composed reaches them.
    hopeless = every == math.inf and (
        multiplier < SMALL or times * _loss(chance, multiplier) > LOST
    )
    if chance == 1 or every == 0.0 or hopeless:
        return every
    with checks.needing("amplification by sampling", "dp-accounting"):
        from dp_accounting.pld import privacy_loss_distribution as pld
    left = delta - (rounding(times) if times > 1 else 0.0)
    if left <= 0:
        return every
    one = pld.from_gaussian_mechanism(
        multiplier,
        sampling_prob=chance,
        value_discretization_interval=coarser * _step(chance, multiplier),
    )
    return min(every, float(one.self_compose(times).get_epsilon_for_delta(left)))


def _loss(chance: float, multiplier: float) -> float:
    """At least the mean privacy loss of one sum: by convexity, and by the chi^2 divergence."""
    square = multiplier**-2
    mixed = chance * square / 2
    if square > 700:
        return mixed
    return min(mixed, math.log1p(chance**2 * math.expm1(square)))


def _step(chance: float, multiplier: float) -> float:
    """The width of the grid: a part of one sum's loss, at most MOST steps up to ten deviations."""
    largest = (20 * multiplier + 1) / (2 * multiplier**2)
    # The logarithm is below ``largest``, which stands for it where e^largest overflows.
    top = math.log1p(chance * math.expm1(largest)) if largest < 700 else largest
    finer = min(max(multiplier * multiplier, 1.0), FINER)
    return max(min(STEP, FINE * chance / (multiplier * finer)), top / MOST)
