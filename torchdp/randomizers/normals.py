"""Standard normals, the cost of every vector message."""

import math

import torch
from torch import Tensor

BLOCK = 2**14  # pairs at a time: what the nearest cache holds


def normals_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normals of x's shape, dtype and device.

    float64 on a CPU: (r cos a, r sin a) with r = sqrt(-2 log(1 - U)), a = 2 pi U', from vectorised functions, faster
    than torch.randn, which takes them one by one (experiments/bench/randomizers.py). Source: Box, Muller (1958).
    """
    if x.device.type != "cpu" or x.dtype != torch.float64:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    half = (x.numel() + 1) // 2
    numbers = torch.rand(2 * half, dtype=torch.float64, generator=generator)
    for first, second in zip(numbers[:half].split(BLOCK), numbers[half:].split(BLOCK), strict=True):
        radius, angle = first.neg().log1p_().mul_(-2).sqrt_(), second * (2 * math.pi)
        torch.mul(radius, angle.cos(), out=first)
        torch.mul(radius, angle.sin_(), out=second)
    return numbers[: x.numel()].reshape(x.shape)
