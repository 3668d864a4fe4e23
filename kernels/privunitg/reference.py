"""The specification of the lifted PrivUnitG message, in plain torch, and of sums of many from a counter."""

import torch
from torch import Tensor

from torchdp.kernels import philox
from torchdp.kernels.normals.pieces import NUMBERS_AT_ONCE, portions
from torchdp.kernels.normals.reference import normals

COORDINATES, LIFT, TAU = 0, 1, 2  # streams of the counter


def tilted_normal(branch: Tensor, tail: Tensor, *, threshold: float, upper: float, survival: float) -> Tensor:
    """tau: N(0, 1) conditioned on tau >= threshold with probability ``upper``, on tau < threshold otherwise.

    branch, tail: uniforms of one shape, float64, branch in [0, 1) and tail in (0, 1]. survival: P(N(0, 1) >=
    threshold). Inverse CDF, without rejection; clamped, so that rounding never carries tau across the threshold.
    """
    above = branch < upper
    quantile = torch.special.ndtri(torch.where(above, tail * survival, tail * (1 - survival)))
    return torch.where(above, (-quantile).clamp_min(threshold), quantile.clamp_max(threshold))


def message(
    points: Tensor, normals: Tensor, lift: Tensor, tau: Tensor, *, radius: float, threshold: float
) -> Tensor:
    """Y = (C/k) (g + (tau - <g, x'> - g0 sqrt(1 - ||x'||^2)) x'), x' = points / C, C = radius, k = threshold.

    points, normals g: (*batch, d); lift g0, tau: (*batch). Points outside the ball are projected onto it. Linear in
    (g, g0, tau): from their sums over users of one point it gives the sum of these users' messages.
    """
    norms = torch.linalg.vector_norm(points, dim=-1)
    stretch = norms.clamp_min(radius)  # x' = points / stretch
    height = (1 - (norms / stretch).square()).clamp_min(0).sqrt()  # the coordinate that lifts x' to the sphere
    along = tau.to(points.dtype) - (normals * points).sum(-1) / stretch - lift * height
    return torch.addcmul(normals, (along / stretch)[..., None], points).mul_(radius / threshold)


def messages(
    points: Tensor,
    types: Tensor,
    key: int,
    first: int = 0,
    *,
    radius: float,
    threshold: float,
    upper: float,
    survival: float,
) -> Tensor:
    """The messages of users first, first + 1, ...; user first + i holds points[types[i]], (m, d): (n, d).

    A user's message is a function of the key, of its number and of its point.
    """
    index = torch.arange(first, first + len(types), device=points.device)
    a, b, c, d = philox.words(key, index, 0, TAU)
    tau = tilted_normal(philox.unit(a, b), philox.unit(c, d), threshold=threshold, upper=upper, survival=survival)
    g = normals(key, index, points.shape[1], points.dtype, stream=COORDINATES)
    lift = normals(key, index, 1, points.dtype, stream=LIFT)[:, 0]
    return message(points.index_select(0, types), g, lift, tau, radius=radius, threshold=threshold)


def sums(points: Tensor, counts: Tensor, key: int, first: int = 0, **law: float) -> Tensor:
    """The sum of ``messages`` of counts[0] users at points[0], then counts[1] at points[1], ...: (d,), float64."""
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for start, _, some in portions(counts, max(1, NUMBERS_AT_ONCE // points.shape[1])):
        types = torch.arange(len(points), device=points.device).repeat_interleave(some)
        made = messages(points, types, key, first + start, **law)
        total += made.sum(0, dtype=torch.float64)
    return total
