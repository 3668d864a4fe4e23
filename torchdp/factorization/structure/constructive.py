"""Norms in closed form, and the literature's explicit factorizations, certified: no iteration anywhere.

The lower bounds of factorizations are at uniform weights, so the certified gap is the most by which they can miss the
optimum; :func:`factorize` finds the optimum itself.
"""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp import checks, workloads
from torchdp.factorization.certificates.certificate import check_exponent, power_norm, row_norm
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.solvers.fixed_point import Solution


def best_decoder(W: Tensor, right: Tensor, p: float = math.inf) -> Factorization:
    """left = W right^+: for given right, each row of left has the least norm, so left is best for every p.

    W: (*batch, m, n); right: (*batch, r, n), whose row space holds W's rows (what it misses is charged to ``upper``).
    With the binary tree it is Honaker's. Raises ValueError, TypeError.
    Source: Hay, Rastogi, Miklau, Suciu (2010), consistency by least squares; Honaker (2015).
    """
    W, right = checks.matrix("W", W).detach(), checks.matrix("right", right).detach().double()
    if W.shape[-1] != right.shape[-1]:
        raise ValueError(f"right must have W's {W.shape[-1]} columns, not {right.shape[-1]}")
    return at_uniform_weights(W, W.double() @ torch.linalg.pinv(right), right, p)


def binary_tree(k: int, p: float = math.inf) -> Factorization:
    """Prefix sums from a binary tree: right counts every dyadic interval, left adds the few that make a prefix.

    With 2^h >= k the least such power, a type lies in h + 1 intervals and a prefix is made of at most max(h, 1):
    gamma_2's upper bound is at most sqrt((h + 1) max(h, 1)). Raises ValueError.
    Source: Dwork, Naor, Pitassi, Rothblum (2010); Chan, Shi, Song (2011).
    """
    W = workloads.prefix(k).dense()
    types, length = torch.arange(k, device=W.device), torch.arange(1, k + 1, device=W.device)
    left, right = [], []
    for level in range((k - 1).bit_length() + 1):
        block = torch.arange(((k - 1) >> level) + 1, device=W.device)  # intervals of 2^level types
        right.append(types >> level == block[:, None])
        ends = length >> level  # an odd number of such intervals fits: the last of them is used
        left.append((ends % 2 == 1)[:, None] & (ends[:, None] - 1 == block))
    return at_uniform_weights(W, torch.cat(left, 1).double(), torch.cat(right).double(), p)


def square_root(k: int, p: float = math.inf) -> Factorization:
    """Prefix sums as A A, A the lower triangular Toeplitz matrix of the coefficients f_j of (1 - x)^{-1/2}.

    f_j = binom(2j, j) / 4^j; gamma_2's upper bound is sum_{j<k} f_j^2 <= 1 + (ln k + 0.5773) / pi, and
    ln k / pi + 1.0663 as k grows. Raises ValueError.
    Source: Fichtenberger, Henzinger, Upadhyay (2023); the bound by f_j^2 <= 1 / (pi j) (Wallis).
    """
    W = workloads.prefix(k).dense()
    A = _root(W)
    return at_uniform_weights(W, A, A, p)


def normalised_square_root(k: int, p: float = math.inf) -> Factorization:
    """Prefix sums with right = A D^{-1}, the square root A with its columns scaled to norm 1; left = A A D A^{-1}.

    gamma_2's upper bound is ln k / pi + 0.846 + o(1). Raises ValueError.
    Source: Henzinger, Kalinin, Upadhyay (2025, arXiv 2509.14334).
    """
    W = workloads.prefix(k).dense()
    A = _root(W)
    right = A / A.norm(dim=0)
    left = torch.linalg.solve_triangular(right, W.double(), upper=False, left=False)
    return at_uniform_weights(W, left, right, p)


