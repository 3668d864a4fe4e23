"""Mergeable sample moments and the error bars that follow from them."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from torchdp.checks import floating, fraction, instance, within

_FAN_IN = 1024


@dataclass(frozen=True)
class Moments:
    """What a sample x_1 .. x_count leaves behind: enough for its mean, variance and error bars.

    mean = sum x_i / count (NaN when count is 0), m2 = sum (x_i - mean)^2, minimum, maximum
    (+inf and -inf when count is 0). Python floats, so float64.
    """

    count: int = 0
    mean: float = math.nan
    m2: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    @classmethod
    def of(cls, samples: Tensor) -> "Moments":
        """The moments of ``samples``, any shape, computed in float64 on their device.

        The sums run over a tree of fixed shape, so the number of threads does not change a bit of them.

        Raises:
            TypeError: ``samples`` is not a real dense tensor.
            ValueError: it holds NaN or infinities, or its squares overflow float64.

        Source: Chan, Golub and LeVeque 1983, the two-pass algorithm.
        """
        values = floating("samples", samples).detach().to(torch.float64).flatten()  # (count,)
        count = values.numel()
        if count == 0:
            return cls()
        mean = _sum(values) / count
        m2 = _sum((values - mean).square())
        if not math.isfinite(m2):
            raise ValueError("samples are too large: the sum of their squares overflows float64; rescale them")
        return cls(count, mean, m2, float(values.min()), float(values.max()))

    @property
    def variance(self) -> float:
        """m2 / (count - 1), unbiased; NaN for fewer than two samples, where it is not defined."""
        return self.m2 / (self.count - 1) if self.count > 1 else math.nan

    @property
    def standard_error(self) -> float:
        """sqrt(variance / count), of the mean; inf for fewer than two samples, which say nothing about it."""
        return math.sqrt(self.variance / self.count) if self.count > 1 else math.inf

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Normal confidence interval of the mean; the whole line for fewer than two samples."""
        half = self._half_width(level)
        return (self.mean - half, self.mean + half) if math.isfinite(half) else (-math.inf, math.inf)

    def relative_half_width(self, level: float = 0.95) -> float:
        """Half the width of :meth:`interval` over abs(mean); inf when the mean is 0 or the interval infinite."""
        half = self._half_width(level)
        return half / abs(self.mean) if self.mean != 0 and math.isfinite(half) else math.inf

    def z_score(self, predicted: float) -> float:
        """(mean - predicted) / standard_error; NaN for fewer than two samples. Raises ValueError for no number."""
        difference = self.mean - within("predicted", predicted, -math.inf, math.inf)
        if self.standard_error == 0:
            return math.copysign(math.inf, difference) if difference else 0.0
        return difference / self.standard_error if self.count > 1 else math.nan

    def _half_width(self, level: float) -> float:
        return NormalDist().inv_cdf((1 + fraction("level", level)) / 2) * self.standard_error


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both samples together; not associative in the last bit, so merge in a fixed order.

    Raises TypeError for anything but Moments.

    With d = b.mean - a.mean: mean = a.mean + d b.count / count, m2 = a.m2 + b.m2 + d^2 a.count b.count / count.

    Source: Chan, Golub and LeVeque 1983, the pairwise update.
    """
    instance("a", a, Moments), instance("b", b, Moments)
    if a.count == 0 or b.count == 0:
        return b if a.count == 0 else a
    count = a.count + b.count
    difference = b.mean - a.mean
    return Moments(
        count,
        a.mean + difference * (b.count / count),
        a.m2 + b.m2 + difference * difference * (a.count * (b.count / count)),
        min(a.minimum, b.minimum),
        max(a.maximum, b.maximum),
    )


def _sum(values: Tensor) -> float:
    while values.numel() > 1:  # one output per row: torch then never splits a row between threads
        rows = torch.nn.functional.pad(values, (0, -values.numel() % _FAN_IN)).view(-1, _FAN_IN)
        values = rows.sum(dim=1)
    return float(values)
