"""Closed forms of the literature for the parameters of bitsum protocols, to compare with ``BitLaw.calibrated``.

They are kept as published: with ``split`` they add several tens of times the noise that is needed. Nothing else in the
package rests on them.
"""

import math

from torchdp import checks
from torchdp.root import least
from torchdp.shuffle.correlated import CorrelatedSum
from torchdp.shuffle.one_type import PoissonSum
from torchdp.shuffle.response import RandomizedResponseSum

LEAST, LARGEST = 1e-9, 100.0  # epsilons that the formulas' floats follow


def composition(
    epsilon: float, delta: float, instances: int, slack: float, sparsity: int = 1
) -> tuple[float, float]:
    """(epsilon, delta) of ``instances`` repetitions whose bitsums are (epsilon, delta)-DP, ``sparsity`` bits in each.

    With e = epsilon sparsity: e (exp(e) - 1) I + e sqrt(2 I ln(1/slack)), and I sparsity delta + slack.
    epsilon > 0, delta in [0, 1), slack in (0, 1). Raises ValueError.

    Guarantees: an upper bound (advanced composition) where each bitsum is (epsilon, delta)-DP and replacing a user
    changes at most ``sparsity`` of the bits of a repetition.
    Source: Wagner (2025), Theorem 3.1; Dwork, Rothblum, Vadhan (2010), Theorem III.3.
    """
    instances, sparsity = (
        checks.integer("instances", instances, 1),
        checks.integer("sparsity", sparsity, 1),
    )
    each = checks.within(
        "epsilon * sparsity", checks.positive("epsilon", epsilon) * sparsity, 0, LARGEST
    )
    slack = checks.fraction("slack", slack)
    total = each * math.expm1(each) * instances + each * math.sqrt(
        2 * instances * math.log(1 / slack)
    )
    return total, instances * sparsity * checks.non_negative("delta", delta) + slack


def split(epsilon: float, delta: float, instances: int, sparsity: int = 1) -> tuple[float, float]:
    """(epsilon, delta) of one bitsum such that ``composition`` with slack delta/2 gives (epsilon, delta).

    delta/(2 I sparsity), and the largest such epsilon, never above the root. Raises ValueError.

    Guarantees: ``composition`` of the result is at most (epsilon, delta).
    Source: Wagner (2025), Theorem 3.1 and section 5.
    """
    epsilon, delta = (
        checks.within("epsilon", epsilon, LEAST, LARGEST),
        checks.fraction("delta", delta),
    )

    def spent(inverse: float) -> float:
        return composition(1 / inverse, 0.0, instances, delta / 2, sparsity)[0]

    inverse = least(spent, epsilon, 1.6 / epsilon, 2.7 / epsilon, 2.0**-46)
    return 1 / inverse, delta / (2 * instances * sparsity)


def randomized_response(users: int, epsilon: float, delta: float) -> RandomizedResponseSum:
    """Shuffled randomized response of one bitsum: a fair coin with probability lambda/n, hence flip = lambda/(2 n).

    With L = ln(4/delta): lambda = 64 L/epsilon^2 where epsilon >= sqrt(192 L/n), else
    n - epsilon n^(3/2)/sqrt(432 L). Raises ValueError.

    Guarantees: (epsilon, delta)-DP for epsilon <= 1, its published range, and so for the results of ``split`` up to a
    total of 7; fed epsilon = 7 itself it would have delta 4e-5 for 1e-6 at n = 1e5.
    Source: Cheu, Smith, Ullman, Zeber, Zhilyaev (2019), as Wagner (2025) uses it.
    """
    users, epsilon = (
        checks.integer("users", users, 1),
        checks.within("epsilon", epsilon, LEAST, LARGEST),
    )
    log = math.log(4 / checks.fraction("delta", delta))
    if epsilon >= math.sqrt(192 * log / users):
        coins = 64 * log / epsilon**2
    else:
        coins = users - epsilon * users**1.5 / math.sqrt(432 * log)
    return RandomizedResponseSum(users, coins / (2 * users))


