"""Nearest points of an l_q ball and of an ellipsoid."""

import math

import torch
from torch import Tensor

STEPS, NEWTON, TINY = 100, 30, 1e-300  # steps of a bisection, of Newton's method


def nearest_in_ball(x: Tensor, axes: Tensor, q: float) -> Tensor:
    """The nearest point to x (..., d) with ||z / axes||_q <= 1; axes (d,), positive.

    Lagrange: |x_i| = z_i + t z_i^{q-1} / axes_i^q (1 < q < inf), soft thresholds t / axes_i (q = 1), one t for a point.
    Both by Newton's method, t's kept in a bracket, z_i's from above on a convex equation.
    """
    if q == math.inf:
        return torch.minimum(torch.maximum(x, -axes), axes)
    size, a = x.abs().double(), axes.double()
    outside = torch.linalg.vector_norm(size / a, ord=q, dim=-1, keepdim=True) > 1
    if not bool(outside.any()):
        return x
    t = low = torch.zeros_like(size[..., :1])
    high = torch.full_like(low, math.inf)
    for _ in range(STEPS):
        z = _shrunk(size, a, q, t)
        force = torch.where(z > 0, z.clamp_min(TINY) ** (q - 1) * a**-q, 0.0)
        bend = torch.where(z > 0, 1 + t * (q - 1) * z.clamp_min(TINY) ** (q - 2) * a**-q, 1.0)
        excess = (force * z).sum(-1, keepdim=True) - 1
        low, high = torch.where(excess > 0, t, low), torch.where(excess > 0, high, t)
        if bool(((excess.abs() <= 1e-14) | ~outside).all()):
            break
        following = t + excess / (q * (force.square() / bend).sum(-1, keepdim=True)).clamp_min(TINY)
        safe = torch.where(high < math.inf, (low + high) / 2, 2 * low + 1)
        t = torch.where((following > low) & (following < high), following, safe)
    return torch.where(outside, (z * x.sign()).to(x), x)


def _shrunk(size: Tensor, a: Tensor, q: float, t: Tensor) -> Tensor:
    """z for a given multiplier t."""
    if q == 1:
        return (size - t / a).clamp_min(0)
    if q == 2:
        return size / (1 + t / a**2)
    # u = z (q > 2) or z^{q-1} (q < 2) solves first * u^power + second * u = size, power > 1
    price = t * a**-q
    power = q - 1 if q > 2 else 1 / (q - 1)
    first, second = (price, torch.ones_like(price)) if q > 2 else (torch.ones_like(price), price)
    u = torch.minimum((size / first) ** (1 / power), size / second.clamp_min(TINY))
    for _ in range(NEWTON):
        slope = power * first * u ** (power - 1) + second
        step = (first * u**power + second * u - size) / slope.clamp_min(TINY)
        u = (u - step).clamp_min(0)
        if bool((step.abs() <= 1e-15 * u).all()):
            break
    return u if q > 2 else u**power


def nearest_in_ellipsoid(x: Tensor, root: Tensor) -> Tensor:
    """The nearest point to x (..., d) of {root u: ||u||_2 <= 1}: s_i^2 x_i / (s_i^2 + t), t by bisection."""
    if not root.any():
        return torch.zeros_like(x)
    U, S, _ = torch.linalg.svd(root.double(), full_matrices=False)
    kept = S > 1e-12 * S[0]
    U, S = U[:, kept], S[kept]
    along = x.double() @ U
    low = torch.zeros_like(along[..., :1])
    high = S.amax() * along.norm(dim=-1, keepdim=True)  # there ||s x / (s^2 + t)|| <= 1
    for _ in range(STEPS):
        t = (low + high) / 2
        far = (S * along / (S**2 + t)).norm(dim=-1, keepdim=True) > 1
        low, high = torch.where(far, t, low), torch.where(far, high, t)
    inside = (along / S).norm(dim=-1, keepdim=True) <= 1
    z = torch.where(inside, along, S**2 * along / (S**2 + high))
    return (z @ U.mT).to(x)
