"""Pairwise statistics (U- and V-statistics of degree 2) under local differential privacy.

A statistic is a quadratic form in one vector for each type (``PairwiseStatistic``); a protocol says what users
send about their vector and what the analyst makes of it:

| protocol | messages | analyst sees | source |
|---|---|---|---|
| TwoMessage | 2, epsilon/2 each | two sums | Ghazi et al. (2023), Lemma 11 |
| OneMessage | 1, epsilon | one sum | here |
| OneMessagePairs | 1, epsilon | each message | here; any kernel |
| RandomizedResponsePlugIn | 1, epsilon | counts of reports | Bell et al. (2020), Algorithm 1 |
"""

from torchdp.pairwise.messages import OneMessage, OneMessagePairs, TwoMessage
from torchdp.pairwise.plug_in import RandomizedResponsePlugIn
from torchdp.pairwise.protocol import AggregateProtocol, PairwiseEstimate, PairwiseProtocol
from torchdp.pairwise.statistic import (
    Form,
    Pairs,
    PairwiseStatistic,
    absolute_difference,
    auc,
    from_factors,
    from_kernel,
    kendall,
    unequal,
)

__all__ = [
    "AggregateProtocol",
    "Form",
    "OneMessage",
    "OneMessagePairs",
    "Pairs",
    "PairwiseEstimate",
    "PairwiseProtocol",
    "PairwiseStatistic",
    "RandomizedResponsePlugIn",
    "TwoMessage",
    "absolute_difference",
    "auc",
    "from_factors",
    "from_kernel",
    "kendall",
    "unequal",
]
