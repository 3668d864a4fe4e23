"""Pairwise statistics (U- and V-statistics of degree 2) under local differential privacy.

A statistic is a quadratic form in one vector for each type (``PairwiseStatistic``); a protocol says what users
send about their vector and what the analyst makes of it:

| protocol | messages | analyst sees | source |
|---|---|---|---|
| TwoMessage | 2, epsilon/2 each | two sums | Ghazi et al. (2023), Lemma 11 |
| OneMessage | 1, epsilon | one sum | here |
| OneMessagePairs | 1, epsilon | each message | here; any kernel |
| StrategyReports | 1, epsilon | counts of outputs | here; McKenna et al. (2020) |
| SubsetPairs | 1, epsilon | each message | here; Ye, Barg (2018) |
| RandomizedResponsePlugIn | 1, epsilon | counts of reports | Bell et al. (2020), Algorithm 1 |
| TwoRound | vector, answer | two sums | here; Ghazi et al. (2023), section 1.2 |
| ThreeRound | 2 vectors, 2 answers | four sums | Ghazi et al. (2023), Theorem 24 |
| ProjectedTwoRound | 2 vectors, 1 answer | three sums | here |
| ShuffledForm | shuffled bits, (epsilon, delta) | r + 1 sums | Ghazi et al. (2023), Remark |

``Collection`` and ``Journal`` add messages up as they arrive, in memory and on disk; ``compare`` and ``of_population``
say what two groups' estimates mean. ``OneMessageTriples``, experimental, is the same for means over triples of users.
"""

from torchdp.pairwise.choose import Candidate, Choice, choose, histograms
from torchdp.pairwise.collection import Collection
from torchdp.pairwise.comparison import Difference, compare, difference, of_population
from torchdp.pairwise.hierarchical import HierarchicalAUC
from torchdp.pairwise.interactive import InteractiveProtocol
from torchdp.pairwise.journal import Journal, load, save
from torchdp.pairwise.lipschitz import Discretised, lipschitz
from torchdp.pairwise.low_rank import distortion, fewer_dimensions, low_rank
from torchdp.pairwise.messages import OneMessage, OneMessagePairs, TwoMessage
from torchdp.pairwise.plug_in import RandomizedResponsePlugIn
from torchdp.pairwise.projection import ProjectedQueries, Projection, project
from torchdp.pairwise.protocol import AggregateProtocol, PairwiseEstimate, PairwiseProtocol
from torchdp.pairwise.reduction import linear_queries, linear_queries_bound
from torchdp.pairwise.reports import StrategyReports, SubsetPairs, strategy_reports
from torchdp.pairwise.rounds import Question, Round, Transcript
from torchdp.pairwise.shuffled import ShuffledForm, shuffled_form
from torchdp.pairwise.statistic import (
    Form,
    Pairs,
    PairwiseStatistic,
    absolute_difference,
    auc,
    auc_of_sizes,
    from_factors,
    from_kernel,
    kendall,
    unequal,
)
from torchdp.pairwise.three_round import ProjectedTwoRound, ThreeRound, projected_two_round, three_round
from torchdp.pairwise.triplets import (
    OneMessageTriples,
    TripleStatistic,
    third_central_moment,
    three_distinct,
    triples_from_factors,
)
from torchdp.pairwise.two_round import TwoRound, two_round

__all__ = [
    "AggregateProtocol",
    "Candidate",
    "Choice",
    "Collection",
    "Difference",
    "Discretised",
    "Form",
    "HierarchicalAUC",
    "InteractiveProtocol",
    "Journal",
    "OneMessage",
    "OneMessagePairs",
    "OneMessageTriples",
    "Pairs",
    "PairwiseEstimate",
    "PairwiseProtocol",
    "PairwiseStatistic",
    "ProjectedQueries",
    "ProjectedTwoRound",
    "Projection",
    "Question",
    "RandomizedResponsePlugIn",
    "Round",
    "ShuffledForm",
    "StrategyReports",
    "SubsetPairs",
    "ThreeRound",
    "Transcript",
    "TripleStatistic",
    "TwoMessage",
    "TwoRound",
    "absolute_difference",
    "auc",
    "auc_of_sizes",
    "choose",
    "compare",
    "difference",
    "distortion",
    "fewer_dimensions",
    "from_factors",
    "from_kernel",
    "histograms",
    "kendall",
    "linear_queries",
    "linear_queries_bound",
    "lipschitz",
    "load",
    "low_rank",
    "of_population",
    "project",
    "projected_two_round",
    "save",
    "shuffled_form",
    "strategy_reports",
    "third_central_moment",
    "three_distinct",
    "three_round",
    "triples_from_factors",
    "two_round",
    "unequal",
]
