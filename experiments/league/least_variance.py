"""A certified lower bound on the variance of every epsilon-LDP report, by a semidefinite program.

Tighter than ``strategy_lower_bound``, which goes by singular values; for few types.

Notation: W is (m, k) with rows less their means under the prior; low = e^-epsilon; u in {low, 1}^k
is a row of a strategy over its largest entry, u = low + (1 - low) t for t in {0, 1}^k; Z, the
prices and the multipliers are the dual variables.
"""

import math
import warnings
from dataclasses import dataclass

import cvxpy as cp
import torch
from torch import Tensor

from torchdp.threads import on_host

# Types up to which Clarabel solves the program; beyond, SCS does.
INTERIOR_POINT = 24

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


@on_host
def least_variance(W, epsilon, prior):
    """No epsilon-LDP report answers W with less variance, in the mean over queries and the prior.

    Args:
        W: (m, k), float64.
        epsilon: in [1e-6, 30]; from 6 on the program's rounding makes the bound weak.
        prior: (k,), positive, of sum 1.

    In about a second at k = 16 and a minute at k = 64.
    Source: weak duality for the problem of McKenna, Maity, Mazumdar, Miklau (2020) over its extreme
    rows (Kairouz, Oh, Viswanath 2014), the quadratic condition on them relaxed as in Sherali, Adams
    (1990).
    """
    W = W.cpu()
    prior = prior.cpu()
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
    variables = [Y, prices, ones, zeros, mixed]
    solution, *multipliers = [torch.from_numpy(each.value).double() for each in variables]
    Z = (solution - solution.mean(1, keepdim=True)) / (1 - low)
    bound = certify_variance(root, epsilon, VarianceWitness(Z, *multipliers), prior)
    return bound * scale**2 * len(root) / len(W)


def certify_variance(W, epsilon, witness, prior):
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


def _forms(k, low):
    """In (1, t): the forms t_x and 1 - t_x, columns of (k + 1, k) each, and u, (k, k + 1)."""
    one = torch.ones(1, k, dtype=torch.float64)
    eye = torch.eye(k, dtype=torch.float64)
    t = torch.cat([0 * one, eye])
    rest = torch.cat([one, -eye])
    lift = torch.cat([low * one, (1 - low) * eye])
    return t, rest, lift.mT


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/local_accuracy.py")
