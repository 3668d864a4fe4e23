"""Clients who hold a row, and perhaps a label: what protocols for second moments have in common."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.memory import rows_at_once
from torchdp.protocol import Protocol
from torchdp.protocol.records import beside
from torchdp.regression.errors import SecondMoments
from torchdp.regression.second_moment_noise import moment_vector, triangular


class RowsProtocol(Protocol[SecondMoments]):
    """x: rows [A b], (n, d) or, with labels last, (n, d + 1). The value is svec(A^T A) and A^T b.

    Rows longer than ``bound`` are shortened to it, labels cut to ``label_bound``; None: there are no labels.
    """

    columns: int
    bound: float
    label_bound: float | None

    @property
    def labelled(self) -> bool:
        return self.label_bound is not None

    @property
    def width(self) -> int:
        """Numbers that are estimated: d (d + 1)/2, and d more with labels."""
        return triangular(self.columns) + self.labelled * self.columns

    @property
    def held(self) -> tuple[int]:
        return (self.columns + self.labelled,)

    def validate(self, x: Tensor) -> Tensor:
        """x, if it can hold such rows. Raises TypeError, ValueError."""
        labels = "the label last" if self.labelled else "without labels, since label_bound is None"
        x = checks.floating("x", checks.precise("x", x))
        return checks.shaped("x", x, "n", *self.held, note=f", n >= 1, {labels}")

    def clipped(self, x: Tensor) -> Tensor:
        """Rows and labels within their bounds: float64, in which no rounding leaves a row longer by much; unchecked."""
        x = x.detach().double()
        rows = shortened(x[:, : self.columns], self.bound)
        if self.label_bound is None:
            return rows
        return torch.cat([rows, x[:, -1:].clamp(-self.label_bound, self.label_bound)], 1)

    def summary(self, x: Tensor) -> SecondMoments:
        """The second moments of [A b], clipped."""
        parts = x.split(rows_at_once(x.shape[1]))
        first, *rest = (SecondMoments.of(self.clipped(part)) for part in parts)
        return sum(rest, first)

    def validate_summary(self, summary: SecondMoments) -> SecondMoments:
        """``summary``, if rows within the bounds can have it. Raises TypeError, ValueError."""
        within(summary, self.columns, self.bound, self.label_bound, "summary")
        return summary

    def exact(self, summary: SecondMoments) -> Tensor:
        """svec(A^T A) and A^T b."""
        return moment_vector(self.validate_summary(summary).matrix, self.labelled)


def shortened(rows: Tensor, bound: float) -> Tensor:
    """Rows (n, d) projected on the l_2 ball of radius ``bound``: float64, since float32 could leave one longer."""
    rows = rows.double()
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / (norms / bound).clamp_min(1)


def within(
    moments: SecondMoments, columns: int, bound: float, label_bound: float | None, name: str = "moments"
) -> None:
    """Refuses moments that rows within the bounds cannot have. Raises TypeError, ValueError."""
    checks.instance(name, moments, SecondMoments)
    bound = checks.squarable("bound", bound)
    if label_bound is not None:
        label_bound = checks.squarable("label_bound", label_bound)
    wanted = columns + (label_bound is not None)
    if moments.columns != wanted:
        raise ValueError(
            f"{name} must be of rows of {wanted} columns (a label last, where label_bound is given), "
            f"not of {moments.columns}"
        )
    square, n = moments.matrix.diagonal(dim1=-2, dim2=-1), beside(moments.n) * (1 + 1e-9)
    wrong = square[..., :columns].sum(-1) > n * bound**2
    if bool(wrong.any()):
        raise ValueError(f"{name} are of rows longer than bound = {bound}{checks.at(wrong)}; shorten them first")
    if label_bound is not None and bool((wrong := square[..., -1] > n * label_bound**2).any()):
        raise ValueError(f"{name} are of labels above label_bound = {label_bound}{checks.at(wrong)}; cut them")
