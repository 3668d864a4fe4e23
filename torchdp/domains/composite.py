"""Products, linear images and Minkowski sums of domains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.ball_image import BallImage
from torchdp.domains.balls import BallSum, Ellipsoid, Zonotope
from torchdp.domains.domain import Domain, Maximum, Proposal, beside, climb
from torchdp.domains.finite import FiniteSet, Polytope
from torchdp.domains.noise_shape import NoiseShape, searched
from torchdp.domains.relaxation import TINY, hadamard_signs, paired, split
from torchdp.factorization.certificates.certificate import conjugate
from torchdp.randomness import keyed_generator

MOST_CORNERS = 2048  # that are tried one by one
SWEEPS = 500
MOST = 1 << 11  # points of a product distribution that are listed


def couple(B: Tensor, sizes: list[int], most: list[float]) -> float:
    """A bound on ||B z||^2 = ||sum_i B_i z_i||^2 where ||B_i z_i||^2 <= most_i, B_i the blocks of
    B's columns.

    With B_i = Q_i T_i, Q_i orthonormal: sum_i y_i most_i lambda_max(sum_i Q_i Q_i^T / y_i) for
    every y > 0. At y = 1 it is at most (number of blocks) sum_i most_i, and exact for orthogonal
    blocks. A semidefinite program over y; its dual is climbed as in :func:`maximise_image`, whose
    scalar blocks these generalise.
    """
    size = torch.linalg.matrix_norm(B, 2).clamp_min(TINY)
    parts, u = [], []
    for block, bound in zip(B.split(sizes, dim=1), most, strict=True):
        Q, S, _ = torch.linalg.svd(block, full_matrices=False)
        Q = Q[:, S > 1e-12 * size]
        if Q.shape[1] and bound > 0:
            parts.append(Q)
            u.append(bound)
    if not parts:
        return 0.0

    def bound_at(y: list[float]) -> float:
        scaled = torch.cat([Q / math.sqrt(v) for Q, v in zip(parts, y, strict=True)], 1)
        top = float(torch.linalg.matrix_norm(scaled, 2)) ** 2
        return top * sum(v * most for v, most in zip(y, u, strict=True))

    best = bound_at([1.0] * len(parts))
    rank = math.isqrt(2 * len(parts)) + 2
    generator = keyed_generator(b"torchdp.mean.coupling.couple", "cpu")
    V = torch.randn(len(B), rank, dtype=torch.float64, device="cpu", generator=generator).to(B)
    previous = 0.0
    for sweep in range(SWEEPS):
        pulls = [Q.mT @ V for Q in parts]
        lengths = [float(pull.norm()) for pull in pulls]
        if min(lengths) <= TINY:
            break
        if sweep % 20 == 19:
            now = bound_at(
                [length / math.sqrt(most) for length, most in zip(lengths, u, strict=True)]
            )
            best, done = min(best, now), abs(now - previous) <= 1e-9 * now
            previous = now
            if done:
                break
        V = sum(
            math.sqrt(a) / b * (Q @ pull)
            for Q, pull, a, b in zip(parts, pulls, u, lengths, strict=True)
        )
    return best


def signed_law(laws: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A distribution of (z_1, ..., z_k) with given marginals of the blocks up to sign, E z_i
    z_j^T = 0 for i != j.

    laws: points (n_i, d_i) and weights (n_i,), each summing to 1. One quantile picks all blocks
    (sum_i n_i picks at most), and orthogonal signs, independent of it, turn them. Returns points
    and weights.
    """
    edges = torch.cat([weights.cumsum(0) for _, weights in laws]).clamp(max=1.0).sort().values
    widths = torch.diff(edges, prepend=edges.new_zeros(1))
    inside = edges - widths / 2
    kept = widths > 1e-15
    picked = [
        points[torch.searchsorted(weights.cumsum(0), inside[kept]).clamp(max=len(points) - 1)]
        for points, weights in laws
    ]
    signs = hadamard_signs(len(laws)).to(widths)  # (h, k)
    turned = [sign[:, None, None] * z for sign, z in zip(signs.mT, picked, strict=True)]
    weights = (widths[kept] / len(signs)).expand(len(signs), -1)
    return torch.cat(turned, -1).flatten(0, 1), weights.flatten()


