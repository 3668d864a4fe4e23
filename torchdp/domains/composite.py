"""Products, linear images and Minkowski sums of domains."""

import math
from collections.abc import Iterator, Sequence
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
from torchdp.domains.relaxation import TINY, hadamard_signs, paired
from torchdp.factorization.certificates.certificate import conjugate
from torchdp.randomness import keyed_generator

MOST_CORNERS = 2048  # that are tried one by one
SWEEPS = 500  # of the dual climb in :func:`couple`
MOST = 1 << 11  # points of a product distribution that are listed
Measure = tuple[Tensor, Tensor]  # points (n, d) and weights (n,), which sum to 1


def couple(B: Tensor, sizes: list[int], most: list[float]) -> float:
    """A bound on ||sum_i B_i z_i||^2 where ||B_i z_i||^2 <= most_i, B_i the blocks of B's columns.

    Method: with B_i = Q_i T_i, Q_i orthonormal: sum_i y_i most_i lambda_max(sum_i Q_i Q_i^T / y_i)
    for every y > 0. At y = 1 it is at most (number of blocks) sum_i most_i, and exact for
    orthogonal blocks. A semidefinite program over y; its dual is climbed as in
    :func:`maximise_image`, whose scalar blocks these generalise.
    """
    bases = []
    bounds = []
    # directions that B shortens by 1e12 do not count as of a block's range
    size = torch.linalg.matrix_norm(B, 2).clamp_min(TINY)
    for block, bound in zip(B.split(sizes, dim=1), most, strict=True):
        U, S, _ = torch.linalg.svd(block, full_matrices=False)
        Q = U[:, S > 1e-12 * size]
        if Q.shape[1] and bound > 0:
            bases.append(Q)
            bounds.append(bound)
    if not bases:
        return 0.0
    # Every y > 0 gives a proved bound: this one stands whatever the climb below does.
    best = _coupled_bound(bases, bounds, [1.0] * len(bases))
    # The dual sees V V^T by one number a block and its trace: a solution of so low a rank exists
    # (Barvinok, Pataki).
    rank = math.isqrt(2 * len(bases)) + 2
    generator = keyed_generator(b"torchdp.mean.coupling.couple", "cpu")
    V = torch.randn(len(B), rank, dtype=torch.float64, device="cpu", generator=generator).to(B)
    previous = 0.0
    for sweep in range(SWEEPS):
        pulls = [Q.mT @ V for Q in bases]
        lengths = [float(pull.norm()) for pull in pulls]
        # V has lost a block, whose scale would divide by 0: the best bound so far is kept.
        if min(lengths) <= TINY:
            break
        if sweep % 20 == 19:  # a bound costs as much as a few sweeps
            # y_i minimises u_i y_i + ||Q_i^T V||^2 / y_i, the part of block i in the Lagrangian.
            y = [length / math.sqrt(u) for length, u in zip(lengths, bounds, strict=True)]
            bound = _coupled_bound(bases, bounds, y)
            best = min(best, bound)
            if abs(bound - previous) <= 1e-9 * bound:
                break
            previous = bound
        scales = [math.sqrt(u) / length for u, length in zip(bounds, lengths, strict=True)]
        V = sum(a * (Q @ pull) for a, Q, pull in zip(scales, bases, pulls, strict=True))
    return best


def _coupled_bound(bases: list[Tensor], bounds: list[float], y: list[float]) -> float:
    """sum_i y_i u_i lambda_max(sum_i Q_i Q_i^T / y_i), u_i the bounds."""
    scaled = torch.cat([Q / math.sqrt(v) for Q, v in zip(bases, y, strict=True)], 1)
    # lambda_max as a squared singular value: the d x d sum is never formed.
    top = float(torch.linalg.matrix_norm(scaled, 2)) ** 2
    return top * sum(v * u for v, u in zip(y, bounds, strict=True))


