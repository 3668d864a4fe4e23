"""The guarantee when a user takes part in many instances, certified from dominating pairs.

Two ways, and the better of both counts. Flips: the worst pair of one instance, composed as often as bits may flip.
Movement: a user that holds a vector and rounds coordinate i to a one with probability q_i moves the probabilities by
``change`` = sum_i (q_i - q_i')^2 when the vector is replaced, which may be far less; ``BitLaw.moved_delta`` says what
that costs: ``torchdp.shuffle.inversion`` for one-type noise, exactly for a curator's Gaussian noise.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torchdp import checks
from torchdp.privacy import Arithmetic, Guarantee, Model, Neighbours
from torchdp.privacy.gaussian import ROUNDED
from torchdp.root import least
from torchdp.shuffle.laws import BitLaw, MessageLaw
from torchdp.shuffle.search import LARGEST, LEAST, TOLERANCE, movement

Moves = tuple[int, float | None, int | None, float]  # instances, change, flips and largest of ``delta_of``
FLIPS = "dominating pair of each instance, composed after Doroshenko et al. (2022), Algorithm 1"
EITHER = "sums of rounded bits: flips composed after Doroshenko et al. (2022), Algorithm 1, or their movement"


def delta_of(
    law: BitLaw,
    epsilon: float,
    instances: int,
    absent: int = 0,
    *,
    change: float | None = None,
    flips: int | None = None,
    largest: float = 1.0,
) -> float:
    """The smallest delta certified at ``epsilon`` >= 0 for a user who takes part in ``instances`` instances.

    Args:
        absent: users whose noise does not count.
        change: the largest sum over the instances of (q_i - q_i')^2, q_i the probability that a user's bit is one, over
            all pairs of values of that user; in (0, instances]. None: bits are not rounded at random.
        flips: the most bits that can differ; None: all of them.
        largest: of the numbers >= 0 that users round to whole ones, 1 for bits; above it flips are not counted, and
            ``change`` is the largest sum of squared moves of the numbers, at most instances * largest^2.

    Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP under replacement of all bits, or of the vector, of one user, whatever the other
    users hold. Exact for central Gaussian noise and for one instance of correlated noise and of one-type noise that
    spreads over up to 8,192 counts; otherwise an upper bound.
    Source: ``torchdp.privacy.accounting``; ``shuffle.inversion``; Balle, Wang (2018), Theorem 8, for Gaussian noise.
    """
    epsilon, moves = checks.non_negative("epsilon", epsilon), movement(instances, change, flips, largest)
    checks.instance("law", law, BitLaw).present(absent)
    return min(_deltas(law, epsilon, absent, *moves, largest))


def epsilon_of(
    law: BitLaw,
    delta: float,
    instances: int,
    absent: int = 0,
    *,
    change: float | None = None,
    flips: int | None = None,
    largest: float = 1.0,
) -> float:
    """The smallest epsilon >= 0 certified at ``delta``, arguments as in ``delta_of``; by movement, up to 1 % above it.

    math.inf where there is none. delta = 0: basic composition of what is private without delta. Raises ValueError,
    TypeError.

    Guarantees: as ``delta_of``.
    """
    instances, change, flips = movement(instances, change, flips, largest)
    checks.instance("law", law, BitLaw).present(absent)
    if checks.below_one("delta", delta) == 0:
        return law.pure_epsilon(absent) * flips if largest <= 1 else math.inf
    most = law.flipped_epsilon(delta, flips, absent) if largest <= 1 else math.inf
    if change >= flips and largest <= 1:
        return most
    top = min(most, LARGEST) if most > LEAST else LEAST
    moved = partial(law.moved_delta, instances=instances, change=change, absent=absent, largest=largest)
    found = least(moved, delta, top / math.e, top, TOLERANCE, (True, False), floor=LEAST)
    return most if math.isnan(found) else min(most, found)


def promise(
    law: MessageLaw,
    delta: float,
    instances: int,
    absent: int = 0,
    *,
    change: float | None = None,
    flips: int | None = None,
    largest: float = 1.0,
    epsilon: float | None = None,
) -> Guarantee:
    """The guarantee of shuffled sums with this noise at this delta; arguments as in ``delta_of``.

    epsilon: at which it is stated; None: the smallest that is certified. Raises ValueError where it is not certified,
    or none up to 700 is.

    Guarantees: as ``delta_of``; of the messages as they are sent where they are drawn from whole numbers, for which
    delta keeps 2^-40 of itself. ``change`` is that of the chances that floats have: it must allow for their errors.
    """
    real = certified(law, kept(law, delta), absent, epsilon, (instances, change, flips, largest))
    return sent(law, real, instances, delta)


def kept(law: MessageLaw, delta: float) -> float:
    """The share of delta that real numbers may spend."""
    return delta if checks.instance("law", law, MessageLaw).variation is None else delta * ROUNDED


def sent(law: MessageLaw, real: Guarantee, instances: int, delta: float) -> Guarantee:
    """``real``, at ``kept`` of delta, of the messages as they are sent, where whole numbers decide them.

    A delta of 0 becomes what arithmetic costs.
    """
    if law.variation is None:
        return real
    variation = law.variation * instances
    if not delta and not variation:
        return replace(real, arithmetic=Arithmetic.ROUNDED)
    return real.rounded(variation, delta or (1 + math.exp(min(real.epsilon, 700.0))) * variation * (1 + 1e-6))


def certified(law: MessageLaw, delta: float, absent: int, epsilon: float | None, moves: Moves) -> Guarantee:
    """Of real numbers; arguments as in ``promise``."""
    instances, change, flips, largest = moves
    if epsilon is None:
        epsilon = epsilon_of(law, delta, instances, absent, change=change, flips=flips, largest=largest)
        if math.isinf(epsilon):
            raise ValueError(
                f"delta = {delta:g} is not reached at any epsilon by {type(law).__name__} in {instances} instances: "
                "no epsilon is certified; add noise, or state a larger delta"
            )
    else:
        epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
        found = _deltas(law, epsilon, absent, *movement(instances, change, flips, largest), largest)
        if not any(each <= delta for each in found):
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {delta:g}) is not certified for this law; add noise"
            )
    source = FLIPS if change is None else EITHER
    return Guarantee(epsilon, float(delta), Model.SHUFFLE, Neighbours.REPLACE_ONE, False, source)


def _deltas(
    law: BitLaw, epsilon: float, absent: int, instances: int, change: float, flips: int, largest: float
) -> Iterator[float]:
    """Unchecked, what costs less first."""
    if (change < flips or largest > 1) and epsilon <= LARGEST:  # beyond, flips alone are counted
        yield law.moved_delta(epsilon, instances, change, absent, largest)
    yield law.flipped_delta(epsilon, flips, absent) if largest <= 1 else 1.0
