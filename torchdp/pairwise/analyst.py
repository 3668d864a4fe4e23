"""From a tally to the estimate of a pairwise statistic, of the users or of their population.

Notation: U is the mean of f over pairs of different users, V over all pairs, n^2 V = n (n - 1) U +
sum of f(x, x); z the estimated mean vector, J the weights of a form, r = mean f/mean g a ratio.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.forms import ZERO, Form, Pairs, PairwiseForms, one_kernel
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.interval import Error, ErrorParts, RatioError, largest_variance
from torchdp.protocol.records import broadcast_users, tensor_of
from torchdp.queries.channel import Channel, nearest
from torchdp.simplex import onto_simplex

# Relative variance of a denominator, from which a ratio is not near normal: four standard errors.
SMALL = 1 / 16
# Of the largest coordinate: what a channel of a question of pairs may miss.
MOST_MISSED = 1e-6
# Of the largest coordinate: what rounding makes of exact factors.
ROUNDED = 1e-12
# Of the squared distance to the hull, relative to the largest squared norm.
TOLERANCE = 1e-7


class PairwiseAnalyst(ABC):
    """Estimates one pairwise statistic from means of forms over pairs of users.

    The estimate's error is that of the privacy noise: it refers to these n users, not of a
    population they came from. Coverage of ``interval(0.95)``, measured: chosen protocols from 1,000
    users on: 0.941 to 0.979 in 66 cells (experiments/league/local_coverage.py); above 0.965 in
    seven. Random kernels from 300 users on (experiments/pairwise/random_kernels.py), 250 cells of
    one round: 0.941 to 0.995, near and at stationary points 0.939 to 0.998, where intervals are up
    to 1.9 times as wide as normal ones; two rounds: 0.941 to 0.956 from 30,000 users on, but only
    from 0.905 with 300 or 3,000. A kernel with a large direction beside many small ones
    (24 types in two groups, 30,000 users, epsilon 1): 0.956.
    """

    statistic: PairwiseForms

    def refuse(self) -> None:
        """Raises ValueError for a statistic that is constant, or not known from these pairs."""
        statistic = self.statistic
        statistic.refuse_constant()
        if statistic.pairs is not self.estimated_pairs and statistic.form.diagonal is None:
            for form in statistic.forms:
                statistic.common_diagonal(form)

    @abstractmethod
    def check(self, tally: Tally, least: int = 1) -> Tally:
        """``tally``, if so many users at least can have made it. Raises TypeError, ValueError."""

    @property
    @abstractmethod
    def estimated_pairs(self) -> Pairs:
        """The pairs whose mean the analyst estimates directly."""

    @abstractmethod
    def mean(self, tally: Tally, form: Form) -> Tensor:
        """Unbiased estimate of the mean of a form over the native pairs.

        Of many forms, of a tally ``beside_forms``.
        """

    @abstractmethod
    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance of ``mean`` for counts (*batch, k) of users, real numbers allowed."""

    @abstractmethod
    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        """A bound of that variance over all data of n users."""

    @abstractmethod
    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """Estimate of it from the messages alone. form.weights may carry batch dimensions."""

    @abstractmethod
    def mean_point(self, tally: Tally) -> Tensor:
        """Unbiased estimate of the users' mean vector, (*batch, r)."""

    def mean_errors(self, tally: Tally) -> Callable[[Form, Tensor], Error]:
        """The error of ``mean``, of a form, weights (*batch, r), and its mean less the constant."""
        return lambda form, value: ErrorParts.normal(self.plug_in_variance(tally, form))

    def _error(self, tally: Tally) -> Error:
        """Of the statistic's own mean."""
        form = self.statistic.form
        error = self.mean_errors(tally)(form, self.mean(tally, form) - form.constant)
        return error.scaled(self.slope(tally.users()))

    def _ratio_error(self, tally: Tally, ratio: Tensor, below: Tensor, parts: ErrorParts) -> Error:
        """By mean f - t mean g over mean g, for each t; ``parts`` are Fieller's."""
        f, g = self.statistic.forms
        errors = self.mean_errors(tally)
        scale = self.slope(tally.users()) / below
        mean_f = self.mean(tally, f) - f.constant
        mean_g = self.mean(tally, g) - g.constant

        def at(u: Tensor) -> Error:
            t = ratio + u
            value = (mean_f - t * mean_g).nan_to_num(0.0)
            return errors(f.plus(-t.nan_to_num(0.0), g), value).scaled(scale)

        return RatioError(parts, at(torch.zeros_like(ratio)), at)

    def beside_forms(self, tally: Tally) -> Tally:
        """The tally with dimensions of one behind its batch, in the place of the forms."""
        ones = (1,) * len(self.statistic.answer)
        if not ones:
            return tally
        parts = {}
        for name, part in tally.parts.items():
            parts[name] = part.reshape(*part.shape[:-1], *ones, part.shape[-1])
        n = tally.n
        return Tally(n.view(*n.shape, *ones) if isinstance(n, Tensor) else n, parts)

    def exact(self, summary: Tensor) -> Tensor:
        return self.statistic.exact(summary)

    def analyse(self, tally: Tally) -> Estimate:
        """The estimate from the tally of n >= 2 users.

        Value and error are NaN where the estimated denominator of a ratio is 0; it warns where that
        is less than four standard errors from 0, since the value may then be far off (a rare
        class). Raises TypeError, ValueError.
        """
        tally = self.check(tally, 2)
        n = tally.n
        statistic = self.statistic
        tally = self.beside_forms(tally)
        # Intervals are made later, so that values alone cost no decomposition.
        kept = tally.kept()
        mean = self.pairs_mean(tally, statistic.form)
        limits = statistic.limits or (-math.inf, math.inf)
        population = partial(self._of_population, kept)
        common = partial(Estimate, n=n, limits=limits, population=population)
        if statistic.denominator is None:
            slope = self.slope(tally.users())
            deviation = self.plug_in_variance(tally, statistic.form).sqrt() * slope
            bias = slope * (self.approximation_bias(tally) + self.clipping_bias(tally))
            return common(mean, deviation, bias=bias, error=partial(self._error, kept))
        below = self.pairs_mean(tally, statistic.denominator)
        # Where it is 0 up to rounding a quotient would show the size of the rounding alone.
        negligible = ZERO * statistic.size(statistic.denominator)
        below = torch.where(below.abs() > negligible, below, torch.nan)
        ratio = mean / below
        parts = self.ratio_error(tally, ratio, below)
        # The curvature is Var(mean g)/(mean g)^2.
        _warn_of_small(parts.curvature)
        return common(
            statistic.offset + ratio,
            parts.variance[..., 0].sqrt(),
            bias=self.approximation_bias(tally) / below.abs(),
            error=partial(self._ratio_error, kept, ratio, below, parts),
        )

    def _of_population(self, tally: Tally) -> Estimate:
        estimate = self.analyse(tally)
        below = torch.ones(())
        if self.statistic.denominator is not None:
            below = self.pairs_mean(tally, self.statistic.denominator)
        return of_population(self.statistic, estimate, self.mean_point(tally), below)

    def approximation_bias(self, tally: Tally) -> Tensor | float:
        """The most by which ``mean`` of an approximate form misses that of the statistic's own."""
        return self.statistic.distortion

    def clipping_bias(self, tally: Tally) -> Tensor | float:
        """The most that clipped answers can add to ``mean`` on average: a public number."""
        return 0.0

    def pairs_mean(self, tally: Tally, form: Form) -> Tensor:
        """``mean`` over the statistic's pairs."""
        return self._convert(self.mean(tally, form), tally.users(), form)

    def ratio_error(self, tally: Tally, ratio: Tensor, below: Tensor) -> ErrorParts:
        """Fieller's part: Var(mean f - t mean g)/(mean g)^2, a polynomial in t around the ratio."""
        f, g = self.statistic.forms
        residual = f.plus(-ratio.nan_to_num(0.0), g)
        variance = self.plug_in_variance(tally, residual)
        curvature = self.plug_in_variance(tally, g)
        least = torch.finfo(torch.float64).tiny
        # Var(a + b g) = Var a + 2 b Cov(a, g) + b^2 Var g, with b such that no term is lost.
        balance = (variance.clamp_min(least) / curvature.clamp_min(least)).sqrt()
        both = self.plug_in_variance(tally, residual.plus(balance, g))
        most = (variance * curvature).sqrt()
        twice = (both - variance) / balance - balance * curvature
        # Cauchy-Schwarz, which a difference of estimates may break.
        covariance = twice.div(2).clamp(-most, most)
        slope = self.slope(tally.users()) / below
        scale = slope.square()[..., None]
        return ErrorParts(
            variance=scale * variance[..., None],
            slope=-2 * scale * covariance[..., None],
            curvature=scale * curvature[..., None],
            step=torch.zeros_like(variance)[..., None],
        )

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Mean squared error, (*batch, *answer), for counts (*batch, k) of at least 2 users.

        Exact for a mean. For a ratio a/b (AUC) it is the delta method's V times 1 + 3 d^2
        (1 + 2 c^2), d the relative deviation of b and c its correlation with a - r b, as if both
        were normal: E e^2 (1 - d z + d^2 z^2)^2 to order d^2. It warns where b is less than four
        standard errors from 0. The bias of a statistic that ``approximates`` another counts. Not
        private. Raises TypeError, ValueError.
        """
        statistic = self.statistic
        counts = statistic.users(summary, 2)
        n = counts.sum(-1)
        f = statistic.form
        g = statistic.denominator
        bias = self.bias(counts) ** 2
        if g is None:
            return self.mean_variance(counts, f) * self.slope(n) ** 2 + bias
        below = statistic.below(counts)
        residual = f.plus(-statistic.mean(counts, f) / below, g)
        scale = (self.slope(n) / below) ** 2
        variance = self.mean_variance(counts, residual) * scale
        d_square = self.mean_variance(counts, g) * scale
        _warn_of_small(d_square)
        both = self.mean_variance(counts, residual.plus(below, g)) * scale
        # Cov(a - r b, b) over b^2
        covariance = (both - variance - d_square * below**2) / (2 * below)
        return variance * (1 + 3 * d_square) + 6 * covariance.square() + bias

    def worst_mse(self, n: Users, objective: Objective) -> Tensor:
        """A bound of ``predicted_mse`` over all data of n >= 2 users; inf for a ratio."""
        statistic = self.statistic
        n = checks.people("n", n, 2)
        batch = n.shape if isinstance(n, Tensor) else ()
        worst = torch.tensor(math.inf, dtype=torch.float64)  # a ratio's classes may be empty
        if statistic.denominator is None:
            users = broadcast_users(n, len(statistic.answer))
            variance = self.worst_variance(users, statistic.form)
            worst = (variance + statistic.distortion**2) * self.slope(users) ** 2
        return objective.of(worst.expand((*batch, *statistic.answer)), len(batch))

    def bias(self, counts: Tensor) -> Tensor | float:
        """What the estimate misses on average for counts (*batch, k), real numbers allowed.

        0 unless the form approximates.
        """
        statistic = self.statistic
        if statistic.approximates is None:
            return 0.0
        own = replace(statistic, approximates=None)
        if statistic.denominator is not None:
            return own.exact(counts) - statistic.exact(counts)
        # What the channel's mean is on average, turned into the statistic's pairs.
        native = replace(own, pairs=self.estimated_pairs).mean(counts, statistic.form)
        expected = self._convert(native, counts.sum(-1), statistic.form)
        return expected - statistic.exact(counts)

    def slope(self, n: float | Tensor) -> float | Tensor:
        """Factor of the mean in the conversion between the two kinds of pairs."""
        if self.statistic.pairs is self.estimated_pairs:
            return 1.0
        return n / (n - 1) if self.estimated_pairs is Pairs.ALL else (n - 1) / n

    def _convert(self, mean: Tensor, n: float | Tensor, form: Form) -> Tensor:
        """From the native pairs to the statistic's: n^2 V = n (n - 1) U + n f(x, x)."""
        statistic = self.statistic
        if statistic.pairs is self.estimated_pairs:
            return mean
        if form.diagonal is None:
            diagonal = statistic.common_diagonal(form)
        else:
            diagonal = statistic.diagonal(form).mean(-1)
        if self.estimated_pairs is Pairs.ALL:
            return (n * mean - diagonal) / (n - 1)
        return ((n - 1) * mean + diagonal) / n


