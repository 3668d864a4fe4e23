"""Symmetric matrices as vectors of their upper triangles, and symmetric tensors."""

import itertools
import math

import torch
from torch import Tensor


def svec(matrices: Tensor) -> Tensor:
    """The upper triangles of symmetric matrices, off-diagonals times sqrt 2.

    (..., d, d) -> (..., d (d + 1) / 2).
    """
    i, j = triangle(matrices.shape[-1], matrices.device)
    # With sqrt 2 the inner product of two vectors is that of the matrices, trace(A B).
    return matrices[..., i, j] * off_diagonal(i, j, math.sqrt(2), matrices)


def symmetric(vectors: Tensor, d: int) -> Tensor:
    """The symmetric matrices with these svecs: (..., d (d + 1) / 2) -> (..., d, d)."""
    i, j = triangle(d, vectors.device)
    values = vectors * off_diagonal(i, j, math.sqrt(0.5), vectors)
    matrices = vectors.new_zeros(*vectors.shape[:-1], d, d)
    matrices[..., i, j] = values
    matrices[..., j, i] = values
    return matrices


def triangular(d: int) -> int:
    """d (d + 1)/2, the numbers of a symmetric matrix."""
    return d * (d + 1) // 2


def triangle(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper triangle, (d (d + 1)/2,) each: the order of ``svec``."""
    i, j = torch.triu_indices(d, d, device=device)
    return i, j


def off_diagonal(i: Tensor, j: Tensor, factor: float, like: Tensor) -> Tensor:
    """1 where i = j, else ``factor``, in the dtype of ``like``."""
    # torch.where of two numbers would round to float32
    return like.new_full(i.shape, factor).masked_fill_(i == j, 1.0)


def symmetrised(tensor: Tensor, order: int) -> Tensor:
    """The mean over all orders of the last ``order`` indices."""
    batch = range(tensor.ndim - order)
    total = torch.zeros_like(tensor)
    for places in itertools.permutations(range(tensor.ndim - order, tensor.ndim)):
        total += tensor.permute(*batch, *places)
    return total / math.factorial(order)
