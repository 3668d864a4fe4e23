"""Inference from the users of a collection to the population they are sampled from."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from torchdp.collection import Collection, Journal
from torchdp.collection.journal import held
from torchdp.pairwise.analyst import PairwiseAnalyst
from torchdp.pairwise.forms import one_kernel
from torchdp.protocol import Estimate, Tally
from torchdp.protocol.interval import Error, ErrorParts
from torchdp.protocol.records import single


@dataclass(frozen=True, eq=False)
class MannWhitney:
    """auc and u = auc n+ n-, of these users; null: the error of auc under one distribution."""

    auc: Estimate
    u: Estimate
    null: Error

    @cached_property
    def p_value(self) -> Tensor:
        """Of equal distributions, two-sided."""
        z = self.null.distance(self.auc.value - 0.5)
        # SciPy's normal tail keeps its digits far out.
        tail = np.asarray(ndtr(-z.cpu().numpy()))
        return 2 * torch.from_numpy(tail).to(z.device)


def mann_whitney(collection: Collection | Journal) -> MannWhitney:
    """Mann and Whitney's test of a collection whose statistic is :func:`auc`.

    Under one distribution for both classes the users' own AUC has the variance (n + 1)/(12 n+ n-)
    at most (less with ties); the noise adds its own at an AUC of 1/2, by Fieller's parts.
    Two-sided, normal; n+ n- is estimated from the messages. Raises TypeError, ValueError.
    Source: Mann, Whitney (1947); Fieller (1954).
    """
    collection = held("collection", collection)
    analyst = getattr(collection.protocol, "analyst", None)
    if not isinstance(analyst, PairwiseAnalyst) or analyst.statistic.name != "auc":
        raise ValueError("collection must be of a protocol whose question is the statistic auc")
    return tested(analyst, collection.tally, collection.estimate())


def tested(analyst: PairwiseAnalyst, tally: Tally, auc: Estimate) -> MannWhitney:
    """:func:`mann_whitney` of one tally through any channel, unchecked.

    auc: what the analyst reads off the tally.
    """
    n = single(tally.n)
    pairs = n * (n - 1)
    most = n * n / 4  # of n+ n-
    f, g = one_kernel(analyst.statistic).forms
    # u is n (n - 1) times the mean of f + g/2, n+ n- that of g.
    wins = replace(f.plus(0.5, g), constant=f.constant + g.constant / 2)
    u = pairs * analyst.pairs_mean(tally, wins)
    deviation = analyst.plug_in_variance(tally, wins).sqrt()
    error = deviation * pairs * analyst.slope(n)
    # Both classes have a user: n+ n- is n - 1 at least, whatever the noise says.
    sizes = (pairs * analyst.pairs_mean(tally, g)).clamp(n - 1, most)
    sampling = ErrorParts.normal((n + 1) / (12 * sizes))
    null = auc.parts.joined(sampling)
    return MannWhitney(auc, Estimate(u, error, n, limits=(0.0, most)), null)