def signed_measure(marginals: list[Measure]) -> Measure:
    """A distribution of (z_1, ..., z_k) of given marginals up to sign, E z_i z_j^T = 0 for i != j.

    One quantile picks all blocks (sum_i n_i picks at most), and orthogonal signs, independent of
    it, turn them. marginals: the marginals of the blocks.
    """
    # cut at the quantiles of all marginals: in between each block stays at one point
    cumulated = torch.cat([weights.cumsum(0) for _, weights in marginals])
    edges = cumulated.clamp(max=1.0).sort().values
    widths = torch.diff(edges, prepend=edges.new_zeros(1))
    # Slivers this thin come from the rounding of the cumulated weights.
    kept = widths > 1e-15
    # Midpoints: at an edge itself rounding would decide at which point a block stays.
    quantiles = (edges - widths / 2)[kept]
    signs = hadamard_signs(len(marginals)).to(widths)  # (h, k)
    blocks = []
    for (points, weights), sign in zip(marginals, signs.mT, strict=True):
        place = torch.searchsorted(weights.cumsum(0), quantiles).clamp(max=len(points) - 1)
        blocks.append(sign[:, None, None] * points[place])
    weights = (widths[kept] / len(signs)).expand(len(signs), -1)
    return torch.cat(blocks, -1).flatten(0, 1), weights.flatten()


def mirrored(points: Tensor, weights: Tensor, middle: Tensor) -> Measure:
    """Half the distribution, and half its mirror image about ``middle``."""
    both = torch.cat([points, 2 * middle - points])
    return both, torch.cat([weights, weights]) / 2


def independent_measure(marginals: list[Measure]) -> Measure:
    """The distribution of independent blocks; where it has too many points, a sample of it."""
    sizes = [len(weights) for _, weights in marginals]
    joint = torch.ones(1, dtype=torch.float64)
    if math.prod(sizes) <= MOST:
        # stack: cartesian_prod of a single range has one dimension
        ranges = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
        places = torch.stack(ranges).flatten(1)
        for (_, weights), place in zip(marginals, places, strict=True):
            joint = joint.to(weights) * weights[place.to(weights.device)]
    else:
        # Any distribution on the product proves a lower bound: a sample costs tightness alone.
        generator = keyed_generator(b"torchdp.mean.coupling.independent_law", "cpu")
        draws = [torch.multinomial(w.cpu(), MOST, True, generator=generator) for _, w in marginals]
        places = torch.stack(draws)
        joint = joint.expand(MOST) / MOST
    blocks = [
        points[place.to(points.device)]
        for (points, _), place in zip(marginals, places, strict=True)
    ]
    return torch.cat(blocks, -1), joint.to(blocks[0])


