"""The specification of the lifted PrivUnitG message, in plain torch and from explicit random inputs."""

import torch
from torch import Tensor


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

    points, normals g: (*batch, d); lift g0, tau: (*batch). Points outside the ball are projected onto it.
    """
    norms = torch.linalg.vector_norm(points, dim=-1)
    stretch = norms.clamp_min(radius)  # x' = points / stretch
    height = (1 - (norms / stretch).square()).clamp_min(0).sqrt()  # the coordinate that lifts x' to the sphere
    along = tau.to(points.dtype) - (normals * points).sum(-1) / stretch - lift * height
    return torch.addcmul(normals, (along / stretch)[..., None], points).mul_(radius / threshold)
