"""Two groups of users compared, and what the users of a collection say about the population they come from."""

from dataclasses import dataclass, replace

import torch
from scipy.special import ndtr
from torch import Tensor

from torchdp.pairwise.collection import Collection
from torchdp.pairwise.description import same
from torchdp.pairwise.protocol import PairwiseEstimate, score_interval
from torchdp.pairwise.statistic import Pairs


@dataclass(frozen=True)
class Difference:
    """The first group's statistic less the second's, with its standard error; as private as the two estimates.

    slope: by how much the variance would grow for each unit by which the true difference exceeds the estimate.
    """

    value: Tensor
    standard_error: Tensor
    slope: Tensor | float = 0.0

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Confidence interval of the true difference at this level."""
        return score_interval(self.value, self.standard_error, self.slope, level)

    @property
    def p_value(self) -> Tensor:
        """Two-sided, of the hypothesis that the difference is 0: ``interval(1 - p)`` ends at 0."""
        square = self.standard_error.square()
        at_zero = square - self.slope * self.value
        z = self.value.abs() / torch.where(at_zero > 0, at_zero, square).sqrt()
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
    one, two = first.standard_error.square(), second.standard_error.square()
    total = one + two
    # The part of the difference's error that comes from each group, times that group's slope.
    slope = torch.where(total > 0, (first.slope * one - second.slope * two) / total, 0.0)
    return Difference(first.value - second.value, total.sqrt(), slope)


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

    To the variance of the noise it adds 2 (max f - m)(m - min f)/n, which bounds the variance of the users' own
    U-statistic around its mean m whatever the population: at most 2/n times the variance of f (Hoeffding), and that
    at most (max - m)(m - min) (Bhatia and Davis). For a ratio f is f - ratio g, to first order in 1/n. So intervals
    cover at least as often as they say; the variance itself is not to be had from sums of messages.
    Raises ValueError for Pairs.ALL, whose mean depends on n.
    Source: Hoeffding (1948), Theorem 5.2; Bhatia, Davis (2000), Theorem 1.
    """
    protocol, estimate, n = collection.protocol, collection.estimate(), float(collection.n)
    statistic = protocol.statistic
    if statistic.pairs is not Pairs.DISTINCT:
        raise ValueError("statistic must have pairs=Pairs.DISTINCT: only that mean does not depend on n")
    if statistic.denominator is None:
        kernel, middle, below = statistic.kernel(statistic.form), estimate.value, torch.ones_like(estimate.value)
    else:
        ratio = estimate.value - statistic.offset
        kernel = statistic.kernel(statistic.form) - ratio * statistic.kernel(statistic.denominator)
        middle, below = torch.zeros_like(ratio), protocol.pairs_mean(collection.sums, n, statistic.denominator)
    spread = (kernel.max() - middle).clamp_min(0) * (middle - kernel.min()).clamp_min(0)
    noise = estimate.standard_error.square()
    total = noise + 2 * spread / n / below.square()
    slope = torch.where(total > 0, estimate.slope * noise / total, 0.0)
    return replace(estimate, standard_error=total.sqrt(), slope=slope)
