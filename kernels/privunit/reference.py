"""The specification of lifted PrivUnit messages, and of sums of many from a counter."""

import torch
from torch import Tensor

from torchdp.kernels.normals.pieces import NUMBERS_AT_ONCE, portions
from torchdp.kernels.normals.reference import normals as counted_normals

COORDINATES = 0  # stream of the counter


def message(
    points: Tensor,
    normals: Tensor,
    lift: Tensor,
    along: Tensor,
    across: Tensor,
    *,
    radius: float,
    mean: float,
) -> Tensor:
    """Y = (C/mean) (T x' + (S/N) (g - <(g, g0), u> x')), x' = points / C.

    u = (x', sqrt(1 - ||x'||^2)), C = radius, N = ||(g, g0) - <(g, g0), u> u||. Points outside the
    ball are projected onto it.

    Args:
        points: (*batch, d).
        normals: g, (*batch, d).
        lift: g0, (*batch).
        along: T, (*batch).
        across: S = sqrt(1 - T^2), (*batch).
        radius: C.
        mean: of T.
    """
    scale = radius / mean
    stretch, height = lifted(points, radius)
    dot = (normals * points).sum(-1) / stretch + lift * height
    perpendicular = torch.addcmul(normals, (-dot / stretch)[..., None], points)
    # Its length from the vector itself: |g|^2 + g0^2 - dot^2 loses digits where d is small.
    length = torch.hypot(torch.linalg.vector_norm(perpendicular, dim=-1), lift - dot * height)
    share = across.to(points.dtype) / length.clamp_min(torch.finfo(points.dtype).tiny)
    own = along.to(points.dtype) * scale / stretch
    scaled = perpendicular.mul_((share * scale)[..., None])
    return scaled.addcmul_(own[..., None], points)


def messages(
    points: Tensor,
    types: Tensor,
    lift: Tensor,
    along: Tensor,
    across: Tensor,
    key: int,
    first: int = 0,
    *,
    radius: float,
    mean: float,
) -> Tensor:
    """The messages of users first, first + 1, ..., of whom first + i holds points[types[i]].

    points: (m, d). lift, along, across: (n,), each user's draws beside g, which is a function of
    the key and of the user's number. Returns (n, d).
    """
    index = torch.arange(first, first + len(types), device=points.device)
    g = counted_normals(key, index, points.shape[1], points.dtype, stream=COORDINATES)
    x = points.index_select(0, types)
    return message(x, g, lift.to(points.dtype), along, across, radius=radius, mean=mean)


def sums(
    points: Tensor,
    counts: Tensor,
    lift: Tensor,
    along: Tensor,
    across: Tensor,
    key: int,
    first: int = 0,
    *,
    radius: float,
    mean: float,
) -> Tensor:
    """As ``privunit.sums``, by ``messages``."""
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for start, stop, some in portions(counts, max(1, NUMBERS_AT_ONCE // points.shape[1])):
        types = torch.arange(len(points), device=points.device).repeat_interleave(some)
        draws = lift[start:stop], along[start:stop], across[start:stop]
        made = messages(points, types, *draws, key, first + start, radius=radius, mean=mean)
        total += made.sum(0, dtype=torch.float64)
    return total


def lifted(points: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """(C, or the norm of a longer point; what lifts x' = points / that to the sphere), (*batch)."""
    norms = torch.linalg.vector_norm(points, dim=-1)
    stretch = norms.clamp_min(radius)
    return stretch, (1 - (norms / stretch).square()).clamp_min(0).sqrt()
