"""Kernels by the cell that a point lies in: Laplacian by hashed bins, exponential by hyperplanes.

Signs of bins of many points are read from tables instead of computed one by one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import Family, SignFeatures, drawn, in_ball
from torchdp.draws import Simulated

# Numbers of the plain way that a nearby cache holds.
NUMBERS_AT_ONCE = 2**15

# A boundary of the tables costs as much as so many numbers of the plain way.
WORTH = 128

# Memory of the tables.
MOST_BYTES = 2**27

BYTE = 8


@dataclass(frozen=True, eq=False)
class Grid:
    """Bins in each dimension and repetition, and a hash of them.

    Args:
        widths: of the bins, (d, repetitions).
        offsets: in widths, (d, repetitions).
        keys: of the hash, (2, d, repetitions) int64.
    """

    widths: Tensor
    offsets: Tensor
    keys: Tensor

    def hash(self, x: Tensor) -> Tensor:
        """64 bits for each bin: (n, d) -> (n, repetitions) int64.

        The xor over j of keys_0j + keys_1j bin_j mod 2^64. The top l bits of two different bins are
        independent and uniform over the keys, if the bins' numbers differ by less than 2^(64 - l).
        Source: Dietzfelbinger (1996), multiply-shift, in each dimension.
        """
        first, factor = self.keys.to(x.device)
        repetitions = self.widths.shape[1]
        widths = self.widths.to(x)
        offsets = self.offsets.to(x)
        result = x.new_zeros(len(x), repetitions, dtype=torch.int64)
        rows = max(1, NUMBERS_AT_ONCE // repetitions)
        for part, total in zip(x.detach().split(rows), result.split(rows), strict=True):
            for j, column in enumerate(part.mT):
                bins = _floor(column[:, None], widths[j], offsets[j]).long()
                total ^= bins.mul_(factor[j]).add_(first[j])
        return result

    def reader(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """A function to where the top bit of ``hash`` is 0, for points no farther than x.

        Returns:
            (m, d) -> (m, repetitions) bool, for points in the smallest box around x. It reads
            tables, or computes the same bits without where tables cost more than they save.

        Over the points x, a boundary between two bins of one repetition seldom lies between a
        coordinate's least and largest value. A sign changes at about half of those that do. So the
        signs of all repetitions, packed in bytes, are kept for each interval of each coordinate,
        and a point's signs are the xor of d rows: its d intervals are found by a search.
        """
        if not len(x):
            return self._plain
        low = x.detach().amin(0)
        high = x.detach().amax(0)
        widths = self.widths.to(x)
        offsets = self.offsets.to(x)
        first = _floor(low[:, None], widths, offsets).double()
        last = _floor(high[:, None], widths, offsets).double()
        boundaries = float((last - first).sum())
        finite = bool((high - low).isfinite().all())
        saves = boundaries * WORTH <= len(x) * widths.numel()
        row_bytes = -(-widths.shape[1] // BYTE)
        fits = boundaries * row_bytes <= MOST_BYTES
        if not (finite and saves and fits):
            return self._plain
        return self._tables(low, high, first.long(), last.long()).read

    def _plain(self, x: Tensor) -> Tensor:
        return self.hash(x) >= 0

    def _tables(self, low: Tensor, high: Tensor, first: Tensor, last: Tensor) -> "Tables":
        """low, high: (d,), the corners of the points; first, last: (d, repetitions), their bins."""
        start, factor = self.keys.to(low.device)
        d, repetitions = self.widths.shape

        # Every boundary: its row (dimension and repetition), and the bin that begins there.
        counts = (last - first).flatten()
        row = torch.arange(len(counts), device=low.device).repeat_interleave(counts)
        before = (counts.cumsum(0) - counts)[row]
        place = torch.arange(len(row), device=low.device) - before
        number = first.flatten()[row] + 1 + place

        # Those where the sign of the hash changes, and the floats at which they lie.
        above = start.flatten()[row] + factor.flatten()[row] * number
        below = above - factor.flatten()[row]
        changes = (above ^ below) < 0
        row = row[changes]
        dimension = row // repetitions
        widths = self.widths.to(low).flatten()[row]
        offsets = self.offsets.to(low).flatten()[row]
        at = _least(low[dimension], high[dimension], number[changes], widths, offsets)

        sizes = torch.bincount(dimension, minlength=d).tolist()
        pairs = zip(at.split(sizes), (row % repetitions).split(sizes), strict=True)
        coordinates = tuple(Coordinate.of(floats, owner, repetitions) for floats, owner in pairs)
        negative = ((start + factor * first) < 0).sum(0) % 2
        return Tables(coordinates, _packed(negative == 0), repetitions)


@dataclass(frozen=True, eq=False)
class Coordinate:
    """One coordinate's intervals, and the signs that change up to each.

    Args:
        boundaries: of the intervals, (c,), increasing.
        rows: signs of all repetitions, (c + 1, bytes).
    """

    boundaries: Tensor
    rows: Tensor

    @staticmethod
    def of(at: Tensor, changed: Tensor, repetitions: int) -> "Coordinate":
        """at: (c,) boundaries in any order; changed: (c,), the repetition of each."""
        boundaries, order = at.sort()
        changed = changed[order]
        size = (len(at) + 1, -(-repetitions // BYTE))
        rows = at.new_zeros(size, dtype=torch.uint8)
        place = torch.arange(1, len(at) + 1, device=at.device)
        rows[place, changed // BYTE] = (1 << changed % BYTE).to(torch.uint8)
        # The xor of all rows up to each, over steps that double.
        step = 1
        while step < len(rows):
            rows[step:] ^= rows[:-step].clone()
            step *= 2
        return Coordinate(boundaries, rows)

    def changes(self, x: Tensor) -> Tensor:
        """(n,) -> (n, bytes)."""
        return self.rows.index_select(0, torch.searchsorted(self.boundaries, x, right=True))


@dataclass(frozen=True, eq=False)
class Tables:
    """The signs of a box of points: those of its lowest corner, and the changes of coordinates.

    Args:
        coordinates: d of them.
        corner: signs, packed in (bytes,).
        repetitions: as of the grid.
    """

    coordinates: tuple[Coordinate, ...]
    corner: Tensor
    repetitions: int

    def read(self, x: Tensor) -> Tensor:
        """Where the sign is positive: (n, d) -> (n, repetitions) bool."""
        total = self.corner.expand(len(x), -1).clone()
        for column, coordinate in zip(x.detach().mT.contiguous(), self.coordinates, strict=True):
            total ^= coordinate.changes(column)
        bits = total[..., None] & _places(x.device)
        return bits.bool().flatten(1)[:, : self.repetitions]


def _floor(x: Tensor, widths: Tensor, offsets: Tensor) -> Tensor:
    """The number of the bin; it never decreases in x, rounding included."""
    return (x / widths).sub_(offsets).floor_()


def _least(low: Tensor, high: Tensor, number: Tensor, widths: Tensor, offsets: Tensor) -> Tensor:
    """The least float in (low, high] whose bin is at least ``number``: by halving, one each."""
    dtype = {torch.float32: torch.int32, torch.float64: torch.int64}[low.dtype]
    limits = torch.iinfo(dtype)

    def turned(integers: Tensor) -> Tensor:
        """A float's bits to integers in the same order, and back."""
        return torch.where(integers < 0, integers ^ limits.max, integers)

    below = turned(low.view(dtype))
    above = turned(high.view(dtype))
    for _ in range(limits.bits):
        # Their mean, without an overflow.
        middle = (below >> 1) + (above >> 1) + (below & above & 1)
        bins = _floor(turned(middle).view(low.dtype), widths, offsets)
        reached = bins.long() >= number
        above = torch.where(reached, middle, above)
        below = torch.where(reached, below, middle)
    return turned(above).view(low.dtype)


