"""Randomised Hadamard rotations."""

import math
from functools import cache

import numpy as np
import torch
from scipy.linalg import hadamard
from torch import Tensor


def power_of_two(size: int) -> int:
    """The least power of two that is at least ``size``."""
    return 1 << (size - 1).bit_length()


def rotate(x: Tensor, signs: Tensor) -> Tensor:
    """H diag(signs) x / sqrt(D), H Sylvester's, x padded with zeros: (..., d), (D,) -> (..., D), an isometry.

    H is the Kronecker product of two matrices of about sqrt(D) rows: O(D^{3/2}), by matrix products.
    """
    size = signs.shape[-1]
    first = 1 << ((size - 1).bit_length() // 2)
    left, right = _sylvester(first).to(x), _sylvester(size // first).to(x)
    padded = torch.nn.functional.pad(x * signs[..., : x.shape[-1]].to(x), (0, size - x.shape[-1]))
    return (left @ padded.unflatten(-1, (first, size // first)) @ right).flatten(-2)


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Fair signs +-1, float64."""
    bits = torch.randint(0, 2, shape, device=generator.device, generator=generator)
    return 2 * bits.double() - 1


@cache
def _sylvester(size: int) -> Tensor:
    return torch.from_numpy(hadamard(size).astype(np.float64) / math.sqrt(size))
