"""Gaussian noise on sums over users that were sampled: privacy loss distributions of the package
dp_accounting.
"""

import math
from functools import partial

import torch

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.privacy.accounting import rounding
from torchdp.privacy.gaussian import gaussian_epsilon, gaussian_sigma
from torchdp.privacy.guarantee import Guarantee, Model, Neighbours
from torchdp.root import TINY, least

# of the privacy loss: at most; in chance / multiplier; steps of one sum's loss
STEP, FINE, MOST = 1e-3, 0.25, 1e5
LEAST = 5.0  # powers of e below what one sum over all needs, where the search for less noise ends
TOLERANCE = 1e-4  # relative: noise is at most so much more than what the target needs
# a multiplier above and a delta below which losses are near enough to normal for a guess
COMMON, RARE = 0.3, 0.1
COARSER = 8.0  # elsewhere the grid is large, and the search begins on one that costs so much less
# relative: how far from such a guess, and from the coarser grid's root, it goes first
ABOUT, NEAR = 0.05, 1e-3
# multiplier, and mean privacy loss of all sums, beyond which nothing is promised
SMALL, LOST = 1e-3, 1e4
LEAST_CHANCE, MOST_TIMES = 1e-9, 2**24  # what loss distributions follow
SOURCE = "privacy loss distribution of the Poisson-subsampled Gaussian, Doroshenko et al. (2022); dp_accounting"


def sampled_guarantee(multiplier: float, chance: float, times: int, delta: float) -> Guarantee:
    """What ``times`` sums promise, each over users who are in it with chance ``chance``,
    independently of all else.

    ``accounting.rounding(times)``, 1e-12 and more, of delta pays for the rounding of the Fourier
    transforms, which have no digits for less: for a smaller delta the guarantee is that of sums
    over all users, as if chance were 1.

    multiplier: standard deviation of each sum's noise, in bounds of one user's part. chance: in
    [1e-9, 1]; times: up to 2^24. Who is in a sum is secret. A sum may depend on those before.
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
    """The least ``multiplier``, within 1e-4 of itself, for which :func:`sampled_guarantee` is at
    most ``epsilon``.

    Numbers, or batches that broadcast; each is found by itself, on the host. Raises TypeError,
    ValueError, ImportError.

    Guarantees: ``sampled_guarantee(multiplier, chance, times, delta).epsilon`` <= epsilon.
    Source: as there; the epsilon falls with the multiplier.
    """
    rows = zip(*(each.tolist() for each in (epsilon, delta, chance, times)), strict=True)
    return torch.tensor([_multiplier(*row) for row in rows], dtype=torch.float64).to(epsilon)


def _multiplier(epsilon: float, delta: float, chance: float, times: float) -> float:
    chance, times, delta = _checked(chance, int(times) if times == int(times) else times, delta)  # type: ignore[arg-type]
    # where all are in each sum
    every = gaussian_sigma(epsilon, delta, math.sqrt(times)) * (1 + 1e-9)
    if chance == 1:
        return every
    # delta may allow that a user in any sum is seen
    floor = every / math.sqrt(times) * math.exp(-LEAST)
    found = partial(_epsilon, chance, times, delta)
    # if losses were normal: Bu et al. (2020)
    guess = math.log1p(max((every * chance) ** -2, TINY)) ** -0.5
    width = ABOUT
    if guess < COMMON or delta > RARE:
        coarse = partial(found, coarser=COARSER)
        guess = least(coarse, epsilon, every * math.exp(-0.5), every, TOLERANCE, floor=floor)
        width = NEAR
    low = guess * math.exp(-width)
    high = min(guess * math.exp(width), every)
    return least(
        found, epsilon, min(low, high * math.exp(-NEAR)), high, TOLERANCE / 40, floor=floor
    )


def _checked(chance: float, times: int, delta: float) -> tuple[float, int, float]:
    chance = checks.within("chance", chance, LEAST_CHANCE, 1.0)
    return chance, checks.integer("times", times, 1, MOST_TIMES), checks.fraction("delta", delta)


def _epsilon(
    chance: float, times: int, delta: float, multiplier: float, coarser: float = 1.0
) -> float:
    """The epsilon of ``times`` sums; at most that of sums over all, whose mixture each is; math.inf
    for none.
    """
    every = gaussian_epsilon(math.sqrt(times) / multiplier, delta)
    hopeless = every == math.inf and (
        multiplier < SMALL or times * _loss(chance, multiplier) > LOST
    )
    if chance == 1 or every == 0.0 or hopeless:
        return every
    with checks.needing("amplification by sampling", "dp-accounting"):
        from dp_accounting.pld import privacy_loss_distribution as pld
    step = coarser * _step(chance, multiplier)
    one = pld.from_gaussian_mechanism(
        multiplier, sampling_prob=chance, value_discretization_interval=step
    )
    left = delta - (rounding(times) if times > 1 else 0.0)
    return min(
        every, float(one.self_compose(times).get_epsilon_for_delta(left)) if left > 0 else math.inf
    )


def _loss(chance: float, multiplier: float) -> float:
    """At least the mean privacy loss of one sum, of who is in it: by convexity, and by the
    chi-squared divergence.
    """
    square = multiplier**-2
    mixed = chance * square / 2
    return mixed if square > 700 else min(mixed, math.log1p(chance**2 * math.expm1(square)))


def _step(chance: float, multiplier: float) -> float:
    """The width of the grid: a small part of one sum's loss, and no more than MOST steps up to ten
    deviations.
    """
    largest = (20 * multiplier + 1) / (2 * multiplier**2)
    top = math.log1p(chance * math.expm1(largest)) if largest < 700 else largest
    return max(min(STEP, FINE * chance / multiplier), top / MOST)
