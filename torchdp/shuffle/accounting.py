"""What a bitsum protocol guarantees when a user takes part in many instances, certified from its dominating pairs."""

import math

from torchdp import checks
from torchdp.privacy import Guarantee, Neighbours, gaussian_guarantee, gaussian_log_delta
from torchdp.privacy.accounting import composed_delta, composed_epsilon
from torchdp.shuffle.bitsum import BitSum
from torchdp.shuffle.pure import PureSum
from torchdp.shuffle.references import CentralGaussianSum
from torchdp.shuffle.response import RandomizedResponseSum

SOURCE = "dominating pair of each instance, composed after Doroshenko et al. (2022), Algorithm 1"


def delta_of(protocol: BitSum, epsilon: float, instances: int, absent: int = 0) -> float:
    """The smallest delta certified at ``epsilon`` >= 0 where a user changes its bits in ``instances`` instances.

    absent: users whose noise does not count. Raises ValueError.

    Guarantees: (epsilon, delta)-DP under replacement of all bits of one user, whatever the other users hold. Exact for
    central Gaussian noise and for one instance of one-type and correlated noise; otherwise an upper bound.
    Source: see ``torchdp.privacy.accounting``; Balle, Wang (2018), Theorem 8, for Gaussian noise.
    """
    epsilon, instances = checks.non_negative("epsilon", epsilon), checks.integer("instances", instances, 1)
    curves = checks.instance("protocol", protocol, BitSum).profiles(absent)
    if isinstance(protocol, CentralGaussianSum) and epsilon > 0:
        return math.exp(gaussian_log_delta(protocol.sigma, epsilon, math.sqrt(instances)))
    if pure_epsilon(protocol, absent) * instances <= epsilon:
        return 0.0
    return composed_delta(curves, instances, epsilon)


def epsilon_of(protocol: BitSum, delta: float, instances: int, absent: int = 0) -> float:
    """The smallest epsilon >= 0 certified at ``delta`` where a user changes its bits in ``instances`` instances.

    math.inf where there is none. delta = 0: basic composition of what is private without delta. Raises ValueError.

    Guarantees: as ``delta_of``.
    """
    instances = checks.integer("instances", instances, 1)
    curves = checks.instance("protocol", protocol, BitSum).profiles(absent)
    basic = pure_epsilon(protocol, absent) * instances
    if checks.non_negative("delta", delta) == 0:
        return basic
    delta = checks.fraction("delta", delta)
    if isinstance(protocol, CentralGaussianSum) and delta_of(protocol, 1e-12, instances, absent) > delta:
        return _gaussian(protocol, delta, instances).epsilon
    return min(basic, composed_epsilon(curves, instances, delta))


def guarantee(protocol: BitSum, delta: float, instances: int, absent: int = 0) -> Guarantee:
    """The guarantee at ``delta`` of a protocol run in ``instances`` instances, n public, one user's bits replaced.

    Raises ValueError where no epsilon holds at this delta, or every epsilon > 0 does.

    Guarantees: as ``delta_of``.
    """
    epsilon = epsilon_of(protocol, delta, instances, absent)
    if math.isinf(epsilon):
        raise ValueError(
            f"no epsilon is certified at delta = {delta:g} for {type(protocol).__name__} in {instances} instances; "
            "state a larger delta or add noise"
        )
    if epsilon == 0:
        raise ValueError(f"delta = {delta:g} is kept at every epsilon > 0; state a smaller delta")
    if isinstance(protocol, CentralGaussianSum):
        return _gaussian(protocol, delta, instances)
    return Guarantee(epsilon, float(delta), protocol.model, Neighbours.REPLACE_ONE, False, SOURCE)


def pure_epsilon(protocol: BitSum, absent: int = 0) -> float:
    """The epsilon of one instance at delta = 0; math.inf for all but PureSum and randomized response.

    Randomized response is ln((1 - flip)/flip)-private before any shuffling. Raises ValueError.

    Guarantees: (epsilon, 0)-DP.
    Source: Warner (1965); ``PureSum``.
    """
    if isinstance(protocol, RandomizedResponseSum):
        return math.log((1 - protocol.flip) / protocol.flip)
    if isinstance(protocol, PureSum):
        return protocol.epsilon + math.log(protocol.users / (protocol.users - absent))
    return math.inf


def _gaussian(protocol: CentralGaussianSum, delta: float, instances: int) -> Guarantee:
    distance = math.sqrt(instances)  # every instance's count moves by at most one
    return gaussian_guarantee(protocol.sigma, delta, distance, protocol.model, Neighbours.REPLACE_ONE)
