"""The guarantee when a user takes part in many instances, certified from dominating pairs.

Two ways, and the better of both counts. Flips: the worst pair of one instance, composed as often as bits may flip.
Movement: a user that holds a vector and rounds coordinate i to a one with probability q_i moves the probabilities by
``change`` = sum_i (q_i - q_i')^2 when the vector is replaced, which may be far less; ``BitLaw.moved_delta`` says what
that costs: ``torchdp.shuffle.inversion`` for one-type noise, exactly for a curator's Gaussian noise.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

from torchdp import checks
from torchdp.privacy import Arithmetic, Guarantee, Model, Neighbours
from torchdp.privacy.gaussian import ROUNDED
from torchdp.root import least
from torchdp.shuffle.laws import BitLaw, MessageLaw
from torchdp.shuffle.search import LARGEST, LEAST, TOLERANCE, Sensitivity

FLIPS = "dominating pair of each instance, composed after Doroshenko et al. (2022), Algorithm 1"
EITHER = "sums of rounded bits: flips composed after Doroshenko et al. (2022), Algorithm 1, or their movement"


def delta_of(law: BitLaw, epsilon: float, instances: int | Sensitivity, absent: int = 0) -> float:
    """The smallest delta certified at ``epsilon`` >= 0 for a user who takes part in ``instances`` instances.

    instances: a number, of bits that may all differ, or a :class:`Sensitivity`; absent: users whose noise does not
    count. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP under replacement of all bits, or of the vector, of one user, whatever the other
    users hold. Exact for central Gaussian noise and for one instance of correlated noise and of one-type noise that
    spreads over up to 8,192 counts; otherwise an upper bound.
    Source: ``torchdp.privacy.accounting``; ``shuffle.inversion``; Balle, Wang (2018), Theorem 8, for Gaussian noise.
    """
    epsilon, moves = checks.non_negative("epsilon", epsilon), Sensitivity.of(instances)
    checks.instance("law", law, BitLaw).present(absent)
    return min(_deltas(law, epsilon, moves, absent))


def epsilon_of(law: BitLaw, delta: float, instances: int | Sensitivity, absent: int = 0) -> float:
    """The smallest epsilon >= 0 certified at ``delta``, arguments as in ``delta_of``; by movement, up to 1 % above it.

    math.inf where there is none. delta = 0: basic composition of what is private without delta. Raises ValueError,
    TypeError.

    Guarantees: as ``delta_of``.
    """
    moves = Sensitivity.of(instances)
    checks.instance("law", law, BitLaw).present(absent)
    if checks.below_one("delta", delta) == 0:
        return law.pure_epsilon(absent) * moves.flips if moves.bits else math.inf
    most = law.flipped_epsilon(delta, moves.flips, absent) if moves.bits else math.inf
    if not moves.moves:
        return most
    top = min(most, LARGEST) if most > LEAST else LEAST
    moved = partial(law.moved_delta, moves=moves, absent=absent)
    found = least(moved, delta, top / math.e, top, TOLERANCE, (True, False), floor=LEAST)
    return most if math.isnan(found) else min(most, found)


def promise(
    law: MessageLaw, delta: float, instances: int | Sensitivity, absent: int = 0, epsilon: float | None = None
) -> Guarantee:
    """The guarantee of shuffled sums with this noise at this delta; arguments as in ``delta_of``.

    epsilon: at which it is stated; None: the smallest that is certified. Raises ValueError where it is not certified,
    or none up to 700 is.

    Guarantees: as ``delta_of``; of the messages as they are sent where they are drawn from whole numbers, for which
    delta keeps 2^-40 of itself. ``change`` is that of the chances that floats have: it must allow for their errors.
    """
    moves = Sensitivity.of(instances)
    exact = checks.instance("law", law, MessageLaw).variation is None
    kept = delta if exact else delta * ROUNDED  # what real numbers may spend
    law.present(absent)
    real = _certified(law if absent or law.own_number else replace(law, users=1), kept, moves, absent, epsilon)
    if law.variation is None:
        return real
    variation = law.variation * moves.instances
    if not delta and not variation:
        return replace(real, arithmetic=Arithmetic.ROUNDED)
    return real.rounded(variation, delta or (1 + math.exp(min(real.epsilon, 700.0))) * variation * (1 + 1e-6))


@lru_cache(maxsize=1024)
def _certified(law: MessageLaw, delta: float, moves: Sensitivity, absent: int, epsilon: float | None) -> Guarantee:
    """Of real numbers."""
    if epsilon is None:
        epsilon = epsilon_of(law, delta, moves, absent)
        if math.isinf(epsilon):
            raise ValueError(
                f"delta = {delta:g} is not reached at any epsilon by {type(law).__name__} in {moves.instances} "
                "instances: no epsilon is certified; add noise, or state a larger delta"
            )
    else:
        epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
        if not any(each <= delta for each in _deltas(law, epsilon, moves, absent)):
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {delta:g}) is not certified for this noise; add noise, or take "
                "calibrated"
            )
    source = EITHER if moves.moves else FLIPS
    return Guarantee(epsilon, float(delta), Model.SHUFFLE, Neighbours.REPLACE_ONE, False, source)


def _deltas(law: BitLaw, epsilon: float, moves: Sensitivity, absent: int) -> Iterator[float]:
    """Unchecked, what costs less first."""
    if moves.moves and epsilon <= LARGEST:  # beyond, flips alone are counted
        yield law.moved_delta(epsilon, moves, absent)
    yield law.flipped_delta(epsilon, moves.flips, absent) if moves.bits else 1.0
