"""Published constants, as printed: how far they are from exact ones."""

import math

from torchdp import checks
from torchdp.regression.central import ModSulq


def mod_sulq(clients: int, columns: int, bound: float, epsilon: float, delta: float) -> ModSulq:
    """MOD-SULQ with its published noise: n B^2 beta,

    beta = (d + 1)/(n epsilon) sqrt(2 ln((d^2 + d)/(2 sqrt(2 pi) delta))) + 1/(n sqrt epsilon).
    Its guarantee says how much less than epsilon it spends. Raises ValueError.

    Source: Chaudhuri, Sarwate, Sinha (2013), Algorithm 1 and Theorem 1.
    """
    n, d = checks.integer("clients", clients, 1), checks.integer("columns", columns, 1)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    logarithm = math.log(max(1.0, (d * d + d) / (2 * math.sqrt(2 * math.pi) * delta)))
    beta = (d + 1) / (n * epsilon) * math.sqrt(2 * logarithm) + 1 / (n * math.sqrt(epsilon))
    return ModSulq(d, bound, n * checks.squarable("bound", bound) ** 2 * beta, delta)


def moment_variance(bound: float, order: float, epsilon: float, delta: float) -> float:
    """Variance of F_k's Gaussian noise as printed: 2 D^k ln(1.25/delta)/epsilon^2. Raises ValueError.

    What is wrong: the sensitivity is D^k, so that D^(2k) is needed; with D > 1 it is not (epsilon, delta)-DP, with D
    < 1 it wastes noise. The printed Laplace scale, 2 D^k/epsilon, is twice what is needed.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4.1.
    """
    power = checks.positive("bound", bound) ** checks.positive("order", order)
    return 2 * power * math.log(1.25 / checks.fraction("delta", delta)) / checks.positive("epsilon", epsilon) ** 2
