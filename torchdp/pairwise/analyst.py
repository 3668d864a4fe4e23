"""From a tally to the estimate of a pairwise statistic, of the users or of the population that they
are a sample of.
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
from torchdp.pairwise.forms import Form, Pairs, PairwiseForms, one_kernel
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.interval import Error, ErrorParts, RatioError, largest_variance
from torchdp.protocol.records import beside, tensor_of
from torchdp.queries.channel import Channel, nearest
from torchdp.simplex import onto_simplex

SMALL = 1 / 16  # relative variance of a denominator, from which a ratio is not near normal
MOST_MISSED = 1e-6  # of the largest coordinate: what a channel of a question of pairs may miss
ROUNDED = 1e-12  # of the largest coordinate: what rounding makes of exact factors
TOLERANCE = 1e-7  # of the squared distance to the hull, relative to the largest squared norm


class PairwiseAnalyst(ABC):
    """Estimates one pairwise statistic from what is known of the mean of a form over pairs of
    users.

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
        """Raises ValueError for a statistic that is known beforehand, or can not be read off these
        pairs.
        """
        statistic = self.statistic
        statistic.refuse_constant()
        if statistic.pairs is not self.estimated_pairs and statistic.form.diagonal is None:
            checks.validated(statistic, "common_diagonals")

    @abstractmethod
    def check(self, tally: Tally, least: int = 1) -> Tally:
        """``tally``, if so many users at least can have made it. Raises TypeError, ValueError."""

    @property
    @abstractmethod
    def estimated_pairs(self) -> Pairs:
        """The pairs whose mean the analyst estimates directly."""

    @abstractmethod
    def mean(self, tally: Tally, form: Form) -> Tensor:
        """Unbiased estimate of the mean of a form over the native pairs; of many forms, of a tally
        ``beside_forms``.
        """

    @abstractmethod
    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance of ``mean`` when counts (*batch, k) users hold each type, real numbers
        allowed.
        """

    @abstractmethod
    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        """A bound of that variance over all data of n users."""

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """Estimate of that variance from the messages alone. form.weights may carry batch
        dimensions.

        Here by ``mean_errors``: a class writes one of the two.
        """
        return self.mean_errors(tally)(form, form.weights.new_zeros(())).total

    @abstractmethod
    def mean_point(self, tally: Tally) -> Tensor:
        """Unbiased estimate of the users' mean vector, (*batch, r)."""

    def mean_errors(self, tally: Tally) -> Callable[[Form, Tensor], Error]:
        """What makes, of a form, weights (*batch, r), and ``mean`` less its constant, the error of
        that mean.
        """
        return lambda form, value: ErrorParts.normal(self.plug_in_variance(tally, form))

    def _error(self, tally: Tally) -> Error:
        """Of the statistic's own mean; made when an interval asks, so that values alone cost no
        decomposition.
        """
        form = self.statistic.form
        error = self.mean_errors(tally)(form, self.mean(tally, form) - form.constant)
        return error.scaled(self.slope(tally.users()))

    def _ratio_error(self, tally: Tally, ratio: Tensor, below: Tensor, parts: ErrorParts) -> Error:
        """By mean f - t mean g over mean g, for each t; ``parts`` are Fieller's."""
        above, under = self.statistic.forms
        errors, scale = self.mean_errors(tally), self.slope(tally.users()) / below
        mean, other = (self.mean(tally, form) - form.constant for form in (above, under))

        def at(u: Tensor) -> Error:
            t = ratio + u
            value = (mean - t * other).nan_to_num(0.0)
            return errors(above.plus(-t.nan_to_num(0.0), under), value).scaled(scale)

        return RatioError(parts, at(torch.zeros_like(ratio)), at)

    def beside_forms(self, tally: Tally) -> Tally:
        """The tally with dimensions of one behind its batch in the place of the statistic's
        forms.
        """
        if not (ones := (1,) * len(self.statistic.answer)):
            return tally
        rows = tally.parts.items()
        parts = {name: part.reshape(*part.shape[:-1], *ones, part.shape[-1]) for name, part in rows}
        return Tally(
            tally.n.view(*tally.n.shape, *ones) if isinstance(tally.n, Tensor) else tally.n, parts
        )

    def exact(self, summary: Tensor) -> Tensor:
        return self.statistic.exact(summary)

    def analyse(self, tally: Tally) -> Estimate:
        """The estimate from the tally of n >= 2 users.

        Value and error are NaN where the estimated denominator of a ratio is 0; it warns where that
        is less than four standard errors from 0, since the value may then be far off
        (a class that hardly anybody belongs to). Raises TypeError, ValueError.
        """
        n, statistic = self.check(tally, 2).n, self.statistic
        limits, tally = statistic.limits or (-math.inf, math.inf), self.beside_forms(tally)
        kept = tally.kept()  # for intervals
        population = partial(self._of_population, kept)
        value, slope = self.pairs_mean(tally, statistic.form), self.slope(tally.users())
        if statistic.denominator is None:
            error = self.plug_in_variance(tally, statistic.form).sqrt() * slope
            bias = slope * (self.approximation_bias(tally) + self.clipping_bias(tally))
            return Estimate(
                value, error, n, bias, partial(self._error, kept), limits, population=population
            )
        below = self.pairs_mean(tally, statistic.denominator)
        below = torch.where(below.abs() > self._rounding(statistic.denominator), below, torch.nan)
        ratio = value / below
        parts = self.ratio_error(tally, ratio, below)
        _warn_of_small(parts.curvature)
        bias = self.approximation_bias(tally) / below.abs()
        wider = partial(self._ratio_error, kept, ratio, below, parts)
        error = parts.variance[..., 0].sqrt()
        return Estimate(
            statistic.offset + ratio, error, n, bias, wider, limits, population=population
        )

    def _of_population(self, tally: Tally) -> Estimate:
        estimate, below = self.analyse(tally), torch.ones(())
        if self.statistic.denominator is not None:
            below = self.pairs_mean(tally, self.statistic.denominator)
        return of_population(self.statistic, estimate, self.mean_point(tally), below)

    def approximation_bias(self, tally: Tally) -> Tensor | float:
        """The most by which ``mean`` of an approximate form misses that of the statistic's own."""
        return self.statistic.distortion

    def clipping_bias(self, tally: Tally) -> Tensor | float:
        """The most that answers cut off to a range can add to ``mean`` on average: a public
        number.
        """
        return 0.0

    def pairs_mean(self, tally: Tally, form: Form) -> Tensor:
        """``mean`` over the statistic's pairs."""
        return self._convert(self.mean(tally, form), tally.users(), form)

    def ratio_error(self, tally: Tally, ratio: Tensor, below: Tensor) -> ErrorParts:
        """Fieller's part: the variance of mean f - t mean g as a polynomial in t around the ratio,
        over (mean g)^2.
        """
        if self.statistic.denominator is None:
            raise ValueError("statistic must be a ratio")
        g = self.statistic.denominator
        apart = self.statistic.form.plus(-ratio.nan_to_num(0.0), g)
        variance = self.plug_in_variance(tally, apart)
        own = self.plug_in_variance(tally, g)
        least = torch.finfo(torch.float64).tiny
        balance = (variance.clamp_min(least) / own.clamp_min(least)).sqrt()
        both = self.plug_in_variance(tally, apart.plus(balance, g))
        most = (variance * own).sqrt()
        covariance = ((both - variance) / balance - balance * own).div(2).clamp(-most, most)
        scale = (self.slope(tally.users()) / below).square()
        return ErrorParts(
            variance=(scale * variance)[..., None],
            slope=(-2 * scale * covariance)[..., None],
            curvature=(scale * own)[..., None],
            step=torch.zeros_like(variance)[..., None],
        )

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Mean squared error, (*batch, *answer), for counts (*batch, k) of users, real numbers
        allowed, 2 at least.

        Exact for a mean. For a ratio a/b (AUC) it is the delta method's V times 1 + 3 d^2
        (1 + 2 c^2), d the relative deviation of b and c its correlation with a - r b, as if both
        were normal: E e^2 (1 - d z + d^2 z^2)^2 to order d^2. It warns where b is less than four
        standard errors from 0. The bias of a statistic that ``approximates`` another counts. Not
        private. Raises TypeError, ValueError.
        """
        counts = self.statistic.users(summary, 2)
        n, form, denominator = counts.sum(-1), self.statistic.form, self.statistic.denominator
        if denominator is None:
            return self.mean_variance(counts, form) * self.slope(n) ** 2 + self.bias(counts) ** 2
        below = self.statistic.mean(counts, denominator)
        empty = below.abs() <= self._rounding(denominator)
        if bool(empty.any()):
            raise ValueError(
                f"summary makes the statistic's denominator 0 (one class is empty){checks.at(empty)}"
            )
        ratio = self.statistic.mean(counts, form) / below
        scale = (self.slope(n) / below) ** 2
        apart = form.plus(-ratio, denominator)
        variance = self.mean_variance(counts, apart) * scale
        small = self.mean_variance(counts, denominator) * scale
        _warn_of_small(small)
        both = self.mean_variance(counts, apart.plus(below, denominator)) * scale
        shared = (both - variance - small * below**2) / (2 * below)  # the covariance, over below^2
        return variance * (1 + 3 * small) + 6 * shared.square() + self.bias(counts) ** 2

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """A bound of ``predicted_mse`` over all data of n >= 2 users; inf for a ratio, whose
        classes may be empty.
        """
        checks.instance("objective", objective, Objective)
        n, form, answer = checks.people("n", n, 2), self.statistic.form, self.statistic.answer
        users, batch = beside(n, len(answer)), n.shape if isinstance(n, Tensor) else ()
        worst: Tensor | float = torch.inf
        if self.statistic.denominator is None:
            worst = (self.worst_variance(users, form) + self.statistic.distortion**2) * self.slope(
                users
            ) ** 2
        mse = torch.as_tensor(worst, dtype=torch.float64).expand((*batch, *answer))
        return objective.of(mse, len(batch))

    def bias(self, counts: Tensor) -> Tensor | float:
        """What the estimate misses on average for counts (*batch, k), real numbers allowed.

        0 unless the form approximates.
        """
        if self.statistic.approximates is None:
            return 0.0
        if self.statistic.denominator is not None:
            return replace(self.statistic, approximates=None).exact(counts) - self.statistic.exact(
                counts
            )
        form = self.statistic.form
        expected = replace(self.statistic, pairs=self.estimated_pairs, approximates=None).mean(
            counts, form
        )
        return self._convert(expected, counts.sum(-1), form) - self.statistic.exact(counts)

    def _rounding(self, form: Form) -> Tensor:
        """What rounding may leave of a mean that is 0."""
        return 1e-13 * self.statistic.size(form)

    def slope(self, n: float | Tensor) -> float | Tensor:
        """Factor of the mean in the conversion between the two kinds of pairs."""
        if self.statistic.pairs is self.estimated_pairs:
            return 1.0
        return n / (n - 1) if self.estimated_pairs is Pairs.ALL else (n - 1) / n

    def _convert(self, mean: Tensor, n: float | Tensor, form: Form) -> Tensor:
        """From the native pairs to the statistic's: n^2 V = n (n - 1) U + n f(x, x)."""
        if self.statistic.pairs is self.estimated_pairs:
            return mean
        statistic = self.statistic
        diagonal = (
            statistic.common_diagonal(form)
            if form.diagonal is None
            else statistic.diagonal(form).mean(-1)
        )
        if self.estimated_pairs is Pairs.ALL:
            return (n * mean - diagonal) / (n - 1)
        return ((n - 1) * mean + diagonal) / n


