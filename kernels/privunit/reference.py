"""The specification of the lifted PrivUnit message, in plain torch, and of sums of many from a
counter.
"""

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
    """Y = (C/mean) (T x' + (S/N) (g - <(g, g0), u> x')), x' = points / C, u =
    (x', sqrt(1 - ||x'||^2)), C = radius.

    N = ||(g, g0) - <(g, g0), u> u||. points, normals g: (*batch, d); lift g0, along T, across S =
    sqrt(1 - T^2): (*batch). Points outside the ball are projected onto it.
    """
    stretch, perpendicular, share = _perpendicular(points, normals, lift, across, radius)
    scaled = perpendicular.mul_((share * (radius / mean))[..., None])
    return scaled.addcmul_((along.to(points.dtype) * (radius / mean) / stretch)[..., None], points)


def total(
    points: Tensor,
    normals: Tensor,
    lift: Tensor,
    along: Tensor,
    across: Tensor,
    *,
    radius: float,
    mean: float,
) -> Tensor:
    """The sum over users of ``message``, without the messages: (n, d) -> (d,), in the dtype of
    points.
    """
    stretch, perpendicular, share = _perpendicular(points, normals, lift, across, radius)
    return (share @ perpendicular + (along.to(points.dtype) / stretch) @ points) * (radius / mean)


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
    """The messages of users first, first + 1, ...; user first + i holds points[types[i]], (m, d):
    (n, d).

    g is a function of the key and of the user's number; lift, along, across: (n,) are the user's
    other draws.
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
    """The sum of ``messages`` of counts[0] users at points[0], then counts[1] at points[1], ...:
    (d,), float64.
    """
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for start, stop, some in portions(counts, max(1, NUMBERS_AT_ONCE // points.shape[1])):
        types = torch.arange(len(points), device=points.device).repeat_interleave(some)
        draws = lift[start:stop], along[start:stop], across[start:stop]
        made = messages(points, types, *draws, key, first + start, radius=radius, mean=mean)
        total += made.sum(0, dtype=torch.float64)
    return total


def lifted(points: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """(C, or the norm of a longer point; the coordinate that lifts x' = points / that to the
    sphere), each (*batch).
    """
    norms = torch.linalg.vector_norm(points, dim=-1)
    stretch = norms.clamp_min(radius)
    return stretch, (1 - (norms / stretch).square()).clamp_min(0).sqrt()


def _perpendicular(
    points: Tensor, normals: Tensor, lift: Tensor, across: Tensor, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(``stretch``, g less its part along u, S/N)."""
    stretch, height = lifted(points, radius)
    dot = (normals * points).sum(-1) / stretch + lift * height
    perpendicular = torch.addcmul(normals, (-dot / stretch)[..., None], points)
    # Its length from the vector itself: |g|^2 + g0^2 - dot^2 loses digits where d is small.
    length = torch.hypot(torch.linalg.vector_norm(perpendicular, dim=-1), lift - dot * height)
    return (
        stretch,
        perpendicular,
        across.to(points.dtype) / length.clamp_min(torch.finfo(points.dtype).tiny),
    )