@dataclass(frozen=True, eq=False)
class ChannelPairs(PairwiseAnalyst):
    """The statistic through any channel of its points, whoever is trusted."""

    statistic: PairwiseForms
    channel: Channel

    def __post_init__(self) -> None:
        self.refuse()
        if not torch.equal(self.channel.points, self.statistic.points):
            raise ValueError(
                "channel must be of the statistic's queries: make it by its class's of(statistic, "
                "...)"
            )
        missed = self.channel.bias.abs().max()
        if missed > MOST_MISSED * self.statistic.points.abs().max():
            raise ValueError(
                "channel must be of exact factors for a question of pairs; they miss up to "
                f"{missed:g}"
            )

    @property
    def estimated_pairs(self) -> Pairs:
        return Pairs.DISTINCT if self.channel.distinct else Pairs.ALL

    def check(self, tally: Tally, least: int = 1) -> Tally:
        return self.channel.whole(self.channel.check(tally, least))

    def _linear(self, form: Form, n: float | Tensor) -> Tensor:
        """The linear query that turns the mean over the channel's pairs into the statistic's.

        But for ``slope``: from all pairs -1/n of the mean f(x, x), else 1/(n - 1).
        """
        if form.diagonal is None:
            return torch.zeros_like(form.weights)
        users = broadcast_users(n, 1)
        # U = n/(n - 1) (V - mean f(x, x)/n) and V = (n - 1)/n (U + mean f(x, x)/(n - 1)).
        share = -1 / users if self.estimated_pairs is Pairs.ALL else 1 / (users - 1)
        return share * form.diagonal

    def mean(self, tally: Tally, form: Form) -> Tensor:
        linear = self._linear(form, tally.users())
        return self.channel.form(tally, form.weights, linear) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        return self.channel.form_variance(counts, form.weights, self._linear(form, counts.sum(-1)))

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        return self.channel.worst_form(n, form.weights, self._linear(form, n))

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        return self.channel.form_plug_in(tally, form.weights, self._linear(form, tally.users()))

    def mean_errors(self, tally: Tally) -> Callable[[Form, Tensor], Error]:
        errors = self.channel.form_errors(tally)
        n = tally.users()
        return lambda form, value: errors(form.weights, self._linear(form, n), value)

    def mean_point(self, tally: Tally) -> Tensor:
        return self.channel.mean(tally)

    @cached_property
    def _missed(self) -> Tensor | float:
        """What the channel's bias b adds to the form: sum abs(w) (2 max abs(u) abs(b) + b^2)."""
        size = self.statistic.points.abs().amax(0)
        missed = self.channel.bias.abs().amax(1)
        # Exact factors miss by rounding alone: no bias to widen intervals by.
        if (missed <= ROUNDED * size.max()).all():
            return 0.0
        return self.statistic.form.weights.abs() @ (2 * size * missed + missed.square())

    def approximation_bias(self, tally: Tally) -> Tensor | float:
        """For bins of types: sum_ab h_a h_b max abs(f - f') over each two bins.

        h are the shares nearest to the decoded ones.
        """
        statistic = self.statistic
        exact = statistic.approximates
        if exact is None:
            return self._missed
        shares = self.channel.shares(tally)
        if shares is None:
            return statistic.distortion + self._missed
        bins, bin_of = torch.unique(statistic.points, dim=0, return_inverse=True)
        difference = (exact.kernel(exact.form) - statistic.kernel(statistic.form)).abs()
        # The largest difference in each two bins: over the types of the first, then of the second.
        rows = difference.new_zeros(len(bins), len(difference))
        rows.scatter_reduce_(0, bin_of[:, None].expand_as(difference), difference, "amax")
        most = difference.new_zeros(len(bins), len(bins))
        most.scatter_reduce_(1, bin_of.expand_as(rows), rows, "amax")
        # Decoded shares may be negative: a bound by sizes needs weights that are not.
        of_types = onto_simplex(shares)
        h = of_types.new_zeros(*of_types.shape[:-1], len(bins)).index_add_(-1, bin_of, of_types)
        return ((h @ most) * h).sum(-1)

    def expansion(self, tally: Tally) -> tuple[Tensor, Tensor]:
        """Slope and bend of each answer, (*batch, a), in the channel's mean; of a ratio too."""
        statistic = self.statistic
        tally = self.beside_forms(tally)
        n = tally.users()
        z = self.channel.mean(tally)
        users = broadcast_users(n, 1)
        slope_n = broadcast_users(self.slope(n), 1)
        # s^T J s enters the mean over distinct pairs n/(n - 1) times.
        factor = users / (users - 1) * slope_n if self.channel.distinct else slope_n

        def slope_of(form: Form) -> Tensor:
            return factor * 2 * form.weights * z + slope_n * self._linear(form, n)

        def bend_of(form: Form) -> Tensor:
            return (factor * form.weights).expand(slope.shape).diag_embed()

        f = statistic.form
        g = statistic.denominator
        if g is None:
            slope = slope_of(f)
            bend = bend_of(f)
        else:
            below = self.pairs_mean(tally, g)[..., None]
            residual = f.plus(-self.pairs_mean(tally, f) / below[..., 0], g)
            slope = slope_of(residual) / below
            # The second derivative of a ratio: that of f - r g, less both slopes' product.
            cross = slope[..., :, None] * (slope_of(g) / below)[..., None, :]
            bend = bend_of(residual) / below[..., None] - (cross + cross.mT) / 2
        batch = slope.shape[: slope.ndim - 1 - len(statistic.answer)]
        answers = math.prod(statistic.answer)
        r = slope.shape[-1]
        return slope.reshape(*batch, answers, r), bend.reshape(*batch, answers, r, r)