def mirrored(points: Tensor, weights: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """Half the distribution, and half its mirror image about ``middle``."""
    return torch.cat([points, 2 * middle - points]), torch.cat([weights, weights]) / 2


def independent_law(laws: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The distribution of independent blocks; where it has too many points, a sample of it."""
    count = math.prod(len(weights) for _, weights in laws)
    if count <= MOST:
        places = torch.cartesian_prod(*[torch.arange(len(weights)) for _, weights in laws]).reshape(
            -1, len(laws)
        )
        law = torch.ones(len(places), dtype=torch.float64)
        for (_, weights), place in zip(laws, places.mT, strict=True):
            law = law.to(weights) * weights[place.to(weights.device)]
    else:
        generator = keyed_generator(b"torchdp.mean.coupling.independent_law", "cpu")
        draws = [
            torch.multinomial(w.cpu(), MOST, replacement=True, generator=generator) for _, w in laws
        ]
        places = torch.stack(draws, -1)
        law = torch.full_like(places[:, 0], 1.0, dtype=torch.float64) / len(places)
    points = [
        points[place.to(points.device)] for (points, _), place in zip(laws, places.mT, strict=True)
    ]
    return torch.cat(points, -1), law.to(points[0])


@dataclass(frozen=True, eq=False)
class Product(Domain):
    """K_1 x ... x K_k: one user's vector is made of one vector from each. parts: the sets, at least
    one.

    The ellipsoid is put together from the parts': M = blockdiag(M_i / t_i), t_i ~
    Gamma_i^{2p/(p+2)}; optimal, with Gamma_p = the l_{2p/(p+2)} norm of the parts'
    (with shift, or for symmetric parts).
    Oracle: exact where the parts' corners make 2048 pairs at most, which are all tried, and for
    forms without entries between exact parts; else a semidefinite bound, within k times the worst
    part's factor for sets symmetric about the centre. Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 60.
    """

    parts: tuple[Domain, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(checks.several("parts", self.parts, Domain)))

    @property
    def sizes(self) -> list[int]:
        """The dimensions of the parts."""
        return [part.dimension for part in self.parts]

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    def corners(self, most: int) -> Tensor | None:
        joined = None
        for part in self.parts:
            own = part.corners(most)
            if own is None or len(own) * (1 if joined is None else len(joined)) > most:
                return None
            joined = own if joined is None else paired(joined, own)
        return joined

    def balls(self) -> BallSum | None:
        found = [
            ball for ball in (part.balls() for part in self.parts) if isinstance(ball, BallImage)
        ]
        if len(found) < len(self.parts):
            return None
        generators = torch.block_diag(*[ball.generators for ball in found])
        groups = tuple(group for ball in found for group in ball.groups)
        return BallSum(generators, groups, torch.cat([ball.middle for ball in found]))

    @cached_property
    def _simpler(self) -> Domain | None:
        """The hull of few corners, or the image of balls, that it is."""
        few = self.corners(MOST_CORNERS)
        return self.balls() if few is None else Polytope(few)

    @property
    def factor(self) -> float:
        if self._simpler is not None:
            return self._simpler.factor
        worst = max(part.factor for part in self.parts)
        if len(self.parts) == 1:
            return worst
        return math.inf if self.middle is None else len(self.parts) * worst

    @property
    def middle(self) -> Tensor | None:
        middles = [part.middle for part in self.parts]
        found = [middle for middle in middles if middle is not None]
        return torch.cat(found) if len(found) == len(middles) else None

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        if self._simpler is not None:
            return self._simpler.maximise(B, centre)
        pieces = zip(self.parts, B.split(self.sizes, dim=1), centre.split(self.sizes), strict=True)
        best = [part.maximise(block, c) for part, block, c in pieces]
        start = torch.cat(
            beside([found.points for found in best], b"torchdp.mean.composite.maximise"), -1
        )
        upper = couple(B, self.sizes, [found.upper for found in best])
        return Maximum.among(torch.cat([start, climb(self, start, B, centre)]), B, centre, upper)

    def extreme(self, directions: Tensor) -> Tensor:
        slopes = directions.split(self.sizes, dim=-1)
        return torch.cat(
            [part.extreme(slope) for part, slope in zip(self.parts, slopes, strict=True)], -1
        )

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        each = zip(
            self.parts, directions.split(self.sizes, dim=-1), centre.split(self.sizes), strict=True
        )
        return torch.stack([part.supports(slope, middle) for part, slope, middle in each]).sum(0)

    def spanning(self) -> Tensor:
        """One part at a time runs over its spanning points, the others stay at their first."""
        spans = [part.spanning() for part in self.parts]
        first = torch.cat([span[0] for span in spans])
        rows = []
        for place, span in enumerate(spans):
            row = first.expand(len(span), -1).clone()
            start = sum(self.sizes[:place])
            row[:, start : start + self.sizes[place]] = span
            rows.append(row)
        return torch.cat(rows)

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        balls = None if shift else self.balls()
        if balls is not None:
            return balls.proposal(p, shift, tol)
        shapes = [searched(part, p, shift, tol) for part in self.parts]
        gamma = torch.tensor([shape.upper for shape in shapes], dtype=torch.float64)
        gamma = gamma / gamma.max().clamp_min(1e-300)
        order = 2.0 if p == math.inf else 2 * p / (p + 2)
        t = (gamma**order / (gamma**order).sum().clamp_min(1e-300)).tolist()
        tilt = (gamma ** (2.0 if p == math.inf else 2 * (p - 2) / (p + 2))).tolist()
        roots = [shape.root / math.sqrt(part or 1.0) for shape, part in zip(shapes, t, strict=True)]
        rows = [part * _unit(shape, p) for shape, part in zip(shapes, tilt, strict=True)]
        points, weights = self._law(shapes, shift)
        centre = torch.cat([shape.centre for shape in shapes])
        return Proposal(torch.block_diag(*roots), centre, points, weights, torch.cat(rows))

    def image_proposal(
        self, transform: Tensor, p: float, shift: bool, tol: float
    ) -> Proposal | None:
        """Of the sum of the images F_i K_i: M = sum_i M_i / t_i, t the best for the parts' own
        M_i.
        """
        columns = transform.split(self.sizes, dim=1)
        images = [linear_image(F, part) for F, part in zip(columns, self.parts, strict=True)]
        shapes = [searched(image, p, shift, tol) for image in images]
        t, c = split(
            torch.stack([s.root.square().sum(-1) for s in shapes], -1),
            p,
            ((len(shapes), math.inf),),
        )
        root = torch.cat(
            [s.root / math.sqrt(v or 1.0) for s, v in zip(shapes, t.tolist(), strict=True)], 1
        )
        centre = torch.stack([shape.centre for shape in shapes]).sum(0)
        own = [searched(part, p, shift, tol) for part in self.parts]
        points, weights = self._law(own, shift)
        return Proposal(root, centre, points @ transform.mT, weights, c)

    def contains(self, x: Tensor) -> Tensor:
        pieces = self._vectors(x).split(self.sizes, dim=-1)
        return torch.stack(
            [part.contains(y) for part, y in zip(self.parts, pieces, strict=True)]
        ).all(0)

    def project(self, x: Tensor) -> Tensor:
        pieces = self._vectors(x).split(self.sizes, dim=-1)
        return torch.cat([part.project(y) for part, y in zip(self.parts, pieces, strict=True)], -1)

    @property
    def hull(self) -> Domain:
        return Product(tuple(part.hull for part in self.parts))

    def _law(self, shapes: Sequence[NoiseShape], shift: bool) -> tuple[Tensor, Tensor]:
        laws = [(shape.support, shape.weights) for shape in shapes]
        middle = self.middle if shift or self.symmetric else None
        if middle is None:
            turned = zip(laws, [part.middle for part in self.parts], strict=True)
            return independent_law([law if m is None else mirrored(*law, m) for law, m in turned])
        middles = middle.split(self.sizes)
        points, weights = signed_law([(z - m, w) for (z, w), m in zip(laws, middles, strict=True)])
        return middle + points, weights


@dataclass(frozen=True, eq=False)
class LinearImage(Domain):
    """{F x: x in K}. transform: F, (e, d); domain: K in R^d. ``linear_image`` finds simpler
    descriptions.

    Oracle: K's, at B F. contains and project mix extreme points: they are those of the convex hull.
    The distance to project's point is the least up to 1e-7 of the set's size, the point off by up
    to 5e-4 of it where the set is curved. Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 31.
    """

    transform: Tensor
    domain: Domain

    def __post_init__(self) -> None:
        checks.own(self)
        object.__setattr__(self, "transform", _transform(self.transform, self.domain))

    @property
    def dimension(self) -> int:
        return self.transform.shape[0]

    @property
    def factor(self) -> float:
        return self.domain.factor

    def corners(self, most: int) -> Tensor | None:
        own = self.domain.corners(most)
        return None if own is None else own @ self.transform.mT

    @property
    def middle(self) -> Tensor | None:
        middle = self.domain.middle
        return None if middle is None else self.transform @ middle

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        """||B (F x - v)||^2 = ||B F (x - w)||^2 + rest, w a least squares solution near K's
        middle.
        """
        F = self.transform
        pulled = B @ F
        start = self.domain.spanning().mean(0) if self.domain.middle is None else self.domain.middle
        w = start + torch.linalg.pinv(pulled) @ (B @ (centre - F @ start))
        rest = float((B @ (centre - F @ w)).square().sum())
        found = self.domain.maximise(pulled, w)
        return Maximum.among(found.points @ F.mT, B, centre, found.upper + rest, len(found.points))

    def extreme(self, directions: Tensor) -> Tensor:
        return self.domain.extreme(directions @ self.transform) @ self.transform.mT

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        slopes = directions @ self.transform
        return self.domain.supports(slopes, torch.zeros_like(slopes[0])) - directions @ centre

    def spanning(self) -> Tensor:
        return self.domain.spanning() @ self.transform.mT

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        return self.domain.image_proposal(self.transform, p, shift, tol)

    def image_proposal(
        self, transform: Tensor, p: float, shift: bool, tol: float
    ) -> Proposal | None:
        return self.domain.image_proposal(transform @ self.transform, p, shift, tol)


def linear_image(transform: Tensor, domain: Domain) -> Domain:
    """{F x: x in K}, as points, an ellipsoid, a zonotope or a sum of balls where it is one.
    transform: F, (e, d).

    The image of a product with at most 2048 pairs of corners is the hull of theirs, or the points
    where K is made of finite sets. Raises ValueError, TypeError.
    """
    F = _transform(transform, domain)
    if isinstance(domain, FiniteSet):
        return FiniteSet(domain.points @ F.mT)
    if isinstance(domain, Polytope):
        return Polytope(domain.points @ F.mT)
    balls = domain.balls()
    if balls is None or balls.factor > 1:
        few = domain.corners(MOST_CORNERS)
        if few is not None:
            return FiniteSet(few @ F.mT) if _finite(domain) else Polytope(few @ F.mT)
    if not isinstance(balls, BallImage):
        return LinearImage(F, domain)
    generators, groups, middle = F @ balls.generators, balls.groups, F @ balls.middle
    if {q for _, q in groups} == {math.inf}:
        return Zonotope(generators, middle)
    if [q for _, q in groups] == [2.0]:
        return Ellipsoid(generators, middle)
    return BallSum(generators, groups, middle)


def minkowski_sum(parts: Sequence[Domain]) -> Domain:
    """{x_1 + ... + x_k: x_i in K_i}, the image of the product. Gamma_p is at most the parts' sum.
    Raises as Product.

    Source: Nikolov, Tang (2023), Theorem 20 (4).
    """
    product = Product(tuple(checks.instance("parts", parts, Sequence)))
    if len(set(product.sizes)) > 1:
        raise ValueError(f"parts must share one dimension, not {product.sizes}")
    return linear_image(
        torch.eye(product.sizes[0], dtype=torch.float64).repeat(1, len(product.parts)), product
    )


def _finite(domain: Domain) -> bool:
    return isinstance(domain, FiniteSet) or (
        isinstance(domain, Product) and all(map(_finite, domain.parts))
    )


def _unit(shape: NoiseShape, p: float) -> Tensor:
    """The shape's row weights scaled to norm 1 in l_{p/(p-2)}."""
    length = torch.linalg.vector_norm(shape.row_weights, ord=conjugate(p))
    return shape.row_weights / length.clamp_min(1e-300)


def _transform(value: Tensor, domain: Domain) -> Tensor:
    value, d = (
        checks.one_matrix("transform", value),
        checks.instance("domain", domain, Domain).dimension,
    )
    if value.shape[1] != d:
        raise ValueError(f"transform must be of shape (e, {d}), not {tuple(value.shape)}")
    return value
