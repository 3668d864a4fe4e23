"""Inference from the users of a collection to the population they are sampled from."""

from dataclasses import dataclass

import torch
from scipy.special import ndtr
from torch import Tensor

from torchdp.collection import Collection, Journal
from torchdp.collection.journal import held
from torchdp.pairwise.protocol import PairwiseProtocol
from torchdp.pairwise.rounds.projection import project
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic, one_kernel
from torchdp.protocol import Estimate, Tally
from torchdp.protocol.interval import ErrorParts
from torchdp.protocol.sampling import largest_variance
from torchdp.protocol.users import tensor_of


@dataclass(frozen=True, eq=False)
class MannWhitney:
    """auc, and u = auc times the product of the class sizes: of these users. p_value: of equal distributions."""

    auc: Estimate
    u: Estimate
    p_value: Tensor


def of_population(protocol: PairwiseProtocol, tally: Tally, estimate: Estimate) -> Estimate:
    """The estimate for the population from which the users are an independent sample, with a wider standard error.

    To the variance of the noise it adds that of the users' own U-statistic, 4/n Var f_1(X) + 2/n^2 Var f(X, Y) to first
    order in 1/n, f_1(x) = E f(x, Y) = <u_x, J mean u>: for the mean vector that the messages give, moved to the hull of
    the points, and the histogram of users with this mean vector that has the largest Var f_1 (up to 512 types; beyond,
    its bound (max f_1 - m)(m - min f_1)). Var f counts as (max f - m)(m - min f). For a ratio f is f - ratio g.
    One after the other of a batch. Raises ValueError for Pairs.ALL, whose mean depends on n, and for several forms.
    Source: Hoeffding (1948), Theorem 5.2; Bhatia, Davis (2000), Theorem 1.
    """
    statistic = one_kernel(protocol.statistic)
    if statistic.pairs is not Pairs.DISTINCT:
        raise ValueError("statistic must have pairs=Pairs.DISTINCT: only that mean does not depend on n")
    below = torch.ones_like(estimate.value)
    if statistic.denominator is not None:
        below = protocol.pairs_mean(tally, statistic.denominator)
    batch = estimate.value.shape
    means = protocol.mean_point(tally).reshape(-1, statistic.points.shape[1])
    users = tensor_of(tally.n).expand(batch).flatten().tolist()
    values = estimate.value.flatten()
    rows = zip(means, users, values, strict=True)
    variances = torch.stack([_variance(statistic, mean, n, value) for mean, n, value in rows])
    return estimate.with_sampling(variances.view(batch) / below.square())


def _variance(statistic: PairwiseStatistic, mean: Tensor, n: int, value: Tensor) -> Tensor:
    """Of the U-statistic of n users with this mean vector; of a ratio that of its form at ``value``."""
    form = statistic.form
    if statistic.denominator is not None:
        ratio = value - statistic.offset
        weights = form.weights - ratio * statistic.denominator.weights
        form = Form(weights, form.constant - float(ratio) * statistic.denominator.constant)
    near = project(statistic.points, mean, tol=1e-5, most_steps=300)
    kernel, first = statistic.kernel(form), statistic.points @ (form.weights * near.point) + form.constant
    middle = near.weights @ first
    both = (kernel.max() - middle) * (middle - kernel.min())
    return (4 * largest_variance(statistic.points, near.weights, first) + 2 * both / n) / n


def mann_whitney(collection: Collection | Journal) -> MannWhitney:
    """Mann and Whitney's test of a collection whose statistic is :func:`auc`, private class sizes and all.

    Under one distribution for both classes the users' own AUC has the variance (n + 1)/(12 n+ n-) at most (less with
    ties); the noise adds its own at an AUC of 1/2, by Fieller's parts. Two-sided, normal; n+ n- is estimated from the
    messages. Raises TypeError, ValueError.
    Source: Mann, Whitney (1947); Fieller (1954).
    """
    collection = held("collection", collection)
    protocol, tally, n = collection.protocol, collection.tally, collection.n
    if not isinstance(protocol, PairwiseProtocol) or protocol.statistic.name != "auc":
        raise ValueError("collection must be of a pairwise protocol whose statistic is auc")
    statistic, auc = one_kernel(protocol.statistic), collection.estimate()
    form, below = statistic.forms
    wins = Form(form.weights + below.weights / 2, form.constant + below.constant / 2)  # u over n (n - 1)
    scale, mean = n * (n - 1), protocol.pairs_mean(tally, wins)
    error = protocol.plug_in_variance(tally, wins).sqrt() * scale * protocol.slope(n)
    sizes = (scale * protocol.pairs_mean(tally, below)).clamp(n - 1, n * n / 4)  # n+ n-
    parts = auc.parts.joined(ErrorParts.normal((n + 1) / (12 * sizes)))
    z = parts.distance(auc.value - 0.5)
    p_value = torch.as_tensor(2 * ndtr(-z.cpu().numpy()), dtype=torch.float64, device=auc.value.device)
    return MannWhitney(auc, Estimate(scale * mean, error, n, limits=(0.0, n * n / 4)), p_value)
