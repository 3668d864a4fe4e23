"""What every mechanism for an unbiased mean offers, and how points of the domain become points of a ball."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.mean.domain import Domain, Maximum
from torchdp.mean.finite import Vertices
from torchdp.mean.noise_shape import NoiseShape
from torchdp.mean.norm_error import NormError
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee

MOST_VERTICES = 20_000  # whose distances are all looked at
CHUNK = 2**22  # numbers held at a time: 32 MB
LET_THROUGH = 1e-6  # what the membership tests of finite sets and hulls let through, relative to their size


@dataclass(frozen=True)
class MeanEstimate:
    """A private mean, (*sample_shape, d), of n users' vectors, and the standard deviation of its noise, (d,)."""

    value: Tensor
    standard_error: Tensor
    n: int


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
        if missed > LET_THROUGH * float(z.norm(dim=-1).max()):
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
        if self._listed:
            points = self.domain.spanning()
        elif self.domain.middle is not None:
            return 2 * math.sqrt(self._furthest.value)  # a point and its mirror image
        else:
            points = self._furthest.points
        encoded = (points - self.centre) @ self.inverse.mT
        rows = max(1, CHUNK // len(encoded))
        exactly = "donot_use_mm_for_euclid_dist"
        return max(float(torch.cdist(some, encoded, compute_mode=exactly).max()) for some in encoded.split(rows))

    @cached_property
    def diameter(self) -> float:
        """A proved upper bound on ||A^+ (x - y)|| over two admitted points: 2 radius, or less for given vertices.

        Vectors are shortened to ``radius``, so that what a membership test lets through costs nothing; a diameter
        below 2 radius, that of vertices (at most 20,000) which are not symmetric, is enlarged by it.
        """
        if not self._listed:
            return 2 * self.radius
        longest = float(self.domain.spanning().abs().max())
        slack = 2 * LET_THROUGH * longest * float(torch.linalg.matrix_norm(self.inverse, 2))
        return min(2 * self.radius, self.widest + slack)

    @property
    def _listed(self) -> bool:
        return isinstance(self.domain, Vertices) and len(self.domain.points) <= MOST_VERTICES

    def __call__(self, x: Tensor) -> Tensor:
        """Admitted points (k, d) as vectors (k, r) of length at most radius, float64."""
        u = (x.double() - self.centre) @ self.inverse.mT
        return u * (self.radius / u.norm(dim=-1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)

    def chunks(self, x: Tensor) -> Iterator[Tensor]:
        """The encoded rows of x (k, d), so many at a time."""
        return (self(some) for some in x.split(max(1, CHUNK // x.shape[-1])))


def admitted(name: str, x: Tensor, domain: Domain, shape: NoiseShape) -> Tensor:
    """``x``, (n, d) with n >= 1, in the domain and on the shape's device. Raises ValueError, TypeError."""
    x = checks.real(name, x)
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"{name} must have shape (n, d) with n >= 1, not {tuple(x.shape)}")
    if x.device != shape.root.device:
        raise ValueError(f"{name} is on {x.device}, the shape on {shape.root.device}; move one to the other")
    return domain.admit(x)


def encoding(domain: Domain, shape: NoiseShape) -> Encoding:
    """Around the domain's middle where it has one, else around the shape's centre. Raises TypeError, ValueError."""
    if not isinstance(domain, Domain) or not isinstance(shape, NoiseShape):
        raise TypeError("domain must be a Domain and shape a NoiseShape, such as noise_shape(domain, p)")
    return Encoding(domain, shape, shape.centre if domain.middle is None else domain.middle.double())


@dataclass(frozen=True)
class MeanMechanism(ABC):
    """Releases the mean of n users' vectors, each a point of the domain, without bias; n is public.

    ``estimate`` is what is published, from one vector for each user; ``estimate_counts`` draws the same law from
    distinct points and how many users hold each, for simulations: a generator's draws hide nobody. Points outside the
    domain are refused: see ``Domain.project``.

    domain: K. shape: an ellipsoid for the noise, any: a bad one costs accuracy, not privacy. Raises TypeError,
    ValueError where its range does not reach the whole domain.
    """

    domain: Domain
    shape: NoiseShape

    def __post_init__(self) -> None:
        encoding(self.domain, self.shape)  # checks that they fit

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball."""
        return encoding(self.domain, self.shape)

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What a user is promised."""

    @abstractmethod
    def noise_root(self, n: int) -> Tensor:
        """B, (d, r), with Cov(estimate) = B B^T for n users, whatever their data."""

    def error(self, n: int, p: float | None = None) -> NormError:
        """The l_p error for n users; p: the shape's own where it is not given."""
        return NormError(self.noise_root(n), self.shape.p if p is None else p)

    def estimate(self, x: Tensor, *, noise: Noise | None = None) -> MeanEstimate:
        """The private mean of x, (n, d), n >= 1; noise: the system's where None.

        Raises TypeError, ValueError (for points outside the domain).
        """
        x = admitted("x", x, self.domain, self.shape)
        return self._estimate(self._total(x, source(noise, x.device)), len(x))

    def estimate_counts(
        self, points: Tensor, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> MeanEstimate:
        """The private mean of counts[j] users at points[j], (k, d); independent repetitions of ``sample_shape``.

        Raises TypeError, ValueError.
        """
        points = admitted("points", points, self.domain, self.shape)
        counts = checks.counts("counts", counts, len(points)).to(points.device)
        n = int(counts.sum())
        if n < 1:
            raise ValueError("counts must hold at least one user")
        checks.random_source(generator, points.device)
        shape = checks.sample_shape(sample_shape)
        return self._estimate(self._total_counts(points, counts, shape, generator), n)

    @abstractmethod
    def _total(self, x: Tensor, noise: Noise) -> Tensor:
        """Noisy sum of the encoded vectors of the users' x, (r,)."""

    @abstractmethod
    def _total_counts(
        self, points: Tensor, counts: Tensor, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """Noisy sums of the encoded vectors, (*shape, r)."""

    def _estimate(self, total: Tensor, n: int) -> MeanEstimate:
        value = self.encoding.centre + total / n @ self.shape.root.mT
        return MeanEstimate(value, self.noise_root(n).norm(dim=1), n)