@dataclass(frozen=True, eq=False)
class ChannelPairs(PairwiseAnalyst):
    """The statistic through a channel of its points: any that tells them, whoever is trusted."""

    statistic: PairwiseForms
    channel: Channel

    def __post_init__(self) -> None:
        self.refuse()
        points = self.channel.points
        if points.shape != self.statistic.points.shape or not torch.equal(
            points, self.statistic.points
        ):
            raise ValueError(
                "channel must be of the statistic's queries: make it by its class's of(statistic, ...)"
            )
        missed = self.channel.bias.abs().max()
        if bool(missed > MOST_MISSED * points.abs().max()):
            raise ValueError(
                f"channel must be of exact factors for a question of pairs; they miss up to {missed:g}"
            )

    @property
    def estimated_pairs(self) -> Pairs:
        return Pairs.DISTINCT if self.channel.distinct else Pairs.ALL

    def check(self, tally: Tally, least: int = 1) -> Tally:
        return self.channel.whole(self.channel.check(tally, least))

    def _linear(self, form: Form, n: float | Tensor) -> Tensor:
        """What turns the mean over the channel's pairs into the statistic's, but for ``slope``,
        beside the form.

        n^2 V = n (n - 1) U + sum over users of f(x, x): from all pairs -1/n of the mean f(x, x),
        else 1/(n - 1).
        """
        if form.diagonal is None:
            return torch.zeros_like(form.weights)
        users = torch.as_tensor(n, dtype=torch.float64, device=form.weights.device)[..., None]
        share = -1 / users if self.estimated_pairs is Pairs.ALL else 1 / (users - 1)
        return share * form.diagonal

    def mean(self, tally: Tally, form: Form) -> Tensor:
        return (
            self.channel.form(tally, form.weights, self._linear(form, tally.users()))
            + form.constant
        )

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
        """What the channel's bias b adds to the form at most: sum abs(w) (2 max abs(u) abs(b) +
        b^2), per answer.
        """
        size = self.statistic.points.abs().amax(0)
        missed = self.channel.bias.abs().amax(1)
        if bool((missed <= ROUNDED * size.max()).all()):
            return 0.0
        return self.statistic.form.weights.abs() @ (2 * size * missed + missed.square())

    def approximation_bias(self, tally: Tally) -> Tensor | float:
        """For bins of types: sum_ab h_a h_b max abs(f - f') over each two bins, h nearest to their
        decoded shares.
        """
        near = self.statistic.approximates
        if near is None:
            return self._missed
        shares = self.channel.shares(tally)
        if shares is None:
            return self.statistic.distortion + self._missed
        bins, place = torch.unique(self.statistic.points, dim=0, return_inverse=True)
        apart = (near.kernel(near.form) - self.statistic.kernel(self.statistic.form)).abs()
        rows = apart.new_zeros(len(bins), len(apart))
        rows.scatter_reduce_(0, place[:, None].expand_as(apart), apart, "amax")
        most = apart.new_zeros(len(bins), len(bins))
        most.scatter_reduce_(1, place.expand_as(rows), rows, "amax")
        each = onto_simplex(shares)
        held = each.new_zeros(*each.shape[:-1], len(bins)).index_add_(-1, place, each)
        return ((held @ most) * held).sum(-1)

    def expansion(self, tally: Tally) -> tuple[Tensor, Tensor]:
        """Of each of its answers, (*batch, a), in the channel's mean; of a ratio to second
        order.
        """
        statistic = self.statistic
        beside_forms = self.beside_forms(tally)
        n = beside_forms.users()
        z = self.channel.mean(beside_forms)
        # Of the mean over distinct pairs: s^T J s enters it n/(n - 1) times.
        users = torch.as_tensor(n, dtype=torch.float64, device=z.device)[..., None]
        more = users / (users - 1) if self.channel.distinct else torch.ones_like(users)
        slope_n = torch.as_tensor(self.slope(n), dtype=torch.float64, device=z.device)[..., None]
        factor = more * slope_n

        def slope_of(form: Form) -> Tensor:
            return factor * 2 * form.weights * z + slope_n * self._linear(form, n)

        form = statistic.form
        if statistic.denominator is None:
            slope = slope_of(form)
            bend = (factor * form.weights).expand(slope.shape).diag_embed()
        else:
            below = self.pairs_mean(beside_forms, statistic.denominator)
            ratio = self.pairs_mean(beside_forms, form) / below
            apart = form.plus(-ratio, statistic.denominator)
            slope = slope_of(apart) / below[..., None]
            own = slope_of(statistic.denominator) / below[..., None]
            cross = slope[..., :, None] * own[..., None, :]
            straight = (factor * apart.weights).expand(slope.shape).diag_embed()
            bend = straight / below[..., None, None] - (cross + cross.mT) / 2
        answers = math.prod(statistic.answer)
        lead = slope.shape[: slope.ndim - 1 - len(statistic.answer)]
        r = slope.shape[-1]
        return slope.reshape(*lead, answers, r), bend.reshape(*lead, answers, r, r)


