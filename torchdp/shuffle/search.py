"""The least noise whose certified delta is at most the target."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torchdp import checks
from torchdp.privacy import gaussian_sigma
from torchdp.privacy.accounting import Profile, composed_delta, rounding
from torchdp.root import least

LEAST, LARGEST = 1e-9, 700.0  # e^epsilon is a float64 up to here, and next to 1 from there
TOLERANCE = 1e-4  # of the noise, relative
NEAR = 0.02  # of its logarithm: how far a guess may be off
CLOSE, TRIES = 0.03, 6  # of ln delta, where a costly search ends; candidates after which noise only grows
MIXED = 0.01  # of ln delta, by which mixtures of directions are taken to cost more than either alone
LEAST_ALONE = 1e-25  # delta in one instance: counts are followed to e^-100
LEAST_MOVED = 1e-12  # delta up to which movement is followed: its sums are right to 1e-13
LEAST_CHANGE = 1e-24  # less is counted as this, whose delta without noise is at most 3.2e-10 in 1e5 instances
FAR_BELOW = 4.0  # ratio of flips to change from which movement is tried first: mostly flips ask for more


@dataclass(frozen=True)
class Target:
    """The target of a search: (epsilon, delta) over ``instances`` sums; arguments as in ``BitLaw.calibrated``.

    change and flips are both known once it is made. Raises ValueError.
    """

    users: int
    epsilon: float
    delta: float
    instances: int
    absent: int
    change: float
    flips: int
    largest: float = 1.0

    @staticmethod
    def of(
        users: int,
        epsilon: float,
        delta: float,
        instances: int,
        absent: int,
        change: float | None,
        flips: int | None,
        largest: float = 1.0,
    ) -> "Target":
        """All arguments checked. Raises ValueError."""
        users, absent = checks.integer("users", users, 1), checks.integer("absent", absent, 0)
        epsilon, delta = checks.positive("epsilon", epsilon), checks.below_one("delta", delta)
        if epsilon > LARGEST:
            raise ValueError(
                f"epsilon must be at most {LARGEST:g}, not {epsilon:g}: no such promise protects anybody"
            )
        if epsilon < LEAST:
            raise ValueError(f"epsilon must be at least {LEAST:g}, not {epsilon:g}: delta alone says as much")
        if absent >= users:
            raise ValueError(f"absent must be below the number of users, {users}, not {absent}")
        instances, change, flips = movement(instances, change, flips, largest)
        return Target(users, epsilon, delta, instances, absent, change, flips, float(largest))

    @property
    def central(self) -> float:
        """The sigma of a curator's Gaussian noise where every bit may flip: about the RMSE that is needed."""
        return gaussian_sigma(self.epsilon, self.delta, math.sqrt(self.flips))

    @property
    def follows(self) -> bool:
        """Whether the delta of movement is followed as far as this one."""
        return self.delta >= LEAST_MOVED

    @property
    def moving(self) -> tuple[float, int, float, int, float]:
        """The arguments of ``moved_delta``."""
        return self.epsilon, self.instances, self.change, self.absent, self.largest

    @property
    def bits(self) -> bool:
        """Whether users hold bits, whose flips may be counted."""
        return self.largest <= 1

    def positive_delta(self, law: type) -> "Target":
        """Itself. Raises ValueError where delta is 0."""
        if self.delta == 0:
            raise ValueError(
                f"delta = 0 needs pure differential privacy, which {law.__name__} does not give at any noise; "
                "take PureSum, or state a delta > 0"
            )
        return self

    def composed(self, law: type) -> "Target":
        """Itself. Raises ValueError where delta is 0, or below what composition follows."""
        least = 10 * rounding(self.flips) if self.flips > 1 else LEAST_ALONE
        if self.positive_delta(law).delta < least:
            raise ValueError(
                f"delta must be at least {least:.2g} for flips = {self.flips}, where rounding ends, not {self.delta:g}"
            )
        return self


def movement(
    instances: int, change: float | None, flips: int | None, largest: float = 1.0
) -> tuple[int, float, int]:
    """Instances, change and flips, all of them where nothing is said; change no less than LEAST_CHANGE. ValueError."""
    instances = checks.integer("instances", instances, 1)
    most = instances * checks.positive("largest", largest) ** 2
    change = most if change is None else max(checks.positive("change", change), LEAST_CHANGE)
    if change > most * (1 + 1e-12):
        raise ValueError(f"change must be at most instances * largest^2 = {most:g}, not {change}")
    return instances, change, instances if flips is None else checks.integer("flips", flips, 1, instances)


class Accounted(Protocol):
    """The interface that the search needs."""

    @property
    def rmse(self) -> float: ...
    def profiles(self, absent: int = 0) -> tuple[Profile, ...]: ...
    def flipped_delta(self, epsilon: float, instances: int, absent: int = 0) -> float: ...
    def moved_delta(
        self, epsilon: float, instances: int, change: float, absent: int = 0, largest: float = 1.0
    ) -> float: ...


Law = TypeVar("Law", bound=Accounted)
Family = Callable[[float], Law]  # noise > 0 -> a law, by and large more private with more noise


