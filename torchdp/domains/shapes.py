"""Other shapes of noise: for differences of a domain's points, of least error in l_p, and round.

How points of a domain become points of a ball, and how large Gaussian noise is in l_p: closed
forms, quadrature, Monte Carlo with its error where neither is exact.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import gammaln, log_ndtr
from torch import Tensor

from torchdp import checks
from torchdp.domains.ball_image import BallImage
from torchdp.domains.balls import BallSum
from torchdp.domains.composite import LinearImage, Product, linear_image, minkowski_sum
from torchdp.domains.domain import EPS, Domain, Maximum
from torchdp.domains.finite import FiniteSet, Polytope, Vertices
from torchdp.domains.noise_shape import NoiseShape, noise_shape
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.memory import rows_at_once
from torchdp.randomness import keyed_generator

MOST_CORNERS = 2000  # two million differences
EXPONENTS = (2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
DRAWS = 1 << 18  # of the noise
MOST_POWER = 300.0  # of a normal whose moment is a float
PANEL = 0.5  # width of a panel of the quadrature, in largest deviations
MOST_LISTED = 20_000  # whose distances are all looked at
MOST_DIFFERENCES = 2048  # of corners that are all listed
MISSED = 1e-6  # of the domain's reach: what a shape may leave out


@dataclass(frozen=True)
class Encoding:
    """Points x of the domain as vectors A^+ (x - c) of length at most ``radius``.

    Args:
        domain: of the points, in R^d.
        shape: of the noise; A is its root.
        centre: c, (d,).

    radius and diameter are computed again from the domain's oracle, so that privacy rests on them
    and not on the shape's own claim. Raises TypeError, ValueError.
    """

    domain: Domain
    shape: NoiseShape
    centre: Tensor

    def __post_init__(self) -> None:
        if self.shape.dimension != self.domain.dimension:
            raise ValueError(
                f"shape is of dimension {self.shape.dimension}, the domain of "
                f"{self.domain.dimension}; make it with noise_shape(domain, p)"
            )
        z = self.domain.spanning() - self.centre
        reached = z @ self.inverse.mT @ self.shape.root.mT
        missed = float((z - reached).norm(dim=-1).max())
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
        # The oracle and the root round: the radius that privacy rests on is no smaller.
        return math.sqrt(max(self._furthest.upper, 0.0)) * (1 + 1e-12)

    @cached_property
    def widest(self) -> float:
        """||A^+ (x - y)|| of the two points of the domain furthest apart that are known."""
        if not self.inverse.any():
            return 0.0  # a single point
        points = self._listed
        if points is None and self.domain.middle is not None:
            return 2 * math.sqrt(self._furthest.value)  # a point and its mirror image
        if points is None:
            points = self._furthest.points
        encoded = (points - self.centre) @ self.inverse.mT
        # |x|^2 + |y|^2 - 2 <x, y> would lose digits to cancellation
        exact = "donot_use_mm_for_euclid_dist"
        parts = encoded.split(rows_at_once(len(encoded)))
        return max(float(torch.cdist(part, encoded, compute_mode=exact).max()) for part in parts)

    @cached_property
    def diameter(self) -> float:
        """A proved upper bound on ||A^+ (x - y)|| over two admitted points, at most 2 radius.

        Vectors are shortened to ``radius``, so that what a membership test lets through costs
        nothing; a diameter below 2 radius, that of corners (at most 20,000) or of the differences'
        own oracle, is enlarged by it, and points of shorter floats are moved into the domain.
        """
        domain = self.domain
        if not self.inverse.any() or (self._listed is None and domain.middle is not None):
            return 2 * self.radius
        most = self.widest
        if self._listed is None:
            origin = torch.zeros_like(self.centre)
            most = math.sqrt(differences(domain).maximise(self.inverse, origin).upper)
        return min(2 * self.radius, most + 2 * domain.missed(self.inverse))

    @cached_property
    def _listed(self) -> Tensor | None:
        """Corners whose hull is the domain's; None for other symmetric sets, and for too many."""
        known = isinstance(self.domain, Vertices) or self.domain.middle is None
        return self.domain.corners(MOST_LISTED) if known else None

    def __call__(self, x: Tensor) -> Tensor:
        """Admitted points (k, d) as vectors (k, r) of length at most radius, float64."""
        points = x.double()
        if x.dtype != torch.float64 and self.domain.middle is None:
            domain = self.domain.to(x.device)
            inside = domain.contains(points)[:, None]
            points = torch.where(inside, points, domain.project(points))
        u = (points - self.centre.to(x.device)) @ self.inverse.mT.to(x.device)
        # whoever is admitted a little outside has no more influence than others
        length = u.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        return u * (self.radius / length).clamp_max(1.0)


