"""Linear queries W h: local and central mechanisms with exact errors, the choice between them, agnostic learning.

| API name | symbol | meaning | squared? |
|---|---|---|---|
| workload | W, m x k | one row for each query, one column for each type | |
| left, right, shift | L, R, v | W = L R + v 1^T + bias; a user of type x sends column x of R | |
| radius, diameter | | largest column norm of R; largest distance of two columns | no |
| errors.variance | | of a query's answer from one user (local) or all (central) | yes |
| worst_error | | root mean squared error on the worst data | no |
| half_width, samples | | all answers within h with high probability; users for that | no |
"""

from torchdp.queries.central import CentralFactorization
from torchdp.queries.choose import Candidate, Choice, choose, choose_central
from torchdp.queries.concepts import ConceptClass, conjunctions, parities, stumps, thresholds
from torchdp.queries.consistent import Consistent, consistent
from torchdp.queries.factored import FactoredQueries, factored, identity, plain
from torchdp.queries.learn import Learned, PrivateLearner
from torchdp.queries.local import LocalFactorization, local_factorization
from torchdp.queries.mechanism import Answers, Errors, Objective, QueryMechanism
from torchdp.queries.oracle import LocalOracle

__all__ = [
    "Answers",
    "Candidate",
    "CentralFactorization",
    "Choice",
    "ConceptClass",
    "Consistent",
    "Errors",
    "FactoredQueries",
    "Learned",
    "LocalFactorization",
    "LocalOracle",
    "Objective",
    "PrivateLearner",
    "QueryMechanism",
    "choose",
    "choose_central",
    "conjunctions",
    "consistent",
    "factored",
    "identity",
    "local_factorization",
    "parities",
    "plain",
    "stumps",
    "thresholds",
]
