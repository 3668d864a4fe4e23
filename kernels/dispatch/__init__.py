"""Which path an operation takes: the fused one on a CUDA device, the reference elsewhere."""

from importlib.util import find_spec

import torch


def fuses(device: torch.device | str) -> bool:
    """Whether fused kernels run on this device: CUDA, with Triton installed (it comes with torch on Linux)."""
    return torch.device(device).type == "cuda" and find_spec("triton") is not None
