"""Inference from the users of a collection to the population they are sampled from."""

from dataclasses import dataclass, replace

import torch
from scipy.special import ndtr
from torch import Tensor

from torchdp.collection import Collection, Journal
from torchdp.collection.journal import held
from torchdp.pairwise.analyst import PairwiseAnalyst
from torchdp.pairwise.forms import one_kernel
from torchdp.protocol import Estimate, Tally
from torchdp.protocol.interval import ErrorParts
from torchdp.protocol.records import single


@dataclass(frozen=True, eq=False)
class MannWhitney:
    """auc, and u = auc times the product of the class sizes: of these users. p_value: of equal
    distributions.
    """

    auc: Estimate
    u: Estimate
    p_value: Tensor


def mann_whitney(collection: Collection | Journal) -> MannWhitney:
    """Mann and Whitney's test of a collection whose statistic is :func:`auc`, private class sizes
    and all.

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
    """:func:`mann_whitney` of one tally through any channel; auc: what the analyst reads off it.
    Unchecked.
    """
    n = single(tally.n)
    statistic = one_kernel(analyst.statistic)
    form, below = statistic.forms
    # u over n (n - 1)
    wins = replace(form.plus(0.5, below), constant=form.constant + below.constant / 2)
    scale = n * (n - 1)
    mean = analyst.pairs_mean(tally, wins)
    error = analyst.plug_in_variance(tally, wins).sqrt() * scale * analyst.slope(n)
    sizes = (scale * analyst.pairs_mean(tally, below)).clamp(n - 1, n * n / 4)  # n+ n-
    parts = auc.parts.joined(ErrorParts.normal((n + 1) / (12 * sizes)))
    z = parts.distance(auc.value - 0.5)
    p_value = torch.as_tensor(
        2 * ndtr(-z.cpu().numpy()), dtype=torch.float64, device=auc.value.device
    )
    return MannWhitney(auc, Estimate(scale * mean, error, n, limits=(0.0, n * n / 4)), p_value)
