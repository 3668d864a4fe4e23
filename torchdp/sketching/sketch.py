"""Sparse sign sketches: the servers' linear transform, in the form in which it is applied."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief


@dataclass(frozen=True, eq=False)
class Sketch(Brief):
    """S = s^-1/2 sum_c S_c, m x n: copy c puts client i into row rows[c, i] with sign signs[c, i].

    Args:
        rows: (s, n) integers in [0, height), those of one client distinct over the copies.
        signs: (s, n), +1 or -1.
        height: m.

    A sketch is public: it is drawn without sight of the data (``osnap`` and the others), and every
    calibration reads it. Raises ValueError, TypeError.
    """

    rows: Tensor
    signs: Tensor
    height: int

    def __post_init__(self) -> None:
        checks.integer("height", self.height, 1)
        rows = checks.integers("rows", self.rows)
        signs = checks.dense("signs", self.signs)
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(
                f"rows must have shape (copies, clients), neither 0, not {tuple(rows.shape)}"
            )
        shape = rows.shape
        if signs.shape != shape or signs.device != rows.device:
            raise ValueError("signs must be a tensor of the shape and on the device of rows")
        # where all columns are one, it is all that is stored
        if rows.stride(1) == signs.stride(1) == 0:
            rows = rows[:, :1]
            signs = signs[:, :1]
        # Copied before it is checked: a tensor that its owner changes later would undo the checks,
        # and the calibrations that have read it.
        rows = checks.indices("rows", rows.clone(), self.height)
        if not (signs.abs() == 1).all():
            raise ValueError("signs must hold +1 and -1 alone")
        # A client twice in one row would move it twice as far, and calibrations count each pair
        # alone.
        if (rows.sort(0).values.diff(dim=0) == 0).any():
            raise ValueError("rows must be distinct over the copies of one client")
        object.__setattr__(self, "rows", rows.expand(shape))
        object.__setattr__(self, "signs", signs.to(torch.int8, copy=True).expand(shape))

    @property
    def copies(self) -> int:
        """s, the nonzeros of each column."""
        return self.rows.shape[0]

    @property
    def clients(self) -> int:
        """n."""
        return self.rows.shape[1]

    @property
    def device(self) -> torch.device:
        """Of its rows, and of what it is applied to."""
        return self.rows.device

    def counts(self) -> Tensor:
        """How many (client, copy) pairs each row holds: (m,), int64."""
        return self._counts

    @cached_property
    def _counts(self) -> Tensor:
        kinds = self.kinds
        clients_of_a_kind = self.clients // kinds.shape[1]
        # Where one column is stored, it stands for all n clients.
        return torch.bincount(kinds.flatten(), minlength=self.height) * clients_of_a_kind

    @property
    def kinds(self) -> Tensor:
        """``rows``, or the one column of all clients where only it is stored: (s, n) or (s, 1)."""
        return self.rows[:, :1] if self.rows.stride(1) == 0 else self.rows

    def apply(self, A: Tensor) -> Tensor:
        """S A: (*batch, n, d) -> (*batch, m, d), of A's dtype. Raises TypeError, ValueError."""
        return self.sums(checks.floating("A", A)) / math.sqrt(self.copies)

    def sums(self, values: Tensor) -> Tensor:
        """sqrt(s) S A, the signed sums alone: (*batch, n, d) -> (*batch, m, d).

        Integers stay integers, mod 2^bits.
        """
        if checks.dense("values", values).dtype == torch.bool:
            raise TypeError("values must hold numbers, not bool; call .double()")
        if values.ndim < 2 or values.shape[-2] != self.clients:
            raise ValueError(
                f"values must have shape (..., {self.clients}, d), not {tuple(values.shape)}"
            )
        checks.beside("values", values, "the sketch", self.device)
        # clients of sign + go into the first m rows of a table, the others below
        table = values.new_zeros(*values.shape[:-2], 2 * self.height, values.shape[-1])
        # One copy at a time: all of them together would hold s n d numbers.
        for slots in self._slots:
            table.index_add_(-2, slots, values)
        positive, negative = table.chunk(2, -2)
        return positive - negative

    def dense(self) -> Tensor:
        """S: (m, n), float64."""
        weights = self.signs.double() / math.sqrt(self.copies)
        S = torch.zeros(self.height, self.clients, dtype=torch.float64, device=self.device)
        return S.scatter_(0, self.rows, weights)

    @cached_property
    def _slots(self) -> Tensor:
        return self.rows + self.height * (self.signs < 0)
