"""Nearest points of an l_q ball, of an ellipsoid, and of a set known by its extreme points alone.

Notation of :func:`nearest_by_corners`, for rows x of a batch (n, d): ``corners`` (n, k, d) and
``weights`` (n, k) whose mixture is y; ``active`` (n, k), the corners that count.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import power_norm
from torchdp.memory import rows_at_once
from torchdp.root import between
from torchdp.threads import one_thread

NEWTON = 30  # steps of its method
TINY = 1e-300  # keeps a quotient of two zeros at zero
ROUNDS = 1000
CLOSE = 1e-7  # of the size of the set
KEPT = 0.75  # share of the rows that go on at which the others are put aside
RIDGE = 1e-15  # of the square of the set's size


def nearest_in_ball(x: Tensor, axes: Tensor, q: float) -> Tensor:
    """The nearest point to x (..., d) with ||z / axes||_q <= 1; axes (d,), positive.

    Lagrange: |x_i| = z_i + t z_i^{q-1} / axes_i^q (1 < q < inf), soft thresholds t / axes_i
    (q = 1), one t for a point. Times z_i and added up that is t = sum_i z_i (|x_i| - z_i) where z
    is on the sphere, at most sum_i axes_i |x_i|.
    """
    if q == math.inf:
        return torch.minimum(torch.maximum(x, -axes), axes)
    size = x.abs().double()
    a = axes.double()
    outside = power_norm(size / a, q)[..., None] > 1
    if not bool(outside.any()):
        return x

    def excess(t: Tensor) -> Tensor:
        return power_norm(_shrunk(size, a, q, t) / a, q)[..., None] - 1

    low = torch.zeros_like(size[..., :1])
    high = (size * a).sum(-1, keepdim=True)
    t = between(excess, low, high, TINY)
    z = _shrunk(size, a, q, t) * x.sign()
    return torch.where(outside, z.to(x), x)


def _shrunk(size: Tensor, a: Tensor, q: float, t: Tensor) -> Tensor:
    """z for a given multiplier t."""
    if q == 1:
        return (size - t / a).clamp_min(0)
    if q == 2:
        return size / (1 + t / a**2)
    price = t * a**-q
    # Newton's method wants a power above 1: below q = 2 the unknown is u = z^{q-1}.
    if q > 2:
        return _root_of_sum(price, torch.ones_like(price), q - 1, size)
    power = 1 / (q - 1)
    return _root_of_sum(torch.ones_like(price), price, power, size) ** power  # of z^{q-1}


def _root_of_sum(first: Tensor, second: Tensor, power: float, size: Tensor) -> Tensor:
    """The u >= 0 with first * u^power + second * u = size, power > 1, by Newton's method.

    It starts above the root of a convex function, so that it falls to it.
    """
    # Neither term exceeds ``size`` at the root: both quotients lie above it.
    u = torch.minimum((size / first) ** (1 / power), size / second.clamp_min(TINY))
    for _ in range(NEWTON):
        slope = power * first * u ** (power - 1) + second
        step = (first * u**power + second * u - size) / slope.clamp_min(TINY)
        u = (u - step).clamp_min(0)
        if bool((step.abs() <= 1e-15 * u).all()):
            break
    return u


def nearest_in_ellipsoid(x: Tensor, root: Tensor) -> Tensor:
    """The nearest point to x (..., d) of {root u: ||u||_2 <= 1}.

    In the axes of the ellipsoid, s_i their lengths: s_i^2 x_i / (s_i^2 + t), t a root.
    """
    if not root.any():
        return torch.zeros_like(x)
    # The nearest point lies in the span of the axes: what x has beyond it drops out.
    U, S = span(root.double())
    along = x.double() @ U

    def excess(t: Tensor) -> Tensor:
        return (S * along / (S**2 + t)).norm(dim=-1, keepdim=True) - 1

    low = torch.zeros_like(along[..., :1])
    high = S.amax() * along.norm(dim=-1, keepdim=True)  # there ||s x / (s^2 + t)|| <= 1
    t = between(excess, low, high, TINY)
    inside = (along / S).norm(dim=-1, keepdim=True) <= 1
    z = torch.where(inside, along, S**2 * along / (S**2 + t))
    return (z @ U.mT).to(x)


def span(root: Tensor) -> tuple[Tensor, Tensor]:
    """Axes (d, k) and their lengths (k,) of {root u: ||u||_2 <= 1}, without the flat ones."""
    U, S, _ = torch.linalg.svd(root, full_matrices=False)
    # Shorter axes are rounding of the decomposition, and are divided by.
    kept = S > 1e-12 * S[0]
    return U[:, kept], S[kept]


@one_thread
def nearest_by_corners(
    x: Tensor, extreme: Callable[[Tensor], Tensor], near: float | None = None
) -> Tensor:
    """The nearest point to x of the convex hull of what ``extreme`` returns, all rows at once.

    Method: every row keeps at most d + 2 corners and a mixture y of them. A round either moves y to
    the nearest point of the corners' affine hull and adds the extreme point in the direction x - y,
    or, where that leaves their convex hull, goes as far as it stays inside and drops the corners of
    weight 0. It ends where the gain <x - y, s - y> of every point s is below 1e-7 of the size of
    the set and x times the distance x - y, or below the square of that share.

    Args:
        x: (..., d), float64.
        extreme: of (k, d) directions, (k, d) points.
        near: where given, a row also ends when y is that close, or when a plane shows that no point
            is: y tells which, and need not be the nearest.

    Source: Wolfe (1976), the nearest point in a polytope.
    """
    flat = x.reshape(-1, x.shape[-1])
    if not len(flat):
        return x.clone()
    parts = flat.split(rows_at_once((flat.shape[1] + 2) ** 2))
    nearest = [_nearest(part, extreme, near) for part in parts]
    return torch.cat(nearest).reshape(x.shape)


def _nearest(target: Tensor, extreme: Callable[[Tensor], Tensor], near: float | None) -> Tensor:
    n, d = target.shape
    result = torch.empty_like(target)
    left = torch.arange(n, device=target.device)
    # Places not in use repeat the first corner: of weight 0, they need only be finite.
    corners = extreme(target)[:, None, :].repeat(1, d + 2, 1)
    weights = torch.zeros_like(corners[..., 0])
    weights[:, 0] = 1.0
    active = weights > 0
    # a row sees no other
    largest = torch.maximum(corners.abs().amax(), target.abs().amax(-1))
    size = largest * d**0.5 + 1e-300
    for _ in range(ROUNDS):
        used = int(active.any(0).nonzero()[-1]) + 1  # places are filled from the first on
        z = (corners[:, :used] - target[:, None, :]) / size[:, None, None]
        weights, active, inside = _mixed(z, weights, active)
        y = (weights[..., None] * corners).sum(1)
        off = target - y
        distance = off.norm(dim=-1)
        new = extreme(off)
        gain = (off * (new - y)).sum(-1)
        more = inside & (gain > CLOSE * size * torch.maximum(distance, CLOSE * size))
        going = more | ~inside
        if near is not None:
            # <off, target - new> / distance: how far a plane keeps the set from the target
            separated = (off * (target - new)).sum(-1) > near * distance
            going &= (distance > near) & ~separated
        if not bool(going.any()):
            break
        # Copying the rows that go on pays only once enough of them are done.
        if int(going.sum()) <= KEPT * len(left):
            result[left[~going]] = y[~going]
            left = left[going]
            target = target[going]
            size = size[going]
            corners = corners[going]
            weights = weights[going]
            active = active[going]
            new = new[going]
            more = more[going]
        free = (~active).to(torch.uint8).argmax(-1)
        rows = torch.arange(len(left), device=target.device)
        # argmax is 0 where no place is free: an active corner must not be overwritten.
        more = more & ~active[rows, free]
        corners[rows[more], free[more]] = new[more]
        active[rows[more], free[more]] = True
    else:
        y = (weights[..., None] * corners).sum(1)
    result[left] = y
    return result


def _mixed(z: Tensor, weights: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (n, k) moved towards those of the point nearest to 0 in the corners' affine hull.

    They go as far as none turns negative; who gets there, (n,), is inside; corners of weight 0 are
    active no more. z: (n, used, d), the corners around the target.
    """
    aim = torch.zeros_like(weights)
    used = z.shape[1]
    aim[:, :used] = _affine(z, active[:, :used])
    inside = (aim >= 0).all(-1)
    until_zero = weights / (weights - aim).clamp_min(1e-300)
    share = torch.where(aim < 0, until_zero, torch.inf).amin(-1).clamp(max=1.0)
    moved = weights + share[:, None] * (aim - weights)
    # The corner that stops the step ends at 0 only up to rounding.
    dropped = active & ~inside[:, None] & (moved <= 1e-14)
    return torch.where(dropped, 0.0, moved), active & ~dropped, inside


def _affine(z: Tensor, active: Tensor) -> Tensor:
    """Weights (n, k), sum 1 over the active, of the mixture of rows of z nearest to 0: any sign."""
    mask = active.to(z)
    # + 1 1^T leaves the solution as it is
    gram = (z @ z.mT + 1.0) * mask[:, :, None] * mask[:, None, :]
    # Ones in the inactive places and a ridge keep affinely dependent corners solvable.
    gram = gram + torch.diag_embed(1 - mask + RIDGE)
    u = torch.linalg.solve_ex(gram, mask[..., None])[0][..., 0] * mask
    return u / u.sum(-1, keepdim=True)
