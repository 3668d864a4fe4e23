"""What the pairwise protocols share: from messages to an estimate with its error."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import ndtri
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic
from torchdp.privacy import Guarantee


@dataclass(frozen=True)
class PairwiseEstimate:
    """A private estimate and its standard error, both computed from the messages alone; shape (*sample_shape).

    The error is that of the privacy noise: it speaks of these n users, not of a population they came from.
    """

    value: Tensor
    standard_error: Tensor
    n: int

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Normal confidence interval at this level for the statistic of these users."""
        half = float(ndtri((1 + checks.fraction("level", level)) / 2)) * self.standard_error
        return self.value - half, self.value + half


@dataclass(frozen=True)
class PairwiseProtocol(ABC):
    """Randomizer, channel and analyst for one pairwise statistic under local differential privacy.

    ``collect`` is what users and channel do, ``analyse`` what the analyst does with what arrives. The analyst
    sees nothing else, so ``standard_error`` and everything printed from an estimate is private too.
    statistic: what is estimated. epsilon: the whole budget of one user.
    """

    statistic: PairwiseStatistic
    epsilon: float

    def __post_init__(self) -> None:
        if not isinstance(self.statistic, PairwiseStatistic):
            raise TypeError(f"statistic must be a PairwiseStatistic, not {type(self.statistic).__name__}")
        object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        _ = self.guarantee  # builds the randomizer, which refuses an epsilon out of its range

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What all messages of one user together promise."""

    @property
    @abstractmethod
    def bits_per_user(self) -> int:
        """Length of all messages of one user, in bits."""

    @property
    @abstractmethod
    def native_pairs(self) -> Pairs:
        """The pairs whose mean the analyst estimates directly."""

    @abstractmethod
    def collect(self, types: Tensor, *, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What arrives when the users hold ``types`` (n,), each in [0, k): sums over users of their messages."""

    @abstractmethod
    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Unbiased estimate of the mean of a form over the native pairs."""

    @abstractmethod
    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance of ``mean`` when counts (k,) users hold each type."""

    @abstractmethod
    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Estimate of that variance from the messages alone. form.weights may carry batch dimensions."""

    def estimate(self, types: Tensor, *, generator: torch.Generator) -> PairwiseEstimate:
        """Estimate from each user's own messages; types: (n,) integers in [0, k), n >= 2."""
        types = checks.indices("types", types, self.statistic.types)
        if types.ndim != 1 or len(types) < 2:
            raise ValueError(f"types must have shape (n,) with n >= 2 users, not {tuple(types.shape)}")
        types = types.to(self.statistic.points.device)
        return self.analyse(self.collect(types, generator=generator), len(types))

    def analyse(self, sums: tuple[Tensor, ...], n: int) -> PairwiseEstimate:
        """The analyst: from what ``collect`` returned to the estimate and its standard error.

        Both are NaN where the estimated denominator of a ratio is 0.
        """
        form, denominator = self.statistic.form, self.statistic.denominator
        m = float(n)  # powers of it leave the range of 64-bit integers
        value = self._convert(self.mean(sums, m, form), m, form)
        if denominator is None:
            variance = self.plug_in_variance(sums, m, form) * self._slope(m) ** 2
            return PairwiseEstimate(value, variance.sqrt(), n)
        below = self._convert(self.mean(sums, m, denominator), m, denominator)
        below = torch.where(below.abs() > self._rounding(denominator), below, torch.nan)
        ratio = value / below
        variance = self.plug_in_variance(sums, m, _difference(form, ratio, denominator)) * self._slope(m) ** 2
        return PairwiseEstimate(self.statistic.offset + ratio, variance.sqrt() / below.abs(), n)

    def predicted_mse(self, histogram: Tensor, n: int) -> float:
        """Mean squared error for n users with this histogram, in closed form; not private (it reads the data).

        histogram: (k,), non-negative, counts or probabilities (normalised here). Exact for a mean; for a ratio
        (AUC) to first order in 1/n (the delta method).
        """
        n = checks.integer("n", n, 2)
        k = self.statistic.types
        histogram = checks.floating("histogram", histogram).double().to(self.statistic.points.device)
        if histogram.shape != (k,) or bool((histogram < 0).any()) or float(histogram.sum()) <= 0:
            raise ValueError(f"histogram must be ({k},), non-negative, with a positive sum")
        counts = histogram / histogram.sum() * n
        form, denominator = self.statistic.form, self.statistic.denominator
        for each in self.statistic.forms:
            self._convert(counts.new_zeros(()), n, each)  # refuses what `analyse` refuses
        if denominator is None:
            return float(self.mean_variance(counts, form)) * self._slope(n) ** 2
        below = float(self.statistic.mean(counts, denominator))
        if abs(below) <= self._rounding(denominator):
            raise ValueError("histogram makes the statistic's denominator 0 (one class is empty)")
        ratio = self.statistic.mean(counts, form) / below
        variance = float(self.mean_variance(counts, _difference(form, ratio, denominator)))
        return variance * self._slope(n) ** 2 / below**2

    def _rounding(self, form: Form) -> float:
        """What rounding may leave of a mean that is 0."""
        return 1e-13 * self.statistic.size(form)

    def _slope(self, n: float) -> float:
        """Factor of the mean in the conversion between the two kinds of pairs."""
        if self.statistic.pairs is self.native_pairs:
            return 1.0
        return n / (n - 1) if self.native_pairs is Pairs.ALL else (n - 1) / n

    def _convert(self, mean: Tensor, n: float, form: Form) -> Tensor:
        """From the native pairs to the statistic's: n^2 V = n (n - 1) U + n f(x, x)."""
        if self.statistic.pairs is self.native_pairs:
            return mean
        diagonal = self.statistic.common_diagonal(form)
        if self.native_pairs is Pairs.ALL:
            return (n * mean - diagonal) / (n - 1)
        return ((n - 1) * mean + diagonal) / n


@dataclass(frozen=True)
class AggregateProtocol(PairwiseProtocol):
    """A protocol whose analyst needs only sums that can be drawn without drawing the messages."""

    @abstractmethod
    def collect_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> tuple[Tensor, ...]:
        """In law what ``collect`` returns for counts (k,) users of each type, at a cost free of their number.

        Each entry gets leading dimensions ``sample_shape``: independent repetitions for the same counts.
        """

    def estimate_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> PairwiseEstimate:
        """In law what ``estimate`` returns for counts (k,) users of each type; shape (*sample_shape)."""
        counts = checks.counts("counts", counts, self.statistic.types).to(self.statistic.points.device)
        n = int(counts.sum())
        if n < 2:
            raise ValueError(f"counts must add up to at least 2 users, not {n}")
        return self.analyse(self.collect_histogram(counts, generator=generator, sample_shape=sample_shape), n)


def _difference(form: Form, ratio: Tensor, denominator: Form) -> Form:
    """The form f - ratio g, whose error over mean g is the ratio's to first order."""
    weights = form.weights - ratio[..., None] * denominator.weights
    return Form(weights, 0.0)
