"""Who takes part in which steps: patterns and sampling at random, and sensitivities under them.

Notation: C (r x steps) is the strategy; U holds the change of each step's sum that one user makes,
rows of norm <= 1; the sensitivity is max ||C U||_F.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization import StreamStrategy
from torchdp.factorization.certificates.worst_sets import most_apart, worst_separated
from torchdp.factorization.streams.strategy import ATTAINED, Sensitivity, signs
from torchdp.privacy import Guarantee, sampled_guarantee, sampled_multiplier
from torchdp.training.strategy import Strategy, as_strategy

EPS = torch.finfo(torch.float64).eps
AMPLIFIED = "Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 4"

# Of what a user moves: more than rounding of C may be.
LOOSE = 0.01

# By how much a multiplier is raised over the one that was searched for: rounding.
RAISED = 1 + 1e-12


class Participation(ABC):
    """Which sets of steps one user's data may enter; with a set, every subset of it."""

    @abstractmethod
    def most(self, steps: int) -> int:
        """How many of ``steps`` steps one user may enter."""

    @abstractmethod
    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        """Whether users may not enter ``step``: (n,).

        They entered ``times`` >= 1 steps, from ``first`` to ``last``.
        """

    @abstractmethod
    def apart(self, steps: int) -> int:
        """The minimum separation of a user's steps; for one step alone ``steps``."""

    @abstractmethod
    def largest(self, squares: Tensor) -> float:
        """The largest sum of ``squares`` >= 0, one for each step, over a permitted set."""

    def asks(self, C: StreamStrategy) -> Sensitivity | None:
        """What C says that such a user moves; None: C must be formed."""
        return None

    @abstractmethod
    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        """A bound on the sum over a permitted set squared, and sets that may attain it.

        sizes: abs(C^T C), (steps, steps).
        """


