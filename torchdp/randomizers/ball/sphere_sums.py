"""Sums of random points of the sphere, each symmetric about its own axis, without making the points."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.randomizers.ball.axial_sums import AxialSums, Sums
from torchdp.randomizers.ball.sphere import uniform_coordinate

NUMBERS_AT_ONCE = 2**18
Draw = Callable[[int], Sums]  # (T, sqrt(1 - T^2)) of so many independent users


def axial_sums(law: AxialSums, counts: Tensor, draw: Draw, draws: Draws) -> Sums:
    """(A, rho) of A u + rho w, the sum of so many independent points T u + sqrt(1 - T^2) w_i, for each of ``counts``.

    w, w_i: uniform on the sphere orthogonal to u. Two such sums add up to one with A + A' and (rho^2 + rho'^2 +
    2 rho rho' t)^(1/2), t = <w, w'> a coordinate of a uniform point of the sphere in R^{D-1}: points are added along a
    binary tree, at one normal besides the draw of T for each, whatever D. From ``law.least`` points on the law of the
    sum is drawn, to 1e-8 standard deviations: beyond, the cost does not grow with the counts.
    """
    shape, left = counts.shape, counts.flatten()
    along = torch.zeros(left.shape, dtype=torch.float64, device=left.device)
    across, many = torch.zeros_like(along), left >= law.least
    if many.any():
        along[many], across[many] = law.draw(left[many], draws)
    left = torch.where(many, 0, left)
    while len(held := left.nonzero()[:, 0]):
        some = left[held].clamp_max(max(1, NUMBERS_AT_ONCE // len(held)))
        known = some.cpu()  # of sizes known here nothing is asked again
        part = _tree(law.dim, some, known, draw(int(known.sum())), draws)
        along[held], across[held] = add(law.dim, (along[held], across[held]), part, draws)
        left[held] -= some
    return along.view(shape), across.view(shape)


def directed(axes: Tensor, sums: Sums, draws: Draws) -> Tensor:
    """sum_x A_x u_x + rho_x w_x, w_x uniform on the sphere orthogonal to u_x: D normals for each.

    axes u: (m, D), unit vectors; sums: (*shape, m) each. Returns (*shape, D), float64.
    """
    shape, dim = sums[0].shape[:-1], axes.shape[-1]
    along, across = (each.reshape(math.prod(shape), len(axes)) for each in sums)
    total = along @ axes
    at_once = max(1, NUMBERS_AT_ONCE // max(1, len(along) * dim))
    for u, rho in zip(axes.split(at_once), across.split(at_once, -1), strict=True):
        normals = draws.normal((len(along), *u.shape))
        normals -= (normals * u).sum(-1, keepdim=True) * u
        lengths = torch.linalg.vector_norm(normals, dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
        total += torch.einsum("rm,rmd->rd", rho / lengths, normals)
    return total.reshape(*shape, dim)


def add(dim: int, first: Sums, second: Sums, draws: Draws) -> Sums:
    """A u + rho w plus A' u + rho' w', w and w' independent and uniform."""
    rho, other = first[1], second[1]
    t = uniform_coordinate(max(dim - 1, 1), draws.normal(tuple(rho.shape)))[0]
    return first[0] + second[0], (rho * rho + other * other + 2 * rho * other * t).clamp_min(0).sqrt()


def _tree(dim: int, sizes: Tensor, known: Tensor, users: Sums, draws: Draws) -> Sums:
    """Sums over consecutive users, sizes[x] >= 1 of them for each x. known: the sizes on the CPU."""
    along, across = users
    while bool((known > 1).any()):
        pairs, known = (sizes + 1) // 2, (known + 1) // 2
        total = int(known.sum())
        # for each pair: its x's first and last user, and the pairs before that x's
        ends, before = sizes.cumsum(0), pairs.cumsum(0) - pairs
        start, last, skipped = torch.stack([ends - sizes, ends - 1, before]).repeat_interleave(
            pairs, dim=1, output_size=total
        )
        first = start + 2 * (torch.arange(total, device=sizes.device) - skipped)
        second, paired = torch.minimum(first + 1, last), first < last
        others = along[second] * paired, across[second] * paired
        along, across = add(dim, (along[first], across[first]), others, draws)
        sizes = pairs
    return along, across
