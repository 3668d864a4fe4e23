"""A certified lower bound on the variance of every epsilon-LDP report of a workload."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks

ROUNDING = 1e-13  # of the largest entry, for each dimension: what eigvalsh may be off by


@dataclass(frozen=True)
class VarianceWitness:
    """Z (k, k), prices (k,), and the multipliers (k, k) of the products of (u - low) and (1 - u): see ``certify``."""

    Z: Tensor
    prices: Tensor
    both_low: Tensor
    both_high: Tensor
    mixed: Tensor


def strategy_lower_bound(W: Tensor, epsilon: float, prior: Tensor | None = None) -> float:
    """No epsilon-LDP report lets W be answered with less variance: a bound on the mean over queries and prior types.

    It holds for every local randomizer, whatever its outputs, with any unbiased estimate V(y) of W e_x from one report:
    sum_x prior_x mean_i Var(V_i | x) >= the value returned. An upper bound on the optimum is what
    :func:`optimize_strategy` reaches, so the two together say how far it is from the best. With the strategy's own
    prior it bounds the worst type's variance too, which is no less than any mean over types.

    W: (m, k), real, not zero; epsilon in (0, 30]; prior: (k,), positive (None: uniform). Solves a semidefinite program
    with cvxpy, seconds up to k = 32; what the solver says is not believed but evaluated by :func:`certify_variance`.
    Raises TypeError, ValueError, and ImportError without cvxpy.

    Guarantees: at most the least variance, up to the rounding that is allowed for.
    Source: weak duality for the optimal design problem of McKenna, Maity, Mazumdar, Miklau (2020), its extreme rows
    (Kairouz, Oh, Viswanath 2014) relaxed as in Sherali, Adams (1990).
    """
    import cvxpy as cp

    W, low, prior = _problem(W, epsilon, prior)
    k, scale = W.shape[1], float(W.abs().max())
    root = (W if W.shape[0] <= k else torch.linalg.qr(W, mode="r").R) / scale
    first, second = (side.numpy() for side in _sides(k, low))
    Z, prices = cp.Variable(tuple(root.shape)), cp.Variable(k)
    low_low, high_high = (cp.Variable((k, k), symmetric=True) for _ in range(2))
    mixed = cp.Variable((k, k))
    lifted = torch.cat([torch.zeros(1, k, dtype=torch.float64), torch.eye(k, dtype=torch.float64)]).numpy()
    product = (lifted @ prior.numpy()[:, None]) @ cp.reshape(prices, (1, k), order="C") @ lifted.T
    slack = product - first @ low_low @ first.T - second @ high_high @ second.T - first @ mixed @ second.T
    slack = (slack + slack.T) / 2
    off = 1 - torch.eye(k, dtype=torch.float64).numpy()
    block = cp.bmat([[slack, lifted @ Z.T], [Z @ lifted.T, torch.eye(len(root), dtype=torch.float64).numpy()]])
    constraints = [block >> 0, low_low >= 0, high_high >= 0, cp.multiply(off, mixed) >= 0]
    problem = cp.Problem(cp.Maximize(2 * cp.trace(Z @ root.numpy().T) - cp.sum(prices)), constraints)
    if k <= 24:
        problem.solve(solver=cp.CLARABEL)
    else:
        problem.solve(solver=cp.SCS, eps=1e-7, max_iters=50_000)
    found = [torch.from_numpy(v.value).double() for v in (Z, prices, low_low, high_high, mixed)]
    return certify_variance(root, epsilon, VarianceWitness(*found), prior) * scale**2 * len(root) / len(W)


def certify_variance(W: Tensor, epsilon: float, witness: VarianceWitness, prior: Tensor | None = None) -> float:
    """The bound that a witness proves, in float64, by linear algebra alone.

    For a row r of any strategy and its decoder V_r, <prior, r> ||V_r||^2 >= 2 <V_r, Z r> - ||Z r||^2/<prior, r>. If
    ||Z u||^2 <= <prior, u> <nu, u> for all u in {low, 1}^k, low = e^-epsilon, then by convexity for all rows, and the
    sum is at least 2 tr(Z^T W) - sum nu, at best (tr Z^T W)^2/sum nu when Z is rescaled. The condition holds if
    <prior, u> <nu, u> - ||Z u||^2 less non-negative multiples of (u_x - low)(u_y - low), (1 - u_x)(1 - u_y) and
    (u_x - low)(1 - u_y), any multiples at x = y in the last, is a quadratic in (1, u) that is positive semidefinite;
    nu is raised by what its smallest eigenvalue lacks.
    """
    W, low, prior = _problem(W, epsilon, prior)
    k = W.shape[1]
    first, second = _sides(k, low)
    off = 1 - torch.eye(k, dtype=torch.float64)
    mixed = witness.mixed * (1 - off) + (witness.mixed * off).clamp_min(0)
    slack = torch.zeros(k + 1, k + 1, dtype=torch.float64)
    slack[1:, 1:] = torch.outer(prior, witness.prices) - witness.Z.mT @ witness.Z
    slack -= first @ witness.both_low.clamp_min(0) @ first.mT + second @ witness.both_high.clamp_min(0) @ second.mT
    slack -= first @ mixed @ second.mT
    slack = (slack + slack.mT) / 2
    lacking = max(0.0, -float(torch.linalg.eigvalsh(slack)[0])) + ROUNDING * (k + 1) * float(slack.abs().max())
    # ||(1, u)||^2 <= 1 + sum u <= (1 + 1/(k low)) sum u, and <prior, u> >= low.
    prices = float(witness.prices.sum()) + k * lacking * (1 + 1 / (k * low)) / low
    gain = float((witness.Z * W).sum())
    least = gain * abs(gain) / prices if prices > 0 else -math.inf
    return (least - float((W.square() @ prior).sum())) / len(W)


def _problem(W: Tensor, epsilon: float, prior: Tensor | None) -> tuple[Tensor, float, Tensor]:
    W = checks.matrix("W", W).detach().double().cpu()
    if W.ndim != 2 or W.shape[1] < 2 or not W.any():
        raise ValueError(f"W must be (queries, types), types >= 2, and not zero; its shape is {tuple(W.shape)}")
    epsilon, k = checks.positive("epsilon", epsilon), W.shape[1]
    if epsilon > 30:
        raise ValueError(f"epsilon must be at most 30, not {epsilon!r}")
    if prior is None:
        return W, math.exp(-epsilon), torch.full((k,), 1 / k, dtype=torch.float64)
    prior = checks.floating("prior", prior).detach().double().cpu()
    if prior.shape != (k,) or not (prior > 0).all():
        raise ValueError(f"prior must be ({k},) and positive")
    return W, math.exp(-epsilon), prior / prior.sum()


def _sides(k: int, low: float) -> tuple[Tensor, Tensor]:
    """The linear forms u_x - low and 1 - u_x in (1, u): (k + 1, k) each, one column for each x."""
    one, eye = torch.ones(1, k, dtype=torch.float64), torch.eye(k, dtype=torch.float64)
    return torch.cat([-low * one, eye]), torch.cat([one, -eye])
