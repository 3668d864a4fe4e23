"""The specification: standard normals from a counter, by Box and Muller, in plain torch."""

import math

import torch
from torch import Tensor

from torchdp.kernels import philox

# Taylor terms of cos t and sin t for |t| <= pi/4: errors below 3e-8 in float32, 1e-16 in float64.
TERMS = {torch.float32: 5, torch.float64: 9}


def normals(key: int, index: Tensor, width: int, dtype: torch.dtype, *, stream: int = 0) -> Tensor:
    """``width`` standard normals for each number in ``index`` (n,): (n, width).

    Words (a, b) make two normals r cos t, r sin t, with r = sqrt(-2 log u) and t = 2 pi v. float32:
    u = (a + 1/2)/2^32, v = b/2^32, four normals for each group of the counter, |normal| <= 6.77.
    float64: u and v of 52 bits, two normals for each group, |normal| <= 8.58.

    Source: Box, Muller (1958).
    """
    numbers = 4 if dtype == torch.float32 else 2
    groups = (width + numbers - 1) // numbers
    group = torch.arange(groups, device=index.device)
    a, b, c, d = philox.words(key, index[:, None], group, stream)
    if dtype == torch.float32:
        made = _pair(short_radius(a), *short_turn(b)) + _pair(short_radius(c), *short_turn(d))
    else:
        radius = (philox.unit(a, b).log() * -2).sqrt()
        made = _pair(radius, *turn(philox.unit(c, d)))
    return torch.stack(made, -1).flatten(1)[:, :width]


def _pair(radius: Tensor, cosine: Tensor, sine: Tensor) -> list[Tensor]:
    return [radius * cosine, radius * sine]


def short_radius(word: Tensor) -> Tensor:
    """sqrt(-2 log((word + 1/2)/2^32)), float32."""
    u = word.float() * 2.0**-32 + 2.0**-33
    return (u.log() * -2).sqrt()


def short_turn(word: Tensor) -> tuple[Tensor, Tensor]:
    """(cos t, sin t), float32, for t = 2 pi word/2^32."""
    # the nearest quarter turn is taken off in integers, exactly
    quarter = (word + 2**29) >> 30
    rest = word - (quarter << 30)
    return _turned(quarter, rest.float() * (2 * math.pi / 2**32))


def turn(v: Tensor) -> tuple[Tensor, Tensor]:
    """(cos t, sin t), float64, for t = 2 pi v, v in (0, 1)."""
    quarter = (v * 4 + 0.5).long()
    rest = v - quarter.double() / 4
    return _turned(quarter, rest * (2 * math.pi))


def _turned(quarter: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """(cos, sin) of t + quarter pi/2, |t| <= pi/4."""
    square = t * t
    cosine = _series(square, 0)
    sine = t * _series(square, 1)
    odd = (quarter & 1).bool()
    sign = (1 - (quarter & 2)).to(t.dtype)
    return sign * torch.where(odd, -sine, cosine), sign * torch.where(odd, cosine, sine)


def _series(square: Tensor, odd: int) -> Tensor:
    """sum_k (-square)^k/(2 k + odd)!."""
    value = torch.zeros_like(square)
    for k in reversed(range(TERMS[square.dtype])):
        coefficient = (-1) ** k / math.factorial(2 * k + odd)
        value = value * square + coefficient
    return value
