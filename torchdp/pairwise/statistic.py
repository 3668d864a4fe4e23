"""Pairwise statistics as questions: what a channel is asked for them, and by what data channels are
judged.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.analyst import ChannelPairs
from torchdp.pairwise.forms import Form, Pairs, PairwiseForms, factorized, one_kernel
from torchdp.queries import LocalOracle
from torchdp.queries.channel import Channel, Question, histograms_of
from torchdp.randomizers import strategy_lower_bound

MOST_SINGLE = 64  # histograms of a single type that a choice is judged by
LEAST = 1e-6  # an epsilon whose bound holds for less too
MOST = 700.0  # an epsilon beyond which the bound is put at 0
UNKNOWN = 0.2  # of the range of a ratio: how little it is known when the strategy is made
# the mean deviation of a kernel from its means over bins, at most, as a share of its own
ROUGH = 1 / 8
LARGEST_MERGED = 1024  # types up to which neighbours are merged
BINS = (16, 32, 64)


@dataclass(frozen=True)
class PairwiseStatistic(PairwiseForms, Question):
    """mean f over pairs of users, or offset + (mean f) / (mean g) where ``denominator`` g is given.

    points: (k, r), float64; row x is the vector u_x that a user of type x holds, and all that a
    user needs. form, denominator: f and g as quadratic forms in these vectors. pairs: which pairs
    are averaged over. A constant in the form costs no noise: h^T (W + c 1 1^T) h = h^T W h + c.
    Many kernels: forms of weights (*answer, r), for all of which users send one message; values are
    (*answer). limits: what the statistic can be, where that is narrower than all numbers: intervals
    stay inside. approximates: where the form only comes near another statistic's, that one.
    ``exact`` and ``common_diagonal`` are then its own, and what an estimate misses on average
    counts as bias in every predicted error. likely: (j, k), public histograms, or None: used by
    choices where no prior is given.
    """

    def queries(self, distinct: bool) -> Tensor:
        """The points' coordinates, those of ``wide`` where the channel averages over the other
        pairs.
        """
        self.refuse_constant()
        return self._read(distinct).points.mT.contiguous()

    @property
    def fewest(self) -> int:
        return 2

    def analyst(self, channel: Channel) -> ChannelPairs:
        return ChannelPairs(self._read(channel.distinct), channel)

    def _read(self, distinct: bool) -> "PairwiseStatistic":
        return self if distinct is (self.pairs is Pairs.DISTINCT) else self.wide

    @property
    def histograms(self) -> Tensor:
        """Those that a choice without a prior tries: the statistic's own, or (3 + j, k), or (3, k)
        for a ratio.

        Uniform, Zipf (1/(x + 1)), Zipf from the other end and, unless a ratio may lose its
        denominator, all users of one type, for each of them, or for j = 64 evenly spaced ones of
        more.
        """
        if self.likely is not None:
            return self.likely
        k = self.types
        zipf = 1 / torch.arange(1, k + 1, dtype=torch.float64).to(self.points)
        spread = torch.stack(
            [torch.ones_like(zipf) / k, zipf / zipf.sum(), (zipf / zipf.sum()).flip(0)]
        )
        if self.denominator is not None:
            return spread
        even = torch.linspace(0, k - 1, min(k, MOST_SINGLE), dtype=torch.float64)
        some = even.to(self.points).round().long()
        return torch.cat([spread, torch.eye(k).to(self.points)[some]])

    def aims(self, n: int, family: Tensor | None, covariance: Tensor) -> Tensor:
        """J mean u of one user, at 4/n, and (J C J)^{1/2}, at 4/n^2.

        2 tr(J C J C)/n^2 is linear in C up to its own size.

        Without histograms the first is not known: all directions of the users' mean vector alike. A
        ratio mean f/mean g is f - r g over mean g to first order, r the ratio at each histogram.
        What r is not known to, the denominator must be: the query 2 g h/mean g joins, times the
        deviation of r, a fifth of its range.
        """
        forms = one_kernel(self)
        centred = self.points - self.points.mean(0)
        weights, queries = forms._linearised(family, centred)
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp_min(0).sqrt()).mT * weights  # root^T root = J C J
        return torch.cat([queries * math.sqrt(4 / n), root @ centred.mT * math.sqrt(4 / n**2)])

    def _linearised(self, family: Tensor | None, centred: Tensor) -> tuple[Tensor, Tensor]:
        """(weights of J, (r,); the queries J mean u of one user, (q, k)): a ratio's at its value
        for each histogram.
        """
        form = self.form
        below = self.denominator
        if family is None:
            if below is not None:
                raise ValueError(
                    "prior must be given for a ratio: a histogram, or a few such as class_histograms gives"
                )
            queries = form.weights[:, None] * centred.mT / math.sqrt(len(form.weights))
            return form.weights, queries * self.points.norm(dim=1).max()
        means = family @ self.points
        if below is None:
            return form.weights, (form.weights * means) @ centred.mT / math.sqrt(len(family))
        above = means.square() @ form.weights + form.constant
        size = means.square() @ below.weights + below.constant
        if bool((size.abs() <= 1e-9 * self.size(below)).any()):
            raise ValueError(
                "prior must hold histograms whose denominator is not 0: no class empty"
            )
        low, high = self.limits or (-0.5, 0.5)
        weights = (form.weights - (above / size)[:, None] * below.weights) / size[:, None]
        doubt = below.weights / size[:, None] * UNKNOWN * (high - low)
        queries = torch.cat([weights * means, doubt * means]) @ centred.mT / math.sqrt(len(family))
        return weights.mean(0), queries

    def bound(self, n: int, epsilon: float, histogram: Tensor) -> float:
        """No unbiased one-round epsilon-LDP protocol has a smaller root mean squared error on such
        data of n users.

        On average over users drawn from it. What is expected of the others makes an unbiased
        estimate of the mean an unbiased answer from one user's report to the linear query 2/n f_1,
        f_1(x) = E f(x, Y) (of all pairs, 2/n ((n - 1)/n f_1(x) + f(x, x)/(2 n))), and the variances
        of n users add up to less than that of the whole. A ratio f/g counts as f - ratio g over
        mean g: to first order in 1/n. 0 where f_1 is constant: the first order then says nothing.
        histogram: (k,), non-negative. Raises TypeError, ValueError, also for a denominator of 0.

        Guarantees: at most the least error of a mean.
        Source: Hoeffding (1948), section 5; see ``strategy_lower_bound``.
        """
        n = checks.integer("n", n, 2)
        epsilon = max(checks.positive("epsilon", epsilon), LEAST)
        asked = one_kernel(self).approximates or self
        h = checks.shares("histogram", histogram, asked.types).to(asked.points)
        kernel = asked.kernel(asked.form)
        if asked.denominator is not None:
            ratio = asked.exact(h * n) - asked.offset
            below = asked.kernel(asked.denominator)
            kernel = (kernel - ratio * below) / asked.mean(h * n, asked.denominator)
        query = kernel @ h
        if asked.pairs is Pairs.ALL:
            query = (n - 1) / n * query + kernel.diagonal() / (2 * n)
        if epsilon > MOST or float(query.max() - query.min()) <= 1e-12 * float(kernel.abs().max()):
            return 0.0
        return math.sqrt(4 * strategy_lower_bound(query[None], epsilon, h, program=False) / n)

    def coarser(
        self, n: int, epsilon: float, family: Tensor | None, generator: torch.Generator
    ) -> Iterator[tuple[str, Any]]:
        """On 16, 32 and 64 bins, of up to 1,024 types, where neighbours are alike."""
        if (
            self.types > LARGEST_MERGED
            or self.approximates is not None
            or self.pairs is not Pairs.DISTINCT
        ):
            return
        for bins in BINS:
            if bins < self.types and self._merges(bins):
                found = merged(self, n, epsilon, bins, prior=family, generator=generator)
                yield f"optimised strategy, {bins} bins", found

    def _merges(self, bins: int) -> bool:
        """Whether neighbours are alike: the kernel's means over bins come near it, the denominator
        is theirs.
        """
        place = torch.arange(self.types, device=self.points.device) * bins // self.types
        first = torch.searchsorted(place, place)
        sizes = torch.bincount(place)
        kernel = self.kernel(self.form)
        sums = kernel.new_zeros(bins, bins).index_put_(
            (place[:, None], place), kernel, accumulate=True
        )
        means = sums / sizes / sizes[:, None]
        missed = (kernel - means[place[:, None], place]).abs().mean()
        if bool(missed > ROUGH * (kernel - kernel.mean()).abs().mean()):
            return False
        if self.denominator is None:
            return True
        below = self.kernel(self.denominator)
        return bool((below - below[first]).abs().max() <= 1e-9 * self.size(self.denominator))


def merged(
    statistic: PairwiseStatistic,
    n: int,
    epsilon: float,
    bins: int,
    *,
    prior: Tensor | None = None,
    generator: torch.Generator,
) -> Any:
    """``LocalOracle.tuned`` on so many bins of neighbouring types, by the kernel's means over them:
    less noise, a bias.

    Of a ratio, less its offset, bins keep a part that depends little on the data
    (the scores of two classes differ less): the rest is made up for by a factor, of least squares
    over the prior's histograms. The bias that is left counts in every predicted error. statistic:
    approximates no other; a ratio's denominator must be the same for all types of a bin. bins: from
    2 to types. Raises TypeError, ValueError.
    Guarantees: epsilon-LDP for each user.
    """
    k = one_kernel(statistic).types
    if not 2 <= checks.integer("bins", bins, 2) <= k:
        raise ValueError(f"bins must be in 2..{k}, not {bins}")
    place = torch.arange(k, device=statistic.points.device) * bins // k
    held = (torch.arange(bins, device=place.device)[:, None] == place).double()
    even = held / held.sum(1, keepdim=True)
    small = _fewer(statistic, even)
    near = replace(small, points=small.points[place], approximates=statistic)
    family = None if prior is None else histograms_of(prior, k).to(statistic.points)
    law = None if family is None else family @ held.mT
    if family is not None and statistic.denominator is not None:
        kept = replace(near, approximates=None).exact(family * n) - statistic.offset
        whole = statistic.exact(family * n) - statistic.offset
        factor = float(kept @ whole / (kept @ kept)) if bool(kept.any()) else 1.0
        near = replace(near, form=Form(factor * near.form.weights, factor * near.form.constant))
    found = LocalOracle.tuned(small, n, epsilon, prior=law, generator=generator)
    return LocalOracle.of(near, found.channel.client.repeated(place))


def _fewer(statistic: PairwiseStatistic, even: Tensor) -> PairwiseStatistic:
    """The statistic on bins, even (bins, types): the kernels' means over them, in as many
    coordinates as it takes.
    """
    points = even @ statistic.points
    form = statistic.form
    below = statistic.denominator
    # the form's alone
    own = torch.ones_like(form.weights) > 0 if below is None else below.weights == 0
    small, alone = factorized((points[:, own] * form.weights[own]) @ points[:, own].mT)
    weights = torch.cat([alone.weights, form.weights[~own]])
    if below is not None:
        below = Form(
            torch.cat([torch.zeros_like(alone.weights), below.weights[~own]]), below.constant
        )
    return replace(
        statistic,
        points=torch.cat([small, points[:, ~own]], 1),
        form=Form(weights, alone.constant + form.constant),
        denominator=below,
        likely=None,
    )