@dataclass(frozen=True, eq=False)
class Product(Domain):
    """K_1 x ... x K_k: one user's vector is made of one vector from each.

    Args:
        parts: the sets, at least one.

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
        joint = torch.zeros(1, 0, dtype=torch.float64)
        for part in self.parts:
            own = part.corners(most)
            if own is None or len(own) * len(joint) > most:
                return None
            joint = paired(joint.to(own), own)
        return joint

    def balls(self) -> BallSum | None:
        balls = [part.balls() for part in self.parts]
        images = [ball for ball in balls if isinstance(ball, BallImage)]
        if len(images) < len(balls):
            return None
        generators = torch.block_diag(*[image.generators for image in images])
        groups = tuple(group for image in images for group in image.groups)
        return BallSum(generators, groups, torch.cat([image.middle for image in images]))

    @cached_property
    def _simpler(self) -> Domain | None:
        """The hull of few corners, or the image of balls, that it is."""
        corners = self.corners(MOST_CORNERS)
        return self.balls() if corners is None else Polytope(corners)

    @property
    def factor(self) -> float:
        if self._simpler is not None:
            return self._simpler.factor
        worst = max(part.factor for part in self.parts)
        if len(self.parts) == 1:
            return worst
        # The loss of k is proved for sets symmetric about the centre; elsewhere nothing is.
        return math.inf if self.middle is None else len(self.parts) * worst

    @property
    def middle(self) -> Tensor | None:
        middles = [part.middle for part in self.parts if part.middle is not None]
        return torch.cat(middles) if len(middles) == len(self.parts) else None

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        if self._simpler is not None:
            return self._simpler.maximise(B, centre)
        pieces = zip(self._blocks(B), centre.split(self.sizes), strict=True)
        maxima = [part.maximise(block, c) for (part, block), c in pieces]
        starts = beside([maximum.points for maximum in maxima], b"torchdp.mean.composite.maximise")
        start = torch.cat(starts, -1)
        points = torch.cat([start, climb(self, start, B, centre)])
        upper = couple(B, self.sizes, [maximum.upper for maximum in maxima])
        return Maximum.among(points, B, centre, upper)

    def extreme(self, directions: Tensor) -> Tensor:
        return torch.cat([part.extreme(slope) for part, slope in self._blocks(directions)], -1)

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        pieces = zip(self._blocks(directions), centre.split(self.sizes), strict=True)
        return torch.stack([part.supports(slope, c) for (part, slope), c in pieces]).sum(0)

    def spanning(self) -> Tensor:
        """One part at a time runs over its spanning points, the others stay at their first."""
        spans = [part.spanning() for part in self.parts]
        first = torch.cat([span[0] for span in spans])
        rows = []
        start = 0
        for span in spans:
            end = start + span.shape[1]
            row = first.expand(len(span), -1).clone()
            row[:, start:end] = span
            rows.append(row)
            start = end
        return torch.cat(rows)

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        balls = None if shift else self.balls()
        if balls is not None:
            return balls.proposal(p, shift, tol)
        shapes = [searched(part, p, shift, tol) for part in self.parts]
        gamma = torch.tensor([shape.upper for shape in shapes], dtype=torch.float64)
        gamma = gamma / gamma.max().clamp_min(1e-300)
        # t is the best split of the ellipsoids, and the tilt the dual weight of each part's rows
        powers = gamma ** (2.0 if p == math.inf else 2 * p / (p + 2))
        t = (powers / powers.sum().clamp_min(1e-300)).tolist()
        tilt = (gamma ** (2.0 if p == math.inf else 2 * (p - 2) / (p + 2))).tolist()
        roots = []
        rows = []
        for shape, own_t, own_tilt in zip(shapes, t, tilt, strict=True):
            # A part of a single point has t = 0, and no axes to divide.
            roots.append(shape.root / math.sqrt(own_t or 1.0))
            rows.append(own_tilt * _unit(shape, p))
        points, weights = self._dual_measure(shapes, shift)
        centre = torch.cat([shape.centre for shape in shapes])
        return Proposal(torch.block_diag(*roots), centre, points, weights, torch.cat(rows))

    def contains(self, x: Tensor) -> Tensor:
        inside = [part.contains(y) for part, y in self._blocks(self._vectors(x))]
        return torch.stack(inside).all(0)

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([part.project(y) for part, y in self._blocks(self._vectors(x))], -1)

    @property
    def hull(self) -> Domain:
        return Product(tuple(part.hull for part in self.parts))

    def _blocks(self, x: Tensor) -> Iterator[tuple[Domain, Tensor]]:
        """Each part, and its coordinates of x (..., d)."""
        return zip(self.parts, x.split(self.sizes, dim=-1), strict=True)

    def _dual_measure(self, shapes: Sequence[NoiseShape], shift: bool) -> Measure:
        """The parts' dual measures joined: uncorrelated where the product has a middle."""
        middle = self.middle if shift or self.symmetric else None
        measures = []
        for part, shape in zip(self.parts, shapes, strict=True):
            measure = shape.support, shape.weights
            if middle is not None and part.middle is not None:
                measure = shape.support - part.middle, shape.weights
            elif part.middle is not None:
                measure = mirrored(*measure, part.middle)
            measures.append(measure)
        if middle is None:
            return independent_measure(measures)
        points, weights = signed_measure(measures)
        return middle + points, weights