def poisson(users: int, epsilon: float, delta: float) -> PoissonSum:
    """Poisson noise of one bitsum, mean 16 ln(10/delta)/(1 - e^-epsilon)^2 + 2/(1 - e^-epsilon). Raises ValueError.

    Guarantees: (epsilon, delta)-DP for the deltas that a test tries, with about twenty times the variance needed.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorem 11.
    """
    drop = -math.expm1(-checks.within("epsilon", epsilon, LEAST, LARGEST))
    return PoissonSum(
        users, 16 * math.log(10 / checks.fraction("delta", delta)) / drop**2 + 2 / drop
    )


def correlated(users: int, epsilon: float, delta: float, gamma: float = 0.01) -> CorrelatedSum:
    """Correlated noise of one bitsum: epsilon_1 = (1 - gamma) epsilon for what stays, the rest for the flood.

    ratio = e^-epsilon_1, epsilon_2 = min(1/2, gamma epsilon), delta_2 = delta/(e^epsilon_1 + 2 e^(2 epsilon_1)),
    the flood hides up to k = ceil(ln(1/delta_2)/epsilon_1) messages: NB(3 (1 + ln(1/delta_2)), e^(-0.2 epsilon_2/k)).
    gamma in (0, 1). Raises ValueError.

    Guarantees: (epsilon, delta)-DP, for epsilon, delta < 1.
    Source: Ghazi, Kumar, Manurangsi, Pagh (2020), Theorems 1, 13 and 18.
    """
    epsilon, gamma = (
        checks.within("epsilon", epsilon, LEAST, LARGEST),
        checks.fraction("gamma", gamma),
    )
    stays, spent = (1 - gamma) * epsilon, min(0.5, gamma * epsilon)
    log = math.log((math.exp(stays) + 2 * math.exp(2 * stays)) / checks.fraction("delta", delta))
    hidden = math.ceil(log / stays)
    return CorrelatedSum(users, math.exp(-stays), 3 * (1 + log), math.exp(-0.2 * spent / hidden))


def correlated_one(users: int, epsilon: float, delta: float, gamma: float = 0.01) -> CorrelatedSum:
    """``correlated`` with a flood that hides one message only: NB(3 (1 + ln(1/delta)), e^(-0.2 gamma epsilon)).

    gamma epsilon is capped at 1. gamma in (0, 1). Raises ValueError.

    Guarantees: (epsilon, delta)-DP, for gamma epsilon, delta < 1.
    Source: Ghazi, Kumar, Manurangsi, Pagh, Sinha (2021), Lemma 9, with Theorem 13 of Ghazi et al. (2020).
    """
    epsilon, gamma = (
        checks.within("epsilon", epsilon, LEAST, LARGEST),
        checks.fraction("gamma", gamma),
    )
    shape = 3 * (1 + math.log(1 / checks.fraction("delta", delta)))
    return CorrelatedSum(
        users, math.exp(-(1 - gamma) * epsilon), shape, math.exp(-0.2 * min(1.0, gamma * epsilon))
    )


def pure(users: int, epsilon: float, rho: float = 0.5) -> tuple[float, float]:
    """Noise ratio and drop probability of the pure protocol of one bitsum, at the level of counts.

    ratio = e^-(epsilon - 0.01 rho min(epsilon, 1)), drop = 0.2 rho/(e^epsilon (1 - e^-epsilon)^2 n), rho in (0, 1/2].
    Raises ValueError, also where the drop probability is not below 1: then the protocol does not exist at this n.
    Source: Ghazi, Kumar, Manurangsi (2023), as in the code of Wagner (2025).
    """
    users, epsilon = (
        checks.integer("users", users, 1),
        checks.within("epsilon", epsilon, LEAST, LARGEST),
    )
    rho = checks.positive("rho", rho)
    if rho > 0.5:
        raise ValueError(f"rho must lie in (0, 1/2], not {rho!r}")
    drop = 0.2 * rho / (math.exp(epsilon) * math.expm1(-epsilon) ** 2 * users)
    if drop >= 1:
        raise ValueError(
            f"epsilon = {epsilon:g} needs more than {users} users: every bit would be dropped"
        )
    return math.exp(-(epsilon - 0.01 * rho * min(epsilon, 1.0))), drop
