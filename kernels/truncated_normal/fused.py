"""The normal quantile inside Triton kernels, float64: the formulas of reference.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch.launches import launched
from torchdp.kernels.normals.pieces import on
from torchdp.kernels.philox.fused import unit, words
from torchdp.kernels.truncated_normal.reference import HalfLine

LEAST: tl.constexpr = tl.constexpr(2.0**-1022)  # the least normal float64
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
    above = tl.where(near, q * _central_above(s), -tl.where(middle, _middle_above(y), _far_above(z)))
    return above / tl.where(near, _central_below(s), tl.where(middle, _middle_below(y), _far_below(z)))


@triton.jit
def _central_above(x):
    y = x * 2509.0809287301226727 + 33430.575583588128105
    y = y * x + 67265.770927008700853
    y = y * x + 45921.953931549871457
    y = y * x + 13731.693765509461125
    y = y * x + 1971.5909503065514427
    y = y * x + 133.14166789178437745
    return y * x + 3.387132872796366608


@triton.jit
def _central_below(x):
    y = x * 5226.495278852854561 + 28729.085735721942674
    y = y * x + 39307.89580009271061
    y = y * x + 21213.794301586595867
    y = y * x + 5394.1960214247511077
    y = y * x + 687.1870074920579083
    y = y * x + 42.313330701600911252
    return y * x + 1.0


@triton.jit
def _middle_above(x):
    y = x * 7.7454501427834140764e-4 + 0.0227238449892691845833
    y = y * x + 0.24178072517745061177
    y = y * x + 1.27045825245236838258
    y = y * x + 3.64784832476320460504
    y = y * x + 5.7694972214606914055
    y = y * x + 4.6303378461565452959
    return y * x + 1.42343711074968357734


@triton.jit
def _middle_below(x):
    y = x * 1.05075007164441684324e-9 + 5.475938084995344946e-4
    y = y * x + 0.0151986665636164571966
    y = y * x + 0.14810397642748007459
    y = y * x + 0.68976733498510000455
    y = y * x + 1.6763848301838038494
    y = y * x + 2.05319162663775882187
    return y * x + 1.0


@triton.jit
def _far_above(x):
    y = x * 2.01033439929228813265e-7 + 2.71155556874348757815e-5
    y = y * x + 1.2426609473880784386e-3
    y = y * x + 0.026532189526576123093
    y = y * x + 0.29656057182850489123
    y = y * x + 1.7848265399172913358
    y = y * x + 5.4637849111641143699
    return y * x + 6.6579046435011037772


@triton.jit
def _far_below(x):
    y = x * 2.04426310338993978564e-15 + 1.4215117583164458887e-7
    y = y * x + 1.8463183175100546818e-5
    y = y * x + 7.868691311456132591e-4
    y = y * x + 0.0148753612908506148525
    y = y * x + 0.1369298809227358053
    y = y * x + 0.59983220655588793769
    return y * x + 1.0