def lipschitz_tree(W: Tensor, p: float = math.inf, *, decay: float = 5 / 6) -> Factorization:
    """Any W from a balanced binary search tree over its columns, made for rows that change slowly along the columns.

    Each column t is a node, of depth d_t, the middle of the interval of columns that is its subtree:
        right_tj = decay^{d_t} [j in t's subtree],   left_it = decay^{-d_t} (W_it - W_i,parent(t)),
    where the root's parent counts 0: the path from the root to j adds up to W_ij.
    Where abs(W_ij - W_ij') <= G abs(j - j') and abs(W_i,root) <= B, with 2^{q-1} <= n < 2^q, decay = 5/6 and p = inf,
        upper^2 <= 36/11 (B^2 + 9/14 G^2 4^q),
    since there are at most 2^d nodes of depth d, each within 2^{q-1-d} of its parent: O(G n), free of log n.

    W: (*batch, m, n), real. decay: in (0, 1). Raises ValueError, TypeError.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 17; the constants are derived here.
    """
    W, decay = checks.matrix("W", W).detach(), checks.fraction("decay", decay)
    n = W.shape[-1]
    types, values = torch.arange(n, device=W.device), W.double()
    low, high, above = types[:1], types[:1] + n, torch.zeros_like(values[..., :1])  # above: the parent's column
    left, right = [], []
    for depth in range(n.bit_length()):
        middle = (low + high) // 2
        here = values[..., middle]
        left.append((here - above) / decay**depth)
        right.append(((types >= low[:, None]) & (types < high[:, None])).double() * decay**depth)
        low, high = torch.cat([low, middle + 1]), torch.cat([middle, high])
        above = torch.cat([here, here], -1)[..., low < high]
        low, high = low[low < high], high[low < high]
    nodes = torch.cat(right).expand(*W.shape[:-2], n, n)
    return at_uniform_weights(W, torch.cat(left, -1), nodes, p)


def _root(W: Tensor) -> Tensor:
    """The square root of the prefix matrix of W's side, (k, k) float64."""
    place = torch.arange(W.shape[0], device=W.device)
    j = place[1:].double()
    f = torch.cat([torch.ones_like(place[:1]).double(), ((2 * j - 1) / (2 * j)).cumprod(0)])
    return f[(place[:, None] - place).clamp_min(0)].tril()


def gamma_product_domain(norms: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p(K_1 x ... x K_k) from the sets' Gamma_p: their l_{2p/(p+2)} norm.

    A user holds one point of each set: Gamma_2 adds, Gamma_inf adds in squares.
    norms: (*batch, k), not negative. Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 60.
    """
    p = check_exponent(p)
    return power_norm(_norms("norms", norms), 2.0 if p == math.inf else 2 * p / (p + 2))


def gamma_box(low: Tensor, high: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p([low_1, high_1] x ... x [low_d, high_d]) = ||high - low||_{2p/(p+2)} / 2.

    low, high: (*batch, d), low <= high. Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), equations (26) and (27), with the factor 1/2 of (27) in both.
    """
    return gamma_product_domain(_half(low, high), p)


def gamma_ellipsoid(A: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p({A u + v: ||u|| <= 1}) = the l_p norm of A's row norms, whatever the centre v.

    A: (*batch, d, r). Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 19.
    """
    return row_norm(checks.matrix("A", A).double(), check_exponent(p))


def at_uniform_weights(W: Tensor, left: Tensor, right: Tensor, p: float) -> Factorization:
    """Given factors of W, balanced and certified with uniform weights for the lower bound. Raises ValueError on p."""
    p = check_exponent(p)
    rows, columns = torch.ones_like(W[..., 0]).double(), torch.ones_like(W[..., 0, :]).double() / W.shape[-1]
    return finish(W, Solution(left, right, None, rows, columns, columns, 0), p)


def _norms(name: str, values: Tensor) -> Tensor:
    values = checks.floating(name, values).double()
    if values.ndim == 0 or 0 in values.shape or bool((values < 0).any()):
        raise ValueError(f"{name} must be a non-empty (*batch, k) tensor without negative entries")
    return values


def _half(low: Tensor, high: Tensor) -> Tensor:
    low, high = checks.floating("low", low).double(), checks.floating("high", high).double()
    try:
        np.broadcast_shapes(low.shape, high.shape)
    except ValueError as error:
        raise ValueError(
            f"low {tuple(low.shape)} and high {tuple(high.shape)} must have one shape, (*batch, d)"
        ) from error
    if bool((low > high).any()):
        raise ValueError("low must be at most high in every coordinate")
    return _norms("high - low", high - low) / 2
