"""The specification: normals beyond a threshold by inversion, in plain torch, with relative accuracy in both tails."""

from dataclasses import dataclass

import torch
from scipy.special import log_ndtr, ndtr
from torch import Tensor

from torchdp import checks
from torchdp.kernels import philox

FARTHEST = 40.0  # the rational functions hold to 1e-14 down to e^-850, a tail of 2^-53 beyond 40
# Coefficients (above, below) of ratios of polynomials, the highest power first.
CENTRAL = (  # 0.075 <= p, in 0.425^2 - (p - 1/2)^2
    (2509.0809287301226727, 5226.495278852854561),
    (33430.575583588128105, 28729.085735721942674),
    (67265.770927008700853, 39307.89580009271061),
    (45921.953931549871457, 21213.794301586595867),
    (13731.693765509461125, 5394.1960214247511077),
    (1971.5909503065514427, 687.1870074920579083),
    (133.14166789178437745, 42.313330701600911252),
    (3.387132872796366608, 1.0),
)
MIDDLE = (  # in r - 1.6, r = sqrt(-log p) <= 5
    (7.7454501427834140764e-4, 1.05075007164441684324e-9),
    (0.0227238449892691845833, 5.475938084995344946e-4),
    (0.24178072517745061177, 0.0151986665636164571966),
    (1.27045825245236838258, 0.14810397642748007459),
    (3.64784832476320460504, 0.68976733498510000455),
    (5.7694972214606914055, 1.6763848301838038494),
    (4.6303378461565452959, 2.05319162663775882187),
    (1.42343711074968357734, 1.0),
)
FAR = (  # in r - 5
    (2.01033439929228813265e-7, 2.04426310338993978564e-15),
    (2.71155556874348757815e-5, 1.4215117583164458887e-7),
    (1.2426609473880784386e-3, 1.8463183175100546818e-5),
    (0.026532189526576123093, 7.868691311456132591e-4),
    (0.29656057182850489123, 0.0148753612908506148525),
    (1.7848265399172913358, 0.1369298809227358053),
    (5.4637849111641143699, 0.59983220655588793769),
    (6.6579046435011037772, 1.0),
)


@dataclass(frozen=True)
class HalfLine:
    """[threshold, infinity), its probability under N(0, 1) and that of the rest. Raises ValueError."""

    threshold: float

    def __post_init__(self) -> None:
        size = checks.non_negative("the size of threshold", abs(self.threshold))
        if size > FARTHEST:
            raise ValueError(f"threshold must lie in [-{FARTHEST:g}, {FARTHEST:g}], not {self.threshold!r}")

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """(threshold, P(N >= threshold), its logarithm, P(N < threshold))."""
        k = float(self.threshold)
        return k, float(ndtr(-k)), float(log_ndtr(-k)), float(ndtr(k))


def above(tail: Tensor, threshold: float) -> Tensor:
    """X with P(N > X) = tail P(N >= threshold): N(0, 1) given >= threshold, for a uniform ``tail``.

    tail: float64 in (0, 1), any shape; threshold in [-40, 40]. -above(tail, -threshold) is N(0, 1) given <=
    threshold. P(N > X) and P(N < X) are both formed without cancellation, and the smaller one is inverted.
    """
    k, survival, log_survival, rest = HalfLine(threshold).numbers
    upper, lower = tail * survival, rest + (1 - tail) * survival
    high = upper <= 0.5
    x = lower_quantile(torch.where(high, upper, lower), torch.where(high, tail.log() + log_survival, lower.log()))
    return torch.where(high, -x, x).clamp_min(k)


def draws(key: int, size: int, threshold: float, *, first: int, stream: int, device: torch.device) -> Tensor:
    """above(tail, threshold) for numbers first, first + 1, ...: (size,) float64, the tail from words 0 and 1."""
    index = torch.arange(first, first + size, device=device)
    return above(philox.unit(*philox.words(key, index, 0, stream)[:2]), threshold)


def lower_quantile(p: Tensor, log_p: Tensor) -> Tensor:
    """The standard normal quantile of p in (0, 1/2], from p and its logarithm; below 0.075 from the latter alone.

    Source: Wichura (1988), algorithm AS 241, PPND16.
    """
    q = p - 0.5
    s = 0.180625 - q * q
    r = (-log_p).sqrt()
    tail = torch.where(r <= 5, _ratio(r - 1.6, MIDDLE), _ratio(r - 5, FAR))
    return torch.where(p >= 0.075, q * _ratio(s, CENTRAL), -tail)


def _ratio(x: Tensor, coefficients: tuple[tuple[float, float], ...]) -> Tensor:
    above, below = torch.zeros_like(x), torch.zeros_like(x)
    for a, b in coefficients:
        above.mul_(x).add_(a)
        below.mul_(x).add_(b)
    return above.div_(below)
