"""What the pairwise protocols share: from messages to an estimate with its error."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic
from torchdp.privacy import Guarantee
from torchdp.protocol.interval import ErrorParts, interval

FARTHEST = 40  # standard deviations that no message lies from what it says: less likely than 1e-300
SMALL = 1 / 16  # relative variance of a denominator, from which a ratio is not near normal


@dataclass(frozen=True)
class PairwiseEstimate:
    """A private estimate and its standard error, both computed from the messages alone; shape (*sample_shape).

    The error is that of the privacy noise: it speaks of these n users, not of a population they came from.
    error: the parts that intervals are made of (None: one normal part of the standard error). limits: what the true
    value can be; intervals stay inside, the value itself need not.
    """

    value: Tensor
    standard_error: Tensor
    n: int
    error: ErrorParts | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Confidence interval at this level for the statistic of these users; see :class:`ErrorParts`.

        Coverage measured at 0.95 over 624 cells, seven kernels (experiments/pairwise/coverage.py): one and two messages
        0.94 to 0.97 from 10,000 users on, 0.94 to 1 below (mixed signatures cover too much). Randomized response and
        two rounds, each with one normal part, from 0.935 and 0.941 at 10,000 users; of 1,000 or 100 users, where
        their errors are far from normal, from 0.86 and 0.89.
        """
        return interval(self.value, self.parts, level, self.limits)

    @property
    def parts(self) -> ErrorParts:
        """The error's independent parts."""
        return ErrorParts.normal(self.standard_error.square()) if self.error is None else self.error


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
        checks.instance("statistic", self.statistic, PairwiseStatistic)
        if self.statistic.radius == 0:
            raise ValueError(
                f"{self.statistic.name!r} is constant: its mean is {self.statistic.form.constant:g} whatever users "
                "hold, so nobody needs to send anything"
            )
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

    @property
    @abstractmethod
    def layout(self) -> tuple[Tensor, ...]:
        """What ``collect`` returns for no user at all: zeros of its shapes and dtypes."""

    def admit(self, types: Tensor, least: int = 1) -> Tensor:
        """The types (n,) of n >= ``least`` users, each in [0, k), int64 on the statistic's device.

        Raises ValueError, TypeError.
        """
        types = checks.indices("types", types, self.statistic.types)
        if types.ndim != 1 or len(types) < least:
            raise ValueError(f"types must have shape (n,) with n >= {least} users, not {tuple(types.shape)}")
        return types.to(self.statistic.points.device)

    def collect(self, types: Tensor, *, noise: Noise | None = None) -> tuple[Tensor, ...]:
        """What arrives when the users hold ``types`` (n,), each in [0, k): sums over users of their messages.

        noise: the system's where None. Raises ValueError, TypeError.
        """
        types = self.admit(types)
        return self.gather(types, source(noise, types.device))

    @abstractmethod
    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """``collect`` of types that have been admitted."""

    def check_sums(self, sums: Sequence[Tensor], n: int) -> tuple[Tensor, ...]:
        """The sums, if n users can have sent them: of the protocol's shapes and dtypes, finite, not contradictory.

        Leading batch dimensions are allowed, the same for all. Raises ValueError, TypeError.
        """
        n, layout = checks.integer("n", n, 1), self.layout
        if isinstance(sums, Tensor) or not isinstance(sums, Sequence) or len(sums) != len(layout):
            raise ValueError(f"sums must be {len(layout)} tensors, as {type(self).__name__}.collect returns them")
        checked = []
        for index, (given, own) in enumerate(zip(sums, layout, strict=True)):
            name = f"sums[{index}]"
            value = checks.floating(name, given)
            if not own.is_floating_point() and given.is_floating_point():
                raise TypeError(f"{name} must hold counts ({own.dtype}), not {given.dtype}")
            if value.ndim < own.ndim or value.shape[value.ndim - own.ndim :] != own.shape:
                raise ValueError(
                    f"{name} must have shape (..., {', '.join(map(str, own.shape))}), not {(*value.shape,)}"
                )
            checked.append(given.detach().to(own))
        if len({each.shape[: each.ndim - own.ndim] for each, own in zip(checked, layout, strict=True)}) > 1:
            raise ValueError("sums must have the same leading dimensions")
        wrong = self.contradiction(tuple(checked), n)
        if wrong is not None:
            raise ValueError(f"sums are not what {n} users of {type(self).__name__} can have sent: {wrong}")
        return tuple(checked)

    @abstractmethod
    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        """Why no n users can have sent these sums, of the right shapes and finite; None where they can."""

    @abstractmethod
    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Unbiased estimate of the mean of a form over the native pairs."""

    def pairs_mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """The same over the statistic's pairs."""
        return self._convert(self.mean(sums, n, form), n, form)

    @abstractmethod
    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance of ``mean`` when counts (k,) users hold each type."""

    @abstractmethod
    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Estimate of that variance from the messages alone. form.weights may carry batch dimensions."""

    @abstractmethod
    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        """Unbiased estimate of the users' mean vector, (*batch, r)."""

    def mean_error(self, sums: tuple[Tensor, ...], n: float, form: Form) -> ErrorParts:
        """The error of ``mean`` as intervals need it; form.weights: (r,)."""
        return ErrorParts.normal(self.plug_in_variance(sums, n, form))

    def estimate(self, types: Tensor, *, noise: Noise | None = None) -> PairwiseEstimate:
        """Estimate from each user's own messages; types: (n,) integers in [0, k), n >= 2. noise: as in ``collect``."""
        types = self.admit(types, 2)
        return self.analyse(self.collect(types, noise=noise), len(types))

    def analyse(self, sums: Sequence[Tensor], n: int) -> PairwiseEstimate:
        """The analyst: from what ``collect`` returned for n >= 2 users to the estimate and its standard error.

        Both are NaN where the estimated denominator of a ratio is 0; it warns where that is less than four standard
        errors from 0, since the value may then be far off (a class that hardly anybody belongs to). Raises ValueError,
        TypeError (see ``check_sums``).
        """
        n = checks.integer("n", n, 2)
        sums = self.check_sums(sums, n)
        form, denominator = self.statistic.form, self.statistic.denominator
        m = float(n)  # powers of it leave the range of 64-bit integers
        value = self.pairs_mean(sums, m, form)
        limits = self.statistic.limits or (-math.inf, math.inf)
        if denominator is None:
            error = self.plug_in_variance(sums, m, form).sqrt() * self._slope(m)
            parts = self.mean_error(sums, m, form).scaled(self._slope(m))
            return PairwiseEstimate(value, error, n, parts, limits)
        below = self.pairs_mean(sums, m, denominator)
        below = torch.where(below.abs() > self._rounding(denominator), below, torch.nan)
        ratio = value / below
        parts = self._ratio_error(sums, m, ratio, below)
        _warn_of_small(parts.curvature)
        return PairwiseEstimate(self.statistic.offset + ratio, parts.variance[..., 0].sqrt(), n, parts, limits)

    def _ratio_error(self, sums: tuple[Tensor, ...], n: float, ratio: Tensor, below: Tensor) -> ErrorParts:
        """Fieller's part: the variance of mean f - t mean g as a polynomial in t around the ratio, over (mean g)^2."""
        if self.statistic.denominator is None:
            raise ValueError("statistic must be a ratio")
        apart = _difference(self.statistic.form, ratio, self.statistic.denominator)
        g = Form(self.statistic.denominator.weights)
        variance, own = (self.plug_in_variance(sums, n, each) for each in (apart, g))
        least = torch.finfo(torch.float64).tiny
        balance = (variance.clamp_min(least) / own.clamp_min(least)).sqrt()
        both = self.plug_in_variance(sums, n, Form(apart.weights + balance[..., None] * g.weights))
        most = (variance * own).sqrt()
        covariance = ((both - variance) / balance - balance * own).div(2).clamp(-most, most)
        scale = (self._slope(n) / below).square()
        return ErrorParts(*((scale * each)[..., None] for each in (variance, -2 * covariance, own)))

    def predicted_mse(self, histogram: Tensor, n: int) -> float:
        """Mean squared error for n users with this histogram, in closed form; not private (it reads the data).

        histogram: (k,), non-negative, counts or probabilities (normalised here). Exact for a mean; for a ratio
        (AUC) to first order in 1/n (the delta method), too low where the denominator is small against its own error: it
        warns below four standard errors. The bias of a statistic that ``approximates`` another counts.
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
            return float(self.mean_variance(counts, form)) * self._slope(n) ** 2 + self.bias(counts) ** 2
        below = float(self.statistic.mean(counts, denominator))
        if abs(below) <= self._rounding(denominator):
            raise ValueError("histogram makes the statistic's denominator 0 (one class is empty)")
        ratio = self.statistic.mean(counts, form) / below
        scale = (self._slope(n) / below) ** 2
        _warn_of_small(self.mean_variance(counts, Form(denominator.weights)) * scale)
        return float(self.mean_variance(counts, _difference(form, ratio, denominator))) * scale

    def bias(self, counts: Tensor) -> float:
        """What the estimate misses on average for counts (k,), real numbers allowed; 0 unless the form approximates."""
        if self.statistic.approximates is None:
            return 0.0
        form, n = self.statistic.form, float(counts.sum())
        expected = replace(self.statistic, pairs=self.native_pairs, approximates=None).mean(counts, form)
        return float(self._convert(expected, n, form) - self.statistic.exact(counts))

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

    def collect_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> tuple[Tensor, ...]:
        """In law what ``collect`` returns for counts (k,) users of each type, n >= 1, without making their messages.

        Each entry gets leading dimensions ``sample_shape``: independent repetitions for the same counts. The cost does
        not grow with n for PrivUnitG and for reports; the sums of PrivUnit take O(n) draws.
        """
        counts = self._counts(counts, 1)
        generator = checks.random_source(generator, counts.device)
        return self.draw_sums(counts, generator, checks.sample_shape(sample_shape))

    @abstractmethod
    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """``collect_histogram`` of counts that have been checked."""

    def estimate_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> PairwiseEstimate:
        """In law what ``estimate`` returns for counts (k,) users of each type; shape (*sample_shape)."""
        counts = self._counts(counts, 2)
        n = int(counts.sum())
        return self.analyse(self.collect_histogram(counts, generator=generator, sample_shape=sample_shape), n)

    def _counts(self, counts: Tensor, least: int) -> Tensor:
        counts = checks.counts("counts", counts, self.statistic.types).to(self.statistic.points.device)
        n = int(counts.sum())
        if n < least:
            raise ValueError(f"counts must add up to at least {least} users, not {n}")
        return counts


def _difference(form: Form, ratio: Tensor, denominator: Form) -> Form:
    """The form f - ratio g, whose error over mean g is the ratio's to first order; f where the ratio is NaN."""
    return Form(form.weights - ratio.nan_to_num(0.0)[..., None] * denominator.weights)


def reach(total: Tensor, n: int, radius: float, variance: float) -> str | None:
    """Why n vectors of this norm with noise of this variance a coordinate cannot add up to ``total`` (..., r)."""
    most = n * (radius + FARTHEST * variance**0.5)
    if bool((total.abs() > most).any()):
        return f"an entry is above {most:.3g}, more than {FARTHEST} standard errors of each user"
    return None


def _warn_of_small(squared_error: Tensor) -> None:
    """Warns where the denominator's relative variance is above ``SMALL``."""
    if bool((squared_error > SMALL).any()):
        warnings.warn(
            "the denominator is less than four standard errors from 0 (one class is rare for so few users and so small "
            "an epsilon): the ratio may be far off and its standard error too low; use interval()",
            stacklevel=3,
        )