def differences(domain: Domain) -> Domain:
    """K - K = {x - y: x, y in K}: what the replacement of one user moves a sum by.

    Of products and images part by part, of at most 45 corners by all their pairs; of sets that are
    symmetric about m it is 2 (K - m). Symmetric about 0.
    """
    if isinstance(domain, Product):
        return Product(tuple(map(differences, domain.parts)))
    if isinstance(domain, LinearImage):
        return linear_image(domain.transform, differences(domain.domain))
    balls = domain.balls()
    if isinstance(balls, BallImage):
        return BallSum(2 * balls.generators, balls.groups, torch.zeros_like(balls.middle))
    if isinstance(domain, Vertices) and domain.middle is not None:
        return Polytope(2 * (domain.points - domain.middle))
    points = domain.corners(math.isqrt(MOST_DIFFERENCES))
    if points is not None:
        return Polytope((points[:, None] - points).flatten(0, 1))
    identity = torch.eye(domain.dimension).to(domain.spanning())
    if domain.symmetric:
        return linear_image(2 * identity, domain)
    return minkowski_sum([domain, linear_image(-identity, domain)])


def encoding(domain: Domain, shape: NoiseShape) -> Encoding:
    """Around the domain's middle, or where it has none around the shape's centre.

    Raises TypeError, ValueError.
    """
    if not isinstance(domain, Domain) or not isinstance(shape, NoiseShape):
        raise TypeError(
            "domain must be a Domain and shape a NoiseShape, such as noise_shape(domain, p)"
        )
    centre = shape.centre if domain.middle is None else domain.middle.double()
    return Encoding(domain, shape, centre)


@dataclass(frozen=True)
class Measured:
    """A number and its standard error: 0.0 where it is exact up to quadrature, 1e-8 relative."""

    value: float
    standard_error: float = 0.0


def normal_moment(p: float) -> float:
    """E |g|^p = 2^{p/2} Gamma((p + 1)/2) / sqrt(pi), g a standard normal, for p in (0, 300].

    Raises ValueError.
    """
    if checks.positive("p", p) > MOST_POWER:
        raise ValueError(
            f"p must be at most {MOST_POWER:g}, or infinite, not {p!r}: the moment is no float"
        )
    log_gamma = float(gammaln((p + 1) / 2))
    return math.exp(p / 2 * math.log(2) + log_gamma - math.log(math.pi) / 2)


