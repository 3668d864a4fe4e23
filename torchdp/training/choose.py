"""The plan of least error: sampled with independent or banded noise, or a fixed order with correlated noise."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization import factorize_epochs
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.factorization.solvers.toeplitz_solver import banded_toeplitz
from torchdp.privacy import Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.protocol import Candidate, Choice
from torchdp.training.participation import Epochs, sensitivity
from torchdp.training.plan import Plan
from torchdp.training.sampled import CyclicPoisson
from torchdp.training.strategy import causal_strategy, lower_triangular, standard_errors
from torchdp.workloads import Workload

DENSE = 512  # steps up to which strategies are optimised entry by entry
MOST_BANDS = 64  # of a strategy with one row of coefficients
ITERATIONS = 500
MOST_STEPS = 4096


def choose(
    W: Tensor | Workload,
    users: int,
    batch: int,
    *,
    epsilon: float,
    delta: float,
    bound: float = 1.0,
    p: float = 2.0,
) -> Choice:
    """The plans for releasing W G at one guarantee, the least error first; ``choice.best`` is a :class:`Plan`.

    Candidates: Poisson sampling with independent noise (DP-SGD); cyclic Poisson sampling with strategies of 2, 4, 8,
    ... bands, as many groups, up to users / batch; batches in one fixed order, which need not be secret, with the
    certified best strategy for it. Independent noise is among them, so nothing chosen errs more than DP-SGD. Which is
    best changes with epsilon: sampling gains most where it is small, correlation where it is large.

    W: (steps, steps), lower triangular, its diagonal not 0 (:func:`iterates`), at most 4,096 steps. users, batch: all
    of them, and those of a step. bound: of a user's gradient. p: in [2, inf]; the error is the l_p mean of the standard
    errors of W's rows: 2 for the root mean square, inf for the largest. Above 512 steps strategies have one row of
    coefficients, those of W's first column. Raises TypeError, ValueError.

    Guarantees: each plan is (epsilon, delta)-DP for adding or removing one user, as its ``guarantee`` states.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), section 4; the strategies ours.
    """
    W = lower_triangular("W", W.dense() if isinstance(W, Workload) else W)
    if len(W) > MOST_STEPS:
        raise ValueError(f"W must have at most {MOST_STEPS} steps, not {len(W)}; for more take factorize_buffered")
    users, p = checks.integer("users", users, 1), checks.order("p", p, 2)
    batch, bound = checks.integer("batch", batch, 1, users), checks.positive("bound", bound)
    gaussian_sigma(epsilon, delta, 1.0)  # refuses what no noise gives
    counts = [2**i for i in range(len(W).bit_length()) if 2**i <= min(users // batch, len(W))]
    plans = {_named(groups): _sampled(W, groups, users, batch, epsilon, delta, bound, p) for groups in counts}
    plans["fixed order"] = _ordered(W, users, batch, epsilon, delta, bound, p)
    return Choice(tuple(Candidate(name, plan, _error(plan, p), _note(plan)) for name, plan in plans.items()))


def _named(groups: int) -> str:
    return "Poisson, independent noise" if groups == 1 else f"cyclic Poisson, {groups} bands"


def _error(plan: Plan, p: float) -> float:
    """The l_p mean of the standard errors."""
    errors = plan.standard_errors
    count = 1.0 if p == math.inf else len(errors) ** (1 / p)
    return float(torch.linalg.vector_norm(errors, ord=p)) / count


def _note(plan: Plan) -> str:
    return f"noise {plan.sigma / plan.bound:.4g} x bound"


def _sampled(
    W: Tensor, groups: int, users: int, batch: int, epsilon: float, delta: float, bound: float, p: float
) -> Plan:
    """Cyclic Poisson sampling with columns of one norm."""
    sampling, n = CyclicPoisson(groups, batch * groups / users), len(W)
    C = _banded(W, groups, p) if groups > 1 else torch.eye(n, dtype=W.dtype, device=W.device)
    sigma = sampling.sigma(C, bound, epsilon, delta)
    guarantee = sampling.guarantee(C, sigma, bound, delta)
    return Plan(C, sampling, bound, sigma, users, batch, guarantee, sigma * standard_errors(W, C))


def _ordered(W: Tensor, users: int, batch: int, epsilon: float, delta: float, bound: float, p: float) -> Plan:
    """One fixed order, gone through again and again."""
    period = users // batch
    order = Epochs(period)
    if len(W) <= DENSE:
        C = causal_strategy(W, factorize_epochs(W, period, p))
    else:
        C = _banded(W, min(period, MOST_BANDS), p)
    longest = bound * sensitivity(C, order).value
    sigma = gaussian_sigma(epsilon, delta, longest) * (1 + 1e-11)
    guarantee = gaussian_guarantee(sigma, delta, longest, Model.CENTRAL, Neighbours.ADD_REMOVE)
    return Plan(C, order, bound, sigma, users, batch, guarantee, sigma * standard_errors(W, C))


def _banded(W: Tensor, bands: int, p: float) -> Tensor:
    """Columns of norm 1 with so many bands."""
    n = len(W)
    if n <= DENSE:
        return banded_strategy(W / W.abs().max(), n, 1, p, ITERATIONS, bands)[0]
    c = torch.from_numpy(banded_toeplitz(W[:, 0].cpu().numpy(), bands, p)).to(W)
    age = torch.arange(n, device=W.device)[:, None] - torch.arange(n, device=W.device)
    return torch.where((age >= 0) & (age < bands), c[age.clamp(0, bands - 1)], 0.0)