def _warn_of_small(squared_error: Tensor) -> None:
    """Warns where the denominator's relative variance is above ``SMALL``."""
    if (squared_error > SMALL).any():
        warnings.warn(
            "the denominator is less than four standard errors from 0 (one class is rare for so "
            "few users and so small an epsilon): the ratio may be far off and its standard error "
            "too low; use interval()",
            stacklevel=3,
        )


def of_population(
    given: PairwiseForms, estimate: Estimate, means: Tensor, below: Tensor
) -> Estimate:
    """The estimate for the population of which the users are an independent sample.

    To the variance of the noise it adds that of the users' own U-statistic, 4/n Var f_1(X) + 2/n^2
    Var f(X, Y) to first order in 1/n, f_1(x) = E f(x, Y) = <u_x, J mean u>: for the mean vector
    that the messages give, moved to the hull of the points, and the histogram of users with this
    mean vector that has the largest Var f_1 (up to 512 types; beyond, its bound (max f_1 - m)(m -
    min f_1)). Var f counts as (max f - m)(m - min f). For a ratio f is f - ratio g. One after the
    other of a batch.

    Args:
        given: the statistic.
        estimate: of the users, (*batch).
        means: of the users' points, (*batch, r).
        below: a ratio's denominator, else 1, (*batch).

    Raises ValueError for Pairs.ALL, whose mean depends on n, and for several forms.
    Source: Hoeffding (1948), Theorem 5.2; Bhatia, Davis (2000), Theorem 1.
    """
    statistic = one_kernel(given)
    if statistic.pairs is not Pairs.DISTINCT:
        raise ValueError(
            "statistic must have pairs=Pairs.DISTINCT: only that mean does not depend on n"
        )
    batch = estimate.value.shape
    h = nearest(statistic.points, means.reshape(-1, statistic.dim), TOLERANCE)
    users = tensor_of(estimate.n).expand(batch).flatten().tolist()
    rows = zip(h, users, estimate.value.flatten(), strict=True)
    variances = h.new_tensor([float(_sampling_variance(statistic, *row)) for row in rows])
    return estimate.with_sampling(variances.view(batch) / below.square())


