"""Who may take part in which steps, and what one user can then change: the sensitivity of a matrix mechanism."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization import BandedStrategy, BufferedStrategy, RecalledStrategy
from torchdp.factorization.certificates.worst_sets import most_apart, worst_separated
from torchdp.factorization.structure.apart import apart_rounding, apart_squares
from torchdp.factorization.structure.passes import pass_squares

ATTAINED = 1e-9  # relative: a user who moves this close to the bound shows that it is exact
SEARCHED = 1024  # steps up to which branch and bound looks for better where buffers' own bound is not attained
MOST_LINKS = 2**26  # steps x times of that bound


@dataclass(frozen=True)
class Sensitivity:
    """The largest Frobenius norm of C U over what one user changes, not squared: a bound, and what some user moves.

    value: no user moves further. attained: a user who is named by a set of steps and signs moves this far.
    """

    value: float
    attained: float

    @property
    def exact(self) -> bool:
        """Whether some user moves as far as the bound, to a relative 1e-9."""
        return self.attained >= (1 - ATTAINED) * self.value


class Participation(ABC):
    """Which sets of steps one user's data may enter; with a set, every subset of it."""

    @abstractmethod
    def most(self, steps: int) -> int:
        """How many of ``steps`` steps one user may enter."""

    @abstractmethod
    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        """Whether users may not enter ``step`` who entered ``times`` >= 1 steps, from ``first`` to ``last``: (n,)."""

    @abstractmethod
    def apart(self, steps: int) -> int:
        """How far any two of a user's steps are apart, at least; for one step alone ``steps``."""

    @abstractmethod
    def largest(self, squares: Tensor) -> float:
        """The largest sum of ``squares`` >= 0, one for each step, over a permitted set."""

    def moved(self, strategy: BufferedStrategy | RecalledStrategy) -> tuple[float, float] | None:
        """A bound on what a user moves, and what some user does, without the matrix; None: form C."""
        return None

    @abstractmethod
    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        """A bound on the sum of ``sizes`` = abs(C^T C) over a permitted set squared, and sets that may attain it."""


@dataclass(frozen=True)
class Once(Participation):
    """A user takes part in one step at most: the largest column norm of C."""

    def most(self, steps: int) -> int:
        return 1

    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        return times > 0

    def apart(self, steps: int) -> int:
        return steps

    def largest(self, squares: Tensor) -> float:
        return float(squares.max())

    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        largest = sizes.diagonal().max(0)
        return float(largest.values), [[int(largest.indices)]]


