"""Two groups of users compared, and what the users of a collection say about the population they come from."""

import math
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linprog
from scipy.special import ndtr
from torch import Tensor

from torchdp.collection.description import same
from torchdp.pairwise.collection import Collection
from torchdp.pairwise.projection import project
from torchdp.pairwise.protocol import PairwiseEstimate
from torchdp.pairwise.statistic import Form, Pairs
from torchdp.protocol.interval import ErrorParts, distance, interval

LARGEST = 512  # types up to which the histogram of largest variance is sought


@dataclass(frozen=True)
class Difference:
    """The first group's statistic less the second's, with its standard error; as private as the two estimates.

    error: the parts of both estimates' errors. limits: what the difference can be.
    """

    value: Tensor
    standard_error: Tensor
    error: ErrorParts
    limits: tuple[float, float] = (-math.inf, math.inf)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Confidence interval of the true difference at this level."""
        return interval(self.value, self.error, level, self.limits)

    @property
    def p_value(self) -> Tensor:
        """Two-sided, of the hypothesis that the difference is 0: ``interval(1 - p)`` ends at 0."""
        z = distance(self.value, self.error)
        return torch.as_tensor(2 * ndtr(-z.cpu().numpy()), dtype=torch.float64, device=self.value.device)


def difference(first: PairwiseEstimate, second: PairwiseEstimate) -> Difference:
    """The difference of the estimates of two groups that have no user in common, each with noise of its own.

    Of ``estimate()`` of each it speaks of these users: two real groups hardly ever agree exactly, so with enough users
    every p-value is small. ``of_population`` first, and it speaks of the populations they were drawn from.
    Not for paired data, where a user has a value under each of two conditions: the two errors are then dependent. For
    those define the statistic on pairs of values (one type for each pair) and send one message.
    Epsilon, the protocol and n may differ between the groups. Raises TypeError.
    """
    for name, value in (("first", first), ("second", second)):
        if not isinstance(value, PairwiseEstimate):
            raise TypeError(f"{name} must be a PairwiseEstimate, not {type(value).__name__}")
    (low, high), (other_low, other_high) = first.limits, second.limits
    error = (first.standard_error.square() + second.standard_error.square()).sqrt()
    parts = first.parts.joined(second.parts.negated())
    return Difference(first.value - second.value, error, parts, (low - other_high, high - other_low))


def compare(first: Collection, second: Collection) -> Difference:
    """``difference`` of the estimates of two collections of the same statistic.

    Raises ValueError for different statistics and for a batch that is in both: users who count in both groups make
    the errors dependent (users who answered twice under two batches cannot be seen, and must not be).
    """
    for name, value in (("first", first), ("second", second)):
        if not isinstance(value, Collection):
            raise TypeError(f"{name} must be a Collection, not {type(value).__name__}")
    if not same(first.protocol.statistic, second.protocol.statistic):
        raise ValueError("first and second must estimate the same statistic, with the same points")
    shared = first.batches.items() & second.batches.items()
    if shared:
        raise ValueError(
            f"first and second share {len(shared)} batches, such as {min(shared)[0]!r}: the groups must have no user "
            "in common; paired data need a statistic on pairs of values"
        )
    return difference(first.estimate(), second.estimate())


def of_population(collection: Collection) -> PairwiseEstimate:
    """The estimate for the population from which the users are an independent sample, with a wider standard error.

    To the variance of the noise it adds that of the users' own U-statistic, 4/n Var f_1(X) + 2/n^2 Var f(X, Y) to first
    order in 1/n, f_1(x) = E f(x, Y) = <u_x, J mean u>: for the mean vector that the messages give, moved to the hull of
    the points, and the histogram of users with this mean vector that has the largest Var f_1 (up to 512 types; beyond,
    its bound (max f_1 - m)(m - min f_1)). Var f counts as (max f - m)(m - min f). For a ratio f is f - ratio g.
    Raises ValueError for Pairs.ALL, whose mean depends on n.
    Source: Hoeffding (1948), Theorem 5.2; Bhatia, Davis (2000), Theorem 1.
    """
    if not isinstance(collection, Collection):
        raise TypeError(f"collection must be a Collection, not {type(collection).__name__}")
    protocol, estimate, n = collection.protocol, collection.estimate(), float(collection.n)
    statistic = protocol.statistic
    if statistic.pairs is not Pairs.DISTINCT:
        raise ValueError("statistic must have pairs=Pairs.DISTINCT: only that mean does not depend on n")
    form, below = statistic.form, torch.ones_like(estimate.value)
    if statistic.denominator is not None:
        ratio = estimate.value - statistic.offset
        below = protocol.pairs_mean(collection.sums, n, statistic.denominator)
        form = Form(
            form.weights - ratio * statistic.denominator.weights,
            form.constant - float(ratio) * statistic.denominator.constant,
        )
    near = project(statistic.points, protocol.mean_point(collection.sums, n), tol=1e-5, most_steps=300)
    kernel, first = statistic.kernel(form), statistic.points @ (form.weights * near.point) + form.constant
    middle = near.weights @ first
    both = (kernel.max() - middle) * (middle - kernel.min())
    sampling = (4 * _largest_variance(statistic.points, near.weights, first) + 2 * both / n) / n / below.square()
    return replace(
        estimate,
        standard_error=(estimate.standard_error.square() + sampling).sqrt(),
        error=estimate.parts.joined(ErrorParts.normal(sampling)),
    )


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
