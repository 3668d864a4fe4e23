"""Nearest points of a convex set that is known by its extreme points alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.memory import rows_at_once
from torchdp.threads import one_thread

ROUNDS = 1000
CLOSE = 1e-7  # of the size of the set
KEPT = 0.75  # share of the rows that go on at which the others are put aside
RIDGE = 1e-15  # of its square


@one_thread
def nearest_by_corners(x: Tensor, extreme: Callable[[Tensor], Tensor], near: float | None = None) -> Tensor:
    """The nearest point to x (..., d), float64, of the convex hull of what ``extreme`` returns, for all rows at once.

    Every row keeps at most d + 2 corners and a mixture y of them. A round either moves y to the nearest point of the
    corners' affine hull and adds the extreme point in the direction x - y, or, where that leaves their convex hull,
    goes as far as it stays inside and drops the corners of weight 0. It ends where the gain <x - y, s - y> of every
    point s is below 1e-7 of the size of the set and x times the distance x - y, or below the square of that share.
    extreme: (k, d) directions to (k, d) points. near: where given, a row also ends when y is that close, or when a
    plane shows that no point is: y tells which, and need not be the nearest.
    Source: Wolfe (1976), the nearest point in a polytope.
    """
    flat = x.reshape(-1, x.shape[-1])
    parts = flat.split(rows_at_once((flat.shape[1] + 2) ** 2))
    found = [_nearest(some, extreme, near) for some in parts] if len(flat) else [flat]
    return torch.cat(found).reshape(x.shape)


def _nearest(target: Tensor, extreme: Callable[[Tensor], Tensor], near: float | None) -> Tensor:
    n, d = target.shape
    result, left = torch.empty_like(target), torch.arange(n, device=target.device)
    corners = extreme(target)[:, None, :].repeat(1, d + 2, 1)  # (n, k, d)
    weights = torch.zeros_like(corners[..., 0])
    weights[:, 0] = 1.0
    active = weights > 0
    size = torch.maximum(corners.abs().amax(), target.abs().amax(-1)) * d**0.5 + 1e-300  # a row sees no other
    for _ in range(ROUNDS):
        used = int(active.any(0).nonzero()[-1]) + 1  # places are filled from the first on
        z = (corners[:, :used] - target[:, None, :]) / size[:, None, None]
        weights, active, inside = _mixed(z, weights, active)
        y = (weights[..., None] * corners).sum(1)
        off = target - y
        new = extreme(off)
        gain = (off * (new - y)).sum(-1)
        more = inside & (gain > CLOSE * size * torch.maximum(off.norm(dim=-1), CLOSE * size))
        going = more | ~inside
        if near is not None:
            length = off.norm(dim=-1)
            going &= (length > near) & ((off * (target - new)).sum(-1) <= near * length)
        if not bool(going.any()):
            break
        if int(going.sum()) <= KEPT * len(left):
            result[left[~going]] = y[~going]
            left, target, size, corners, weights, active, new, more = (
                z[going] for z in (left, target, size, corners, weights, active, new, more)
            )
        place = (~active).to(torch.uint8).argmax(-1)
        rows = torch.arange(len(left), device=target.device)
        more = more & ~active[rows, place]
        corners[rows[more], place[more]] = new[more]
        active[rows[more], place[more]] = True
    else:
        y = (weights[..., None] * corners).sum(1)
    result[left] = y
    return result


def _mixed(z: Tensor, weights: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (n, k) moved towards those of the point nearest to 0 in the affine hull of the active rows of z.

    They go as far as none turns negative; who gets there, (n,), is inside; corners of weight 0 are active no more.
    """
    aim = torch.zeros_like(weights)
    aim[:, : z.shape[1]] = _affine(z, active[:, : z.shape[1]])
    inside = (aim >= 0).all(-1)
    share = torch.where(aim < 0, weights / (weights - aim).clamp_min(1e-300), torch.inf).amin(-1).clamp(max=1.0)
    moved = weights + share[:, None] * (aim - weights)
    dropped = active & ~inside[:, None] & (moved <= 1e-14)
    return torch.where(dropped, 0.0, moved), active & ~dropped, inside


def _affine(z: Tensor, active: Tensor) -> Tensor:
    """Weights (n, k), sum 1 over the active, of the mixture of the rows of z (n, k, d) nearest to 0: any sign."""
    mask = active.to(z)
    gram = (z @ z.mT + 1.0) * mask[:, :, None] * mask[:, None, :]  # + 1 1^T leaves the solution as it is
    gram = gram + torch.diag_embed(1 - mask + RIDGE)
    u = torch.linalg.solve_ex(gram, mask[..., None])[0][..., 0] * mask
    return u / u.sum(-1, keepdim=True)