def _places(device: torch.device) -> Tensor:
    return torch.tensor([1 << i for i in range(BYTE)], dtype=torch.uint8, device=device)


def _packed(bits: Tensor) -> Tensor:
    """(repetitions,) bool -> (bytes,), the low bit first."""
    wide = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % BYTE))
    return (wide.view(-1, BYTE) * _places(bits.device)).sum(-1, dtype=torch.uint8)


@dataclass(frozen=True)
class LaplacianSigns(Family):
    """f = g = a random sign of the point's bin in a random grid: Q = S = R = 1, no bias.

    It is one bit without rounding. k(x, y) = exp(-||x - y||_1 / scale) is the chance that x and y
    fall into one bin: in each dimension bins have a width w ~ Gamma(2, scale) and an offset uniform
    on [0, w), and two points at distance t share one with probability E (1 - t/w)_+ = e^{-t/scale}.
    Different bins have independent signs, so E f(x) g(y) = P(same bin). dimension >= 1, scale > 0.
    Raises ValueError.
    Source: Rahimi, Recht (2007), random binning, with a sign for each bin.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, scale=checks.positive)

    support = 1

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, y, p=1) / self.scale)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "BinSignFeatures":
        return BinSignFeatures(self, repetitions, self._grid(repetitions, generator))

    def _grid(self, repetitions: int, generator: torch.Generator) -> Grid:
        repetitions, generator = drawn(repetitions, generator)
        shape = (self.dimension, repetitions)
        device = generator.device
        u = torch.rand((3, *shape), dtype=torch.float64, device=device, generator=generator)
        # Gamma(2, scale) is the sum of two exponentials.
        widths = -self.scale * (torch.log1p(-u[0]) + torch.log1p(-u[1]))
        keys = torch.empty((2, *shape), dtype=torch.int64, device=device)
        keys.random_(-(2**63), None, generator=generator)
        # A point's place over a width of 0 is no number.
        return Grid(widths.clamp_min_(1e-12 * self.scale), u[2], keys)


@dataclass(frozen=True, eq=False)
class BinSignFeatures(SignFeatures):
    """The top bit of the hash."""

    grid: Grid

    def positive(self, x: Tensor) -> Tensor:
        return self.over(x)(x)

    def over(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return self.grid.reader(x)


@dataclass(frozen=True)
class Exponential(Family):
    """k(x, y) = exp(-||x - y||_2 / scale) on the ball of this radius: Q = S = R = 1, no bias.

    f = g = the parity of the hyperplanes {z: <a, z> = t} that a point lies above: Poisson(L) of
    them, a uniform on the sphere, t uniform on [-radius, radius]. x and y are separated by
    Poisson(L c_d ||x - y||/(2 radius)) of them, c_d = E |a_1| = Gamma(d/2)/(sqrt(pi) Gamma((d +
    1)/2)), and E (-1)^Poisson(m) = e^{-2m}: L = radius/(c_d scale).

    dimension >= 1; scale > 0; radius > 0: of the ball that holds users and queries. Raises
    ValueError.
    Source: after Indyk, Motwani (1998) in Wagner (2025), section 2.3; parity in the place of
    buckets as above.
    """

    bounded: ClassVar[bool] = True

    scale: float = 1.0
    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, scale=checks.positive, radius=checks.positive)

    @property
    def hyperplanes(self) -> float:
        """L: their expected number in one repetition."""
        d = self.dimension
        # c_d = E |a_1|, by logarithms that do not overflow.
        ratio = math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2))
        mean = ratio / math.sqrt(math.pi)
        return self.radius / (mean * self.scale)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "ParityFeatures":
        repetitions, generator = drawn(repetitions, generator)
        device = generator.device
        rate = torch.full((repetitions,), self.hyperplanes, dtype=torch.float64, device=device)
        counts = Simulated(generator).poisson(rate)
        owner = torch.repeat_interleave(counts)
        shape = (len(owner), self.dimension)
        normals = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        uniform = torch.rand(len(owner), dtype=torch.float64, device=device, generator=generator)
        # A normal vector divided by its length is uniform on the sphere.
        normals /= torch.linalg.vector_norm(normals, dim=-1, keepdim=True)
        return ParityFeatures(self, repetitions, normals, (2 * uniform - 1) * self.radius, owner)

    def inside(self, name: str, points: Tensor) -> Tensor:
        return in_ball(name, points, self.radius, "the radius; scale them, or state a larger one")

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        # |x|^2 + |y|^2 - 2 <x, y> would lose digits to cancellation.
        distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        return torch.exp(-distances / self.scale)


@dataclass(frozen=True, eq=False)
class ParityFeatures(SignFeatures):
    """Parities of hyperplanes.

    Args:
        normals: (hyperplanes, d).
        thresholds: (hyperplanes,).
        owner: the repetition of each, (hyperplanes,).
    """

    normals: Tensor
    thresholds: Tensor
    owner: Tensor

    @property
    def numbers(self) -> int:
        return max(self.instances, len(self.owner))

    def positive(self, x: Tensor) -> Tensor:
        above = x @ self.normals.to(x).mT > self.thresholds.to(x)
        total = x.new_zeros(len(x), self.repetitions, dtype=torch.int32)
        total.index_add_(1, self.owner.to(x.device), above.int())
        return total % 2 == 0