def _warn_of_small(squared_error: Tensor) -> None:
    """Warns where the denominator's relative variance is above ``SMALL``."""
    if bool((squared_error > SMALL).any()):
        warnings.warn(
            "the denominator is less than four standard errors from 0 (one class is rare for so few users and so small "
            "an epsilon): the ratio may be far off and its standard error too low; use interval()",
            stacklevel=3,
        )


def of_population(
    given: PairwiseForms, estimate: Estimate, means: Tensor, below: Tensor
) -> Estimate:
    """The estimate for the population from which the users are an independent sample, with a wider
    standard error.

    To the variance of the noise it adds that of the users' own U-statistic, 4/n Var f_1(X) + 2/n^2
    Var f(X, Y) to first order in 1/n, f_1(x) = E f(x, Y) = <u_x, J mean u>: for the mean vector
    that the messages give, moved to the hull of the points, and the histogram of users with this
    mean vector that has the largest Var f_1 (up to 512 types; beyond, its bound (max f_1 - m)(m -
    min f_1)). Var f counts as (max f - m)(m - min f). For a ratio f is f - ratio g. means: (*batch,
    r), of the users' points; below: (*batch), a ratio's denominator, else 1. One after the other of
    a batch. Raises ValueError for Pairs.ALL, whose mean depends on n, and for several forms.
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
    variances = h.new_tensor([_sampling_variance(statistic, *row) for row in rows])
    return estimate.with_sampling(variances.view(batch) / below.square())


def _sampling_variance(statistic: PairwiseForms, h: Tensor, n: int, value: Tensor) -> Tensor:
    """Of the U-statistic of n users with the mean vector of h; of a ratio that of its form at
    ``value``.
    """
    form = statistic.form
    if statistic.denominator is not None:
        ratio = value - statistic.offset
        weights = form.weights - ratio * statistic.denominator.weights
        form = Form(weights, form.constant - float(ratio) * statistic.denominator.constant)
    kernel = statistic.kernel(form)
    first = statistic.points @ (form.weights * (h @ statistic.points)) + form.constant
    middle = h @ first
    both = (kernel.max() - middle) * (middle - kernel.min())
    return (4 * largest_variance(statistic.points, h, first) + 2 * both / n) / n


@dataclass(frozen=True)
class ConsistentPairs:
    """value (*batch) of the n users' statistic at histogram (*batch, k), h >= 0 with sum 1; NaN of
    a ratio over 0.
    """

    value: Tensor
    histogram: Tensor


def consistent(protocol: Any, tally: Tally, *, tol: float = 1e-9) -> ConsistentPairs:
    """The statistic of the histogram whose mean vector is nearest to the estimated one: it costs no
    privacy.

    With z the unbiased estimate of the users' mean vector, h = argmin over histograms of ||U^T h -
    z||, U the points; of many such h one, even over types of one vector. The value is one that n
    users can have. It is biased, whatever the protocol: no standard error comes with it. Where
    noise is large against the statistic it often has lower error than the unbiased estimate.

    protocol: one round. tally: of at least 2 users, drawn ones (*batch) too. tol: of the squared
    distance, relative to the largest squared norm of the points. Raises TypeError, ValueError.

    Guarantees: U^T h is never farther from the users' mean vector than z is, up to tol.
    Source: projection onto a convex set; Nikolov, Talwar, Zhang (2013), section 4.
    """
    analyst = getattr(protocol, "analyst", protocol)
    checks.instance("protocol", analyst, PairwiseAnalyst)
    tol = checks.positive("tol", tol)
    tally = analyst.check(tally, 2)
    statistic = one_kernel(analyst.statistic)
    h = nearest(statistic.points, analyst.mean_point(tally), tol)
    asked = statistic.approximates or statistic
    means = [asked.mean(h * tally.users(1), form) for form in asked.forms]
    if len(means) == 1:
        return ConsistentPairs(means[0], h)
    ratio = torch.where(
        means[1].abs() > 1e-13 * asked.size(asked.forms[1]), means[0] / means[1], torch.nan
    )
    return ConsistentPairs(asked.offset + ratio, h)
