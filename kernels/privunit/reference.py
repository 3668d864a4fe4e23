"""The specification of the lifted PrivUnit message, in plain torch and from explicit random inputs."""

import torch
from torch import Tensor


def message(
    points: Tensor, normals: Tensor, lift: Tensor, along: Tensor, across: Tensor, *, radius: float, mean: float
) -> Tensor:
    """Y = (C/mean) (T x' + (S/N) (g - <(g, g0), u> x')), x' = points / C, u = (x', sqrt(1 - ||x'||^2)), C = radius.

    N = ||(g, g0) - <(g, g0), u> u||. points, normals g: (*batch, d); lift g0, along T, across S = sqrt(1 - T^2):
    (*batch). Points outside the ball are projected onto it.
    """
    norms = torch.linalg.vector_norm(points, dim=-1)
    stretch = norms.clamp_min(radius)  # x' = points / stretch
    height = (1 - (norms / stretch).square()).clamp_min(0).sqrt()  # the coordinate that lifts x' to the sphere
    dot = (normals * points).sum(-1) / stretch + lift * height
    perpendicular = torch.addcmul(normals, (-dot / stretch)[..., None], points)
    # Its length from the vector itself: |g|^2 + g0^2 - dot^2 loses digits where d is small.
    length = torch.hypot(torch.linalg.vector_norm(perpendicular, dim=-1), lift - dot * height)
    share = across.to(points.dtype) / length.clamp_min(torch.finfo(points.dtype).tiny)
    scaled = perpendicular.mul_((share * (radius / mean))[..., None])
    return scaled.addcmul_((along.to(points.dtype) * (radius / mean) / stretch)[..., None], points)
