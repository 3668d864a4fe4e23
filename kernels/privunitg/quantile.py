"""The tilted normal inside Triton kernels, by inversion in float64.

The quantile: Wichura (1988), AS 241, PPND16: ratios of polynomials, (above, below) of each power, the highest first.
"""

import triton
import triton.language as tl

LEAST: tl.constexpr = tl.constexpr(2.0**-1022)  # the least normal float64
CENTRAL: tl.constexpr = tl.constexpr(
    (  # 0.075 <= p, in 0.425^2 - (p - 1/2)^2
        (2509.0809287301226727, 5226.495278852854561),
        (33430.575583588128105, 28729.085735721942674),
        (67265.770927008700853, 39307.89580009271061),
        (45921.953931549871457, 21213.794301586595867),
        (13731.693765509461125, 5394.1960214247511077),
        (1971.5909503065514427, 687.1870074920579083),
        (133.14166789178437745, 42.313330701600911252),
        (3.387132872796366608, 1.0),
    )
)
MIDDLE: tl.constexpr = tl.constexpr(
    (  # in r - 1.6, r = sqrt(-log p) <= 5
        (7.7454501427834140764e-4, 1.05075007164441684324e-9),
        (0.0227238449892691845833, 5.475938084995344946e-4),
        (0.24178072517745061177, 0.0151986665636164571966),
        (1.27045825245236838258, 0.14810397642748007459),
        (3.64784832476320460504, 0.68976733498510000455),
        (5.7694972214606914055, 1.6763848301838038494),
        (4.6303378461565452959, 2.05319162663775882187),
        (1.42343711074968357734, 1.0),
    )
)
FAR: tl.constexpr = tl.constexpr(
    (  # in r - 5
        (2.01033439929228813265e-7, 2.04426310338993978564e-15),
        (2.71155556874348757815e-5, 1.4215117583164458887e-7),
        (1.2426609473880784386e-3, 1.8463183175100546818e-5),
        (0.026532189526576123093, 7.868691311456132591e-4),
        (0.29656057182850489123, 0.0148753612908506148525),
        (1.7848265399172913358, 0.1369298809227358053),
        (5.4637849111641143699, 0.59983220655588793769),
        (6.6579046435011037772, 1.0),
    )
)


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
    """reference.tilted_normal: N(0, 1) given >= threshold where branch < upper, given < threshold elsewhere.

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
