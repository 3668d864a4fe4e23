"""Mergeable sample moments, and the error bars that follow from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch
from scipy.special import betaincinv
from torch import Tensor

from torchdp.brief import Brief
from torchdp.checks import floating, fraction, instance, within

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
        m2 = _sum((values - mean).square())
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
        """sqrt(variance / count), of the mean; inf for fewer than two samples, which say nothing
        about it.
        """
        return math.sqrt(self.variance / self.count) if self.count > 1 else math.inf

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of the mean: normal, and the whole line for fewer than two samples; of a share exact.

        Source: Clopper, Pearson (1934), for shares.
        """
        if self.share:
            beyond, hits = (
                (1 - fraction("level", level)) / 2,
                round(self.mean * self.count) if self.count else 0,
            )
            low = betaincinv(hits, self.count - hits + 1, beyond) if hits else 0.0
            high = betaincinv(hits + 1, self.count - hits, 1 - beyond) if hits < self.count else 1.0
            return float(low), float(high)
        half = self._half_width(level)
        return (
            (self.mean - half, self.mean + half) if math.isfinite(half) else (-math.inf, math.inf)
        )

    def relative_half_width(self, level: float = 0.95) -> float:
        """Half the width of the normal interval over abs(mean); inf when the mean is 0 or the
        interval infinite.
        """
        half = self._half_width(level)
        return half / abs(self.mean) if self.mean != 0 and math.isfinite(half) else math.inf

    def z_score(self, predicted: float) -> float:
        """(mean - predicted) / standard_error; NaN for fewer than two samples. Raises ValueError
        for no number.
        """
        difference = self.mean - within("predicted", predicted, -math.inf, math.inf)
        if self.standard_error == 0:
            return math.copysign(math.inf, difference) if difference else 0.0
        return difference / self.standard_error if self.count > 1 else math.nan

    def _half_width(self, level: float) -> float:
        return NormalDist().inv_cdf((1 + fraction("level", level)) / 2) * self.standard_error


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both samples together; not associative in the last bit, so merge in a fixed
    order.

    Raises TypeError for anything but Moments.

    With d = b.mean - a.mean: mean = a.mean + d b.count / count, m2 = a.m2 + b.m2 + d^2 a.count
    b.count / count.

    Source: Chan, Golub and LeVeque 1983, the pairwise update.
    """
    instance("a", a, Moments), instance("b", b, Moments)
    if a.count == 0 or b.count == 0:
        return b if a.count == 0 else a
    count = a.count + b.count
    difference = b.mean - a.mean
    mean = a.mean + difference * (b.count / count)
    m2 = a.m2 + b.m2 + difference * difference * (a.count * (b.count / count))
    ends = min(a.minimum, b.minimum), max(a.maximum, b.maximum)
    return Moments(count, mean, m2, *ends, a.share and b.share)


def merge_all(a: Mapping[str, Moments], b: Mapping[str, Moments]) -> Mapping[str, Moments]:
    """:func:`merge` of each number by its name. Raises ValueError."""
    same_numbers(a, b)
    return {name: merge(a[name], b[name]) for name in b} if a else b


def same_numbers(a: Mapping[str, Moments], b: Mapping[str, Moments]) -> None:
    """Raises ValueError where two blocks of a trial measure different numbers, unless one measures
    none.
    """
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
    while values.numel() > 1:  # one output per row: torch then never splits a row between threads
        rows = torch.nn.functional.pad(values, (0, -values.numel() % _FAN_IN)).view(-1, _FAN_IN)
        values = rows.sum(dim=1)
    return float(values)
