"""A certified lower bound on the variance of every epsilon-LDP report of a workload."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.randomizers.alphabet.strategy_search import answered
from torchdp.threads import on_host, one_thread

LEAST_EPSILON = 1e-6
LARGEST_EPSILON = 700.0

# Of the largest entry, for each dimension: the error of the singular values.
ROUNDING = 1e-14


@one_thread
@on_host
def strategy_lower_bound(W: Tensor, epsilon: float, prior: Tensor | None = None) -> float:
    """No epsilon-LDP report answers W with less variance, in the mean over queries and the prior.

    For every local randomizer, whatever its outputs, and every unbiased estimate V(y) of W e_x from
    one report y, sum_x prior_x mean_i Var(V_i | x) is at least the value returned.
    ``StrategyMatrix.tuned`` bounds the least such variance from above, so the two together say how
    far a strategy is from the best. The worst type's variance is no less than any mean over types:
    there, take the prior of the strategy.

    With s the singular values of W diag(prior)^{1/2}, rows less their means under the prior, and t
    = tanh(epsilon/2)^2: the least sum of s_i^2/v_i - s_i^2 over v_i <= t whose sum is at most T =
    sinh(epsilon/2)^2, over the number of queries; tight for the histogram, far too low for prefix
    sums at epsilon = 4. The least has v_i = min(t, c s_i), 1/c^2 the multiplier of the sum, and any
    c > 0 gives a bound. For u = a row of a strategy over its largest entry, in [low, 1] with low =
    e^-epsilon, m = <prior, u>, weights w with sum_y w_y u_y = 1 and A = sum_y w_y C u_y u_y^T C^T /
    m_y, C u = diag(prior)^{1/2} (u - m), unbiasedness leaves tr(B A^+), B of eigenvalues s_i^2;
    tr A <= sum_y w_y m_y max over m of (m - low)(1 - m)/m^2 = T.

    Args:
        W: (m, k), real, not zero.
        epsilon: in [1e-6, 700].
        prior: (k,), non-negative; None: uniform.

    Raises TypeError, ValueError.

    Guarantees: at most the least variance.
    Source: the v_i are those of the chi-square information of the report, at most t each (Zhang,
    Asoodeh 2023, Theorem 1); their sum by var u <= (mean u - low)(1 - mean u) for numbers u in
    [low, 1] (Bhatia, Davis 2000).
    """
    epsilon = checks.within("epsilon", epsilon, LEAST_EPSILON, LARGEST_EPSILON)
    W, prior = answered(W, prior, positive=False)
    queries, k = W.shape
    if prior is None:
        prior = W.new_full((k,), 1 / k)
    W = (W - (W @ prior)[:, None]) * prior.sqrt()
    if queries > k:
        # R has the singular values of W, and no more than k rows.
        W = torch.linalg.qr(W, mode="r").R
    s = torch.linalg.svdvals(W)
    # Rounded down: the bound grows with each singular value, so that it still holds.
    s = (s - ROUNDING * k * s[0]).clamp_min(0)
    total = math.sinh(epsilon / 2) ** 2
    most = math.tanh(epsilon / 2) ** 2
    # The sum left for this v and those after it, where all before are at most.
    left = total - most * torch.arange(len(s), device=s.device)
    rest = s.flip(0).cumsum(0).flip(0)
    free = ((left > 0) & (left * s < most * rest)).nonzero()[:, 0]
    if not len(free):  # every v at most
        return float(s.square().sum()) / total / queries
    c = float(left[free[0]] / rest[free[0]])
    at_most = s.square() / total + most / c**2
    terms = torch.where(c * s > most, at_most, 2 * s / c - s.square())
    # Rounding is charged to what is taken off: the bound only becomes smaller.
    bound = float(terms.sum()) - total / c**2 * (1 + ROUNDING * k)
    return max(0.0, bound) / queries
