"""Bounded domains K in R^d, known through quadratic maximisation."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.domains.nearest import nearest_by_corners
from torchdp.randomness import keyed_generator

EPS = torch.finfo(torch.float64).eps
TOLERANCE = 1e-9  # of membership by a formula, relative to the set's own reach
NEAR = 1e-6  # likewise, of membership by search
FLAT = 1e-12  # a direction shorter than that share of the longest is flat
SMALLEST = 1e-150  # length of an axis whose square is a float
STARTS = 64  # of a local search over products
KEPT = 64  # points that an oracle returns, or d where that is more
ROUNDED = 4  # times a dtype's eps of a coordinate: what computing the coordinate may cost


@dataclass(frozen=True)
class Frame:
    """A set's own units: it reaches 1 from ``centre`` along each of ``axes``.

    Args:
        centre: (d,).
        axes: (d, d), the columns orthogonal, their lengths how far spanning points reach; flat
            directions count by the set's size.
        largest: (d,), absolute value of each coordinate.
    """

    centre: Tensor
    axes: Tensor
    largest: Tensor

    @staticmethod
    def of(points: Tensor) -> "Frame":
        """Of the set that points (k, d) span: turns and grows with them, wherever they lie."""
        centre = points[0] + (points - points[0]).mean(0)
        z = points - centre
        largest = points.abs().amax(0)
        # QR first: the singular vectors of many points are those of a square matrix.
        shorter = torch.linalg.qr(z, mode="r").R if len(z) > z.shape[1] else z
        V = torch.linalg.svd(shorter)[2].mT
        size = float(z.norm(dim=-1).max())
        reach = (z @ V).abs().amax(0)
        rounded = 8 * EPS * float(largest.max())
        flat = reach <= FLAT * size + rounded  # such directions get a length, to divide by
        lengths = torch.where(flat, max(size, rounded, SMALLEST), reach)
        return Frame(centre, V * lengths, largest)

    @cached_property
    def inverse(self) -> Tensor:
        """axes^{-1}, (d, d)."""
        return (self.axes / self.axes.square().sum(0)).mT

    def room(self, share: float, dtype: torch.dtype = torch.float64) -> float:
        """What a membership test lets through: ``share``, and what ``dtype`` rounds off."""
        largest = float((self.inverse.abs() @ self.largest).norm())
        return share + ROUNDED * torch.finfo(dtype).eps * largest


@dataclass(frozen=True)
class Maximum:
    """What maximising ||B (x - c)||^2 over a domain found.

    Args:
        points: (k, d), points of the domain, the best first.
        value: the form at the best.
        upper: a proved upper bound on the maximum, equal to value where the oracle is exact.

    Both numbers hold up to float64 rounding.
    """

    points: Tensor
    value: float
    upper: float

    @staticmethod
    def among(
        points: Tensor, B: Tensor, centre: Tensor, upper: float = 0.0, most: int = KEPT
    ) -> "Maximum":
        """The best max(most, d) of points (k, d); upper: a bound above their value, if known."""
        values = ((points - centre) @ B.mT).square().sum(-1)
        order = torch.argsort(values, descending=True)[: max(most, points.shape[1])]
        value = float(values[order[0]])
        # An upper bound below the attained value is so by rounding alone.
        return Maximum(points[order], value, max(upper, value))


@dataclass(frozen=True)
class Proposal:
    """An ellipsoid {centre + root u: ||u|| <= 1} and a dual measure: nothing is promised of them.

    Args:
        root: (d, r).
        centre: (d,).
        points: (k, d), in the domain.
        weights: (k,), not negative.
        row_weights: (d,), not negative.
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
        """The oracle's: :meth:`maximise` bounds at most this many times the maximum; 1.0 is exact.

        It is alpha^2 of Definition 29."""

    @property
    @abstractmethod
    def middle(self) -> Tensor | None:
        """The point (d,) about which K is symmetric, K - middle = middle - K, or None."""

    @property
    def symmetric(self) -> bool:
        """K = -K."""
        return self.middle is not None and not bool(self.middle.any())

    @abstractmethod
    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        """Points of K with large ||B (x - centre)||^2, and an upper bound on its maximum.

        Args:
            B: (k, d) float64. Not B^T B, whose condition is the square of B's.
            centre: (d,) float64.
        """

    @abstractmethod
    def extreme(self, directions: Tensor) -> Tensor:
        """Points x of K with the largest <direction, x>, (k, d) for directions (k, d) float64."""

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        """Proved upper bounds (k,) on max <direction, x - centre>; exact where ``extreme`` is."""
        return ((self.extreme(directions) - centre) * directions).sum(-1)

    @abstractmethod
    def spanning(self) -> Tensor:
        """Finitely many points of K, (k, d) float64, whose affine hull holds K."""

    def corners(self, most: int) -> Tensor | None:
        """Points (k, d) of K, k <= most, with K's convex hull; None where so few are not known."""
        return None

    def balls(self) -> "Domain | None":
        """The same set as a ``BallImage``, where it is known to be an image of balls."""
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
        """Whether x (..., d) lies in K, bool (...), up to rounding and a share of K's reach.

        The share is 1e-9 by formula, else 1e-6; the reach is from K's centre in each direction;
        rounding is that of x's dtype at the coordinates of K.
        """
        x = self._vectors(x)
        frame = self.frame
        room = frame.room(max(NEAR, slack(x)), x.dtype)
        # in the set's own units: a thin set is not tested by the measure of its length
        z = (x.double() - frame.centre) @ frame.inverse.mT

        def extreme(directions: Tensor) -> Tensor:
            return (self.extreme(directions @ frame.inverse) - frame.centre) @ frame.inverse.mT

        # half: the search ends within room / 2 of what the test then decides
        nearest = nearest_by_corners(z, extreme, room / 2)
        return (z - nearest).norm(dim=-1) <= room

    def missed(self, rows: Tensor) -> float:
        """A bound on ||rows e||, e from K to a float64 point that ``contains`` admits."""
        room = self.frame.room(NEAR * math.sqrt(self.dimension))
        return room * float(torch.linalg.matrix_norm(rows @ self.frame.axes, 2))

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of K, for x (..., d). Raises NotImplementedError for some K."""
        x = self._vectors(x)
        centre = self.frame.centre

        def extreme(directions: Tensor) -> Tensor:
            return self.extreme(directions) - centre

        # About the centre: far from 0 the distances of points would lose digits.
        nearest = nearest_by_corners(x.double() - centre, extreme)
        return (centre + nearest).to(x)

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        """An ellipsoid known from the structure of K, optimal or nearly; None: there is none."""
        return None

    def to(self, device: torch.device | str) -> Self:
        """The same set with its tensors on ``device``."""
        return checks.moved(self, device)

    def validate(self, x: Tensor) -> Tensor:
        """x, refused where a row lies outside K: data are checked before they are used.

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
        """x as vectors of float32 or float64: shorter floats would let too much pass."""
        x = checks.floating("x", checks.as_tensor("x", x))
        checks.shaped("x", x, ..., self.dimension)
        return x if x.dtype in (torch.float32, torch.float64) else x.float()


