"""A strategy of a matrix mechanism over steps: tables that make its noise, and its sensitivity."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.streams.recurrence import EPS, Recurrence

# Relative: a user who moves this close to the bound shows that it is exact.
ATTAINED = 1e-9

# Steps up to which C is formed where a bound without it is not attained.
SEARCHED = 4096


@dataclass(frozen=True)
class Sensitivity:
    """The largest Frobenius norm of C U over what one user changes, not squared: two bounds.

    Args:
        value: no user moves further.
        attained: a user who is named by a set of steps and signs moves this far.
    """

    value: float
    attained: float

    @property
    def exact(self) -> bool:
        """Whether some user moves as far as the bound, to a relative 1e-9."""
        return self.attained >= (1 - ATTAINED) * self.value

    @classmethod
    def rounded(cls, value: float, attained: float, rounding: float) -> "Sensitivity":
        """Of computed numbers that a relative ``rounding`` may have moved."""
        return cls(value * (1 + rounding), max(attained * (1 - rounding), 0.0))


class StreamStrategy(Brief, ABC):
    """A lower triangular C, (steps, steps), which need not be formed.

    A subclass says ``steps`` and ``tabulated``. All else follows from the tables: the noise, its
    state and its name, C itself and, through C, what a user moves. A subclass that knows more
    overrides ``column_norms``, ``in_passes``, ``apart`` and ``bands``, each a claim about privacy
    that has to be proved; ``tabulated`` is none. The tables are made once, when they are first
    used: no code of a strategy runs in the midst of a step.
    """

    if TYPE_CHECKING:  # at runtime it would be the default of a dataclass's field

        @property
        def steps(self) -> int:
            """Rows of C."""

    @abstractmethod
    def tabulated(self) -> Recurrence:
        """How noise is made of it: the same numbers whenever it is called."""

    @cached_property
    def recurrence(self) -> Recurrence:
        """The tables, made once. Raises TypeError for no tables, ValueError for other steps."""
        tables = checks.instance("tabulated()", self.tabulated(), Recurrence)
        if tables.steps != self.steps:
            raise ValueError(
                f"tabulated() must be of {self.steps} steps, as the strategy, not of {tables.steps}"
            )
        return tables

    @property
    def bands(self) -> int:
        """Columns at least so far apart share no row."""
        return self.steps

    def to(self, device: torch.device) -> Self:
        """What makes the noise on another device, and its own tensors with it."""
        moved = copy.copy(self)
        # The tables first: they must be the same numbers on every device.
        parts = {**vars(self), "recurrence": self.recurrence}
        for name, value in parts.items():
            if isinstance(value, Tensor | Recurrence | StreamStrategy):
                vars(moved)[name] = value.to(device)
        return moved

    def leading(self, steps: int) -> "StreamStrategy":
        """Its first steps alone."""
        return Tabulated(self.recurrence.leading(steps))

    def dense(self) -> Tensor:
        """C itself, (steps, steps), lower triangular. Raises ValueError where it is too large."""
        return self.recurrence.dense()[0]

    def column_norms(self) -> tuple[Tensor, float] | None:
        """Of C, (steps,), without forming it, and their relative rounding; None: not known."""
        first = self.recurrence.first_column()
        if first is None:
            return None
        c, rounding = first
        # Column s of a Toeplitz C is the first one, cut off at steps - s.
        norms = c.square().cumsum(0).sqrt().flip(0)
        return norms, rounding + self.steps * EPS

    def in_passes(self, period: int) -> Sensitivity | None:
        """Of a user of steps i, i + period, ... for one i, or of some; None: C must be formed.

        Here of a Toeplitz C >= 0: the sum of the columns of i is that of i = 0, some rows later and
        cut off.
        """
        first = self.recurrence.first_column()
        if first is None:
            return None
        c, rounding = first
        moved = float(sum_of_columns(c, period, self.steps).norm())
        return Sensitivity.rounded(moved, moved, rounding + (2 * self.steps + 16) * EPS)

    def apart(self, gap: int, times: int) -> Sensitivity | None:
        """Of a user of at most ``times`` steps, ``gap`` apart or more; None: C must be formed.

        Here of a Toeplitz C >= 0: e_t = max_{s >= t} c_s does not rise, and <column i, column j> of
        e's matrix is at least that of C's and falls in j - i and in j: so 0, gap, 2 gap, ... are
        its worst steps, and under C no user moves further. Attained where c = e.
        Source: Kalinin, Lampert (2024), Theorem 2, where c does not rise; the envelope: here.
        """
        first = self.recurrence.first_column()
        if first is None:
            return None
        c, rounding = first
        envelope = c.flip(0).cummax(0).values.flip(0)
        bound = float(sum_of_columns(envelope, gap, times).norm())
        moved = float(sum_of_columns(c, gap, times).norm())
        if moved < (1 - ATTAINED) * bound and self.steps <= SEARCHED:
            return None
        return Sensitivity.rounded(bound, moved, rounding + (self.steps + times + 16) * EPS)


@dataclass(frozen=True)
class Tabulated(StreamStrategy):
    """Any tables."""

    tables: Recurrence

    @property
    def steps(self) -> int:
        """Rows of C."""
        return self.tables.steps

    def tabulated(self) -> Recurrence:
        """The tables."""
        return self.tables


def signs(gram: Tensor) -> Tensor:
    """Signs s with s_i s_j gram_ij >= 0 for the largest entries, for all where any signs do.

    They spread from the first step along the largest entries, a greatest spanning tree (Prim).
    """
    s = torch.zeros(len(gram), dtype=gram.dtype, device=gram.device)
    if not (gram < 0).any():
        return s + 1
    sign = torch.ones_like(s)  # that each step gets by its largest link to the tree
    link = torch.zeros_like(s)
    step = 0
    for _ in range(len(gram)):
        s[step] = sign[step]
        sizes = gram[step].abs()
        closer = sizes > link
        link = torch.where(closer, sizes, link)
        sign = torch.where(closer, gram[step].sign() * s[step], sign)
        step = int(torch.where(s == 0, link, -1.0).argmax())
    # A step without links may be reached with the sign 0: either one will do.
    return torch.where(s == 0, 1.0, s)


def sum_of_columns(c: Tensor, gap: int, times: int) -> Tensor:
    """Columns 0, gap, 2 gap, ... of a Toeplitz matrix, at most ``times`` of them, summed up."""
    total = torch.zeros_like(c)
    for start in range(0, min(times * gap, len(c)), gap):
        total[start:] += c[: len(c) - start]
    return total


@dataclass(frozen=True)
class BandedStrategy(StreamStrategy):
    """A lower triangular C, (steps, steps), of few diagonals, never formed.

    Args:
        coefficients: (steps, bands), entry [t, j] is C[t, t - j]; or (1, bands) where C[t, s]
            depends on t - s alone (Toeplitz); the first column positive; entries with j > t count
            as 0. float64.
        steps: at least 1.

    Raises TypeError, ValueError.
    """

    coefficients: Tensor
    steps: int

    def __post_init__(self) -> None:
        checks.own(self)
        value = checks.matrix("coefficients", self.coefficients).detach().double()
        object.__setattr__(self, "steps", checks.integer("steps", self.steps, 1))
        if value.ndim != 2 or len(value) not in (1, self.steps):
            raise ValueError(
                f"coefficients must be of 1 or {self.steps} rows, not of shape {tuple(value.shape)}"
            )
        if not (value[:, 0] > 0).all():
            raise ValueError("coefficients must be positive in the first column, the diagonal")
        value = value[:, : self.steps]
        if len(value) > 1:
            value = value.tril()  # what lies before the start
        object.__setattr__(self, "coefficients", value)

    @staticmethod
    def of(C: Tensor) -> "BandedStrategy":
        """Of a lower triangular matrix with a positive diagonal. Raises TypeError, ValueError."""
        C = checks.matrix("strategy", C).detach().double()
        if C.ndim != 2 or C.shape[0] != C.shape[1] or C.triu(1).any():
            raise ValueError(
                "strategy must be one square lower triangular matrix, "
                f"not of shape {tuple(C.shape)}"
            )
        if not (C.diagonal() > 0).all():
            raise ValueError(
                "strategy must have a positive diagonal; multiply rows by -1 where it is negative"
            )
        rows, columns = C.nonzero().unbind(1)
        bands = int((rows - columns).max()) + 1
        steps = torch.arange(len(C), device=C.device)
        column = steps[:, None] - steps[:bands]
        entries = C.gather(1, column.clamp_min(0))
        return BandedStrategy(torch.where(column >= 0, entries, 0.0), len(C))

    @property
    def bands(self) -> int:
        """How many of the diagonals may differ from 0."""
        return self.coefficients.shape[1]

    def __str__(self) -> str:
        return f"{self.bands} bands"

    def tabulated(self) -> Recurrence:
        """The last w are kept: scale_t w_t = z_t - sum_{s<t} C_ts w_s."""
        c = self.coefficients
        return Recurrence(self.steps, c[:, 0], c.new_ones(1, 1), of_w=-c[:, 1:])

    def leading(self, steps: int) -> "BandedStrategy":
        """Its first steps alone."""
        return BandedStrategy(self.coefficients[:steps], steps)

    def column_norms(self) -> tuple[Tensor, float]:
        """Of C, (steps,), and their relative rounding."""
        squares = self.coefficients.square().expand(self.steps, -1)
        norms = squares.new_zeros(self.steps)
        for age in range(self.bands):
            norms[: self.steps - age] += squares[age:, age]
        return norms.sqrt(), (2 * self.steps + 8) * EPS
