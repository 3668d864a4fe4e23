"""Factors whose columns of one class are orthogonal: as sensitive as any others, and of no larger error."""

import torch
from torch import Tensor


def orthogonal_columns(
    A: Tensor, right: Tensor, blocks: list[Tensor], correlations: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """left, right', S^2: left right' = A, X' = right'^T right' diagonal in each class, S^2 the sum of X' over a class.

    For X = right^T right and its block X_i of class i, any y_i with diag(y_i) >= X_i has max <X_i, C> <= sum y_i over
    correlation matrices C, with equality for the best y_i (duality of semidefinite programs). X' is X with diag(y_i)
    for X_i: then X' >= X, so that no squared error (A X'^{-1} A^T)_tt grows, and its S^2 is max_i sum y_i. So nothing
    is lost where the columns of a class are orthogonal, whatever the errors' norm.

    y_i: (X_i C)_ss for the ``correlations`` C at hand, at least X_ss, times what makes diag(y_i) >= X_i; or the sums of
    abs(X_i)'s rows where these add up to less. Then y_i grows until all classes have one sum.

    A: (m, n), right: (n, n), columns sorted by class; blocks and correlations: (classes, k, k) for each k. None where
    rounding leaves no Cholesky factor of X'.
    Guarantees: S^2 is attained by a user, and at most the largest sum of abs(X_i); no row of left is longer than one
        of A right^{-1}, up to rounding.
    Source: here.
    """
    bounds = [_diagonals(X, C) for X, C in zip(blocks, correlations, strict=True)]
    size = torch.stack([y.sum(1).max() for y in bounds]).max()
    y = torch.cat([(y * (size / y.sum(1, keepdim=True))).flatten() for y in bounds])
    owner = _owners(bounds)
    across = torch.where(owner[:, None] == owner, 0.0, right.mT @ right)
    R, failed = torch.linalg.cholesky_ex(across + y.diag(), upper=True)
    if bool(failed):
        return None
    return torch.linalg.solve_triangular(R, A, upper=True, left=False), R, size


def _diagonals(X: Tensor, C: Tensor) -> Tensor:
    """y with diag(y) >= X, of small sum: (classes, k)."""
    y = torch.maximum((X * C).sum(2), X.diagonal(dim1=1, dim2=2))
    root = y.rsqrt()
    largest = torch.linalg.eigvalsh(root[:, :, None] * X * root[:, None, :])[:, -1:]
    y, plain = y * largest.clamp_min(1.0), X.abs().sum(2)
    return torch.where(y.sum(1, keepdim=True) < plain.sum(1, keepdim=True), y, plain)


def _owners(columns: list[Tensor]) -> Tensor:
    """The class of each column, from one (classes, k) tensor for each k."""
    sizes = [part.shape[1] for part in columns for _ in part]
    counts = torch.tensor(sizes, dtype=torch.int64, device=columns[0].device)
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
