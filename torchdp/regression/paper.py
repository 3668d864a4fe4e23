"""Published constants, as printed: how far they are from exact ones."""

import math

from torchdp import checks


def moment_variance(bound: float, order: float, epsilon: float, delta: float) -> float:
    """Variance of F_k's Gaussian noise as printed: 2 D^k ln(1.25/delta)/epsilon^2. Raises ValueError.

    What is wrong: the sensitivity is D^k, so that D^(2k) is needed; with D > 1 it is not (epsilon, delta)-DP, with D
    < 1 it wastes noise. The printed Laplace scale, 2 D^k/epsilon, is twice what is needed.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4.1.
    """
    power = checks.positive("bound", bound) ** checks.positive("order", order)
    return 2 * power * math.log(1.25 / checks.fraction("delta", delta)) / checks.positive("epsilon", epsilon) ** 2
