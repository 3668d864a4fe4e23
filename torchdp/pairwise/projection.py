"""The projection mechanism: noisy linear queries, moved to the nearest point of the hull that holds every answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.randomizers import PrivUnitG

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
        weights[open_rows] = _descend(vertices, flat[open_rows], weights[open_rows], rate, steps)
        most_steps, steps = most_steps - steps, min(2 * steps, 1000)
    gap = _gap(vertices, flat, weights)
    shape = target.shape[:-1]
    return Projection(
        (weights @ vertices).reshape(target.shape), weights.reshape(*shape, len(vertices)), gap.reshape(shape)
    )


def _gap(vertices: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    point = weights @ vertices
    slope = point - target
    return (slope * point).sum(1) - (slope @ vertices.mT).amin(1)


def _descend(vertices: Tensor, target: Tensor, weights: Tensor, rate: Tensor, steps: int) -> Tensor:
    """Some accelerated steps from ``weights``; each row starts anew where momentum would lead uphill."""
    ahead, momentum = weights, torch.ones_like(weights[:, :1])
    for _ in range(steps):
        slope = (ahead @ vertices - target) @ vertices.mT
        new = onto_simplex(ahead - slope / rate)
        uphill = ((ahead - new) * (new - weights)).sum(1, keepdim=True) > 0
        faster = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum.square()).sqrt()) / 2)
        ahead = new + torch.where(uphill, 0.0, (momentum - 1) / faster) * (new - weights)
        weights, momentum = new, faster
    return weights


def onto_simplex(x: Tensor) -> Tensor:
    """The nearest probability vector to each row: max(x - t, 0) with the t that makes it add up to 1.

    Source: Held, Wolfe, Crowder (1974).
    """
    falling = x.sort(-1, descending=True).values
    places = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    shifts = (falling.cumsum(-1) - 1) / places
    last = ((falling > shifts).sum(-1, keepdim=True) - 1).clamp_min(0)
    kept = (x - shifts.gather(-1, last)).clamp_min(0)
    return kept / kept.sum(-1, keepdim=True)


@dataclass(frozen=True)
class ProjectedQueries:
    """The answers R h of linear queries, estimated by the mean of noisy columns and projected on a hull that holds R h.

    points: (k, r), float64; row x is the column R e_x that a user of type x holds. vertices: (m, r), whose hull holds
    every point; by default the points themselves, half of what Theorem 19 takes (``symmetric``). With C = max ||R e_x||
    and Z the mean noise, ||mu - R h||^2 <= max_v <v, Z> - <R h, Z> and <= ||Z||^2.
    The answers are biased towards the hull's inside: good for one use, not for sums over many. Raises ValueError.

    Guarantees: epsilon-LDP for each user.
    Source: Blasiok, Bun, Nikolov, Steinke (2019); Ghazi et al. (2023), Theorem 19.
    """

    points: Tensor
    epsilon: float
    vertices: Tensor

    def __post_init__(self) -> None:
        for name, value in (("points", self.points), ("vertices", self.vertices)):
            if checks.matrix(name, value).ndim != 2 or value.dtype != torch.float64:
                raise ValueError(f"{name} must be a float64 matrix of one vector a row, not {tuple(value.shape)}")
        if self.vertices.shape[1] != self.points.shape[1]:
            raise ValueError(f"vertices must have {self.points.shape[1]} columns, not {self.vertices.shape[1]}")
        _ = self.randomizer  # refuses an epsilon out of its range

    @classmethod
    def convex(cls, points: Tensor, epsilon: float) -> "ProjectedQueries":
        """On the hull of the columns: R h is an average of them."""
        return cls(points, epsilon, points)

    @classmethod
    def symmetric(cls, points: Tensor, epsilon: float) -> "ProjectedQueries":
        """On the hull of the columns and their negatives, R^Delta.

        Source: Ghazi et al. (2023), Theorem 19.
        """
        return cls(points, epsilon, torch.cat([points, -points]))

    @cached_property
    def randomizer(self) -> PrivUnitG:
        """What a user runs."""
        return PrivUnitG(self.points.shape[1], self.epsilon, float(self.points.norm(dim=1).max()))

    @property
    def guarantee(self) -> Guarantee:
        return self.randomizer.guarantee

    def error_bound(self, n: int) -> float:
        """E ||mu - R h||^2 is at most this, whatever the data of n users: min(r v, C (2 proxy n log m)^{1/2}) / n.

        v: a coordinate's variance; proxy: the noise's variance proxy; m: vertices. Add ``Projection.gap``.
        Source: Ghazi et al. (2023), Theorem 19, with its constants.
        """
        n, (m, r) = checks.integer("n", n, 1), self.vertices.shape
        reach = float(self.vertices.norm(dim=1).max())
        slow = reach * math.sqrt(2 * self.randomizer.subgaussian.proxy * math.log(m) / n)
        return min(r * self.randomizer.moments.variance / n, slow) if m > 1 else 0.0

    def answer(self, types: Tensor, *, noise: Noise | None = None, tol: float = 1e-7) -> Projection:
        """From each user's own message; types: (n,) integers in [0, k), n >= 1. noise: the system's where None."""
        types = checks.indices("types", types, len(self.points))
        if types.ndim != 1 or len(types) == 0:
            raise ValueError(f"types must have shape (n,) with n >= 1, not {tuple(types.shape)}")
        counts = torch.bincount(types.to(self.points.device), minlength=len(self.points))
        total = self.randomizer.hear_types(self.points, counts, source(noise, self.points.device))["sum"]
        return project(self.vertices, total / len(types), tol=tol)

    def answer_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = (), tol: float = 1e-7
    ) -> Projection:
        """In law what ``answer`` returns for counts (k,) users of each type, with leading ``sample_shape``."""
        counts = checks.counts("counts", counts, len(self.points))
        if not bool(counts.any()):
            raise ValueError("counts must hold at least one user")
        total = self.randomizer.sample_sum(self.points, counts, generator=generator, sample_shape=sample_shape)
        return project(self.vertices, total / counts.sum(), tol=tol)
