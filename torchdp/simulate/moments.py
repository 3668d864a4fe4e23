"""Mergeable sample moments, and the error bars that follow from them.

Notation: n = count, m2 = sum (x_i - mean)^2, as Chan, Golub and LeVeque 1983 have it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch
from scipy.special import betaincinv
from torch import Tensor

from torchdp.brief import Brief
from torchdp.checks import floating, fraction, instance, within

# Numbers in one sum of the tree. Fixed, since the shape of the tree decides how sums are rounded.
_FAN_IN = 1024


@dataclass(frozen=True)
class Moments:
    """What a sample x_1 .. x_count leaves behind: enough for its mean, variance and error bars.

    mean = sum x_i / count (NaN when count is 0), m2 = sum (x_i - mean)^2, minimum, maximum
    (+inf and -inf when count is 0). Python floats, so float64. share: whether all samples were
    bool, so that the mean is the share of those that were True.
    """

    count: int = 0
    mean: float = math.nan
    m2: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    share: bool = False

    @classmethod
    def of(cls, samples: Tensor) -> "Moments":
        """The moments of ``samples``, any shape, computed in float64 on their device.

        The sums run over a tree of fixed shape, so the number of threads does not change a bit of
        them.

        Raises:
            TypeError: ``samples`` is not a real dense tensor.
            ValueError: it holds NaN or infinities, or its squares overflow float64.

        Source: Chan, Golub and LeVeque 1983, the two-pass algorithm.
        """
        share = isinstance(samples, Tensor) and samples.dtype == torch.bool
        values = floating("samples", samples).detach().to(torch.float64).flatten()  # (count,)
        count = values.numel()
        if count == 0:
            return cls(share=share)
        mean = _sum(values) / count
        # A second pass: sum x^2 - n mean^2 cancels where the mean is large beside the deviation.
        m2 = _sum((values - mean).square())
        # The samples are finite, so that only a sum or a square can have overflowed.
        if not math.isfinite(m2):
            raise ValueError(
                "samples are too large: the sum of their squares overflows float64; rescale them"
            )
        return cls(count, mean, m2, float(values.min()), float(values.max()), share)

    @property
    def variance(self) -> float:
        """m2 / (count - 1), unbiased; NaN for fewer than two samples, where it is not defined."""
        return self.m2 / (self.count - 1) if self.count > 1 else math.nan

    @property
    def standard_error(self) -> float:
        """sqrt(variance / count), of the mean; inf for fewer than two samples."""
        return math.sqrt(self.variance / self.count) if self.count > 1 else math.inf

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of the mean: normal, and the whole line for fewer than two samples; of a share exact.

        Source: Clopper, Pearson (1934), for shares.
        """
        # The normal interval has width 0 where all trials, or none, are hits.
        if self.share:
            return self._exact(fraction("level", level))
        half = self._half_width(level)
        if not math.isfinite(half):
            return -math.inf, math.inf
        return self.mean - half, self.mean + half

    def _exact(self, level: float) -> tuple[float, float]:
        """Shares at which so many hits or more, or fewer, have probability (1 - level)/2."""
        tail = (1 - level) / 2
        hits = round(self.mean * self.count) if self.count else 0
        misses = self.count - hits
        # P(Binomial(count, p) >= hits) is a regularized incomplete beta function of p, inverted
        # here; without hits, or without misses, there is nothing to invert.
        low = betaincinv(hits, misses + 1, tail) if hits else 0.0
        high = betaincinv(hits + 1, misses, 1 - tail) if misses else 1.0
        return float(low), float(high)

    def relative_half_width(self, level: float = 0.95) -> float:
        """Half the normal interval's width over abs(mean); inf for mean 0 or fewer than two."""
        half = self._half_width(level)
        if self.mean == 0 or not math.isfinite(half):
            return math.inf
        return half / abs(self.mean)

    def z_score(self, predicted: float) -> float:
        """(mean - predicted)/standard_error; NaN for fewer than two samples. Raises ValueError."""
        difference = self.mean - within("predicted", predicted, -math.inf, math.inf)
        # Equal samples: any difference is beyond all quantiles, none is no evidence.
        if self.standard_error == 0:
            return math.copysign(math.inf, difference) if difference else 0.0
        return difference / self.standard_error if self.count > 1 else math.nan

    def _half_width(self, level: float) -> float:
        z = NormalDist().inv_cdf((1 + fraction("level", level)) / 2)
        return z * self.standard_error


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both samples together.

    Not associative in the last bit, so merge in a fixed order. Raises TypeError for anything but
    Moments.

    With d = b.mean - a.mean: mean = a.mean + d b.count / count, m2 = a.m2 + b.m2 + d^2 a.count
    b.count / count.

    Source: Chan, Golub and LeVeque 1983, the pairwise update.
    """
    instance("a", a, Moments)
    instance("b", b, Moments)
    # The mean of no samples is NaN, which must not spread.
    if a.count == 0:
        return b
    if b.count == 0:
        return a
    count = a.count + b.count
    difference = b.mean - a.mean
    weight = b.count / count
    # A correction of one mean: count * mean and back would round a large mean twice.
    mean = a.mean + difference * weight
    m2 = a.m2 + b.m2 + difference * difference * (a.count * weight)
    minimum = min(a.minimum, b.minimum)
    maximum = max(a.maximum, b.maximum)
    return Moments(count, mean, m2, minimum, maximum, a.share and b.share)


def merge_all(a: Mapping[str, Moments], b: Mapping[str, Moments]) -> Mapping[str, Moments]:
    """:func:`merge` of each number by its name. Raises ValueError."""
    same_numbers(a, b)
    return {name: merge(a[name], b[name]) for name in b} if a else b


def same_numbers(a: Mapping[str, Moments], b: Mapping[str, Moments]) -> None:
    """Raises ValueError where two blocks measure different numbers; the first may have none."""
    if a and list(a) != list(b):
        raise ValueError(
            f"a trial must measure the same numbers in each block, not {list(a)} and then {list(b)}"
        )


class Measured(Brief):
    """What has moments of several numbers by name, and took so many ``seconds``."""

    metrics: Mapping[str, Moments]
    seconds: float

    @property
    def moments(self) -> Moments:
        """Of the first number: what a target, a prediction and error curves are about."""
        return next(iter(self.metrics.values()), Moments())


def _sum(values: Tensor) -> float:
    while values.numel() > 1:
        # Zeros fill the last row, and change no sum.
        lacking = -values.numel() % _FAN_IN
        rows = torch.nn.functional.pad(values, (0, lacking)).view(-1, _FAN_IN)
        # One output a row: torch never splits a row between threads, so no bit depends on these.
        values = rows.sum(dim=1)
    return float(values)
