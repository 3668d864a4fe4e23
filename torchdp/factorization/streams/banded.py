"""Strategies with few bands, as coefficients: steps x bands numbers, or one row where all steps are treated alike."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.streams.recurrence import EPS, Recurrence
from torchdp.factorization.streams.strategy import StreamStrategy


@dataclass(frozen=True)
class BandedStrategy(StreamStrategy):
    """A lower triangular C, (steps, steps), never formed: entry [t, j] of ``coefficients`` is C[t, t - j].

    coefficients: (steps, bands), or (1, bands) where C[t, s] depends on t - s alone (Toeplitz); the first column
    positive; entries with j > t count as 0. float64. steps: at least 1. Raises TypeError, ValueError.
    """

    coefficients: Tensor
    steps: int

    def __post_init__(self) -> None:
        checks.own(self)
        value = checks.matrix("coefficients", self.coefficients).detach().double()
        object.__setattr__(self, "steps", checks.integer("steps", self.steps, 1))
        if value.ndim != 2 or len(value) not in (1, self.steps):
            raise ValueError(f"coefficients must be of 1 or {self.steps} rows, not of shape {tuple(value.shape)}")
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
            raise ValueError(f"strategy must be one square lower triangular matrix, not of shape {tuple(C.shape)}")
        if not (C.diagonal() > 0).all():
            raise ValueError("strategy must have a positive diagonal; multiply rows by -1 where it is negative")
        row, column = C.nonzero().unbind(1)
        place = torch.arange(len(C), device=C.device)[:, None]
        place = place - torch.arange(int((row - column).max()) + 1, device=C.device)
        return BandedStrategy(torch.where(place >= 0, C.gather(1, place.clamp_min(0)), 0.0), len(C))

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
        found = squares.new_zeros(self.steps)
        for age in range(self.bands):
            found[: self.steps - age] += squares[age:, age]
        return found.sqrt(), (2 * self.steps + 8) * EPS