@dataclass(frozen=True)
class Epochs(Participation):
    """A user takes part in steps i, i + period, i + 2 period, ..., or some of them, for one i < period.

    period: steps of an epoch, at least 1, where every epoch goes through the batches in one fixed order. Raises
    ValueError.
    Source: Choquette-Choo, McMahan, Rush, Thakurta (2023), fixed-epoch-order participation.
    """

    period: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", checks.integer("period", self.period, 1))

    def most(self, steps: int) -> int:
        return -(-steps // self.period)

    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        return (step - first) % self.period != 0

    def apart(self, steps: int) -> int:
        return self.period

    def largest(self, squares: Tensor) -> float:
        period = min(self.period, len(squares))
        place = torch.arange(len(squares), device=squares.device) % period
        return float(squares.new_zeros(period).index_add_(0, place, squares).max())

    def moved(self, strategy: BufferedStrategy | RecalledStrategy) -> tuple[float, float] | None:
        if isinstance(strategy, RecalledStrategy):
            return _in_classes(strategy) if strategy.period == self.period else None
        C = strategy.to(torch.device("cpu"))
        longest = math.sqrt(float(pass_squares(C.poles, C.zeros, C.before, C.after, self.period).max()))
        rounding = (8 * strategy.steps + 64) * torch.finfo(torch.float64).eps
        return longest * (1 + rounding), longest * (1 - rounding)

    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        n, period = len(sizes), min(self.period, len(sizes))
        sums = [float(sizes[i::period, i::period].sum()) for i in range(period)]
        near = (1 - ATTAINED) * max(sums)  # of sets with equal sums some may be attained and others not
        return max(sums), [list(range(i, n, period)) for i in range(period) if sums[i] >= near]


@dataclass(frozen=True)
class Separated(Participation):
    """A user takes part in at most ``times`` steps, any two of them at least ``gap`` apart.

    The worst set is found by dynamic programming where only neighbours of a set meet (C has at most 2 gap bands), else
    by branch and bound; where that does not end within 20,000 prefixes (fewer above 800 steps) the sensitivity is an
    upper bound and says so. gap, times: at least 1. Raises ValueError.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 2 and Algorithms 3 and 4.
    """

    gap: int
    times: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", checks.integer("gap", self.gap, 1))
        object.__setattr__(self, "times", checks.integer("times", self.times, 1))

    def most(self, steps: int) -> int:
        return min(self.times, -(-steps // self.gap))

    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        return (times >= self.times) | (step - last < self.gap)

    def apart(self, steps: int) -> int:
        return self.gap

    def largest(self, squares: Tensor) -> float:
        return most_apart(squares.cpu().numpy(), self.gap, self.most(len(squares)))

    def moved(self, strategy: BufferedStrategy | RecalledStrategy) -> tuple[float, float] | None:
        if isinstance(strategy, RecalledStrategy) or strategy.steps * self.most(strategy.steps) > MOST_LINKS:
            return None
        squares, rounding = apart_squares(strategy, self.gap, self.times), apart_rounding(strategy)
        value, attained = math.sqrt(squares[0]) * (1 + rounding), math.sqrt(squares[1]) * (1 - rounding)
        open_here = attained < (1 - ATTAINED) * value and strategy.steps <= SEARCHED
        return None if open_here else (value, attained)

    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        bound, chosen = worst_separated(sizes.cpu().numpy(), self.gap, self.times)
        return bound, [chosen]


def sensitivity(
    strategy: Tensor | BandedStrategy | BufferedStrategy | RecalledStrategy, participation: Participation
) -> Sensitivity:
    """max ||C U||_F over the changes U that one user makes: rows of norm <= 1 in the user's steps, others 0.

    ||C U||_F^2 = sum_{st} (C^T C)_st <u_s, u_t> <= sum of abs(C^T C) over the user's steps, with equality for rows of
    one direction where signs for the steps make every (C^T C)_st >= 0. Where no signs do, the sum is an upper bound.

    strategy: C, (r, steps), whose gram is computed in float64 and the result rounded up. Of a
    :class:`BandedStrategy` whose columns do not meet in a user's steps, and of a :class:`BufferedStrategy` for
    ``Once``, column norms are enough, of any number of steps; for ``Epochs`` buffers have recurrences, too, and for
    ``Separated`` a bound in O(steps times), attained where D1 and D2 do not rise; a :class:`RecalledStrategy` has them
    for ``Epochs`` of its period. Of others C is formed. Raises TypeError, ValueError.

    Guarantees: no user who keeps to ``participation`` moves C G further than value; one moves it by attained.
    Source: Choquette-Choo, McMahan, Rush, Thakurta (2023), section 2; for one participation the largest column norm.
    """
    if not isinstance(participation, Participation):
        raise TypeError("participation must be Once(), Epochs(period) or Separated(gap, times)")
    slack = 0.0
    if not isinstance(strategy, Tensor):
        checks.instance("strategy", strategy, (BandedStrategy, BufferedStrategy, RecalledStrategy))
        reach = strategy.bands if isinstance(strategy, BandedStrategy) else strategy.steps
        if participation.apart(strategy.steps) >= reach and not isinstance(strategy, RecalledStrategy):
            found = math.sqrt(participation.largest(strategy.column_norms().square()))
            rounding = (3 * strategy.steps + 16) * torch.finfo(torch.float64).eps
            return Sensitivity(found * (1 + rounding), found * (1 - rounding))
        moved = None if isinstance(strategy, BandedStrategy) else participation.moved(strategy)
        if moved is not None:
            return Sensitivity(*moved)
        if isinstance(strategy, RecalledStrategy):
            slack = participation.most(strategy.steps) * float(strategy.dense_rounding().max())
        strategy = strategy.dense()
    C = checks.matrix("strategy", strategy).detach().double()
    if C.ndim != 2:
        raise ValueError(f"strategy must be one (r, steps) matrix, not of shape {tuple(C.shape)}")
    size = float(C.abs().max()) or 1.0
    gram = (C / size).mT @ (C / size)
    bound, sets = participation.worst(gram.abs())
    rows, steps = C.shape
    # a gram's entry errs by rows x eps x the columns' norms, so a set's sum by at most (rows x its steps) eps of itself
    rounding = (rows * participation.most(steps) + steps + 16) * torch.finfo(torch.float64).eps
    value = size * math.sqrt(bound) * (1 + rounding) + slack
    attained = size * max(_moved(C[:, chosen] / size, gram[chosen][:, chosen]) for chosen in sets)
    return Sensitivity(value, min(max(attained - slack, 0.0), value))


def _in_classes(strategy: RecalledStrategy) -> tuple[float, float]:
    """Of users who are in all steps of one class, or in some of them."""
    products, rounding = strategy.class_products()
    sums = products.abs().sum((1, 2)) + rounding
    worst = int(sums.argmax())
    gram, off = products[worst], float(rounding[worst])
    signs = _signs(gram)
    return math.sqrt(float(sums[worst])), math.sqrt(max(float(signs @ gram @ signs) - off, 0.0))


def _moved(columns: Tensor, gram: Tensor) -> float:
    """||columns s|| for signs s that turn the largest entries of ``gram`` positive."""
    return float((columns @ _signs(gram)).norm())


def _signs(gram: Tensor) -> Tensor:
    """Signs s with s_i s_j gram_ij >= 0 for the largest entries, for all where any signs do.

    They spread from the first step along the largest entries, a greatest spanning tree (Prim).
    """
    signs = torch.zeros(len(gram), dtype=gram.dtype, device=gram.device)
    link, reach, step = torch.ones_like(signs), torch.zeros_like(signs), 0
    for _ in range(len(gram)) if (gram < 0).any() else ():
        signs[step] = link[step]
        closer = gram[step].abs() > reach
        reach = torch.where(closer, gram[step].abs(), reach)
        link = torch.where(closer, gram[step].sign() * signs[step], link)
        step = int(torch.where(signs == 0, reach, -1.0).argmax())
    return torch.where(signs == 0, 1.0, signs)
