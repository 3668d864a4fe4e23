"""Second moments with noise: what every route to regression and low rank ends with.

Notation: A, b: rows and labels; Y = Z + N: noisy rows, as of a sketch Z = S [A b]; V_j: the
variance of the noise in row j of Y; d: columns of A, d': with the label's.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol import Estimate, Users
from torchdp.symmetric import off_diagonal, svec, symmetric, triangle, triangular


@dataclass(frozen=True, eq=False)
class NoisyMoments(Estimate):
    """An estimate of svec(A^T A) and, for regression, of A^T b behind it.

    What is computed from it is as private as it is: ``adaptive_ridge``, ``top_directions`` read
    nothing else.

    Args:
        value: (*batch, d (d + 1)/2), or d numbers more with labels.
        standard_error: of its shape.
        columns: d.
    """

    columns: int = field(kw_only=True)

    def __post_init__(self) -> None:
        width = triangular(checks.integer("columns", self.columns, 1))
        for name in ("value", "standard_error"):
            part = checks.real(name, getattr(self, name))
            if not part.ndim or part.shape[-1] < width:
                raise ValueError(
                    f"{name} must hold {width} numbers or more, not be of shape {tuple(part.shape)}"
                )
        if self.standard_error.shape != self.value.shape:
            raise ValueError(f"standard_error must be of value's shape, {tuple(self.value.shape)}")

    @property
    def gram(self) -> Tensor:
        """A^T A: (*batch, d, d), symmetric, not always positive."""
        return symmetric(self.value[..., : triangular(self.columns)], self.columns)

    @property
    def cross(self) -> Tensor | None:
        """A^T b: (*batch, d); None where there are no labels."""
        part = self.value[..., self._labelled]
        return part if part.shape[-1] else None

    @property
    def gram_sigma(self) -> Tensor:
        """(*batch): root mean squared standard error of svec(A^T A).

        Where the noise is isotropic on symmetric matrices, it deviates by this on the diagonal and
        by 1/sqrt 2 of it elsewhere.
        """
        # svec is an isometry, in which isotropic noise has one standard error everywhere.
        return _level(self.standard_error[..., : triangular(self.columns)])

    @property
    def cross_sigma(self) -> Tensor:
        """(*batch): root mean squared standard error of A^T b."""
        return _level(self.standard_error[..., self._labelled])

    @property
    def _labelled(self) -> slice:
        """Where A^T b stands."""
        first = triangular(self.columns)
        return slice(first, first + self.columns)


def _level(errors: Tensor) -> Tensor:
    return errors.double().square().mean(-1).sqrt()


def vectorized(rows: Tensor, labelled: bool = False) -> Tensor:
    """svec(x x^T) of rows (..., d): the upper triangle, off-diagonals times sqrt 2.

    An isometry: |svec(x x^T) - svec(y y^T)| = |x x^T - y y^T|_F. labelled: rows are (..., d + 1), a
    label y last, and the d numbers y x come behind. The order is that of ``moment_vector``.
    Returns (..., d (d + 1)/2), or d numbers more.
    """
    d = rows.shape[-1] - labelled
    i, j = triangle(d, rows.device)
    factor = off_diagonal(i, j, math.sqrt(2), rows)
    if labelled:
        column = torch.arange(d, device=rows.device)
        i = torch.cat([i, column])
        j = torch.cat([j, torch.full_like(column, d)])
        # y x is shown once, not in two triangles: no sqrt 2.
        factor = torch.cat([factor, factor.new_ones(d)])
    # A column is one run of the memory: rows are picked there several times as fast.
    columns = rows.movedim(-1, 0).contiguous()
    products = columns[i]
    products *= columns[j]
    products *= factor.view(-1, *[1] * (rows.ndim - 1))
    return products.movedim(0, -1)


def debiased(sketched: Estimate, *, labelled: bool = True) -> NoisyMoments:
    """The moments of rows that carry independent noise: Y^T Y less its noise's own mean.

    Y = Z + N with Z = S [A b] has E Y^T Y = Z^T Z + sum_j V_j I. Standard errors hold to leading
    order, with the unknown diagonal of Z^T Z estimated by the release (``product_variances``). They
    are for the noise alone, not for S.

    Args:
        sketched: value Y, (*batch, m, d'), as ``SecureSketch`` estimates it; standard errors
            sqrt(V_j), the same along a row.
        labelled: whether the last column is the label's.

    Raises TypeError, ValueError.
    """
    checks.instance("sketched", sketched, Estimate)
    checks.instance("labelled", labelled, bool)
    Y = checks.matrix("sketched", sketched.value).double()
    errors = sketched.standard_error
    # Where noise differs along a row, its mean square is no multiple of I, and V_j I is subtracted.
    if errors.shape != Y.shape or ((errors < 0) | (errors != errors[..., :1])).any():
        raise ValueError(
            "sketched must have one standard error >= 0 for each row of value, as SecureSketch's has"
        )
    V = errors[..., 0].double().square()  # (*batch, m)
    identity = torch.eye(Y.shape[-1]).to(Y)
    # E N^T N = sum_j V_j I: the entries of N are independent, of mean 0.
    matrix = Y.mT @ Y - V.sum(-1)[..., None, None] * identity
    return from_noisy_rows(matrix, V.square().sum(-1), V.mean(-1), labelled, sketched.n)


def from_noisy_rows(
    matrix: Tensor, squares: Tensor, variance: Tensor, labelled: bool, n: Users
) -> NoisyMoments:
    """Moments of noisy rows, with their standard errors.

    Args:
        matrix: the debiased moments, (*batch, d', d').
        squares: the sum of the rows' squared variances, (*batch).
        variance: the mean of their variances, (*batch).
        labelled: whether the last column is the label's.
        n: users.
    """
    d = matrix.shape[-1] - labelled
    # Noise can push an estimate of M_jj below 0, and a variance with it.
    diagonal = torch.linalg.diagonal(matrix).clamp_min(0)
    variances = product_variances(diagonal, squares[..., None], variance[..., None], labelled)
    return NoisyMoments(moment_vector(matrix, labelled), variances.sqrt(), n, columns=d)


def moment_vector(matrix: Tensor, labelled: bool) -> Tensor:
    """svec(A^T A) and A^T b of [A b]^T [A b], (*batch, d', d'), the label last."""
    if not labelled:
        return svec(matrix)
    gram = matrix[..., :-1, :-1]
    cross = matrix[..., :-1, -1]
    return torch.cat([svec(gram), cross], -1)


def product_variances(
    diagonal: Tensor, squares: Tensor | float, variance: Tensor | float, labelled: bool
) -> Tensor:
    """Variances of the products of rows with independent noise, in the order of ``moment_vector``.

    Entry (i, j) of Z^T Z has squares + V (M_ii + M_jj), twice that on the diagonal and in svec.

    Args:
        diagonal: M_jj, (*batch, d').
        squares: the sum of the rows' squared variances.
        variance: V, the mean of their variances.
        labelled: whether the last column is the label's.
    """
    d = diagonal.shape[-1] - labelled
    i, j = triangle(d, diagonal.device)
    # Twice: off the diagonal by svec's sqrt 2, on it since squares vary twice as much as products.
    gram = 2 * squares + 2 * variance * (diagonal[..., i] + diagonal[..., j])
    if not labelled:
        return gram
    sizes = diagonal[..., :-1] + diagonal[..., -1:]
    return torch.cat([gram, squares + variance * sizes], -1)
