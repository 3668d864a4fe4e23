"""Fully corrective column generation: the best ellipsoid around the points found so far."""

import torch
from torch import Tensor

from torchdp.domains.domain import Proposal
from torchdp.factorization.solvers.fixed_point import solve

NOTHING = 1e-8  # of the largest weight: the solver keeps weights above 0
LIGHT = 1e-4  # of the largest weight: points below are dropped, and found again where they matter
CLOSE = 1e-5  # of the set's reach: points that differ by less are one
TINY = 1e-300


def on_points(points: Tensor, middle: Tensor | None, p: float, tol: float, max_iterations: int = 3000) -> Proposal:
    """The best ellipsoid around the points (k, d): about ``middle``, or with a centre of its own where that is None."""
    origin = points[0] if middle is None else middle
    W = (points - origin).mT
    solution = solve(W, p=p, shift=middle is None, tol=tol, max_iterations=max_iterations)
    root = solution.left * solution.right.norm(dim=-2).max()
    centre = origin + W @ solution.primal_weights if middle is None else middle
    weights = solution.column_weights
    kept = weights > NOTHING * weights.max()
    return Proposal(root, centre, points[kept], weights[kept], solution.row_weights)


def heavy(proposal: Proposal) -> Tensor:
    """The points that carry weight, the heaviest 4 d (d + 1) at most: an optimum needs an eighth of them."""
    weights, d = proposal.weights, proposal.points.shape[1]
    order = torch.argsort(weights, descending=True)[: 4 * d * (d + 1)]
    return proposal.points[order[weights[order] > LIGHT * weights.max()]]


def merged(start: Tensor, proposal: Proposal, found: Tensor, middle: Tensor | None) -> Tensor:
    """The next points: those to start from, those with weight and those found, one of two mirror images."""
    points = torch.cat([start, heavy(proposal), found])
    z = points - (points[0] if middle is None else middle)
    if middle is not None:
        lead = z.gather(-1, (z.abs() > 1e-9 * z.abs().max()).to(torch.uint8).argmax(-1, keepdim=True))
        z = torch.where(lead < 0, -z, z)
    grid = (z / (CLOSE * z.abs().max().clamp_min(TINY))).round()
    distinct, place = torch.unique(grid, dim=0, return_inverse=True)
    first = torch.zeros(len(distinct), dtype=torch.int64, device=z.device)
    return points[first.scatter(0, place, torch.arange(len(z), device=z.device))]
