"""Ratios of two means over pairs: normalised Gini, Goodman and Kruskal's gamma, the concordance index."""

import math

import torch
from torch import Tensor

from torchdp import checks, workloads
from torchdp.pairwise.standard import absolute_difference, from_kernel
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic, one_kernel
from torchdp.workloads import Workload

WEIGHT = 0.1  # of the denominator's squared norm, to that of the numerator


def ratio(
    above: PairwiseStatistic,
    below: PairwiseStatistic,
    *,
    offset: float = 0.0,
    limits: tuple[float, float] | None = None,
    weight: float = WEIGHT,
    name: str = "ratio",
) -> PairwiseStatistic:
    """offset + mean f / mean g for two means over distinct pairs, f that of ``above``, g that of ``below``.

    A user's vector is both users' vectors one after the other, g's scaled to ``weight`` times the squared norm of f's:
    one message carries both, and no budget is split. above, below: means of the same types, neither constant.
    limits: what the ratio can be. Raises TypeError, ValueError.
    """
    for key, each in (("above", above), ("below", below)):
        if (
            one_kernel(checks.instance(key, each, PairwiseStatistic)).denominator is not None
            or each.pairs is not Pairs.DISTINCT
        ):
            raise ValueError(f"{key} must be a mean over distinct pairs, not a ratio or over other pairs")
        if each.radius == 0:
            raise ValueError(f"{key} must not be constant")
    if above.types != below.types:
        raise ValueError(f"above and below must have the same types, not {above.types} and {below.types}")
    scale = math.sqrt(checks.positive("weight", weight)) * above.radius / below.radius
    empty = above.form.weights.new_zeros(below.dim)
    numerator = Form(torch.cat([above.form.weights, empty]), above.form.constant)
    weights = torch.cat([above.form.weights.new_zeros(above.dim), below.form.weights / scale**2])
    return PairwiseStatistic(
        name,
        torch.cat([above.points, scale * below.points], 1),
        numerator,
        Form(weights, below.form.constant),
        offset=offset,
        limits=limits,
    )


def gini(k: int, *, low: float = 0.0, high: float = 1.0) -> PairwiseStatistic:
    """The Gini coefficient of k numbers evenly from low to high: mean abs(x - y) over twice the mean.

    Over distinct pairs: n/(n - 1) times the area between the Lorenz curve and the diagonal. The denominator is the mean
    of x + y over pairs, which is affine in each: z w with z = (x - c)/s + s and (x - c)/s - s, weights 1/2 and -1/2,
    differ by x + y - 2 c. low, high: 0 <= low < high, the numbers of types 0 and k - 1. Raises ValueError.
    Source: Gini (1914); Ghazi et al. (2023), section 5, for the numerator.
    """
    k, low = checks.integer("k", k, 2), checks.non_negative("low", low)
    if not checks.squarable("high", high) > low:
        raise ValueError(f"high must be above low = {low:g}, not {high!r}")
    above = absolute_difference(k, spacing=(high - low) / (k - 1))
    numbers = torch.linspace(low, high, k, dtype=torch.float64)
    middle, half = (low + high) / 2, (high - low) / 2
    apart, scale = numbers - middle, math.sqrt(half)
    points = torch.stack([apart / scale + scale, apart / scale - scale], 1)
    weights = torch.tensor([0.5, -0.5], dtype=torch.float64)
    both = PairwiseStatistic("sum", points, Form(weights, 2 * middle))
    return ratio(above, both, limits=(0.0, 1.0), name="Gini coefficient")


def gamma(a: int, b: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Goodman and Kruskal's gamma on an a x b grid: (concordant - discordant)/(concordant + discordant) pairs.

    Type (y, z) has index y * b + z; pairs tied in y or z count in neither. Raises ValueError.
    Source: Goodman, Kruskal (1954).
    """
    signs = workloads.kendall(a, b)
    untied = Workload("untied", tuple(factor.abs() for factor in signs.factors))
    above, below = from_kernel(signs, tol=tol), from_kernel(untied, tol=tol)
    return ratio(above, below, limits=(-1.0, 1.0), name="gamma")


def concordance(times: int, scores: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Harrell's concordance index of risk scores 0, ..., scores - 1 and times 0, ..., times - 1, some censored.

    Type (d, t, s) has index (d * times + t) * scores + s, d = 1 where the event was seen at t and 0 where only that it
    came later. Comparable are pairs of which the one of less time has d = 1; of equal times, one of either d. Of these
    the share whose earlier event has the higher score; equal scores count one half: 1/2 + mean f/mean g with
    g = 1[comparable] and f = g sgn(difference of scores)/2. Raises ValueError.
    Source: Harrell, Califf, Pryor, Lee, Rosati (1982).
    """
    above, comparable = concordance_kernels(checks.integer("times", times, 2), checks.integer("scores", scores, 2))
    f, g = (from_kernel(each, tol=tol) for each in (above, comparable))
    return ratio(f, g, offset=0.5, limits=(0.0, 1.0), name="concordance index")


def concordance_kernels(times: int, scores: int) -> tuple[Tensor, Tensor]:
    """f and g of :func:`concordance`, (k, k) each, k = 2 times scores."""
    checks.fits("kernel", 2 * times * scores, 2 * times * scores, most=2**24)
    seen, time, score = (
        torch.cartesian_prod(torch.arange(2), torch.arange(times), torch.arange(scores)).double().mT
    )
    before = time[:, None] < time
    tied = (time[:, None] == time) & (seen[:, None] > seen)
    first = (seen[:, None] * (before | tied)).double()  # x had the event before y's time
    sign = (score[:, None] - score).sign()
    return (first * sign + first.mT * sign.mT) / 2, first + first.mT
