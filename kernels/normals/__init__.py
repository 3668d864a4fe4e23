"""Standard normals as a function of a key and a number: those of one user can be made again alone, on any device."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.kernels.dispatch import Kernel, examples
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
    """``width`` normals for each of the numbers first, ..., first + size - 1: (size, width), float32 or float64.

    Raises TypeError, ValueError.
    """
    device, size, width = torch.device(device), checks.integer("size", size, 0), checks.integer("width", width, 0)
    first, stream = checks.integer("first", first, 0, 2**63 - 1), checks.integer("stream", stream, 0)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, not {dtype}")
    return DRAWS(device, key, first, size, width, dtype, stream, device)


def _plain(
    key: int, first: int, size: int, width: int, dtype: torch.dtype, stream: int, device: torch.device
) -> Tensor:
    return normals(key, torch.arange(first, first + size, device=device), width, dtype, stream=stream)


DRAWS = Kernel(__name__, "draws", _plain, examples.normals, tolerance=1e-4)
