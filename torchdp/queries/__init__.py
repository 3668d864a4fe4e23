"""Questions about users' types, through anyone who is trusted; the choice of a channel; learning.

    >>> import torch
    >>> from torchdp import queries, workloads
    >>> prefix = workloads.prefix(8)
    >>> choice = queries.choose(prefix, n=1_000, epsilon=1.0, delta=1e-6, trust="curator")
    >>> choice.candidates[0].name
    'sums, discrete Laplace'
    >>> choice.best.estimate(torch.randint(8, (1_000,))).value.shape
    torch.Size([8])

A *question* is a workload of linear queries, a pairwise statistic, or any smooth function of the
users' shares of types (``ShareFunction``), such as ``Spearman`` or the ``EnergyDistance`` of two
groups; ``Several`` are answered by one collection. A *channel* tells the means that a question
needs, by who is trusted:

| trusted | channel | noise |
|---|---|---|
| nobody | ``LocalOracle``, ``LocalFactorization``, ``Twice`` | of each user's report, or vector |
| a shuffler | ``ShuffledQueries`` | of shuffled sums of bits |
| servers that do not all collude | ``SecureQueries`` | of secure sums: a curator's error |
| a curator | ``CentralFactorization``, ``CentralLaplace`` | of sums |
| | ``CentralAnswers`` | of the answers, where one user moves them by a known amount |

``X.of(question, ...)`` is the protocol of a channel; ``choose`` finds the one of least predicted
error.

To be read in this order: channel (what questions and channels promise each other), protocol
(W = L R + shift, and its exact errors), oracle (reports), vectors (Theorem 10 of Edmonds, Nikolov,
Ullman), central, servers and twice (Ghazi et al. 2023, Lemma 11), release (answers to any
question, and to several), answers, function (the delta method of second order) with statistics;
pair_variance holds the exact variances of forms of second order. Then fit with likelihood (EM and
its gap), bound (Hoeffding's projection), choose with choose_local, and learn (their Theorem 24).

| API name | symbol | meaning | squared? |
|---|---|---|---|
| workload | W, m x k | one row for each query, one column for each type | |
| left, right, shift | L, R, v | W = L R + v 1^T + bias; a user of type x sends column x of R | |
| radius, diameter | | largest column norm of R; largest distance of two columns | no |
| variance, power | | of a query's answer from one user of a type; falls like 1/n^power | yes |
| half_width, samples | | all answers within h with high probability; users for that | no |

Source: Edmonds, Nikolov, Ullman (2020), Theorems 10 and 24; McKenna, Maity, Mazumdar, Miklau
(2020).
"""

from torchdp.queries.answers import CentralAnswers
from torchdp.queries.bound import lower_bound
from torchdp.queries.central import CentralFactorization, CentralLaplace, ShuffledQueries
from torchdp.queries.channel import Channel, Question
from torchdp.queries.choose import choose
from torchdp.queries.fit import Fit, FittedOracle, fitted
from torchdp.queries.function import ShareFunction
from torchdp.queries.learn import (
    ConceptClass,
    PrivateLearner,
    conjunctions,
    parities,
    stumps,
    thresholds,
)
from torchdp.queries.marginals import CentralMarginals
from torchdp.queries.oracle import LocalOracle
from torchdp.queries.protocol import FactoredQueries
from torchdp.queries.quantiles import QuantileEstimate, Quantiles, bins_of
from torchdp.queries.release import (
    Answers,
    CentralRelease,
    Linear,
    MessageRelease,
    Several,
    through,
)
from torchdp.queries.servers import SecureQueries
from torchdp.queries.statistics import (
    Correlation,
    Covariance,
    EnergyDistance,
    KendallB,
    MeanDiscrepancy,
    Spearman,
)
from torchdp.queries.twice import Twice
from torchdp.queries.unknown import UnknownCategories
from torchdp.queries.vectors import LocalFactorization

__all__ = [
    "Answers",
    "CentralAnswers",
    "CentralFactorization",
    "CentralLaplace",
    "CentralMarginals",
    "CentralRelease",
    "Channel",
    "ConceptClass",
    "Correlation",
    "Covariance",
    "EnergyDistance",
    "FactoredQueries",
    "Fit",
    "FittedOracle",
    "KendallB",
    "Linear",
    "LocalFactorization",
    "LocalOracle",
    "MeanDiscrepancy",
    "MessageRelease",
    "PrivateLearner",
    "QuantileEstimate",
    "Quantiles",
    "Question",
    "SecureQueries",
    "Several",
    "ShareFunction",
    "ShuffledQueries",
    "Spearman",
    "Twice",
    "UnknownCategories",
    "bins_of",
    "choose",
    "conjunctions",
    "fitted",
    "lower_bound",
    "parities",
    "stumps",
    "thresholds",
    "through",
]
