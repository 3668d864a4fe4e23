"""Second moments with noise: what every route to regression and low rank ends with, and how noisy it is."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks


@dataclass(frozen=True, eq=False)
class NoisyMoments:
    """A released A^T A and, for regression, A^T b, with the levels of their noise; leading dimensions are
    repetitions.

    gram: (*batch, d, d), symmetric, not always positive; cross: (*batch, d) or None. gram_sigma, cross_sigma:
    (*batch) standard deviations: the symmetric noise of the gram has gram_sigma on its diagonal and
    gram_sigma / sqrt 2 beside it (isotropic on symmetric matrices), that of cross has cross_sigma in each entry.
    Everything computed from it is private: it reads the data nowhere else.
    """

    gram: Tensor
    cross: Tensor | None
    gram_sigma: Tensor
    cross_sigma: Tensor


def vectorized(rows: Tensor) -> Tensor:
    """svec(x x^T) of rows (..., d): the upper triangle, off-diagonals times sqrt 2: (..., d (d + 1) / 2).

    An isometry: |svec(x x^T) - svec(y y^T)| = |x x^T - y y^T|_F.
    """
    i, j = triangle(rows.shape[-1], rows.device)
    return rows[..., i] * rows[..., j] * torch.where(i == j, 1.0, math.sqrt(2)).to(rows)


def symmetric(vectors: Tensor, d: int) -> Tensor:
    """The symmetric matrices with these svecs: (..., d (d + 1) / 2) -> (..., d, d)."""
    i, j = triangle(d, vectors.device)
    values = vectors * torch.where(i == j, 1.0, math.sqrt(0.5)).to(vectors)
    matrices = vectors.new_zeros(*vectors.shape[:-1], d, d)
    matrices[..., i, j] = values
    matrices[..., j, i] = values
    return matrices


def triangle(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(d, d, device=device)
    return i, j


def debiased(Y: Tensor, variance: float | Tensor, *, labelled: bool = True) -> NoisyMoments:
    """The moments of rows that carry independent noise of known variance: Y^T Y less its noise's own mean.

    Y = Z + N with Z = S [A b] has E Y^T Y = Z^T Z + sum_j V_j I. The levels hold to leading order, with the unknown
    diagonal of Z^T Z estimated by the release: gram_sigma^2 = 2 sum_j V_j^2 + 4 V tr G/d and cross_sigma^2 =
    sum_j V_j^2 + V (tr G/d + b^T b), V the mean of the V_j. They speak of the noise alone, not of S.

    Y: (*batch, m, d'); variance: of each entry's noise, a float or (m,), >= 0; labelled: whether the last column is
    the label's. Raises TypeError, ValueError.
    """
    checks.instance("labelled", labelled, bool)
    Y = checks.matrix("Y", Y).double()
    if isinstance(variance, Tensor):
        variance = checks.dense("variance", variance)
    else:
        variance = checks.non_negative("variance", variance)
    variances = torch.as_tensor(variance, dtype=torch.float64, device=Y.device)
    if variances.shape not in ((), Y.shape[-2:-1]) or not bool(
        (torch.isfinite(variances) & (variances >= 0)).all()
    ):
        raise ValueError(f"variance must be one number >= 0, or one for each of the {Y.shape[-2]} rows of Y")
    variances = variances.expand(Y.shape[-2])
    matrix = Y.mT @ Y - variances.sum() * torch.eye(Y.shape[-1]).to(Y)
    return from_noisy_rows(matrix, float(variances.square().sum()), float(variances.mean()), labelled)


def from_noisy_rows(matrix: Tensor, squares: float, variance: float, labelled: bool) -> NoisyMoments:
    """Debiased moments (*batch, d', d') of noisy rows, with their levels; squares: sum of the squared variances."""
    gram = matrix[..., :-1, :-1] if labelled else matrix
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(0)
    gram_sigma = (2 * squares + 4 * variance * mean).sqrt()
    if not labelled:
        return NoisyMoments(gram, None, gram_sigma, gram_sigma)
    square = matrix[..., -1, -1].clamp_min(0)
    return NoisyMoments(gram, matrix[..., :-1, -1], gram_sigma, (squares + variance * (mean + square)).sqrt())
