"""A certified lower bound on the variance of every epsilon-LDP report of a workload.

Notation: W is (m, k) with rows less their means under the prior; low = e^-epsilon; u in {low, 1}^k
is a row of a strategy over its largest entry, u = low + (1 - low) t for t in {0, 1}^k; Z, the
prices and the multipliers are the dual variables.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, answered
from torchdp.threads import on_host, one_thread

LEAST_EPSILON = 1e-6
MOST = 700.0  # epsilon without the program

# Types up to which Clarabel solves the program; up to which SCS does.
INTERIOR_POINT = 24
LARGEST_PROGRAM = 64

# Of the largest entry, for each dimension: the error of eigvalsh.
ROUNDING = 1e-14

# Relative: rows that differ from their means by less are constant to rounding.
CONSTANT = 1e-12


@dataclass(frozen=True)
class VarianceWitness:
    """What proves a bound, see :func:`certify_variance`.

    Args:
        Z: gradient in the decoder, (m, k).
        prices: of the types, (k,).
        ones: multipliers of t_x t_y, (k, k).
        zeros: of (1 - t_x)(1 - t_y), (k, k).
        mixed: of t_x (1 - t_y), (k, k).
    """

    Z: Tensor
    prices: Tensor
    ones: Tensor
    zeros: Tensor
    mixed: Tensor


@one_thread
@on_host
def strategy_lower_bound(
    W: Tensor, epsilon: float, prior: Tensor | None = None, *, program: bool = True
) -> float:
    """No epsilon-LDP report answers W with less variance, in the mean over queries and the prior.

    For every local randomizer, whatever its outputs, and every unbiased estimate V(y) of W e_x from
    one report y, sum_x prior_x mean_i Var(V_i | x) is at least the value returned.
    ``StrategyMatrix.tuned`` bounds the least such variance from above, so the two together say how
    far a strategy is from the best. The worst type's variance is no less than any mean over types:
    there, take the prior of the strategy.

    Args:
        W: (m, k), real, not zero.
        epsilon: in [1e-6, 30], without the program up to 700.
        prior: (k,), positive, without the program non-negative; None: uniform.
        program: whether the semidefinite program is solved, up to 64 types.

    The larger of two. With s the singular values of W diag(prior)^{1/2}, rows less their means
    under the prior, and t = tanh(epsilon/2)^2: the least sum of s_i^2/v_i - s_i^2 over v_i <= t
    whose sum is at most sinh(epsilon/2)^2, over the number of queries; tight for the histogram, far
    too low for prefix sums at epsilon = 4. And, where ``program`` is and up to 64 types, a
    semidefinite program, solved by cvxpy on the CPU, in about a second at k = 16 and a minute at
    k = 64; its solution is a proposal, which :func:`certify_variance` turns into a bound. From
    epsilon = 6 on its rounding makes the bound weak.

    Raises TypeError, ValueError, ImportError without cvxpy where the program is solved,
    RuntimeError where the solver finds nothing.

    Guarantees: at most the least variance.
    Source: weak duality for the problem of McKenna, Maity, Mazumdar, Miklau (2020) over its extreme
    rows (Kairouz, Oh, Viswanath 2014), the quadratic condition on them relaxed as in Sherali, Adams
    (1990). For the singular values: the v_i are those of the chi-square information of the report,
    at most t each (Zhang, Asoodeh 2023, Theorem 1); their sum by var u <= (mean u - low)(1 - mean
    u) for numbers u in [low, 1] (Bhatia, Davis 2000).
    """
    W, epsilon, prior = _problem(W, epsilon, prior, program)
    simple = _by_singular_values(W, epsilon, prior)
    if not program or W.shape[1] > LARGEST_PROGRAM:
        return simple
    return max(simple, _by_program(W, epsilon, prior))


def _by_singular_values(W: Tensor, epsilon: float, prior: Tensor) -> float:
    """With v_i = min(t, c s_i): the least sum for the multiplier 1/c^2 of their sum.

    A bound for any c > 0. For u = a row of a strategy over its largest entry, m = <prior, u>,
    weights w with sum_y w_y u_y = 1 and A = sum_y w_y C u_y u_y^T C^T/m_y, C u = diag(prior)^{1/2}
    (u - m), unbiasedness leaves tr(B A^+), B of eigenvalues s_i^2; tr A <= sum_y w_y m_y max over m
    of (m - low)(1 - m)/m^2 = sinh(epsilon/2)^2.
    """
    queries, k = W.shape
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
    left = total - most * torch.arange(len(s))
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


def _by_program(W: Tensor, epsilon: float, prior: Tensor) -> float:
    with checks.needing("strategy_lower_bound", "cvxpy"):
        import cvxpy as cp

    k = W.shape[1]
    low = math.exp(-epsilon)
    centred = W - (W @ prior)[:, None]  # a constant added to a query changes no variance
    scale = float(centred.abs().max())
    if scale <= CONSTANT * float(W.abs().max()):
        return 0.0
    if len(W) > k:
        centred = torch.linalg.qr(centred, mode="r").R
    root = centred / scale
    t, rest, lift = (form.numpy() for form in _forms(k, low))
    identity = torch.eye(len(root)).double().numpy()
    off_diagonal = 1 - torch.eye(k, dtype=torch.float64).numpy()

    Y = cp.Variable(tuple(root.shape))  # (1 - low) Z, with Z 1 = 0
    prices = cp.Variable(k)
    ones = cp.Variable((k, k), symmetric=True)
    zeros = cp.Variable((k, k), symmetric=True)
    mixed = cp.Variable((k, k))
    of_prices = cp.reshape(prices, (1, k), order="C") @ lift
    slack = (lift.T @ prior.numpy()[:, None]) @ of_prices
    slack = slack - t @ ones @ t.T - rest @ zeros @ rest.T - t @ mixed @ rest.T
    symmetric = (slack + slack.T) / 2
    block = cp.bmat([[symmetric, t @ Y.T], [Y @ t.T, identity]])
    constraints = [
        block >> 0,
        ones >= 0,
        zeros >= 0,
        cp.multiply(off_diagonal, mixed) >= 0,
        cp.sum(Y, axis=1) == 0,
    ]
    gain = cp.trace(Y @ root.numpy().T)
    problem = cp.Problem(cp.Maximize(2 * gain - cp.sum(prices)), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an inaccurate solution is charged for below
        if k <= INTERIOR_POINT:
            problem.solve(solver=cp.CLARABEL)
        else:
            problem.solve(solver=cp.SCS, eps=1e-7, max_iters=50_000)
    if Y.value is None:
        raise RuntimeError(
            f"the solver found no solution ({problem.status}); try a smaller epsilon"
        )
    variables = [Y, prices, ones, zeros, mixed]
    solution, *multipliers = [torch.from_numpy(each.value).double() for each in variables]
    Z = (solution - solution.mean(1, keepdim=True)) / (1 - low)
    bound = certify_variance(root, epsilon, VarianceWitness(Z, *multipliers), prior)
    return bound * scale**2 * len(root) / len(W)


@on_host
def certify_variance(
    W: Tensor, epsilon: float, witness: VarianceWitness, prior: Tensor | None = None
) -> float:
    """The bound that a witness proves, by linear algebra in float64.

    For a row r of any strategy and its decoder V_r, <prior, r> ||V_r||^2 >= 2 <V_r, Z r> -
    ||Z r||^2/<prior, r>. If ||Z u||^2 <= <prior, u> <prices, u> for all u in {low, 1}^k, then by
    convexity for all rows, and the sum of the second moments is at least 2 tr(Z^T W) - sum prices;
    at the best multiple of Z that is (tr Z^T W)^2/sum prices. With u = low + (1 - low) t the
    condition holds if <prior, u> <prices, u> - ||Z u||^2, less multiples of t_x t_y,
    (1 - t_x)(1 - t_y) and t_x (1 - t_y), non-negative but for the last at x = y (where it is 0), is
    a positive semidefinite form in (1, t). What its smallest eigenvalue lacks is made up for by
    larger prices.
    """
    W, epsilon, prior = _problem(W, epsilon, prior)
    k = W.shape[1]
    low = math.exp(-epsilon)
    W = W - (W @ prior)[:, None]
    t, rest, lift = _forms(k, low)
    image = witness.Z @ lift
    # A solver's multipliers may be a little negative: any that are not prove a bound.
    ones = witness.ones.clamp_min(0)
    zeros = witness.zeros.clamp_min(0)
    diagonal = torch.eye(k, dtype=torch.bool)
    mixed = torch.where(diagonal, witness.mixed, witness.mixed.clamp_min(0))
    slack = torch.outer(prior @ lift, witness.prices @ lift) - image.mT @ image
    slack -= t @ ones @ t.mT + rest @ zeros @ rest.mT
    slack -= t @ mixed @ rest.mT
    slack = (slack + slack.mT) / 2
    smallest = float(torch.linalg.eigvalsh(slack)[0])
    lacking = max(0.0, -smallest)
    # The eigenvalue itself is rounded: that much more is made up for.
    lacking += ROUNDING * (k + 1) * float(slack.abs().max())
    # |(1, t)|^2 = 1 + T for T = sum t, <1, u> = k low + (1 - low) T, and <prior, u> >= low +
    # (1 - low) T min prior.
    T = torch.arange(k + 1, dtype=torch.float64)
    least_mean = low + (1 - low) * T * prior.min()
    share = (1 + T) / (least_mean * (k * low + (1 - low) * T))
    prices = float(witness.prices.sum()) + k * lacking * float(share.max())
    gain = float((witness.Z * W).sum())
    second_moments = gain**2 / prices if gain > 0 and prices > 0 else 0.0
    of_means = float((W.square() @ prior).sum())
    return max(0.0, second_moments - of_means) / len(W)


def _problem(
    W: Tensor, epsilon: float, prior: Tensor | None, program: bool = True
) -> tuple[Tensor, float, Tensor]:
    """On the CPU; the uniform prior for None."""
    most = LARGEST_EPSILON if program else MOST
    epsilon = checks.within("epsilon", epsilon, LEAST_EPSILON, most)
    W, prior = answered(W, prior, positive=program)
    W = W.cpu()
    if prior is None:
        k = W.shape[1]
        return W, epsilon, W.new_full((k,), 1 / k)
    return W, epsilon, prior.cpu()


def _forms(k: int, low: float) -> tuple[Tensor, Tensor, Tensor]:
    """In (1, t): the forms t_x and 1 - t_x, columns of (k + 1, k) each, and u, (k, k + 1)."""
    one = torch.ones(1, k, dtype=torch.float64)
    eye = torch.eye(k, dtype=torch.float64)
    t = torch.cat([0 * one, eye])
    rest = torch.cat([one, -eye])
    lift = torch.cat([low * one, (1 - low) * eye])
    return t, rest, lift.mT
