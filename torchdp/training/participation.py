"""Who may take part in which steps, and what one user can then change: the exact sensitivity of a matrix mechanism."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks

PATTERNS = 1_000_000  # sets of steps that are enumerated at most
ROUNDING = 1e-12  # relative; a sensitivity is rounded up by it


@dataclass(frozen=True)
class Sensitivity:
    """value: the largest Frobenius norm of C U, not squared; exact: attained by a user, or an upper bound."""

    value: float
    exact: bool


class Participation(ABC):
    """Which sets of steps one user's data may enter; with a set, every subset of it."""

    @abstractmethod
    def squared(self, gram: Tensor) -> tuple[float, bool]:
        """The largest sum of ``gram`` = abs(C^T C) over a set of steps squared, or a bound; whether it is attained."""


@dataclass(frozen=True)
class Once(Participation):
    """A user takes part in one step at most: the largest column norm of C."""

    def squared(self, gram: Tensor) -> tuple[float, bool]:
        return float(gram.diagonal().max()), True


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

    def squared(self, gram: Tensor) -> tuple[float, bool]:
        period = min(self.period, len(gram))
        return max(float(gram[i::period, i::period].sum()) for i in range(period)), True


@dataclass(frozen=True)
class Separated(Participation):
    """A user takes part in at most ``times`` steps, any two of them at least ``gap`` apart.

    Exact where the columns of C that are ``gap`` or more steps apart are orthogonal (C has at most ``gap`` bands), by
    dynamic programming, and where there are at most a million such sets, by enumeration. Otherwise an upper bound: the
    largest sum over a set of the rows' own largest sums. gap, times: at least 1. Raises ValueError.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 2 and Algorithms 3 and 4.
    """

    gap: int
    times: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", checks.integer("gap", self.gap, 1))
        object.__setattr__(self, "times", checks.integer("times", self.times, 1))

    def squared(self, gram: Tensor) -> tuple[float, bool]:
        steps, times = len(gram), min(self.times, -(-len(gram) // self.gap))
        if not gram.triu(self.gap).any():
            return float(self._best(gram.diagonal(), times)), True
        free = steps - (times - 1) * (self.gap - 1)  # sets with gaps are sets without, in fewer places
        if math.comb(free, times) > PATTERNS:
            return float(self._best(self._best(gram, times), times)), False
        sets = torch.combinations(torch.arange(free), times)
        sets = (sets + torch.arange(times) * (self.gap - 1)).to(gram.device)
        return max(self._largest(gram, part) for part in sets.split(2**22 // times**2 + 1)), True

    def _best(self, values: Tensor, times: int) -> Tensor:
        """The largest sum of values >= 0 over a permitted set: (..., steps) -> (...)."""
        steps = values.shape[-1]
        best = values.new_zeros(*values.shape[:-1], steps + self.gap)  # over sets from this step on
        for _ in range(times):
            taken = values + best[..., self.gap :]
            best[..., :steps] = taken.flip(-1).cummax(-1).values.flip(-1)
        return best[..., 0]

    def _largest(self, gram: Tensor, sets: Tensor) -> float:
        return float(gram[sets[:, :, None], sets[:, None, :]].sum((1, 2)).max())


def sensitivity(strategy: Tensor, participation: Participation) -> Sensitivity:
    """max ||C U||_F over the changes U that one user makes: rows of norm <= 1 in the user's steps, others 0.

    ||C U||_F^2 = sum_{st} (C^T C)_st <u_s, u_t> <= sum of abs(C^T C) over the user's steps, with equality for equal
    rows where C^T C >= 0 there. Where an entry that counts is negative the sum of absolute values is an upper bound.

    strategy: C, (r, steps). The gram is computed in float64 and the result rounded up. Raises TypeError, ValueError.

    Guarantees: no user who keeps to ``participation`` moves C G further; where exact, one moves it that far.
    Source: Choquette-Choo, McMahan, Rush, Thakurta (2023), section 2; for one participation the largest column norm.
    """
    C = checks.matrix("strategy", strategy).detach().double()
    if C.ndim != 2:
        raise ValueError(f"strategy must be one (r, steps) matrix, not of shape {tuple(C.shape)}")
    if not isinstance(participation, Participation):
        raise TypeError("participation must be Once(), Epochs(period) or Separated(gap, times)")
    size = float(C.abs().max()) or 1.0
    gram = (C / size).mT @ (C / size)
    squared, exact = participation.squared(gram.abs())
    negative = gram < -ROUNDING * gram.diagonal().max()
    if exact and negative.any():
        exact = (
            participation.squared(gram.abs().masked_fill(negative, 0.0))[0] >= squared
        )  # a worst set without them
    return Sensitivity(size * math.sqrt(squared) * (1 + ROUNDING), exact)
