"""Inference from the users of a collection to the population they are sampled from."""

from dataclasses import dataclass, replace

import torch
from scipy.optimize import linprog
from scipy.special import ndtr
from torch import Tensor

from torchdp.collection import Collection, Journal
from torchdp.collection.journal import held
from torchdp.pairwise.protocol import PairwiseProtocol
from torchdp.pairwise.rounds.projection import project
from torchdp.pairwise.statistic import Form, Pairs, one_kernel
from torchdp.protocol import Estimate
from torchdp.protocol.interval import ErrorParts


@dataclass(frozen=True, eq=False)
class MannWhitney:
    """auc, and u = auc times the product of the class sizes: of these users. p_value: of equal distributions."""

    auc: Estimate
    u: Estimate
    p_value: Tensor


LARGEST = 512  # types up to which the histogram of largest variance is sought


def of_population(collection: Collection | Journal) -> Estimate:
    """The estimate for the population from which the users are an independent sample, with a wider standard error.

    To the variance of the noise it adds that of the users' own U-statistic, 4/n Var f_1(X) + 2/n^2 Var f(X, Y) to first
    order in 1/n, f_1(x) = E f(x, Y) = <u_x, J mean u>: for the mean vector that the messages give, moved to the hull of
    the points, and the histogram of users with this mean vector that has the largest Var f_1 (up to 512 types; beyond,
    its bound (max f_1 - m)(m - min f_1)). Var f counts as (max f - m)(m - min f). For a ratio f is f - ratio g.
    Raises ValueError for Pairs.ALL, whose mean depends on n.
    Source: Hoeffding (1948), Theorem 5.2; Bhatia, Davis (2000), Theorem 1.
    """
    collection = held("collection", collection)
    protocol, tally, n = collection.protocol, collection.tally, float(collection.n)
    if not isinstance(protocol, PairwiseProtocol):
        raise TypeError(f"collection must be of a pairwise protocol, not of {type(protocol).__name__}")
    statistic, estimate = one_kernel(protocol.statistic), collection.estimate()
    if statistic.pairs is not Pairs.DISTINCT:
        raise ValueError("statistic must have pairs=Pairs.DISTINCT: only that mean does not depend on n")
    form, below = statistic.form, torch.ones_like(estimate.value)
    if statistic.denominator is not None:
        ratio = estimate.value - statistic.offset
        below = protocol.pairs_mean(tally, statistic.denominator)
        form = Form(
            form.weights - ratio * statistic.denominator.weights,
            form.constant - float(ratio) * statistic.denominator.constant,
        )
    near = project(statistic.points, protocol.mean_point(tally), tol=1e-5, most_steps=300)
    kernel, first = statistic.kernel(form), statistic.points @ (form.weights * near.point) + form.constant
    middle = near.weights @ first
    both = (kernel.max() - middle) * (middle - kernel.min())
    sampling = (4 * _largest_variance(statistic.points, near.weights, first) + 2 * both / n) / n / below.square()
    return replace(
        estimate,
        standard_error=(estimate.standard_error.square() + sampling).sqrt(),
        error=estimate.parts.joined(ErrorParts.normal(sampling)),
    )


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


def _largest_variance(points: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """The largest variance of values (k,) under a histogram whose mean vector is that of ``weights`` (k,)."""
    middle = weights @ values
    squares = (values - middle).square()
    if len(values) > LARGEST:
        return (values.max() - middle) * (middle - values.min())
    lines = torch.cat([points.mT, torch.ones_like(values)[None]]).cpu()
    found = linprog(-squares.cpu().numpy(), A_eq=lines.numpy(), b_eq=(lines @ weights.cpu()).numpy())
    own = weights @ squares
    return torch.maximum(own, own.new_tensor(-found.fun)) if found.success else own