@dataclass(frozen=True, eq=False)
class LinearImage(Domain):
    """{F x: x in K}. ``linear_image`` finds simpler descriptions.

    Args:
        transform: F, (e, d).
        domain: K in R^d.
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
        """||B (F x - v)||^2 = ||B F (x - w)||^2 + rest, w of least squares near K's middle."""
        F = self.transform
        pulled = B @ F
        middle = self.domain.middle
        start = self.domain.spanning().mean(0) if middle is None else middle
        # w near the middle: a bound about a far point of a flat image would be a loose one
        w = start + torch.linalg.pinv(pulled) @ (B @ (centre - F @ start))
        # What w leaves of B v is orthogonal to the range of B F, so that the squares add.
        rest = float((B @ (centre - F @ w)).square().sum())
        maximum = self.domain.maximise(pulled, w)
        points = maximum.points @ F.mT
        return Maximum.among(points, B, centre, maximum.upper + rest, len(points))

    def extreme(self, directions: Tensor) -> Tensor:
        return self.domain.extreme(directions @ self.transform) @ self.transform.mT

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        slopes = directions @ self.transform
        return self.domain.supports(slopes, torch.zeros_like(slopes[0])) - directions @ centre

    def spanning(self) -> Tensor:
        return self.domain.spanning() @ self.transform.mT


def linear_image(transform: Tensor, domain: Domain) -> Domain:
    """{F x: x in K}, as points, an ellipsoid, a zonotope or a sum of balls where it is one.

    The image of a product with at most 2048 pairs of corners is the hull of theirs, or the points
    where K is made of finite sets. transform: F, (e, d). Raises ValueError, TypeError.
    """
    F = _transform(transform, domain)
    if isinstance(domain, FiniteSet | Polytope):
        return type(domain)(domain.points @ F.mT)
    balls = domain.balls()
    # where the balls' oracle is not exact, the hull of few corners is better
    if balls is None or balls.factor > 1:
        corners = domain.corners(MOST_CORNERS)
        if corners is not None:
            kind = FiniteSet if _finite(domain) else Polytope
            return kind(corners @ F.mT)
    if not isinstance(balls, BallImage):
        return LinearImage(F, domain)
    generators = F @ balls.generators
    middle = F @ balls.middle
    orders = [q for _, q in balls.groups]
    if set(orders) == {math.inf}:
        return Zonotope(generators, middle)
    if orders == [2.0]:
        return Ellipsoid(generators, middle)
    return BallSum(generators, balls.groups, middle)


def minkowski_sum(parts: Sequence[Domain]) -> Domain:
    """{x_1 + ... + x_k: x_i in K_i}, the image of the product. Raises as Product.

    Gamma_p is at most the parts' sum.
    Source: Nikolov, Tang (2023), Theorem 20 (4).
    """
    product = Product(tuple(checks.instance("parts", parts, Sequence)))
    if len(set(product.sizes)) > 1:
        raise ValueError(f"parts must share one dimension, not {product.sizes}")
    identity = torch.eye(product.sizes[0], dtype=torch.float64)
    return linear_image(identity.repeat(1, len(product.parts)), product)


def _finite(domain: Domain) -> bool:
    if isinstance(domain, Product):
        return all(map(_finite, domain.parts))
    return isinstance(domain, FiniteSet)


def _unit(shape: NoiseShape, p: float) -> Tensor:
    """The shape's row weights scaled to norm 1 in l_{p/(p-2)}."""
    length = torch.linalg.vector_norm(shape.row_weights, ord=conjugate(p))
    return shape.row_weights / length.clamp_min(1e-300)


def _transform(value: Tensor, domain: Domain) -> Tensor:
    value = checks.one_matrix("transform", value)
    d = checks.instance("domain", domain, Domain).dimension
    if value.shape[1] != d:
        raise ValueError(f"transform must be of shape (e, {d}), not {tuple(value.shape)}")
    return value
