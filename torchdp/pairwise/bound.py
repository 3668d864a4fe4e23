"""A lower bound on the error of a pairwise statistic, for any protocol."""

import math

from torch import Tensor

from torchdp import checks
from torchdp.pairwise.statistic import Pairs, PairwiseStatistic, one_kernel
from torchdp.randomizers import strategy_lower_bound

LEAST, MOST = 1e-6, 700.0  # a bound for the one holds for less; beyond the other it is put at 0


def lower_bound(statistic: PairwiseStatistic, n: int, epsilon: float, histogram: Tensor) -> float:
    """No unbiased one-round epsilon-LDP protocol has a smaller root mean squared error over n users of ``histogram``.

    On average over users drawn from it. What is expected of the others makes an unbiased estimate of the mean an
    unbiased answer from one user's report to the linear query 2/n f_1, f_1(x) = E f(x, Y) (of all pairs, 2/n ((n - 1)/n
    f_1(x) + f(x, x)/(2 n))), and the variances of n users add up to less than that of the whole. A ratio f/g counts as
    f - ratio g over mean g: to first order in 1/n. 0 where f_1 is constant: the first order then says nothing.
    histogram: (k,), non-negative. Raises TypeError, ValueError, also for a denominator of 0.

    Guarantees: at most the least error of a mean.
    Source: Hoeffding (1948), section 5; see ``strategy_lower_bound``.
    """
    n = checks.integer("n", n, 2)
    epsilon = max(checks.positive("epsilon", epsilon), LEAST)
    asked = one_kernel(statistic).approximates or statistic
    h = checks.shares("histogram", histogram, asked.types).to(asked.points)
    kernel = asked.kernel(asked.form)
    if asked.denominator is not None:
        ratio = asked.exact(h * n) - asked.offset
        below = asked.kernel(asked.denominator)
        kernel = (kernel - ratio * below) / asked.mean(h * n, asked.denominator)
    query = kernel @ h
    if asked.pairs is Pairs.ALL:
        query = (n - 1) / n * query + kernel.diagonal() / (2 * n)
    if epsilon > MOST or float(query.max() - query.min()) <= 1e-12 * float(kernel.abs().max()):
        return 0.0
    return math.sqrt(4 * strategy_lower_bound(query[None], epsilon, h, program=False) / n)
