"""Means over pairs and tuples of users (U- and V-statistics), through any channel, and in rounds.

>>> import torch
>>> from torchdp.pairwise import absolute_difference
>>> from torchdp.queries import LocalOracle
>>> from torchdp.randomizers import SubsetSelection
>>> gini = absolute_difference(16)  # Gini's mean difference of numbers 0, ..., 15
>>> protocol = LocalOracle.of(gini, SubsetSelection(16, epsilon=1.0))
>>> estimate = protocol.estimate(torch.arange(10_000) % 16)  # each user's own message
>>> low, high = estimate.interval()

``queries.choose`` finds the channel of least predicted error, :func:`choose_rounds` tries two
rounds too. In this order (Ghazi et al., 2023, unless said otherwise):

- ``forms``: a statistic as a quadratic form in one vector for each type, and its exact values;
- ``statistic``: the same as a question for the channels of ``queries``, merged bins (section 3);
- ``standard``: the statistics of the field, any kernel's, ratios of two means (section 5);
- ``analyst``: estimates, errors and intervals, whoever is trusted; ``consistent`` values;
- ``population``: ``mann_whitney``, whether two classes have one distribution;
- ``rows``: statistics of numbers as they are, for a curator (Knight, 1966);
- ``degree``: means over tuples of up to six users (Hoeffding, 1948), and their bias;
- ``rounds``: a second question to the same users (section 1.2; Theorem 24).
"""

from torchdp.pairwise.analyst import consistent
from torchdp.pairwise.degree import (
    DegreeStatistic,
    VolumeUnderSurface,
    statistic_of_degree,
    third_central_moment,
    triplet_comparisons,
    volume_under_surface,
)
from torchdp.pairwise.forms import Form, Pairs
from torchdp.pairwise.population import mann_whitney
from torchdp.pairwise.rounds import ProjectedTwoRound, ThreeRound, TwoRound, choose_rounds
from torchdp.pairwise.rows import RowDifference, RowKendall
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
from torchdp.pairwise.statistic import PairwiseStatistic, merged

__all__ = [
    "DegreeStatistic",
    "Form",
    "Pairs",
    "PairwiseStatistic",
    "ProjectedTwoRound",
    "RowDifference",
    "RowKendall",
    "ThreeRound",
    "TwoRound",
    "VolumeUnderSurface",
    "absolute_difference",
    "auc",
    "auc_of_sizes",
    "choose_rounds",
    "class_histograms",
    "concordance",
    "consistent",
    "from_kernel",
    "gamma",
    "gini",
    "kendall",
    "mann_whitney",
    "merged",
    "ratio",
    "statistic_of_degree",
    "third_central_moment",
    "triplet_comparisons",
    "unequal",
    "volume_under_surface",
]
