"""Strategies with a few numbers of memory: C = D1 T D2, T Toeplitz with ``buffers`` geometric parts, D1, D2 diagonal.

T^{-1} is as T with poles and zeros exchanged (``series``): noise C^{-1} z is made step by step from ``buffers`` running
numbers. D2 makes all columns of C one long, or what users move in all their steps together.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.streams.recurrence import EPS, Recurrence
from torchdp.factorization.streams.series import apart_squares, overlaps, pass_squares, residues
from torchdp.factorization.streams.strategy import ATTAINED, Sensitivity, StreamStrategy

SEARCHED = 1024  # steps up to which branch and bound looks for better where buffers' own bound is not attained
MOST_LINKS = 2**26  # steps x times of that bound


@dataclass(frozen=True)
class BufferedStrategy(StreamStrategy):
    """C = D1 T D2, as 2 (buffers + steps) numbers.

    poles, zeros: (buffers,), in (0, 1), falling in turns: pole_1 > zero_1 > pole_2 > ...; before, after: the diagonals
    of D1 and D2, (steps,), positive. All float64 on one device. Raises TypeError, ValueError.
    """

    poles: Tensor
    zeros: Tensor
    before: Tensor
    after: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        for name in ("poles", "zeros", "before", "after"):
            value = checks.floating(name, getattr(self, name)).detach().double()
            if value.ndim != 1 or not len(value) or not (value > 0).all():
                raise ValueError(f"{name} must be positive, of one dimension, not of shape {tuple(value.shape)}")
            object.__setattr__(self, name, value)
        if self.poles.shape != self.zeros.shape or self.before.shape != self.after.shape:
            raise ValueError("there must be as many zeros as poles, and as many numbers before as after")
        places = torch.stack([self.poles, self.zeros], 1).flatten()
        if not (places[0] < 1 and (places.diff() < 0).all()):
            raise ValueError("poles and zeros must lie below 1 and fall in turns: pole_1 > zero_1 > pole_2 > ...")

    @property
    def steps(self) -> int:
        """Rows of C."""
        return len(self.before)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """poles, zeros, before and after, on the CPU, where sums over them are made."""
        return self.poles.cpu(), self.zeros.cpu(), self.before.cpu(), self.after.cpu()

    def __str__(self) -> str:
        return f"{len(self.poles)} buffers"

    def tabulated(self) -> Recurrence:
        """T^{-1} x = x + sum_a nu_a s_a, s_a <- zeros_a s_a + x, of x = D1^{-1} z; all nu are negative."""
        nu = residues(self.zeros, self.poles)
        return Recurrence(self.steps, self.after, 1 / self.before[:, None], gains=nu, decays=self.zeros - 1)

    def leading(self, steps: int) -> "BufferedStrategy":
        """Its first steps alone."""
        return BufferedStrategy(self.poles, self.zeros, self.before[:steps], self.after[:steps])

    def column_norms(self) -> tuple[Tensor, float]:
        """Of C, (steps,), without forming it, and their relative rounding."""
        own = overlaps(*self.tensors[:3])[0]
        return self.after * own.sqrt().to(self.after.device), (2 * self.steps + 8) * EPS

    def in_passes(self, period: int) -> Sensitivity:
        """Exact: no entry of C is negative."""
        moved = math.sqrt(float(pass_squares(*self.tensors, period).max()))
        return Sensitivity.rounded(moved, moved, (8 * self.steps + 64) * EPS)

    def apart(self, gap: int, times: int) -> Sensitivity | None:
        """A bound that is attained where D1 and D2 do not rise."""
        if self.steps * times > MOST_LINKS:
            return None
        bound, attained, rounding = apart_squares(*self.tensors, gap, times)
        found = Sensitivity.rounded(math.sqrt(bound), math.sqrt(attained), rounding)
        return found if self.steps > SEARCHED or found.attained >= (1 - ATTAINED) * found.value else None
