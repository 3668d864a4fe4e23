"""The projection mechanism: noisy means, moved to the nearest point of the hull that holds every answer."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.solvers.acceleration import descended
from torchdp.threads import one_thread

MOST_STEPS = 20_000
FIRST_STEPS = 10  # before the first look at the gap; each stretch is twice as long as the last


@dataclass(frozen=True)
class Projection:
    """A point of a hull and how near it is to the nearest one.

    point: (*batch, r), sum_v weights_v v; weights: (*batch, m), a probability vector. gap: (*batch,), the duality gap
    max_v <point - target, point - v>: the squared distance from ``point`` to the true projection is at most ``gap``.
    """

    point: Tensor
    weights: Tensor
    gap: Tensor


@one_thread
def project(vertices: Tensor, target: Tensor, *, tol: float = 1e-7, most_steps: int = MOST_STEPS) -> Projection:
    """The point of conv(vertices) nearest to each target, by accelerated projected gradients on the simplex.

    vertices: (m, r); target: (*batch, r); both float64. It stops where every gap is at most tol * max ||v||^2, or
    after about ``most_steps``; the gap returned is recomputed from the weights, and is 0 or more up to rounding.
    The symmetric hull of the columns of R is ``project(torch.cat([R.mT, -R.mT]), ...)``. Raises ValueError, TypeError.

    Guarantees: weights on the simplex; ||point - projection||^2 <= gap. With p the projection and y the target,
    <point - y, point - p> <= gap and <p - y, point - p> >= 0; subtract.
    Source: Beck, Teboulle (2009), with the restarts of O'Donoghue, Candes (2015); the gap is Frank and Wolfe's.
    """
    vertices, target = checks.matrix("vertices", vertices).double(), checks.floating("target", target).double()
    if vertices.ndim != 2 or target.ndim == 0 or target.shape[-1] != vertices.shape[1]:
        raise ValueError(
            f"vertices must be (m, r) and target (..., r), not {tuple(vertices.shape)} and {tuple(target.shape)}"
        )
    tol, most_steps = checks.positive("tol", tol), checks.integer("most_steps", most_steps, 1)
    flat = target.reshape(-1, target.shape[-1])
    size = vertices.norm(dim=1).max()
    allowed = tol * float(size.square())
    rate = torch.linalg.matrix_norm(vertices, 2).square().clamp_min(torch.finfo(torch.float64).tiny)
    weights = flat.new_zeros(len(flat), len(vertices))
    nearest = (flat @ vertices.mT - vertices.square().sum(1) / 2).argmax(1, keepdim=True)
    weights.scatter_(1, nearest, 1.0)
    open_rows = torch.arange(len(flat), device=flat.device)
    steps = FIRST_STEPS
    while most_steps > 0:
        gaps = _gap(vertices, flat[open_rows], weights[open_rows])
        open_rows = open_rows[gaps > allowed]
        if not len(open_rows):
            break
        slope = partial(_slope, vertices, flat[open_rows])
        weights[open_rows] = descended(slope, weights[open_rows], rate, steps)
        most_steps, steps = most_steps - steps, min(2 * steps, 1000)
    gap = _gap(vertices, flat, weights)
    shape = target.shape[:-1]
    return Projection(
        (weights @ vertices).reshape(target.shape), weights.reshape(*shape, len(vertices)), gap.reshape(shape)
    )


def _slope(vertices: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    return (weights @ vertices - target) @ vertices.mT


def _gap(vertices: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    point = weights @ vertices
    slope = point - target
    return (slope * point).sum(1) - (slope @ vertices.mT).amin(1)
