"""The normal quantile inside Triton kernels, float64: the formulas of reference.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch.launches import launched
from torchdp.kernels.normals.pieces import on
from torchdp.kernels.philox.fused import unit, words
from torchdp.kernels.truncated_normal import reference
from torchdp.kernels.truncated_normal.reference import HalfLine

LEAST: tl.constexpr = tl.constexpr(2.0**-1022)  # the least normal float64
CENTRAL, MIDDLE, FAR = (tl.constexpr(each) for each in (reference.CENTRAL, reference.MIDDLE, reference.FAR))
BLOCK = 256


def above(tail: Tensor, threshold: float) -> Tensor:
    """reference.above."""
    tail = tail.contiguous()
    out = torch.empty_like(tail)
    if tail.numel():
        with on(tail.device):
            grid = (triton.cdiv(tail.numel(), BLOCK),)
            above_kernel[grid](tail, out, _line(threshold, tail.device), tail.numel(), BLOCK=BLOCK)
    return out


def draws(key: int, size: int, threshold: float, *, first: int, stream: int, device: torch.device) -> Tensor:
    """reference.draws."""
    out = torch.empty(size, dtype=torch.float64, device=device)
    if size:
        with on(device):
            grid = (triton.cdiv(size, BLOCK),)
            draws_kernel[grid](out, _line(threshold, device), key, first, stream, size, BLOCK=BLOCK)
    return out


def _line(threshold: float, device: torch.device) -> Tensor:
    return torch.tensor(HalfLine(threshold).numbers, dtype=torch.float64, device=device)


@launched()
def above_kernel(tail, out, line, n: tl.int64, BLOCK: tl.constexpr):
    """One number for each uniform; line: the four numbers of the half line, float64."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(tail + index, mask=index < n, other=0.5)
    tl.store(out + index, _beyond(u, line), mask=index < n)


@launched("key", "first", "stream")
def draws_kernel(out, line, key, first, stream, n: tl.int64, BLOCK: tl.constexpr):
    """The numbers first + 0, ..., first + n - 1 of the key."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a, b, _, _ = words(key, first + index, (index * 0).to(tl.int32), stream)
    tl.store(out + index, _beyond(unit(a, b), line), mask=index < n)


@triton.jit
def _beyond(tail, line):
    threshold, survival, log_survival, rest = (
        tl.load(line),
        tl.load(line + 1),
        tl.load(line + 2),
        tl.load(line + 3),
    )
    upper, lower = tail * survival, rest + (1.0 - tail) * survival
    high = upper <= 0.5
    log_p = tl.log(tl.where(high, tail, lower)) + tl.where(high, log_survival, 0.0)
    x = lower_quantile(tl.where(high, upper, lower), log_p)
    return tl.maximum(tl.where(high, -x, x), threshold)


@triton.jit
def ndtri(p):
    """The standard normal quantile of p, float64: to a few units in the last place for 1e-300 <= p < 1.

    0 and 1, which a product may round to, count as LEAST and 1 - LEAST: about -37.5 and 37.5.
    """
    least = tl.maximum(tl.minimum(p, 1.0 - p), LEAST)
    x = lower_quantile(least, tl.log(least))
    return tl.where(p > 0.5, -x, x)


@triton.jit
def tilted(branch, tail, threshold, upper, survival):
    """privunitg.tilted_normal: N(0, 1) given >= threshold where branch < upper, given < threshold elsewhere.

    branch, tail: float64. threshold, upper, survival: float64 too, loaded from a tensor: a Python float reaches a
    kernel as float32.
    """
    above = branch < upper
    x = ndtri(tail * tl.where(above, survival, 1.0 - survival))
    return tl.where(above, tl.maximum(-x, threshold), tl.minimum(x, threshold))


@triton.jit
def lower_quantile(p, log_p):
    """The quantile of p in (0, 1/2] from p and its logarithm; below 0.075 from the logarithm alone."""
    q = p - 0.5
    s = 0.180625 - q * q
    r = tl.sqrt(-log_p)
    near, middle, y, z = p >= 0.075, r <= 5.0, r - 1.6, r - 5.0
    above = tl.where(near, q * _value(s, CENTRAL, 0), -tl.where(middle, _value(y, MIDDLE, 0), _value(z, FAR, 0)))
    return above / tl.where(near, _value(s, CENTRAL, 1), tl.where(middle, _value(y, MIDDLE, 1), _value(z, FAR, 1)))


@triton.jit
def _value(x, COEFFICIENTS: tl.constexpr, PART: tl.constexpr):
    """The polynomial above (0) or below (1) the fraction, in x."""
    y = x * COEFFICIENTS[0][PART] + COEFFICIENTS[1][PART]
    for k in tl.static_range(2, 8):
        y = y * x + COEFFICIENTS[k][PART]
    return y
