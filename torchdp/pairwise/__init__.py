"""Pairwise statistics (U- and V-statistics of degree 2) under local differential privacy.

>>> import torch
>>> from torchdp.pairwise import OneMessage, absolute_difference
>>> protocol = OneMessage(absolute_difference(16), epsilon=1.0)  # Gini's mean difference of numbers 0, ..., 15
>>> found = protocol.estimate(torch.arange(10_000) % 16)  # each user's own message
>>> low, high = found.interval()

A statistic is a quadratic form in one vector for each type (``PairwiseStatistic``); a protocol defines what users send
about their vector, and the analyst's estimator; ``choose`` finds the one of least predicted error:

| protocol | messages | analyst sees | source |
|---|---|---|---|
| TwoMessage | 2, epsilon/2 each | two sums | Ghazi et al. (2023), Lemma 11 |
| OneMessage | 1, epsilon | one sum | here |
| PairReports | 1, epsilon | counts of reports; each message, of sets | Bell et al. (2020), Algorithm 1; here |
| TwoRound | vector, answer | two sums | here; Ghazi et al. (2023), section 1.2 |
| ThreeRound | 2 vectors, 2 answers | four sums | Ghazi et al. (2023), Theorem 24 |
| ProjectedTwoRound | 2 vectors, 1 answer | three sums | here |
| ShuffledForm | shuffled bits, (epsilon, delta) | r + 1 sums | Ghazi et al. (2023), Remark |

``consistent`` projects an estimate onto the values that data can attain: biased, often with lower error.
``mann_whitney`` tests whether two classes have one distribution.
"""

from torchdp.pairwise.choose import choose, histograms, lower_bound
from torchdp.pairwise.messages import OneMessage, TwoMessage
from torchdp.pairwise.population import mann_whitney
from torchdp.pairwise.protocol import PairwiseProtocol, consistent
from torchdp.pairwise.reports import PairReports
from torchdp.pairwise.rounds import ProjectedTwoRound, ThreeRound, TwoRound
from torchdp.pairwise.shuffled import ShuffledForm
from torchdp.pairwise.standard import (
    absolute_difference,
    auc,
    auc_of_sizes,
    class_histograms,
    concordance,
    from_kernel,
    gamma,
    gini,
    kendall,
    ratio,
    unequal,
)
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic

__all__ = [
    "Form",
    "OneMessage",
    "PairReports",
    "Pairs",
    "PairwiseProtocol",
    "PairwiseStatistic",
    "ProjectedTwoRound",
    "ShuffledForm",
    "ThreeRound",
    "TwoMessage",
    "TwoRound",
    "absolute_difference",
    "auc",
    "auc_of_sizes",
    "choose",
    "class_histograms",
    "concordance",
    "consistent",
    "from_kernel",
    "gamma",
    "gini",
    "histograms",
    "kendall",
    "lower_bound",
    "mann_whitney",
    "ratio",
    "unequal",
]