def _sampling_variance(statistic: PairwiseForms, h: Tensor, n: int, value: Tensor) -> Tensor:
    """Of the U-statistic of n users with the mean vector of h; of a ratio's form at ``value``."""
    form = statistic.form
    g = statistic.denominator
    if g is not None:
        ratio = value - statistic.offset
        form = Form(form.weights - ratio * g.weights, form.constant - float(ratio) * g.constant)
    f = statistic.kernel(form)
    f_1 = statistic.points @ (form.weights * (h @ statistic.points)) + form.constant
    m = h @ f_1
    # Bhatia and Davis: Var f <= (max f - m)(m - min f).
    of_pairs = (f.max() - m) * (m - f.min())
    return (4 * largest_variance(statistic.points, h, f_1) + 2 * of_pairs / n) / n


@dataclass(frozen=True)
class ConsistentPairs:
    """value (*batch) at histogram (*batch, k), h >= 0 with sum 1; NaN of a ratio over 0."""

    value: Tensor
    histogram: Tensor


def consistent(protocol: Any, tally: Tally, *, tol: float = 1e-9) -> ConsistentPairs:
    """The statistic of the histogram whose mean vector is nearest to the estimated one.

    It costs no privacy.

    With z the unbiased estimate of the users' mean vector, h = argmin over histograms of ||U^T h -
    z||, U the points; of many such h one, even over types of one vector. The value is one that n
    users can have. It is biased, whatever the protocol: no standard error comes with it. Where
    noise is large against the statistic it often has lower error than the unbiased estimate.

    Args:
        protocol: of a pairwise statistic.
        tally: of at least 2 users, drawn ones (*batch) too.
        tol: of the squared distance, relative to the largest squared norm of the points.

    Raises TypeError, ValueError.
    Guarantees: U^T h is never farther from the users' mean vector than z is, up to tol.
    Source: projection onto a convex set; Nikolov, Talwar, Zhang (2013), section 4.
    """
    analyst = getattr(protocol, "analyst", protocol)
    checks.instance("protocol", analyst, PairwiseAnalyst)
    tol = checks.positive("tol", tol)
    tally = analyst.check(tally, 2)
    statistic = one_kernel(analyst.statistic)
    h = nearest(statistic.points, analyst.mean_point(tally), tol)
    exact = statistic.approximates or statistic
    counts = h * tally.users(1)
    mean = exact.mean(counts, exact.form)
    if exact.denominator is None:
        return ConsistentPairs(mean, h)
    below = exact.mean(counts, exact.denominator)
    known = below.abs() > ZERO * exact.size(exact.denominator)
    return ConsistentPairs(exact.offset + torch.where(known, mean / below, torch.nan), h)
