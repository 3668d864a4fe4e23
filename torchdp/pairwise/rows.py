"""Statistics of pairs of rows as they are, without bins: for a curator, who sees them.

Notation: n users; c, their number at each row; the sums are over pairs of different users.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchdp import checks
from torchdp.draws import Shape
from torchdp.protocol import Crowd
from torchdp.queries.channel import Bounded

# Users whose pairs int64 counts.
MOST_USERS = 2**31
# Steps of the range that numbers are rounded to: far below the noise of so many users.
STEPS = 2**40
# Bits of a limb of a number of pairs: its sums with steps stay below 2^57.
LIMB = 16
# Roundings of a quotient of whole numbers.
TERMS = 8.0


class RowStatistic(ABC):
    """A mean over pairs of users' rows, of a known range. A frozen dataclass."""

    @property
    @abstractmethod
    def held(self) -> Shape:
        """What one user holds."""

    @property
    @abstractmethod
    def bounded(self) -> Bounded:
        """As of a question of types, but that ``exact`` is of a ``Crowd``."""

    fewest = 2

    def validate(self, x: Tensor) -> Tensor:
        """Rows as users may have them. Raises TypeError, ValueError."""
        unknown = ~x.isfinite()
        if unknown.any():
            raise ValueError(f"x must hold finite numbers{checks.at(unknown)}")
        return x


@dataclass(frozen=True)
class RowKendall(RowStatistic):
    """Kendall's tau-a of two numbers: the mean of sign(x_i - x_j) sign(y_i - y_j), ties 0.

    Source: Kendall (1938); Knight (1966), for counting by merges.
    """

    @property
    def held(self) -> Shape:
        return (2,)

    @property
    def bounded(self) -> Bounded:
        one = torch.ones((), dtype=torch.float64)
        return Bounded(partial(_of_each, _kendall), 4 * one, one, _terms, (-1.0, 1.0))


@dataclass(frozen=True)
class RowDifference(RowStatistic):
    """Gini's mean difference of one number: the mean of abs(x_i - x_j).

    Numbers are rounded to 2^40 steps of their range, so that sums are exact: the answer differs
    by a step at most, far less than the noise.

    low, high: public bounds of the numbers; others are refused. Raises TypeError, ValueError.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        number = partial(checks.within, low=-1e300, high=1e300)
        checks.keep(self, low=number, high=number)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, not {self.low:g} and {self.high:g}")

    @property
    def held(self) -> Shape:
        return (1,)

    @property
    def bounded(self) -> Bounded:
        width = torch.tensor(self.high - self.low, dtype=torch.float64)
        exact = partial(_of_each, self._mean)
        return Bounded(exact, 2 * width, width, _terms, (0.0, float(width)))

    def validate(self, x: Tensor) -> Tensor:
        x = super().validate(x)
        outside = (x < self.low) | (x > self.high)
        if outside.any():
            raise ValueError(
                f"x must lie in [{self.low:g}, {self.high:g}]{checks.at(outside)}; clamp it, or "
                "state wider bounds"
            )
        return x

    def _mean(self, rows: Tensor, counts: Tensor) -> float:
        n = int(counts.sum())
        step = (self.high - self.low) / STEPS
        whole = ((rows[:, 0] - self.low) / step).round().long()
        order = whole.argsort()
        gaps = whole[order].diff()
        below = counts[order].cumsum(0)[:-1]
        # Between two neighbours lie the pairs of those below and those above.
        pairs = below * (n - below)
        total = 0
        for place in range(0, 64, LIMB):
            limb = pairs >> place & ((1 << LIMB) - 1)
            total += int((limb * gaps).sum()) << place
        return 2 * total / (n * (n - 1)) * step


def _terms(n: Tensor) -> Tensor:
    """Of ``Bounded``: sums are exact, of more users they do not fit."""
    return torch.where(n <= MOST_USERS, TERMS, torch.inf)


def _of_each(mean: Callable[[Tensor, Tensor], float], crowd: Crowd) -> Tensor:
    """The mean of each of a batch of crowds, (*batch)."""
    counts = crowd.counts
    batch = counts.shape[:-1]
    own = crowd.rows.double()
    rows = own.expand(*batch, *own.shape[-2:]).reshape(-1, *own.shape[-2:])
    each = zip(rows, counts.reshape(-1, counts.shape[-1]).long(), strict=True)
    values = [mean(*one) for one in each]
    return torch.tensor(values, dtype=torch.float64, device=rows.device).view(batch)


def _kendall(rows: Tensor, counts: Tensor) -> float:
    n = int(counts.sum())
    # By x, equal ones by y: of a pair of equal x the second y is then no less.
    x = torch.unique(rows[:, 0], return_inverse=True)[1]
    y = torch.unique(rows[:, 1], return_inverse=True)[1]
    both = x * (int(y.max()) + 1) + y
    order = both.argsort()
    total = _risen(y[order], counts[order])
    # Pairs of equal x count 0, and not 1 where y differs.
    same = torch.unique(both, return_inverse=True)[1]
    total -= _tied(x, counts) - _tied(same, counts)
    return 2 * total / (n * (n - 1))


def _tied(labels: Tensor, counts: Tensor) -> int:
    """Pairs of users with one label."""
    sizes = counts.new_zeros(int(labels.max()) + 1).index_add_(0, labels, counts)
    return int((sizes * (sizes - 1) // 2).sum())


def _risen(y: Tensor, counts: Tensor) -> int:
    """Sum over places i < j of sign(y_j - y_i) c_i c_j, by merging halves of blocks."""
    size = 1 << max(1, (len(y) - 1).bit_length())
    # Places without users fill the last block.
    value = pad(y, (0, size - len(y)))[:, None]
    users = pad(counts, (0, size - len(y)))[:, None]
    total = 0
    while len(value) > 1:
        left = value[::2].contiguous()
        right = value[1::2].contiguous()
        sums = pad(users[::2].cumsum(1), (1, 0))
        below = sums.gather(1, torch.searchsorted(left, right))
        above = sums[:, -1:] - sums.gather(1, torch.searchsorted(left, right, right=True))
        total += int((users[1::2] * (below - above)).sum())
        merged = torch.cat([left, right], 1).sort(1)
        users = torch.cat([users[::2], users[1::2]], 1).gather(1, merged.indices)
        value = merged.values
    return total