def slack(x: Tensor) -> float:
    """What a test by formula lets through, of a set's reach: 1e-9, or the rounding of x's dtype."""
    return max(TOLERANCE, 8 * torch.finfo(x.dtype).eps)


def rounding(x: Tensor, coordinates: Tensor) -> Tensor:
    """What x's dtype may have rounded numbers of that size by, (d,)."""
    return ROUNDED * torch.finfo(x.dtype).eps * coordinates


def beside(several: Sequence[Tensor], key: bytes) -> list[Tensor]:
    """STARTS points of each of these lists: the first of all, then draws under a fixed key."""
    generator = keyed_generator(key, "cpu")
    starts = []
    for points in several:
        place = torch.randint(len(points), (STARTS,), device="cpu", generator=generator)
        place[0] = 0
        starts.append(points[place.to(points.device)])
    return starts


def climb(domain: Domain, points: Tensor, B: Tensor, centre: Tensor, steps: int = 30) -> Tensor:
    """Points (k, d) of K moved uphill on ||B (x - centre)||^2: each to the best of the slope."""
    for _ in range(steps):
        z = points - centre
        # A convex form lies above its tangents: the best point of the slope does not lose.
        following = domain.extreme(z @ B.mT @ B)
        moved = (following - points).abs().max()
        points = following
        if moved <= FLAT * z.abs().max():
            break
    return points
