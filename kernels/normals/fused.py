"""Normals inside Triton kernels, from the words and by the formulas of reference.py."""

import triton
import triton.language as tl

from torchdp.kernels.philox.fused import unit, words


@triton.jit
def four(key, index, group, stream, DOUBLE: tl.constexpr):
    """Normals 4 group, ..., 4 group + 3 of each number in ``index``.

    index: int64. group: int32, of its shape.
    """
    if DOUBLE:
        a, b, c, d = words(key, index, group * 2, stream)
        first, second = _long_pair(unit(a, b), unit(c, d))
        a, b, c, d = words(key, index, group * 2 + 1, stream)
        third, fourth = _long_pair(unit(a, b), unit(c, d))
    else:
        a, b, c, d = words(key, index, group, stream)
        first, second = _pair(a, b)
        third, fourth = _pair(c, d)
    return first, second, third, fourth


@triton.jit
def _pair(word, other):
    u = word.to(tl.float32) * (1 / 4294967296.0) + 1 / 8589934592.0
    radius = tl.sqrt(tl.log(u) * -2.0)
    # unsigned: past the last quarter the sum wraps around, as a turn does
    quarter = (other + 536870912) >> 30
    rest = (other - (quarter << 30)).to(tl.int32, bitcast=True)
    t = rest.to(tl.float32) * (6.283185307179586 / 4294967296.0)
    z = t * t
    # Taylor's series, by Horner's scheme
    cosine = z * (1 / 40320) - 1 / 720
    cosine = cosine * z + 1 / 24
    cosine = cosine * z - 1 / 2
    cosine = cosine * z + 1.0
    sine = z * (1 / 362880) - 1 / 5040
    sine = sine * z + 1 / 120
    sine = sine * z - 1 / 6
    sine = t * (sine * z + 1.0)
    x, y = _turned(quarter, cosine, sine)
    return radius * x, radius * y


@triton.jit
def _long_pair(u, v):
    radius = tl.sqrt(tl.log(u) * -2.0)
    quarter = (v * 4.0 + 0.5).to(tl.int32)
    rest = v - quarter.to(tl.float64) * 0.25
    cosine, sine = circle(rest * 6.283185307179586, quarter)
    return radius * cosine, radius * sine


@triton.jit
def circle(t, quarter):
    """Cosine and sine of t + quarter pi/2, float64, |t| <= pi/4."""
    # a series of its own: reduction of large angles, as tl.sin does it, spills registers
    z = t * t
    cosine = z * (1 / 20922789888000) - 1 / 87178291200
    cosine = cosine * z + 1 / 479001600
    cosine = cosine * z - 1 / 3628800
    cosine = cosine * z + 1 / 40320
    cosine = cosine * z - 1 / 720
    cosine = cosine * z + 1 / 24
    cosine = cosine * z - 1 / 2
    cosine = cosine * z + 1.0
    sine = z * (1 / 355687428096000) - 1 / 1307674368000
    sine = sine * z + 1 / 6227020800
    sine = sine * z - 1 / 39916800
    sine = sine * z + 1 / 362880
    sine = sine * z - 1 / 5040
    sine = sine * z + 1 / 120
    sine = sine * z - 1 / 6
    sine = t * (sine * z + 1.0)
    return _turned(quarter, cosine, sine)


@triton.jit
def _turned(quarter, cosine, sine):
    odd = (quarter & 1) == 1
    sign = tl.where((quarter & 2) == 2, -1.0, 1.0)
    return sign * tl.where(odd, -sine, cosine), sign * tl.where(odd, cosine, sine)
