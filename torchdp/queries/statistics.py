"""Statistics that are smooth functions of the shares of types: ranks, correlations, distances of
two groups.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.queries.function import ShareFunction


@dataclass(frozen=True)
class Grid(ShareFunction):
    """Of a x b types: (y, z) has index y * b + z."""

    a: int
    b: int

    def __post_init__(self) -> None:
        checks.integer("a", self.a, 2)
        checks.integer("b", self.b, 2)

    @property
    def types(self) -> int:
        return self.a * self.b

    @property
    def limits(self) -> tuple[float, float]:
        return -1.0, 1.0

    @property
    def histograms(self) -> Tensor:
        """Unrelated columns, each flat, rising or falling, and flat ones that go together or
        against each other.
        """
        rows, columns = (_slopes(size) for size in (self.a, self.b))
        y, z = (torch.linspace(0, 1, size, dtype=torch.float64) for size in (self.a, self.b))
        together = (-4 * (y[:, None] - z).abs()).exp()
        tables = [torch.outer(row, column) for row in rows for column in columns] + [
            together,
            together.flip(0),
        ]
        return torch.stack([table.flatten() / table.sum() for table in tables])


@dataclass(frozen=True)
class Correlation(Grid):
    """Pearson's correlation of two numbers in evenly spaced bins."""

    def __call__(self, h: Tensor) -> Tensor:
        table = h.view(self.a, self.b)
        return _correlation(table, torch.arange(self.a).to(h), torch.arange(self.b).to(h))


@dataclass(frozen=True)
class Covariance(Grid):
    """Of two numbers in evenly spaced bins, in units of their widths, divisor n."""

    @property
    def limits(self) -> tuple[float, float]:
        most = (self.a - 1) * (self.b - 1) / 4
        return -most, most

    def __call__(self, h: Tensor) -> Tensor:
        table = h.view(self.a, self.b)
        first = torch.arange(self.a).to(h)
        second = torch.arange(self.b).to(h)
        return first @ table @ second - (table.sum(1) @ first) * (table.sum(0) @ second)


@dataclass(frozen=True)
class Spearman(Grid):
    """Spearman's rho: Pearson's correlation of ranks, users of one bin sharing the mean of theirs.

    Source: Spearman (1904), with Kendall's treatment of ties.
    """

    def __call__(self, h: Tensor) -> Tensor:
        table = h.view(self.a, self.b)
        y, z = table.sum(1), table.sum(0)
        return _correlation(table, y.cumsum(0) - y / 2, z.cumsum(0) - z / 2)


@dataclass(frozen=True)
class KendallB(Grid):
    """Kendall's tau-b: concordant less discordant pairs over the root of those untied in y times
    those untied in z.

    Source: Kendall (1945).
    """

    def __call__(self, h: Tensor) -> Tensor:
        table = h.view(self.a, self.b)
        first, second = torch.arange(self.a).to(h), torch.arange(self.b).to(h)
        rows, columns = ((x[:, None] - x).sign() for x in (first, second))
        apart = (1 - table.sum(1).square().sum()) * (1 - table.sum(0).square().sum())
        return (table * (rows @ table @ columns.mT)).sum() / apart.sqrt()


@dataclass(frozen=True)
class TwoGroups(ShareFunction):
    """Of k types in two groups: group g's type x has index g * k + x. Who belongs to which group is
    private.
    """

    k: int

    def __post_init__(self) -> None:
        checks.integer("k", self.k, 2)

    @property
    def types(self) -> int:
        return 2 * self.k

    @property
    def limits(self) -> tuple[float, float]:
        return 0.0, math.inf

    @property
    def histograms(self) -> Tensor:
        """Groups of 30, 50 and 70 %, both flat, or one rising and one falling."""
        flat, up, down = _slopes(self.k)
        return torch.stack(
            [
                torch.cat([(1 - share) * one, share * two])
                for share in (0.3, 0.5, 0.7)
                for one, two in ((flat, flat), (down, up))
            ]
        )

    @staticmethod
    def apart(h: Tensor) -> Tensor:
        """The second group's shares less the first's, (k,)."""
        first, second = h.view(2, -1)
        return second / second.sum() - first / first.sum()


@dataclass(frozen=True)
class EnergyDistance(TwoGroups):
    """The squared energy distance of two groups of numbers: 2 E abs(X - Y) - E abs(X - X') - E
    abs(Y - Y').

    It is 2 spacing sum_t (F(t) - G(t))^2, F and G the groups' distribution functions.
    Source: Szekely, Rizzo (2013), section 2.
    """

    spacing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.squarable("spacing", self.spacing)

    def __call__(self, h: Tensor) -> Tensor:
        return 2 * self.spacing * self.apart(h).cumsum(0).square().sum()


@dataclass(frozen=True)
class MeanDiscrepancy(TwoGroups):
    """Squared maximum mean discrepancy of two groups, kernel exp(-(x - y)^2/(2 width^2)), x = 0,
    ..., k - 1.

    Source: Gretton, Borgwardt, Rasch, Schoelkopf, Smola (2012), Lemma 6, all pairs.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.squarable("width", self.width)

    def __call__(self, h: Tensor) -> Tensor:
        x, apart = torch.arange(self.k).to(h), self.apart(h)
        kernel = (-(x[:, None] - x).square() / (2 * self.width**2)).exp()
        return apart @ kernel @ apart


def _slopes(size: int) -> list[Tensor]:
    """Flat, rising and falling shares."""
    up = torch.arange(1, size + 1, dtype=torch.float64)
    return [torch.full_like(up, 1 / size), up / up.sum(), up.flip(0) / up.sum()]


def _correlation(table: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Of the values y (a,) and z (b,) under the joint shares (a, b)."""
    rows, columns = table.sum(1), table.sum(0)
    y, z = y - rows @ y, z - columns @ z
    return y @ table @ z / (rows @ y.square() * (columns @ z.square())).sqrt()
