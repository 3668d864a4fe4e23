"""Pairwise estimates made consistent: what the statistic is of the nearest histogram. Biased, and often closer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.pairwise.protocol import PairwiseProtocol
from torchdp.pairwise.statistic import one_kernel
from torchdp.protocol import Tally


@dataclass(frozen=True)
class ConsistentPairs:
    """value (*batch) of the n users' statistic at histogram (*batch, k), h >= 0 with sum 1; NaN of a ratio over 0."""

    value: Tensor
    histogram: Tensor


def consistent(protocol: PairwiseProtocol, tally: Tally, *, tol: float = 1e-9) -> ConsistentPairs:
    """The statistic of the histogram whose mean vector is nearest to the estimated one: it costs no privacy.

    With z the unbiased estimate of the users' mean vector, h = argmin over histograms of ||U^T h - z||, U the points;
    of many such h one, even over types of one vector. The value is one that n users can have. It is biased, whatever
    the protocol: no standard error comes with it. Where noise is large against the statistic it often has lower error
    than the unbiased estimate.

    protocol: one round. tally: of at least 2 users, drawn ones (*batch) too. tol: of the squared distance, relative to
    the largest squared norm of the points. Raises TypeError, ValueError.

    Guarantees: U^T h is never farther from the users' mean vector than z is, up to tol.
    Source: projection onto a convex set; Nikolov, Talwar, Zhang (2013), section 4.
    """
    checks.instance("protocol", protocol, PairwiseProtocol)
    tol = checks.positive("tol", tol)
    tally, statistic = protocol.check(tally, 2), one_kernel(protocol.statistic)
    h = nearest(protocol, tally, tol)
    asked = statistic.approximates or statistic
    means = [asked.mean(h * tally.users(1), form) for form in asked.forms]
    if len(means) == 1:
        return ConsistentPairs(means[0], h)
    ratio = torch.where(means[1].abs() > 1e-13 * asked.size(asked.forms[1]), means[0] / means[1], torch.nan)
    return ConsistentPairs(asked.offset + ratio, h)


def nearest(protocol: PairwiseProtocol, tally: Tally, tol: float) -> Tensor:
    """The histogram of :func:`consistent`, even over types of one vector: (*batch, k). Unchecked."""
    points, place = torch.unique(protocol.statistic.points, dim=0, return_inverse=True)
    middle = points.mean(0)
    points, z = points - middle, protocol.mean_point(tally) - middle
    limit = tol * float(points.square().sum(1).max())
    h, _ = nearest_histogram(points @ points.mT, z @ points.mT, limit)
    return (h / torch.bincount(place))[..., place]
