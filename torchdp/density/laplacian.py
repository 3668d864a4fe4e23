"""Kernels by the cell that a point lies in: the Laplacian by hashed bins, the exponential by random
hyperplanes.

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

NUMBERS_AT_ONCE = 2**15  # of the plain way: what a nearby cache holds
WORTH = 128  # a boundary of the tables costs as much as so many numbers of the plain way
MOST_BYTES = 2**27  # of the tables
BYTE = 8


@dataclass(frozen=True, eq=False)
class Grid:
    """Bins and a hash of them. widths, offsets (in widths): (d, repetitions); keys:
    (2, d, repetitions) int64.
    """

    widths: Tensor
    offsets: Tensor
    keys: Tensor

    def hash(self, x: Tensor) -> Tensor:
        """64 bits for each bin: (n, d) -> (n, repetitions) int64, the xor over j of keys_0j +
        keys_1j bin_j mod 2^64.

        The top l bits of two different bins are independent and uniform over the keys, if the bins'
        numbers differ by less than 2^(64 - l).
        Source: Dietzfelbinger (1996), multiply-shift, in each dimension.
        """
        (first, factor), repetitions = self.keys.to(x.device), self.widths.shape[1]
        widths, offsets = self.widths.to(x), self.offsets.to(x)
        result = torch.zeros(len(x), repetitions, dtype=torch.int64, device=x.device)
        rows = max(1, NUMBERS_AT_ONCE // repetitions)
        for part, total in zip(x.detach().split(rows), result.split(rows), strict=True):
            for j in range(x.shape[1]):
                bins = _floor(part[:, j, None], widths[j], offsets[j]).to(torch.int64)
                total ^= bins.mul_(factor[j]).add_(first[j])
        return result

    def reader(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """What says where the top bit of ``hash`` is 0, (m, d) -> (m, repetitions) bool, for points
        no farther than x.

        Over the points x, a boundary between two bins of one repetition seldom lies between a
        coordinate's least and largest value. A sign changes at about half of those that do. So the
        signs of all repetitions, packed in bytes, are kept for each interval of each coordinate,
        and a point's signs are the xor of d rows: its d intervals are found by a search. Without
        tables where they cost more than they save; the same bits.
        """
        if not len(x):
            return self._plain
        low, high = x.detach().amin(0), x.detach().amax(0)
        widths, offsets = self.widths.to(x), self.offsets.to(x)
        ends = torch.stack(
            [_floor(each[:, None], widths, offsets) for each in (low, high)]
        ).double()
        boundaries, size = float((ends[1] - ends[0]).sum()), -(-widths.shape[1] // BYTE)
        worth = (
            boundaries * WORTH <= x.shape[0] * widths.numel() and boundaries * size <= MOST_BYTES
        )
        if not worth or not bool((high - low).isfinite().all()):
            return self._plain
        return self._tables(low, high, *ends.to(torch.int64)).read

    def _plain(self, x: Tensor) -> Tensor:
        return self.hash(x) >= 0

    def _tables(self, low: Tensor, high: Tensor, first: Tensor, last: Tensor) -> "Tables":
        """low, high: (d,), the corners of the points; first, last: (d, repetitions), their bins."""
        (start, factor), (d, repetitions) = self.keys.to(low.device), self.widths.shape
        counts = (last - first).flatten()
        where = torch.arange(len(counts), device=low.device).repeat_interleave(counts)
        begins = counts.cumsum(0) - counts
        number = (
            first.flatten()[where] + 1 + torch.arange(len(where), device=low.device) - begins[where]
        )
        hashed = [
            start.flatten()[where] + factor.flatten()[where] * each for each in (number - 1, number)
        ]
        changes = (hashed[0] ^ hashed[1]) < 0  # of the sign, at the lower end of bin ``number``
        where, number = where[changes], number[changes]
        widths, offsets = (each.to(low).flatten()[where] for each in (self.widths, self.offsets))
        dimension = where // repetitions
        at = _least(low[dimension], high[dimension], number, widths, offsets)
        order = at.argsort()
        order = order[dimension[order].argsort(stable=True)]
        where, at, dimension = where[order] % repetitions, at[order], dimension[order]
        rows = torch.zeros(
            len(at) + 1, -(-repetitions // BYTE), dtype=torch.uint8, device=low.device
        )
        rows[torch.arange(len(at), device=low.device) + 1, where // BYTE] = (1 << where % BYTE).to(
            torch.uint8
        )
        step = 1
        while step < len(rows):  # the xor of all rows up to each
            rows[step:] ^= rows[:-step].clone()
            step *= 2
        negative = ((start + factor * first) < 0).sum(0) % 2
        total, begin = _packed(negative == 0), 0
        coordinates: list[Coordinate | None] = []
        for each in at.split(torch.bincount(dimension, minlength=d).tolist()):
            if len(each):
                coordinates.append(Coordinate(each, rows[begin : begin + len(each) + 1]))
                total ^= rows[begin]
            else:
                coordinates.append(None)
            begin += len(each)
        return Tables(tuple(coordinates), total, repetitions)


@dataclass(frozen=True, eq=False)
class Coordinate:
    """One coordinate's intervals, by their boundaries (c,), increasing, and the signs that change
    up to each.

    rows: (c + 1, bytes).
    """

    boundaries: Tensor
    rows: Tensor

    def changes(self, x: Tensor) -> Tensor:
        """(n,) -> (n, bytes)."""
        return self.rows.index_select(0, torch.searchsorted(self.boundaries, x, right=True))


@dataclass(frozen=True, eq=False)
class Tables:
    """The signs of a box of points: those of its lowest corner, packed in bytes, and the changes of
    each coordinate.
    """

    coordinates: tuple[Coordinate | None, ...]  # None: no sign changes
    corner: Tensor
    repetitions: int

    def read(self, x: Tensor) -> Tensor:
        """Where the sign is positive: (n, d) -> (n, repetitions) bool."""
        total = self.corner.expand(len(x), -1).clone()
        for column, coordinate in zip(x.detach().mT.contiguous(), self.coordinates, strict=True):
            if coordinate is not None:
                total ^= coordinate.changes(column)
        bits = total[..., None] & _places(x.device)
        return bits.bool().flatten(1)[:, : self.repetitions]


def _floor(x: Tensor, widths: Tensor, offsets: Tensor) -> Tensor:
    """The number of the bin; it never decreases in x, rounding included."""
    return (x / widths).sub_(offsets).floor_()


def _least(low: Tensor, high: Tensor, number: Tensor, widths: Tensor, offsets: Tensor) -> Tensor:
    """The least float whose bin is at least ``number``, above ``low`` and at most ``high``: by
    halving, one each.
    """
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}[low.dtype]

    def turned(integers: Tensor) -> Tensor:
        """A float's bits to integers in the same order, and back."""
        return torch.where(integers < 0, integers ^ torch.iinfo(whole).max, integers)

    below, above = turned(low.view(whole)), turned(high.view(whole))
    for _ in range(torch.iinfo(whole).bits):
        middle = (below >> 1) + (above >> 1) + (below & above & 1)
        reached = _floor(turned(middle).view(low.dtype), widths, offsets).to(torch.int64) >= number
        above, below = torch.where(reached, middle, above), torch.where(reached, below, middle)
    return turned(above).view(low.dtype)


