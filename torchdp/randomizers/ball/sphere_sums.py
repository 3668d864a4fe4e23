"""Sums of random points of the sphere, each symmetric about its own axis, without making the points."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.randomizers.ball.sphere import uniform_coordinate

NUMBERS_AT_ONCE = 2**18
Sums = tuple[Tensor, Tensor]
# (T, sqrt(1 - T^2)) of independent users, each of shape (repeats, users), from the type of each user (users,).
Draw = Callable[[Tensor, int], Sums]


def sphere_sums(axes: Tensor, counts: Tensor, draw: Draw, shape: tuple[int, ...], draws: Draws) -> Tensor:
    """sum_x of counts[x] independent points T u_x + sqrt(1 - T^2) w, w uniform on the sphere orthogonal to u_x.

    The sum of one type's points is A u + rho w with w again uniform and independent of (A, rho). Two such sums
    A u + rho w and A' u + rho' w' add up to one with A + A' and (rho^2 + rho'^2 + 2 rho rho' t)^(1/2), t = <w, w'>
    a coordinate of a uniform point of the sphere in R^{D-1}: the pairs (A, rho) are added along a binary tree.

    axes u: (m, D), unit vectors; counts: (m,). Returns (*shape, D), float64. Cost: one normal besides the draw of T
    for each user, whatever D, and D normals for each type that has users.
    """
    held = (counts > 0).nonzero()[:, 0]
    axes, left, repeats = axes[held], counts[held], math.prod(shape)
    dim = axes.shape[-1]
    along = torch.zeros((repeats, len(held)), dtype=torch.float64, device=axes.device)
    across = torch.zeros_like(along)
    known = left.cpu()  # of sizes known here nothing is asked again
    while repeats and bool((known > 0).any()):
        most = max(1, NUMBERS_AT_ONCE // (repeats * int((known > 0).sum())))
        some, here = left.clamp_max(most), known.clamp_max(most)
        types = held.repeat_interleave(some, output_size=int(here.sum()))
        part = _tree(dim, some, here, draw(types, repeats), draws)
        along, across = _add(dim, (along, across), part, draws)
        left, known = left - some, known - here
    total = along @ axes
    at_once = max(1, NUMBERS_AT_ONCE // max(1, repeats * dim))
    for u, rho in zip(axes.split(at_once), across.split(at_once, -1), strict=True):
        normals = draws.normal((repeats, *u.shape))
        normals -= (normals * u).sum(-1, keepdim=True) * u
        lengths = torch.linalg.vector_norm(normals, dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
        total += torch.einsum("rm,rmd->rd", rho / lengths, normals)
    return total.reshape(*shape, dim)


def _tree(dim: int, sizes: Tensor, known: Tensor, users: Sums, draws: Draws) -> Sums:
    """Sums over consecutive users, sizes[x] of them for type x: (repeats, users) -> (repeats, types).

    known: the sizes on the CPU.
    """
    along, across = users
    while bool((known > 1).any()):
        pairs, known = (sizes + 1) // 2, (known + 1) // 2
        total = int(known.sum())
        # for each pair: its type's first and last user, and the pairs before that type's
        ends, before = sizes.cumsum(0), pairs.cumsum(0) - pairs
        start, last, skipped = torch.stack([ends - sizes, ends - 1, before]).repeat_interleave(
            pairs, dim=1, output_size=total
        )
        first = start + 2 * (torch.arange(total, device=sizes.device) - skipped)
        second, paired = torch.minimum(first + 1, last), first < last
        others = along[:, second] * paired, across[:, second] * paired
        along, across = _add(dim, (along[:, first], across[:, first]), others, draws)
        sizes = pairs
    empty, held = torch.zeros((along.shape[0], len(sizes)), dtype=torch.float64, device=along.device), sizes > 0
    return empty.masked_scatter(held, along), empty.masked_scatter(held, across)


def _add(dim: int, first: Sums, second: Sums, draws: Draws) -> Sums:
    """A u + rho w plus A' u + rho' w', w and w' independent and uniform."""
    rho, other = first[1], second[1]
    t = uniform_coordinate(max(dim - 1, 1), draws.normal(tuple(rho.shape)))[0]
    return first[0] + second[0], (rho * rho + other * other + 2 * rho * other * t).clamp_min(0).sqrt()