@dataclass(frozen=True)
class NormError:
    """The l_p norm of Z = root g, g a standard normal vector: what noise of that shape costs.

    Args:
        root: (d, r); the covariance of Z is root root^T.
        p: in [2, inf].

    floor <= root_mean_square <= ceiling, all in the unit of root.
    Source: Nikolov, Tang (2023), Lemma 33 for the floor and Theorem 15 for the ceiling, with its
    constants.
    """

    root: Tensor
    p: float

    def __post_init__(self) -> None:
        root = checks.floating("root", self.root)
        if root.ndim != 2 or root.shape[0] == 0:
            raise ValueError(f"root must have shape (d, r) with d >= 1, not {tuple(root.shape)}")
        object.__setattr__(self, "root", root.detach().double())
        object.__setattr__(self, "p", check_exponent(self.p))

    @cached_property
    def deviations(self) -> Tensor:
        """Standard deviation of each coordinate, (d,)."""
        return self.root.norm(dim=1)

    @cached_property
    def floor(self) -> float:
        """sqrt(tr_{p/2}(root root^T)) <= (E ||Z||_p^2)^{1/2}, with equality at p = 2.

        It is the l_p norm of the deviations.
        """
        return float(torch.linalg.vector_norm(self.deviations, ord=self.p))

    @cached_property
    def ceiling(self) -> float:
        """A proved upper bound of (E ||Z||_p^2)^{1/2}, for any dependence between the coordinates.

        (E ||Z||_p^p)^{1/p} = (E |g|^p)^{1/p} floor for finite p, or the largest deviation times
        (2 log(2 d) + 2)^{1/2}, or this at q > p through ||Z||_p <= ||Z||_q d^{1/p - 1/q}: whichever
        is smaller.
        """
        d = len(self.deviations)
        # P(max |Z_i| > t) <= min(1, 2 d e^{-t^2/(2 s^2)}), s the largest deviation; integrated
        # against 2 t dt.
        largest = float(self.deviations.max()) * math.sqrt(2 * math.log(2 * d) + 2)
        if self.p == math.inf:
            return largest
        by_moment = normal_moment(self.p) ** (1 / self.p) * self.floor
        return min(by_moment, largest * d ** (1 / self.p))

    @cached_property
    def root_mean_square(self) -> Measured:
        """(E ||Z||_p^2)^{1/2}: exact at p = 2, and for independent coordinates at p = inf.

        Elsewhere by Monte Carlo.
        """
        if self.p == 2 or self.floor == 0:
            return Measured(self.floor)
        covariance = self.root @ self.root.mT
        off = covariance - covariance.diagonal().diag()
        independent = off.abs().max() <= 1e-13 * covariance.abs().max()
        exact = self.p == math.inf and bool(independent)
        second = self._largest() if exact else self._monte_carlo()
        value = math.sqrt(second.value)
        return Measured(value, second.standard_error / (2 * value))

    def _largest(self) -> Measured:
        """E max_i Z_i^2 of independent coordinates: the integral of 2 t P(max > t)."""
        deviations = self.deviations[self.deviations > 0].numpy(force=True)
        top = float(deviations.max())
        nodes, weights = np.polynomial.legendre.leggauss(64)
        total = 0.0
        # From 0 to a largest deviation's 1e-17 quantile, in panels; the scale 1/8 resolves the
        # steepest maximum.
        for low in np.arange(0.0, 10.0 + math.sqrt(2 * math.log(len(deviations))), PANEL):
            t = low + (nodes + 1) * (PANEL / 2)
            log_tails = log_ndtr(-t[:, None] * top / deviations)
            # By logarithms: far out 1 - P(max <= t) would cancel to 0.
            log_within = np.log1p(-2 * np.exp(log_tails)).sum(1)
            integrand = 2 * t * -np.expm1(log_within)
            total += float(weights @ integrand) * (PANEL / 2)
        return Measured(top**2 * total)

    def _monte_carlo(self) -> Measured:
        """E ||Z||_p^2; for finite p with ||Z||_p^p, whose mean is known, as control variate."""
        generator = keyed_generator(b"torchdp.mean.norm_error", self.root.device)
        rows = rows_at_once(max(self.root.shape))
        parts = [
            self._drawn(min(rows, DRAWS - start), generator) for start in range(0, DRAWS, rows)
        ]
        # In units of the floor E ||Z||_p^p is E |g|^p, the mean of the control variate.
        norms = torch.cat(parts) / self.floor
        values = norms.square()
        if self.p < math.inf:
            # E ||Z||_p^p is known: its error in these draws tells that of the mean square
            control = norms**self.p - normal_moment(self.p)
            centred = values - values.mean()
            values = values - (centred @ control) / (control @ control) * control
        scale = self.floor**2
        error = scale * float(values.std()) / math.sqrt(DRAWS)
        return Measured(scale * float(values.mean()), error)

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """The norms of so many draws."""
        root = self.root
        normals = torch.randn(
            count, root.shape[1], dtype=torch.float64, device=root.device, generator=generator
        )
        return torch.linalg.vector_norm(normals @ root.mT, ord=self.p, dim=1)