def _places(device: torch.device) -> Tensor:
    return torch.tensor([1 << i for i in range(BYTE)], dtype=torch.uint8, device=device)


def _packed(bits: Tensor) -> Tensor:
    """(repetitions,) bool -> (bytes,), the low bit first."""
    wide = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % BYTE))
    return (wide.unflatten(-1, (-1, BYTE)) * _places(bits.device)).sum(-1, dtype=torch.uint8)


@dataclass(frozen=True)
class LaplacianSigns(Family):
    """f = g = a random sign of the point's bin in a random grid: Q = S = R = 1, no bias, one bit
    without rounding.

    k(x, y) = exp(-||x - y||_1 / scale) is the chance that x and y fall into one bin: in each
    dimension bins have a width w ~ Gamma(2, scale) and an offset uniform on [0, w), and two points
    at distance t share one with probability E (1 - t/w)_+ = e^{-t/scale}. Different bins have
    independent signs, so E f(x) g(y) = P(same bin). dimension >= 1, scale > 0. Raises ValueError.
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
        u = torch.rand(
            (3, *shape), dtype=torch.float64, device=generator.device, generator=generator
        )
        widths = -self.scale * (torch.log1p(-u[0]) + torch.log1p(-u[1]))
        keys = torch.empty((2, *shape), dtype=torch.int64, device=generator.device)
        keys.random_(-(2**63), None, generator=generator)
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
    """k(x, y) = exp(-||x - y||_2 / scale) on the ball of this radius: Q = S = R = 1, no bias,
    nothing rounded.

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
        mean = math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)
        return self.radius / (mean * self.scale)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "ParityFeatures":
        repetitions, generator = drawn(repetitions, generator)
        device = generator.device
        rate = torch.full((repetitions,), self.hyperplanes, dtype=torch.float64, device=device)
        each = Simulated(generator).poisson(rate)
        owner = torch.repeat_interleave(torch.arange(repetitions, device=device), each)
        shape = (len(owner), self.dimension)
        normal = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        uniform = torch.rand(len(owner), dtype=torch.float64, device=device, generator=generator)
        normal /= torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
        return ParityFeatures(self, repetitions, normal, (2 * uniform - 1) * self.radius, owner)

    def inside(self, name: str, points: Tensor) -> Tensor:
        return in_ball(name, points, self.radius, "the radius; scale them, or state a larger one")

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(
            -torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / self.scale
        )


@dataclass(frozen=True, eq=False)
class ParityFeatures(SignFeatures):
    """normals: (hyperplanes, d); thresholds and owner, the repetition of each: (hyperplanes,)."""

    normals: Tensor
    thresholds: Tensor
    owner: Tensor

    @property
    def numbers(self) -> int:
        return max(self.instances, len(self.owner))

    def positive(self, x: Tensor) -> Tensor:
        above = (x @ self.normals.to(x).mT > self.thresholds.to(x)).to(torch.int32)
        total = torch.zeros(len(x), self.repetitions, dtype=torch.int32, device=x.device)
        return total.index_add_(1, self.owner.to(x.device), above) % 2 == 0
