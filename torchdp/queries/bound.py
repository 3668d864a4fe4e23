"""What no unbiased local protocol for linear queries can do better than."""

import math

from torch import Tensor

from torchdp import checks
from torchdp.protocol import Objective
from torchdp.queries.protocol import dense
from torchdp.randomizers import strategy_lower_bound
from torchdp.workloads import Workload

LEAST = 1e-6  # an epsilon whose bound holds for less too
MOST = 700.0  # an epsilon beyond which the bound is put at 0


def lower_bound(
    workload: Tensor | Workload,
    n: int,
    epsilon: float,
    objective: Objective = Objective.MEAN,
    *,
    prior: Tensor | None = None,
) -> float:
    """No unbiased epsilon-LDP mechanism answers W h with a smaller root mean squared error on such
    data of n users.

    Over n users drawn from ``prior``, (k,), non-negative, on average; None: from the uniform one,
    and for ``Objective.WORST`` from any two types for a single query too, so no less on the worst
    data. Each user sends one report. O(m k^2) by singular values, see ``strategy_lower_bound``. W:
    (m, k). Raises TypeError, ValueError.

    Guarantees: at most the least error.
    Source: Hoeffding (1948), the projection on one user's report.
    """
    W, n = dense(workload), checks.integer("n", n, 1)
    epsilon = max(checks.positive("epsilon", epsilon), LEAST)
    worst = checks.instance("objective", objective, Objective) is Objective.WORST
    h = None if prior is None else checks.shares("prior", prior, W.shape[1]).to(W)
    if epsilon > MOST or not bool((W != W[:, :1]).any()):
        return 0.0
    least = strategy_lower_bound(W, epsilon, h, program=False)
    # a query by itself: its variance under h, of two types at most a quarter of its range squared
    if worst:
        alone = (
            (W.amax(1) - W.amin(1)).square() / 4
            if h is None
            else (W - (W @ h)[:, None]).square() @ h
        )
        least = max(least, float(alone.max()) / math.sinh(epsilon / 2) ** 2)
    return math.sqrt(least / n)