@dataclass(frozen=True)
class Epochs(Participation):
    """A user takes part in steps i, i + period, ..., or some of them, for one i < period.

    Args:
        period: steps of an epoch, at least 1, where every epoch goes through the batches in one
            fixed order.

    Raises ValueError.
    Source: Choquette-Choo, McMahan, Rush, Thakurta (2023), fixed-epoch-order participation.
    """

    period: int

    def __post_init__(self) -> None:
        checks.keep(self, period=checks.count)

    def most(self, steps: int) -> int:
        return -(-steps // self.period)

    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        # All of a user's steps are congruent to the first.
        return (step - first) % self.period != 0

    def apart(self, steps: int) -> int:
        return self.period

    def largest(self, squares: Tensor) -> float:
        period = min(self.period, len(squares))
        place = torch.arange(len(squares), device=squares.device) % period
        return float(squares.new_zeros(period).index_add_(0, place, squares).max())

    def asks(self, C: StreamStrategy) -> Sensitivity | None:
        return C.in_passes(self.period)

    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        n = len(sizes)
        period = min(self.period, n)
        sums = [float(sizes[i::period, i::period].sum()) for i in range(period)]
        # Of sets with equal sums some may be attained and others not.
        least = (1 - ATTAINED) * max(sums)
        return max(sums), [list(range(i, n, period)) for i in range(period) if sums[i] >= least]


@dataclass(frozen=True)
class Separated(Participation):
    """A user takes part in at most ``times`` steps, any two of them at least ``gap`` apart.

    The worst set is found by dynamic programming where only neighbours of a set meet
    (C has at most 2 gap bands), else by branch and bound; where that does not end within 20,000
    prefixes (fewer above 800 steps) the sensitivity is an upper bound and says so.

    Args:
        gap: at least 1.
        times: at least 1.

    Raises ValueError.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 2 and
    Algorithms 3 and 4.
    """

    gap: int
    times: int

    def __post_init__(self) -> None:
        checks.keep(self, gap=checks.count, times=checks.count)

    def most(self, steps: int) -> int:
        return min(self.times, -(-steps // self.gap))

    def refuses(self, step: int | Tensor, first: Tensor, last: Tensor, times: Tensor) -> Tensor:
        return (times >= self.times) | (step - last < self.gap)

    def apart(self, steps: int) -> int:
        # Of a user of one step no two columns meet, however many bands C has.
        return steps if self.times == 1 else self.gap

    def largest(self, squares: Tensor) -> float:
        return most_apart(squares.cpu().numpy(), self.gap, self.most(len(squares)))

    def asks(self, C: StreamStrategy) -> Sensitivity | None:
        return C.apart(self.gap, self.most(C.steps))

    def worst(self, sizes: Tensor) -> tuple[float, list[list[int]]]:
        bound, chosen = worst_separated(sizes.cpu().numpy(), self.gap, self.times)
        return bound, [chosen]


ONCE = Separated(1, 1)
"""A user takes part in one step at most: the sensitivity is the largest column norm of C."""


@dataclass(frozen=True)
class OwnBatches:
    """Batches of a custom loader, checked against a rule step by step: :meth:`Run.admit`.

    Args:
        rule: which sets of steps one user's data may enter.

    Raises TypeError.
    """

    rule: Participation

    def __post_init__(self) -> None:
        checks.instance("rule", self.rule, Participation)


@dataclass(frozen=True)
class CyclicPoisson:
    """Users are in groups, made without the data; a step takes each of one group with a chance.

    Step t is of group t mod groups. One group: Poisson sampling. The number of users is public, as
    groups are alike in size: who is removed leaves a number that adds 0. A strategy of at most
    ``groups`` bands answers one user's steps by rows that no two of them share, so that all steps
    together are as private as steps / groups sums of a user with this chance.

    Args:
        groups: at least 1.
        chance: in (0, 1].

    Raises ValueError.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 4.
    """

    groups: int
    chance: float

    def __post_init__(self) -> None:
        checks.keep(self, groups=checks.count, chance=checks.positive)
        checks.within("chance", self.chance, 0, 1, ": take fewer groups, or smaller batches")

    def guarantee(self, strategy: Strategy, sigma: float, bound: float, delta: float) -> Guarantee:
        """The guarantee of the outputs W (G + C^{-1} Z) of all steps.

        Args:
            strategy: C.
            sigma: Z has N(0, sigma^2) entries.
            bound: largest norm of a user's part of one sum.
            delta: of the guarantee.

        Raises ValueError, also where C has more than ``groups`` bands.

        Guarantees: (epsilon, delta)-DP for adding or removing one user, each sum's gradients
        depending on all earlier outputs: given these, the rows of one step of a user are
        N(0, sigma^2 I), shifted by g c_t with this chance,
        ||g c_t|| <= bound * largest column norm of C.
        Source: as the class; Denisov et al. (2022), Theorem 2.1, for what depends on earlier
        outputs.
        """
        C = as_strategy(strategy)
        moved = checks.positive("bound", bound) * self._longest(C)
        multiplier = checks.positive("sigma", sigma) / moved
        guarantee = sampled_guarantee(multiplier, self.chance, self.times(C.steps), delta)
        return replace(guarantee, source=f"{guarantee.source}; {AMPLIFIED}")

    def sigma(self, strategy: Strategy, bound: float, epsilon: float, delta: float) -> float:
        """The least sigma, within 1e-4 of itself, for which ``guarantee`` is at most ``epsilon``.

        Raises ValueError.
        """
        C = as_strategy(strategy)
        moved = checks.positive("bound", bound) * self._longest(C)
        multiplier = sampled_multiplier(epsilon, delta, self.chance, self.times(C.steps))
        return multiplier * moved * RAISED

    def times(self, steps: int) -> int:
        """How many of ``steps`` steps take one user's group, at most."""
        return -(-steps // self.groups)

    def _longest(self, C: StreamStrategy) -> float:
        """The largest column norm, rounded up, of a strategy of few enough bands."""
        if C.bands > self.groups:
            raise ValueError(
                f"strategy must be one square lower triangular matrix of at most {self.groups} "
                "bands, as many as there are groups; more would let two steps of a user share an "
                "output"
            )
        return sensitivity(C, ONCE).value


def sensitivity(strategy: Tensor | StreamStrategy, participation: Participation) -> Sensitivity:
    """max ||C U||_F over the changes U that one user makes.

    U has rows of norm <= 1 in the user's steps, others 0: ||C U||_F^2 =
    sum_{st} (C^T C)_st <u_s, u_t> <= sum of abs(C^T C) over the user's steps, with equality for
    rows of one direction where signs for the steps make every (C^T C)_st >= 0. Where no signs do,
    the sum is an upper bound.

    Args:
        strategy: C, (r, steps), whose gram is computed in float64 and the result rounded up. Of a
            :class:`StreamStrategy` whose columns do not meet in a user's steps, column norms are
            enough, of any number of steps; else what it knows of itself: of buffers, and of a
            Toeplitz C >= 0, for ``Epochs`` and, as a bound that many attain, for ``Separated``; of
            a :class:`RecalledStrategy` for ``Epochs`` of its period. Of others C is formed.
        participation: which steps a user may enter.

    Raises TypeError, ValueError: where rounding could move that C by a hundredth, too.

    Guarantees: no user who keeps to ``participation`` moves C G further than value; one moves it by
    attained.
    Source: Choquette-Choo, McMahan, Rush, Thakurta (2023), section 2; for one participation the
    largest column norm.
    """
    if not isinstance(participation, Participation):
        raise TypeError("participation must be ONCE, Epochs(period) or Separated(gap, times)")
    slack = 0.0  # by which rounding of C may move what a user moves
    if isinstance(strategy, Tensor):
        C = checks.matrix("strategy", strategy).detach().double()
    else:
        checks.instance("strategy", strategy, (Tensor, StreamStrategy))
        known = _known(strategy, participation)
        if known is not None:
            return known
        C, moved = strategy.recurrence.dense()
        slack = participation.most(len(C)) * float(moved.max())
        if not slack <= LOOSE * float(C.norm(dim=0).max()) < math.inf:
            raise ValueError(
                f"strategy must have a C that rounding does not drown: over {len(C)} steps it may "
                f"move a user's part by {slack:.0e}; give C^{{-1}} as a product, by of_u and feeds "
                "without coefficients above 0 after the first, or take fewer steps"
            )
    checks.shaped("strategy", C, "r", "steps")
    rows, steps = C.shape
    size = float(C.abs().max()) or 1.0
    # Entries of at most 1: squares of very small or large ones are no numbers.
    unit = C / size
    gram = unit.mT @ unit
    bound, sets = participation.worst(gram.abs())
    # A gram's entry has error rows x eps x the columns' norms, a set's sum at most
    # (rows x its steps) eps of itself.
    rounding = (rows * participation.most(steps) + steps + 16) * EPS
    value = size * math.sqrt(bound) * (1 + rounding) + slack
    attained = 0.0
    for chosen in sets:
        # ||columns s|| for signs s that turn the largest entries of the set's gram positive.
        s = signs(gram[chosen][:, chosen])
        attained = max(attained, size * float((unit[:, chosen] @ s).norm()))
    return Sensitivity(value, min(max(attained - slack, 0.0), value))


def _known(C: StreamStrategy, participation: Participation) -> Sensitivity | None:
    """Without forming C, by its columns or by what C knows of itself; None: C must be formed."""
    if participation.apart(C.steps) >= C.bands:  # a user's columns share no row
        columns = C.column_norms()
        if columns is not None:
            norms, rounding = columns
            value = math.sqrt(participation.largest(norms.square()))
            return Sensitivity.rounded(value, value, rounding + (C.steps + 8) * EPS)
    return participation.asks(C)
