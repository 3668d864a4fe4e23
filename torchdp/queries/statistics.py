"""Smooth functions of the shares of types: ranks, correlations, distances of two groups.

Notation: h, (types,), shares; table, (a, b), the same of pairs (y, z).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.queries.function import ShareFunction

# Shares of the second group among the users of the public histograms.
SECOND_GROUP = (0.3, 0.5, 0.7)

# How fast the shares of a public table fall with the distance of its columns, both in [0, 1].
DECAY = 4


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
        """Unrelated columns, each flat, rising or falling; flat ones that rise together, or not."""
        tables = [torch.outer(row, column) for row in _slopes(self.a) for column in _slopes(self.b)]
        y = torch.linspace(0, 1, self.a, dtype=torch.float64)
        z = torch.linspace(0, 1, self.b, dtype=torch.float64)
        distances = (y[:, None] - z).abs()
        concordant = (-DECAY * distances).exp()
        tables += [concordant, concordant.flip(0)]
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
        y = torch.arange(self.a).to(h)
        z = torch.arange(self.b).to(h)
        product = y @ table @ z
        mean_y = table.sum(1) @ y
        mean_z = table.sum(0) @ z
        return product - mean_y * mean_z


@dataclass(frozen=True)
class Spearman(Grid):
    """Spearman's rho: Pearson's correlation of ranks, users of one bin sharing the mean of theirs.

    Source: Spearman (1904), with Kendall's treatment of ties.
    """

    def __call__(self, h: Tensor) -> Tensor:
        table = h.view(self.a, self.b)
        y = table.sum(1)
        z = table.sum(0)
        # The mean rank of a bin as a share of all users: those below, and half of its own.
        return _correlation(table, y.cumsum(0) - y / 2, z.cumsum(0) - z / 2)


@dataclass(frozen=True)
class KendallB(Grid):
    """Kendall's tau-b: concordant less discordant pairs over the root of untied in y times in z.

    Source: Kendall (1945).
    """

    def __call__(self, h: Tensor) -> Tensor:
        table = h.view(self.a, self.b)
        order_y = _order(self.a, h)
        order_z = _order(self.b, h)
        # Two users drawn with replacement are tied where they are of one bin.
        untied_y = 1 - table.sum(1).square().sum()
        untied_z = 1 - table.sum(0).square().sum()
        untied = untied_y * untied_z
        concordance = table * (order_y @ table @ order_z.mT)
        return concordance.sum() / untied.sqrt()


@dataclass(frozen=True)
class TwoGroups(ShareFunction):
    """Of k types in two groups: group g's type x has index g * k + x. Groups are private too."""

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
        flat, rising, falling = _slopes(self.k)
        histograms = []
        for share in SECOND_GROUP:
            for first, second in ((flat, flat), (falling, rising)):
                histograms.append(torch.cat([(1 - share) * first, share * second]))
        return torch.stack(histograms)

    @staticmethod
    def apart(h: Tensor) -> Tensor:
        """The second group's shares less the first's, (k,)."""
        first, second = h.view(2, -1)
        return second / second.sum() - first / first.sum()


@dataclass(frozen=True)
class EnergyDistance(TwoGroups):
    """The squared energy distance: 2 E abs(X - Y) - E abs(X - X') - E abs(Y - Y').

    It is 2 spacing sum_t (F(t) - G(t))^2, F and G the groups' distribution functions.
    Source: Szekely, Rizzo (2013), section 2.
    """

    spacing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.squarable("spacing", self.spacing)

    def __call__(self, h: Tensor) -> Tensor:
        # G - F at each type.
        difference = self.apart(h).cumsum(0)
        return 2 * self.spacing * difference.square().sum()


@dataclass(frozen=True)
class MeanDiscrepancy(TwoGroups):
    """Squared maximum mean discrepancy of two groups, by a Gaussian kernel.

    The kernel is exp(-(x - y)^2/(2 width^2)), x = 0, ..., k - 1.
    Source: Gretton, Borgwardt, Rasch, Schoelkopf, Smola (2012), Lemma 6, all pairs.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.squarable("width", self.width)

    def __call__(self, h: Tensor) -> Tensor:
        x = torch.arange(self.k).to(h)
        squares = (x[:, None] - x).square()
        kernel = (-squares / (2 * self.width**2)).exp()
        difference = self.apart(h)
        return difference @ kernel @ difference


def _slopes(size: int) -> list[Tensor]:
    """Flat, rising and falling shares."""
    rising = torch.arange(1, size + 1, dtype=torch.float64)
    rising /= rising.sum()
    return [torch.full_like(rising, 1 / size), rising, rising.flip(0)]


def _order(size: int, h: Tensor) -> Tensor:
    """sign(x - y) for all pairs of bins, (size, size)."""
    x = torch.arange(size).to(h)
    return (x[:, None] - x).sign()


def _correlation(table: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Of the values y (a,) and z (b,) under the joint shares (a, b)."""
    rows = table.sum(1)
    columns = table.sum(0)
    # Centred first: E y z less the product of the means would cancel.
    y = y - rows @ y
    z = z - columns @ z
    covariance = y @ table @ z
    variances = rows @ y.square() * (columns @ z.square())
    return covariance / variances.sqrt()
