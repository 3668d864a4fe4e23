"""What drawing the users from a population adds to the error of a pairwise statistic."""

import torch
from torch import Tensor

from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic, one_kernel
from torchdp.protocol import Estimate
from torchdp.protocol.sampling import largest_variance
from torchdp.protocol.users import tensor_of

TOLERANCE = 1e-7  # of the squared distance to the hull, relative to the largest squared norm


def of_population(given: PairwiseStatistic, estimate: Estimate, means: Tensor, below: Tensor) -> Estimate:
    """The estimate for the population from which the users are an independent sample, with a wider standard error.

    To the variance of the noise it adds that of the users' own U-statistic, 4/n Var f_1(X) + 2/n^2 Var f(X, Y) to first
    order in 1/n, f_1(x) = E f(x, Y) = <u_x, J mean u>: for the mean vector that the messages give, moved to the hull of
    the points, and the histogram of users with this mean vector that has the largest Var f_1 (up to 512 types; beyond,
    its bound (max f_1 - m)(m - min f_1)). Var f counts as (max f - m)(m - min f). For a ratio f is f - ratio g.
    means: (*batch, r), of the users' points; below: (*batch), a ratio's denominator, else 1. One after the other of a
    batch. Raises ValueError for Pairs.ALL, whose mean depends on n, and for several forms.
    Source: Hoeffding (1948), Theorem 5.2; Bhatia, Davis (2000), Theorem 1.
    """
    statistic = one_kernel(given)
    if statistic.pairs is not Pairs.DISTINCT:
        raise ValueError("statistic must have pairs=Pairs.DISTINCT: only that mean does not depend on n")
    batch = estimate.value.shape
    rows_of_means = means.reshape(-1, statistic.points.shape[1])
    users = tensor_of(estimate.n).expand(batch).flatten().tolist()
    values = estimate.value.flatten()
    rows = zip(rows_of_means, users, values, strict=True)
    variances = torch.stack([_variance(statistic, mean, n, value) for mean, n, value in rows])
    return estimate.with_sampling(variances.view(batch) / below.square())


def _variance(statistic: PairwiseStatistic, mean: Tensor, n: int, value: Tensor) -> Tensor:
    """Of the U-statistic of n users with this mean vector; of a ratio that of its form at ``value``."""
    form = statistic.form
    if statistic.denominator is not None:
        ratio = value - statistic.offset
        weights = form.weights - ratio * statistic.denominator.weights
        form = Form(weights, form.constant - float(ratio) * statistic.denominator.constant)
    points = statistic.points - statistic.points.mean(0)
    pull = points @ (mean - statistic.points.mean(0))
    limit = TOLERANCE * float(points.square().sum(1).max())
    h = nearest_histogram(points @ points.mT, pull[None], limit)[0][0]
    kernel = statistic.kernel(form)
    first = statistic.points @ (form.weights * (h @ statistic.points)) + form.constant
    middle = h @ first
    both = (kernel.max() - middle) * (middle - kernel.min())
    return (4 * largest_variance(statistic.points, h, first) + 2 * both / n) / n
