"""Maximising a convex quadratic form over the unit sphere: exact."""

import torch
from torch import Tensor

STEPS = 200  # of the bisection; it ends when the interval does


def maximise_on_sphere(G: Tensor, g: Tensor) -> tuple[Tensor, float]:
    """Points z, ||z||_2 = 1, with large ||G z + g||^2, and a proved upper bound on the maximum, attained by the best.

    With G^T G = Q Lambda Q^T and b = Q^T G^T g, for every mu > lambda_max
        max ||G z + g||^2 <= mu + sum_i b_i^2 / (mu - lambda_i) + ||g||^2,
    with equality at the mu for which z = Q (mu - Lambda)^{-1} b has length 1; where there is none (b has no part along
    the largest eigenvalue) at mu = lambda_max, z completed along that eigenvector. The other eigenvectors, both ways,
    are returned too: at the best ellipsoid all of them are maxima.

    G: (d, N); g: (d,). Returns points (k, N) and the bound.
    Source: Moré, Sorensen (1983).
    """
    values, Q = torch.linalg.eigh(G.mT @ G)
    values = values.clamp_min(0)
    b = Q.mT @ (G.mT @ g)
    top = float(values[-1])
    frame = torch.cat([Q.mT, -Q.mT])
    size = float(b.norm())
    if size <= 1e-14 * max(top, 1e-300):
        return frame, top + 2 * size + float(g @ g)
    low, high = top, top + size  # ||z(mu)|| <= 1 at high
    for _ in range(STEPS):
        mu = (low + high) / 2
        if not low < mu < high:
            break
        low, high = (mu, high) if float((b / (mu - values)).norm()) > 1 else (low, mu)
    inverse = torch.where(values < high, 1 / (high - values), 0.0)
    part = b * inverse
    upper = high + float((b.square() * inverse).sum()) + float(g @ g)
    rest = max(0.0, 1 - float(part @ part)) ** 0.5
    ends = torch.stack([part, part])
    ends[0, -1] += rest
    ends[1, -1] -= rest
    ends = ends / ends.norm(dim=-1, keepdim=True)
    return torch.cat([ends @ Q.mT, frame]), upper