def difference_shape(domain: Domain, p: float, *, tol: float = 1e-4) -> NoiseShape:
    """The shape of noise for K - K: the least that protects the replacement of one user's point.

    Replacing x by y moves n times the mean by y - x, so the curator's noise needs an ellipsoid
    around K - K and none around K. Its norm is Gamma_p(K - K) <= 2 Gamma_p(K), with equality for a
    K that is symmetric about a point (there :func:`noise_shape` is the answer); for the corners of
    a simplex it is 2^{1/2} times less.

    Any domain: of at most 2000 corners by their differences, else by what its parts know of theirs.
    A list of more points that are not symmetric gets the shape of :func:`noise_shape`. The
    ellipsoid, around points' mean, also holds K. Raises ValueError, TypeError.

    Guarantees: its certificate bounds Gamma_p(K - K), or for a symmetric domain and for lists of
    more points
        Gamma_p(K), at least half of that.
    Source: the proof of Theorem 15 in Nikolov, Tang (2023), which uses no more than the
    differences.
    """
    points = checks.instance("domain", domain, Domain).corners(MOST_CORNERS)
    if domain.middle is not None or (points is None and isinstance(domain, Vertices)):
        return noise_shape(domain, p, tol=tol)
    if points is None:
        changes = differences(domain)
    elif len(points) == 1:
        changes = FiniteSet(torch.zeros_like(points))
    else:
        i, j = torch.triu_indices(len(points), len(points), 1, device=points.device)
        changes = FiniteSet(points[i] - points[j])
    shape = noise_shape(changes, p, shift=False, tol=tol)
    # A^+ (x - mean) is a mean of A^+ (x - y), so the ellipsoid around the points' mean holds K.
    return replace(shape, centre=domain.spanning().mean(0))


def least_error_shape(domain: Domain, p: float, *, local: bool = False) -> NoiseShape:
    """The shape of least (E ||Z||_p^2)^{1/2} among those optimal for exponents q from 2 to p.

    Gamma_p is the l_p norm of the deviations, a lower bound of that error; for p = inf it does not
    see that many equal deviations have a larger maximum than few. On a box with sides 1, 2, ...,
    128 the shape for q = 4 has 26 % less error in l_inf than the one for q = inf. The result's own
    p is q: ask the mechanism for ``error(n, p)``.

    local: for the local model, of :func:`noise_shape`; else for a curator, of
    :func:`difference_shape`. Raises ValueError, TypeError.

    Guarantees: never more error than the shape of Gamma_p, up to the standard error of the
    comparison.
    Source: the gap between Theorem 15 and Lemma 33 of Nikolov, Tang (2023).
    """
    p = check_exponent(p)
    make = noise_shape if local else difference_shape

    def error(shape: NoiseShape) -> float:
        own = encoding(domain, shape)
        reach = own.radius if local else own.diameter
        return reach * NormError(shape.root, p).root_mean_square.value

    exponents = [q for q in dict.fromkeys((p, *EXPONENTS)) if q <= p]
    best = min((make(domain, q) for q in exponents), key=error)
    if local or domain.middle is not None:
        return best
    # where little is known of the differences
    return min(best, noise_shape(domain, best.p), key=error)


def round_shape(domain: Domain, p: float) -> NoiseShape:
    """The ball around the optimal ellipsoid's centre that holds K: isotropic noise to compare with.

    Its certificate keeps the lower bound of :func:`noise_shape`; its upper is the radius times
    d^{1/p}.
    Guarantees: the ball holds K.
    Source: Dwork, McSherry, Nissim, Smith (2006), noise calibrated to the l_2 sensitivity.
    """
    best = noise_shape(domain, p)
    identity = torch.eye(domain.dimension).to(best.root)
    radius = math.sqrt(domain.maximise(identity, best.centre).upper)
    upper = radius * domain.dimension ** (1 / p)
    certificate = replace(best.certificate, upper=torch.full_like(best.certificate.upper, upper))
    return replace(best, root=radius * identity, certificate=certificate)
