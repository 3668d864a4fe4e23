"""How points of a domain become points of a ball: the map that a noise's shape gives."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.domains.ball_image import BallImage
from torchdp.domains.balls import BallSum
from torchdp.domains.composite import LinearImage, Product, linear_image, minkowski_sum
from torchdp.domains.domain import EPS, Domain, Maximum
from torchdp.domains.finite import Polytope, Vertices
from torchdp.domains.noise_shape import NoiseShape
from torchdp.memory import rows_at_once

MOST_CORNERS = 20_000  # whose distances are all looked at
MOST_DIFFERENCES = 2048  # of corners that are all listed
MISSED = 1e-6  # of the domain's reach: what a shape may leave out


@dataclass(frozen=True)
class Encoding:
    """Points x of the domain as vectors A^+ (x - c) of length at most ``radius``, A the root of the noise's shape.

    centre: c, (d,). radius and diameter are computed again from the domain's oracle, so that privacy rests on them and
    not on the shape's own claim. Raises TypeError, ValueError.
    """

    domain: Domain
    shape: NoiseShape
    centre: Tensor

    def __post_init__(self) -> None:
        if self.shape.dimension != self.domain.dimension:
            raise ValueError(
                f"shape is of dimension {self.shape.dimension}, the domain of {self.domain.dimension}; "
                "make it with noise_shape(domain, p)"
            )
        z = self.domain.spanning() - self.centre
        missed = float((z - z @ self.inverse.mT @ self.shape.root.mT).norm(dim=-1).max())
        if missed > MISSED * float(z.norm(dim=-1).max()) + 64 * EPS * float(self.centre.norm()):
            raise ValueError(
                "shape does not reach all of the domain, and its noise would leave a bias; "
                "make it with noise_shape(domain, p), around the origin with shift=False"
            )

    @cached_property
    def inverse(self) -> Tensor:
        """A^+, (r, d)."""
        return torch.linalg.pinv(self.shape.root)

    @cached_property
    def _furthest(self) -> Maximum:
        return self.domain.maximise(self.inverse, self.centre)

    @cached_property
    def radius(self) -> float:
        """A proved upper bound on ||A^+ (x - c)|| over the domain."""
        if not self.inverse.any():
            return 0.0  # a single point
        return math.sqrt(max(self._furthest.upper, 0.0)) * (1 + 1e-12)

    @cached_property
    def widest(self) -> float:
        """||A^+ (x - y)|| of the two points of the domain furthest apart that are known."""
        if not self.inverse.any():
            return 0.0
        points = self._listed
        if points is None and self.domain.middle is not None:
            return 2 * math.sqrt(self._furthest.value)  # a point and its mirror image
        if points is None:
            points = self._furthest.points
        encoded = (points - self.centre) @ self.inverse.mT
        parts, mode = encoded.split(rows_at_once(len(encoded))), "donot_use_mm_for_euclid_dist"
        return max(float(torch.cdist(some, encoded, compute_mode=mode).max()) for some in parts)

    @cached_property
    def diameter(self) -> float:
        """A proved upper bound on ||A^+ (x - y)|| over two admitted points: 2 radius, or less without symmetry.

        Vectors are shortened to ``radius``, so that what a membership test lets through costs nothing; a diameter
        below 2 radius, that of corners (at most 20,000) or of the differences' own oracle, is enlarged by it, and
        points of shorter floats are moved into the domain.
        """
        domain = self.domain
        if not self.inverse.any() or (self._listed is None and domain.middle is not None):
            return 2 * self.radius
        most = self.widest
        if self._listed is None:
            most = math.sqrt(differences(domain).maximise(self.inverse, torch.zeros_like(self.centre)).upper)
        return min(2 * self.radius, most + 2 * domain.missed(self.inverse))

    @cached_property
    def _listed(self) -> Tensor | None:
        """Corners whose hull is the domain's; None for other symmetric sets, and where they are too many."""
        known = isinstance(self.domain, Vertices) or self.domain.middle is None
        return self.domain.corners(MOST_CORNERS) if known else None

    def __call__(self, x: Tensor) -> Tensor:
        """Admitted points (k, d) as vectors (k, r) of length at most radius, float64."""
        if x.dtype != torch.float64 and self.domain.middle is None:
            x = torch.where(self.domain.contains(x.double())[:, None], x.double(), self.domain.project(x.double()))
        u = (x.double() - self.centre) @ self.inverse.mT
        return u * (self.radius / u.norm(dim=-1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)


def differences(domain: Domain) -> Domain:
    """K - K = {x - y: x, y in K}, symmetric about 0: what the replacement of one user moves a sum by.

    Of products and images part by part, of at most 45 corners by all their pairs; of sets that are symmetric about m
    it is 2 (K - m).
    """
    if isinstance(domain, Product):
        return Product(tuple(map(differences, domain.parts)))
    if isinstance(domain, LinearImage):
        return linear_image(domain.transform, differences(domain.domain))
    balls, middle = domain.balls(), domain.middle
    if isinstance(balls, BallImage):
        return BallSum(2 * balls.generators, balls.groups, torch.zeros_like(balls.middle))
    if isinstance(domain, Vertices) and middle is not None:
        return Polytope(2 * (domain.points - middle))
    points = domain.corners(math.isqrt(MOST_DIFFERENCES))
    if points is not None:
        return Polytope((points[:, None] - points).flatten(0, 1))
    one = torch.eye(domain.dimension).to(domain.spanning())
    if domain.symmetric:
        return linear_image(2 * one, domain)
    return minkowski_sum([domain, linear_image(-one, domain)])


def encoding(domain: Domain, shape: NoiseShape) -> Encoding:
    """Around the domain's middle where it has one, else around the shape's centre. Raises TypeError, ValueError."""
    if not isinstance(domain, Domain) or not isinstance(shape, NoiseShape):
        raise TypeError("domain must be a Domain and shape a NoiseShape, such as noise_shape(domain, p)")
    return Encoding(domain, shape, shape.centre if domain.middle is None else domain.middle.double())
