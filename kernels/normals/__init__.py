"""Standard normals as a function of a key and a number: those of one user can be made again alone, on any device."""

import torch
from torch import Tensor

from torchdp.kernels.dispatch import fuses
from torchdp.kernels.normals.reference import normals

__all__ = ["draws", "normals"]


def draws(
    key: int,
    size: int,
    width: int,
    *,
    first: int = 0,
    stream: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """``width`` normals for each of the numbers first, ..., first + size - 1: (size, width)."""
    device = torch.device(device)
    if fuses(device):
        from torchdp.kernels.normals import fused

        return fused.draws(key, first, size, width, dtype, stream, device)
    return normals(key, torch.arange(first, first + size, device=device), width, dtype, stream=stream)
