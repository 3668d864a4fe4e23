"""A lower bound on the error of every unbiased local protocol for linear queries."""

import math

from torch import Tensor

from torchdp import checks
from torchdp.protocol import Objective
from torchdp.queries.protocol import dense
from torchdp.randomizers import strategy_lower_bound
from torchdp.workloads import Workload

# The bound at this epsilon is that of every smaller one: more privacy only adds error.
LEAST = 1e-6

# Beyond this epsilon sinh overflows, and the bound is 0.
MOST = 700.0


def lower_bound(
    workload: Tensor | Workload,
    n: int,
    epsilon: float,
    objective: Objective = Objective.MEAN,
    *,
    prior: Tensor | None = None,
) -> float:
    """No unbiased epsilon-LDP mechanism answers W h with a smaller root mean squared error.

    Over n users drawn from ``prior``, (k,), non-negative, on average; None: from the uniform one,
    and for ``Objective.WORST`` from any two types for a single query too, so no less on the worst
    data. Each user sends one report. O(m k^2) by singular values, see ``strategy_lower_bound``. W:
    (m, k). Raises TypeError, ValueError.

    Guarantees: at most the least error.
    Source: Hoeffding (1948), the projection on one user's report.
    """
    W = dense(workload)
    n = checks.integer("n", n, 1)
    epsilon = max(checks.positive("epsilon", epsilon), LEAST)
    objective = checks.instance("objective", objective, Objective)
    h = None if prior is None else checks.shares("prior", prior, W.shape[1]).to(W)
    # A query that is the same for all types is known without any report.
    if epsilon > MOST or not (W != W[:, :1]).any():
        return 0.0
    variance = strategy_lower_bound(W, epsilon, h)
    if objective is Objective.WORST:
        # The worst query is no easier than one query by itself, for which the bound is exact.
        single = _largest_spread(W, h) / math.sinh(epsilon / 2) ** 2
        variance = max(variance, single)
    return math.sqrt(variance / n)


def _largest_spread(W: Tensor, h: Tensor | None) -> float:
    """The largest variance of a query, over users drawn from h; None: from any two types."""
    if h is None:
        # Half of the users at either end of the query's range.
        ranges = W.amax(1) - W.amin(1)
        return float(ranges.square().max()) / 4
    centred = W - (W @ h)[:, None]
    return float((centred.square() @ h).max())
