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

MOST_FLIPS = 2**31 - 1
LEAST, LARGEST = 1e-9, 700.0  # e^epsilon is a float64 up to here, and next to 1 from there
TOLERANCE = 1e-4  # of the noise, relative
NEAR = 0.02  # of its logarithm: how far a guess may be off
LEAST_ALONE = 1e-25  # delta in one instance: counts are followed to e^-100
LEAST_MOVED = 1e-12  # delta up to which movement is followed: its sums are right to 1e-13
LEAST_CHANGE = 1e-24  # less is counted as this, whose delta without noise is at most 3.2e-10 in 1e5 instances
FAR_BELOW = 4.0  # ratio of flips to change from which movement is tried first: mostly flips ask for more


@dataclass(frozen=True)
class Sensitivity:
    """How far one user can move shuffled sums, whatever it holds: what their guarantee is computed from.

    Args:
        instances: sums that the user takes part in.
        change: the largest sum over them of (q_i - q_i')^2, q_i the probability that the user's bit is one, over all
            pairs of its values. inf: bits are not rounded at random.
        flips: the most bits that can differ, at most all of them.
        largest: of the numbers >= 0 that users round to whole ones, 1 for bits; above it flips are not counted, and
            ``change`` is the largest sum of squared moves of the numbers, at most instances * largest^2.

    Raises ValueError, TypeError.
    """

    instances: int
    change: float = math.inf
    flips: int = MOST_FLIPS
    largest: float = 1.0

    def __post_init__(self) -> None:
        instances = checks.integer("instances", self.instances, 1, MOST_FLIPS)
        change = checks.within("change", self.change, 0.0, math.inf)
        flips = min(checks.integer("flips", self.flips, 1), instances)
        largest = float(checks.positive("largest", self.largest))
        change = min(max(change, LEAST_CHANGE), instances * largest**2)
        for name, value in (("instances", instances), ("change", change), ("flips", flips), ("largest", largest)):
            object.__setattr__(self, name, value)

    @staticmethod
    def of(instances: "int | Sensitivity") -> "Sensitivity":
        """Of a number that of so many bits, any of which may differ."""
        return instances if isinstance(instances, Sensitivity) else Sensitivity(instances)

    @property
    def bits(self) -> bool:
        """Whether users hold bits, whose flips may be counted."""
        return self.largest <= 1

    @property
    def moves(self) -> bool:
        """Whether less noise than that of all flips may be enough."""
        return not self.bits or self.change < self.flips


@dataclass(frozen=True, kw_only=True)
class Target(Sensitivity):
    """What a search is for: (epsilon, delta) of the sums that one user moves so far. Raises ValueError."""

    users: int
    epsilon: float
    delta: float
    absent: int

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, epsilon=checks.positive, delta=checks.below_one)
        if self.epsilon > LARGEST:
            raise ValueError(
                f"epsilon must be at most {LARGEST:g}, not {self.epsilon:g}: no such promise protects anybody"
            )
        if self.epsilon < LEAST:
            raise ValueError(f"epsilon must be at least {LEAST:g}, not {self.epsilon:g}: delta alone says as much")
        if checks.integer("absent", self.absent, 0) >= checks.integer("users", self.users, 1):
            raise ValueError(f"absent must be below the number of users, {self.users}, not {self.absent}")

    @property
    def central(self) -> float:
        """The sigma of a curator's Gaussian noise where every bit may flip: about the RMSE that is needed."""
        return gaussian_sigma(self.epsilon, self.delta, math.sqrt(self.flips))

    @property
    def follows(self) -> bool:
        """Whether the delta of movement is followed as far as this one."""
        return self.delta >= LEAST_MOVED

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


class Accounted(Protocol):
    """The interface that the search needs."""

    @property
    def rmse(self) -> float: ...
    def profiles(self, absent: int = 0) -> tuple[Profile, ...]: ...
    def flipped_delta(self, epsilon: float, instances: int, absent: int = 0) -> float: ...
    def moved_delta(self, epsilon: float, moves: Sensitivity, absent: int = 0) -> float: ...


Law = TypeVar("Law", bound=Accounted)
Family = Callable[[float], Law]  # noise > 0 -> a law, by and large more private with more noise


def least_noise(family: Family[Law], start: float, target: Target, tolerance: float = TOLERANCE / 2) -> Law:
    """That of the smallest noise found whose delta over all flips is at most the target's; start: a guess.

    Guarantees: the certified delta of what is returned is at most the target's: it is computed last, so nothing rests
    on the family being monotone.
    """
    epsilon, flips, absent = target.epsilon, target.flips, target.absent

    def found(noise: float) -> float:
        return _largest_alone(family(noise), target)

    noise = crossing(found, target.delta, start, tolerance)  # either direction alone: nearly enough
    while (certified := family(noise).flipped_delta(epsilon, flips, absent)) > target.delta:
        one, other = (_largest_alone(family(noise * x), target) for x in (1.0, 1.01))
        slope = math.log(max(one / other, 1.01)) / math.log(1.01)  # of log delta against log noise
        noise *= math.exp(max(1.1 * math.log(certified / target.delta) / slope, TOLERANCE))
    return family(noise)


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
        if not (target.moves and target.follows):
            return flipping
    else:
        flipping = None
    present = target.users - target.absent
    start = gaussian_sigma(epsilon, delta, math.sqrt(target.change)) * math.sqrt(target.users / present)

    @functools.cache
    def moved(noise: float) -> float:
        return family(noise).moved_delta(epsilon, target, target.absent)

    if flipping is not None and moved(flipping.rmse) > delta:  # movement asks for more noise than flips do
        return flipping

    try:
        noise = crossing(moved, delta, 1.08 * start)
    except ValueError:  # so much noise is not followed; flips may ask for less
        if not bits:
            raise
        return flipping or least_noise(family, target.central, target)
    law = family(noise)
    if bits and flipping is None:
        try:
            if law.flipped_delta(target.epsilon, target.flips, target.absent) > target.delta:
                return law
            flipping = least_noise(family, law.rmse, target)
        except ValueError:  # so much noise is not followed
            return law
    return min(law, flipping or law, key=lambda each: each.rmse)


def _largest_alone(law: Accounted, target: Target) -> float:
    """The larger delta of all instances changing in one direction: what is certified bounds it, but for mixtures."""
    curves = law.profiles(target.absent)
    return max(1e-300, *(composed_delta([curve], target.flips, target.epsilon) for curve in curves))


def largest_epsilon(profiles: Callable[[float], Sequence[Profile]], target: Target) -> float:
    """The largest e whose ``profiles(e)`` compose to the target's delta, to TOLERANCE / 2."""
    found = lambda inverse: composed_delta(profiles(1 / inverse), target.flips, target.epsilon)  # noqa: E731
    return 1 / crossing(found, target.delta, target.flips / target.epsilon)


def crossing(
    found: Callable[[float], float], delta: float, guess: float, tolerance: float = TOLERANCE / 2
) -> float:
    """The least noise near a guess, to ``tolerance`` of itself, with found(noise) <= delta."""
    near = math.exp(NEAR)
    return least(found, delta, guess / near, guess * near, tolerance, longest=1.0)
