"""Bounded domains K in R^d, known through quadratic maximisation."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.domains.nearest import nearest_by_corners
from torchdp.randomness import keyed_generator

TOLERANCE, NEAR = 1e-9, 1e-6  # membership, relative to the set's own reach: by formula, by search
# a direction shorter than that share of the longest is flat
FLAT, EPS = 1e-12, torch.finfo(torch.float64).eps
SMALLEST = 1e-150  # length of an axis whose square is a float
STARTS = 64  # of a local search over products
ROUNDED = 4  # times a dtype's eps of a coordinate: what computing the coordinate may cost


@dataclass(frozen=True)
class Frame:
    """A set's own units: it reaches 1 from ``centre`` along each of ``axes``; flat directions count
    by its size.

    axes: (d, d), the columns orthogonal, their lengths how far spanning points reach; largest:
    (d,), absolute value of each coordinate.
    """

    centre: Tensor
    axes: Tensor
    largest: Tensor

    @staticmethod
    def of(points: Tensor) -> "Frame":
        """Of the set that these points (k, d) span: turns and grows with them, and does not see
        where they lie.
        """
        centre = points[0] + (points - points[0]).mean(0)
        z, largest = points - centre, points.abs().amax(0)
        shorter = torch.linalg.qr(z, mode="r").R if len(z) > z.shape[1] else z
        size, V = float(z.norm(dim=-1).max()), torch.linalg.svd(shorter)[2].mT
        reach, rounded = (z @ V).abs().amax(0), 8 * EPS * float(largest.max())
        flat = reach <= FLAT * size + rounded
        return Frame(centre, V * torch.where(flat, max(size, rounded, SMALLEST), reach), largest)

    @cached_property
    def inverse(self) -> Tensor:
        """axes^{-1}, (d, d)."""
        return (self.axes / self.axes.square().sum(0)).mT

    def room(self, share: float, dtype: torch.dtype = torch.float64) -> float:
        """What a membership test lets through in these units: ``share``, and what ``dtype`` rounds
        coordinates by.
        """
        return share + ROUNDED * torch.finfo(dtype).eps * float(
            (self.inverse.abs() @ self.largest).norm()
        )


@dataclass(frozen=True)
class Maximum:
    """What maximising ||B (x - c)||^2 over a domain found.

    points: (k, d), points of the domain, the best first; value: the form at the best; upper: a
    proved upper bound on the maximum, equal to value where the oracle is exact. Both hold up to
    float64 rounding.
    """

    points: Tensor
    value: float
    upper: float

    @staticmethod
    def among(
        points: Tensor, B: Tensor, centre: Tensor, upper: float = 0.0, most: int = 64
    ) -> "Maximum":
        """The best max(most, d) of these points (k, d); upper: where a bound above their value is
        known.
        """
        values = ((points - centre) @ B.mT).square().sum(-1)
        order = torch.argsort(values, descending=True)[: max(most, points.shape[1])]
        value = float(values[order[0]])
        return Maximum(points[order], value, max(upper, value))


@dataclass(frozen=True)
class Proposal:
    """An ellipsoid {centre + root u: ||u|| <= 1} and a dual measure, to be judged and perhaps
    improved upon.

    root: (d, r); centre: (d,); points: (k, d), in the domain; weights: (k,), not negative;
    row_weights: (d,), not negative. Nothing is promised of any of them.
    """

    root: Tensor
    centre: Tensor
    points: Tensor
    weights: Tensor
    row_weights: Tensor


class Domain(Brief, ABC):
    """A bounded set K in R^d. What an ellipsoid around K needs to know is a quadratic oracle.

    Source: Nikolov, Tang (2023), Definition 29.
    """

    @property
    @abstractmethod
    def dimension(self) -> int:
        """d."""

    @property
    @abstractmethod
    def factor(self) -> float:
        """The oracle's: the upper bound of :meth:`maximise` is at most this many times the maximum;
        1.0 is exact.

        It is alpha^2 of Definition 29.
        """

    @property
    @abstractmethod
    def middle(self) -> Tensor | None:
        """The point (d,) about which K is symmetric, K - middle = middle - K; None where there is
        none.
        """

    @property
    def symmetric(self) -> bool:
        """K = -K."""
        return self.middle is not None and not bool(self.middle.any())

    @abstractmethod
    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        """Points of K with large ||B (x - centre)||^2, and an upper bound on its maximum.

        B: (k, d); centre: (d,); both float64. B and not B^T B, whose condition is the square of
        B's.
        """

    @abstractmethod
    def extreme(self, directions: Tensor) -> Tensor:
        """Points x of K with the largest <direction, x>, (k, d) for directions (k, d) float64."""

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        """Proved upper bounds on max <direction, x - centre> over K, (k,): the maxima where
        ``extreme`` finds them.
        """
        return ((self.extreme(directions) - centre) * directions).sum(-1)

    @abstractmethod
    def spanning(self) -> Tensor:
        """Finitely many points of K, (k, d) float64, whose affine hull holds K."""

    def corners(self, most: int) -> Tensor | None:
        """Points (k, d) of K, k <= most, whose convex hull is that of K; None where so few are not
        known.
        """
        return None

    def balls(self) -> "Domain | None":
        """The same set as a ``BallImage``, the image of a product of balls, where it is known to be
        one; else None.
        """
        return None

    @property
    def hull(self) -> "Domain":
        """The convex hull, where means of K's points lie: itself for a convex K."""
        return self

    @cached_property
    def frame(self) -> Frame:
        """The units in which points are near K or not, whatever K's place, turn and unit."""
        return Frame.of(self.spanning())

    def contains(self, x: Tensor) -> Tensor:
        """Whether x (..., d) lies in K, bool (...), up to 1e-9 of K's reach by formula, else 1e-6,
        and rounding.

        The reach is from K's centre in each direction; rounding is that of x's dtype at the
        coordinates of K.
        """
        x, own = self._vectors(x), self.frame
        room, z = own.room(max(NEAR, slack(x)), x.dtype), (x.double() - own.centre) @ own.inverse.mT

        def extreme(g: Tensor) -> Tensor:
            return (self.extreme(g @ own.inverse) - own.centre) @ own.inverse.mT

        near = nearest_by_corners(z, extreme, room / 2)
        return (z - near).norm(dim=-1) <= room

    def missed(self, rows: Tensor) -> float:
        """A bound on ||rows e||, e from K to a float64 point that ``contains`` lets through; rows
        (r, d).
        """
        own = self.frame
        return own.room(NEAR * math.sqrt(self.dimension)) * float(
            torch.linalg.matrix_norm(rows @ own.axes, 2)
        )

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of K, for x of shape (..., d). Raises NotImplementedError where none is
        at hand.
        """
        x, centre = self._vectors(x), self.frame.centre
        return (
            centre + nearest_by_corners(x.double() - centre, lambda g: self.extreme(g) - centre)
        ).to(x)

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        """An ellipsoid known from the structure of K, optimal or close to it; None where there is
        none.
        """
        return None

    def image_proposal(
        self, transform: Tensor, p: float, shift: bool, tol: float
    ) -> Proposal | None:
        """The same for {transform x: x in K}."""
        return None

    def validate(self, x: Tensor) -> Tensor:
        """x, refused where a row lies outside K: data for a private mean is checked before it is
        used.

        Shorter floats than float32 are taken as float32, here and in ``contains`` and ``project``.
        Raises ValueError, without showing data.
        """
        x = self._vectors(x)
        inside = self.contains(x)
        if not bool(inside.all()):
            raise ValueError(
                f"x holds {int((~inside).sum())} points outside the domain; "
                "drop them, or move them to the nearest point of it with project"
            )
        return x

    def _vectors(self, x: Tensor) -> Tensor:
        """x as vectors of float32 or float64: a test among shorter floats would let through what
        lies far outside.
        """
        x = checks.shaped("x", checks.floating("x", checks.as_tensor("x", x)), ..., self.dimension)
        return x if x.dtype in (torch.float32, torch.float64) else x.float()


def slack(x: Tensor) -> float:
    """What a membership test by formula lets through, of a set's reach: 1e-9, or the rounding of
    x's dtype.
    """
    return max(TOLERANCE, 8 * torch.finfo(x.dtype).eps)


def rounding(x: Tensor, coordinates: Tensor) -> Tensor:
    """What x's dtype may have rounded numbers of that size by, (d,)."""
    return ROUNDED * torch.finfo(x.dtype).eps * coordinates


def beside(several: Sequence[Tensor], key: bytes) -> list[Tensor]:
    """STARTS points of each of these lists: the first of all, then others drawn under a fixed
    key.
    """
    generator, found = keyed_generator(key, "cpu"), []
    for points in several:
        place = torch.randint(len(points), (STARTS,), device="cpu", generator=generator)
        place[0] = 0
        found.append(points[place.to(points.device)])
    return found


def climb(domain: Domain, points: Tensor, B: Tensor, centre: Tensor, steps: int = 30) -> Tensor:
    """Points (k, d) of the domain moved uphill on ||B (x - centre)||^2, each step to the best of
    the slope.
    """
    for _ in range(steps):
        following = domain.extreme((points - centre) @ B.mT @ B)
        settled = bool((following - points).abs().max() <= FLAT * (points - centre).abs().max())
        points = following
        if settled:
            break
    return points
