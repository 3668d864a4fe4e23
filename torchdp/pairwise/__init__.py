"""Pairwise statistics (U- and V-statistics of degree 2), through any channel of
``torchdp.queries``, and in rounds.

>>> import torch
>>> from torchdp.pairwise import absolute_difference
>>> from torchdp.queries import LocalOracle
>>> from torchdp.randomizers import SubsetSelection
>>> gini = absolute_difference(16)  # Gini's mean difference of numbers 0, ..., 15
>>> protocol = LocalOracle.of(gini, SubsetSelection(16, epsilon=1.0))
>>> found = protocol.estimate(torch.arange(10_000) % 16)  # each user's own message
>>> low, high = found.interval()

A statistic is a quadratic form in one vector for each type (``PairwiseStatistic``), a question for
any channel:

| channel | users send | analyst sees | source |
|---|---|---|---|
| queries.Twice | 2 vectors, epsilon/2 each | two sums | Ghazi et al. (2023), Lemma 11 |
| queries.LocalFactorization | 1 vector, epsilon | one sum | here |
| queries.LocalOracle | 1 report, epsilon | counts of reports | Bell et al. (2020), Algorithm 1; here |
| queries.ShuffledQueries | shuffled bits, (epsilon, delta) | sums | Ghazi et al. (2023), Remark; here |
| queries.CentralFactorization, CentralLaplace | their types, to a curator | - | here |

Means over tuples of three and more different users are questions for the same channels. Reports
that can be listed, reports of bits, vectors, shuffled sums and curators answer them without bias up
to degree three; degrees above are without bias from listed reports, else corrected to second order
(``degree.DegreeAnalyst``):

>>> from torchdp import queries
>>> from torchdp.pairwise import statistic_of_degree, third_central_moment
>>> skewness = third_central_moment(8)  # of numbers 0, ..., 7
>>> choice = queries.choose(skewness, n=10_000, epsilon=1.0, delta=1e-6, trust="curator")
>>> choice.candidates[0].name
'sums, discrete Laplace'
>>> low, high = choice.best.estimate(torch.arange(10_000) % 8).interval()
>>> three = statistic_of_degree(lambda i, j, l: (i < j) & (j < l), 3, types=8)  # in this order: at most 1/6
>>> LocalOracle.of(three, SubsetSelection(8, epsilon=1.0)).exact(torch.ones(8))
tensor(0.1667, dtype=torch.float64)

| statistic | degree | of |
|---|---|---|
| statistic_of_degree | 1 to 6 | any kernel |
| third_central_moment | 3 | numbers |
| triplet_comparisons | 3 | types with distances |
| volume_under_surface | a ratio of degree 3 | scores of three classes |

What is no channel asks twice:

| protocol | rounds | analyst sees | source |
|---|---|---|---|
| TwoRound | vector, answer | two sums | here; Ghazi et al. (2023), section 1.2 |
| ThreeRound | 2 vectors, 2 answers | four sums | Ghazi et al. (2023), Theorem 24 |
| ProjectedTwoRound | 2 vectors, 1 answer | three sums | here |

``queries.choose`` finds the channel of least predicted error, :func:`choose_rounds` tries two
rounds too. ``consistent`` projects an estimate onto the values that data can attain: biased, often
with lower error. ``mann_whitney`` tests whether two classes have one distribution.
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