def least_noise(family: Family[Law], start: float, target: Target) -> Law:
    """That of the smallest noise found whose delta over all flips is at most the target's; start: a guess.

    Guarantees: the certified delta of what is returned is at most the target's: it is computed last, so nothing rests
    on the family being monotone.
    """
    epsilon, flips, absent = target.epsilon, target.flips, target.absent
    noise = alone(family, start, target)
    while (certified := family(noise).flipped_delta(epsilon, flips, absent)) > target.delta:
        one, other = (_largest_alone(family(noise * x), target) for x in (1.0, 1.01))
        slope = math.log(max(one / other, 1.01)) / math.log(1.01)  # of log delta against log noise
        noise *= math.exp(max(1.1 * math.log(certified / target.delta) / slope, TOLERANCE))
    return family(noise)


def settled(family: Family[Law], noise: float, target: Target, slope: float) -> Law:
    """From a good guess, one whose delta over all flips is at most the target's, and within 3 % where that is found.

    slope: how ln delta falls with ln noise, about; secants mend it. Either direction alone leads there: mixtures cost
    much.

    Guarantees: as ``least_noise``.
    """
    place, tried, over, before = math.log(noise), 0, MIXED, None
    while True:
        law, tried = family(math.exp(place)), tried + 1
        gap = math.log(_largest_alone(law, target) / target.delta) + over
        if -CLOSE <= gap <= 0 or tried >= TRIES:
            certified = law.flipped_delta(target.epsilon, target.flips, target.absent)
            if certified <= target.delta:
                return law
            over += math.log(certified / target.delta) - gap
            gap = math.log(certified / target.delta)
        if before is not None and before[0] != place:
            slope = min(max((before[1] - gap) / (place - before[0]), slope / 3), 3 * slope)
        step = (gap + CLOSE / 2) / slope
        before, place = (place, gap), place + min(max(step, -0.2 if tried < TRIES else 0.1), 0.2)


def least_noise_or_less(family: Family[Law], target: Target) -> Law:
    """``least_noise`` where noise is the RMSE of one sum; or less, where a user moves by less than its flips.

    Guarantees: the certified delta of what is returned is at most the target's: it is computed last.
    """
    epsilon, delta, bits = target.epsilon, target.delta, target.bits
    if not (bits or target.follows):
        raise ValueError(
            f"delta must be at least {LEAST_MOVED:g} where largest > 1: movement is followed so far, not to {delta:g}"
        )
    if bits and (target.change > target.flips / FAR_BELOW or not target.follows):
        flipping = least_noise(family, target.central, target)
        if target.change >= target.flips or not target.follows:
            return flipping
    else:
        flipping = None
    present = target.users - target.absent
    start = gaussian_sigma(epsilon, delta, math.sqrt(target.change)) * math.sqrt(target.users / present)

    @functools.cache
    def moved(noise: float) -> float:
        return family(noise).moved_delta(*target.moving)

    if flipping is not None and moved(flipping.rmse) > delta:  # movement asks for more noise than flips do
        return flipping

    try:
        noise = crossing(moved, delta, 1.08 * start)
    except ValueError:  # so much noise is not followed; flips may ask for less
        if not bits:
            raise
        return flipping or least_noise(family, target.central, target)
    law = family(noise)
    return law if not bits else less_by_flips(law, flipping, family, target)


def less_by_flips(law: Law, flipping: Law | None, family: Family[Law], target: Target) -> Law:
    """``law``, or that which flips ask for where its noise is less; flipping: that one, None: not known."""
    if flipping is None:
        try:
            if law.flipped_delta(target.epsilon, target.flips, target.absent) > target.delta:
                return law
            flipping = least_noise(family, law.rmse, target)
        except ValueError:  # so much noise is not followed
            return law
    return min(law, flipping, key=lambda each: each.rmse)


def alone(family: Family[Law], start: float, target: Target) -> float:
    """The least noise at which either direction alone has this delta: nearly tight, a lower bound of the noise."""
    return crossing(lambda noise: _largest_alone(family(noise), target), target.delta, start)


def _largest_alone(law: Accounted, target: Target) -> float:
    """The larger delta of all instances changing in one direction: what is certified bounds it, but for mixtures."""
    curves = law.profiles(target.absent)
    return max(1e-300, *(composed_delta([curve], target.flips, target.epsilon) for curve in curves))


def largest_epsilon(profiles: Callable[[float], Sequence[Profile]], target: Target) -> float:
    """The largest e whose ``profiles(e)`` compose to the target's delta, to TOLERANCE / 2."""

    def found(inverse: float) -> float:
        return composed_delta(profiles(1 / inverse), target.flips, target.epsilon)

    return 1 / crossing(found, target.delta, target.flips / target.epsilon)


def crossing(found: Callable[[float], float], delta: float, guess: float) -> float:
    """The least noise near a guess, to TOLERANCE / 2 of itself, with found(noise) <= delta."""
    near = math.exp(NEAR)
    return least(found, delta, guess / near, guess * near, TOLERANCE / 2, longest=1.0)
