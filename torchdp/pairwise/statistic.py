"""Pairwise statistics as questions: the queries of a channel, and public data to judge it by.

Notation: row x of ``points`` is u_x; f(x, y) = c + <u_x, J u_y>, J diagonal; f_1(x) = E f(x, Y).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.analyst import ChannelPairs
from torchdp.pairwise.forms import SAME, Form, Pairs, PairwiseForms, factorized, one_kernel
from torchdp.queries import LocalOracle, lower_bound
from torchdp.queries.channel import Bounded, Channel, Question, histograms_of

# Histograms of a single type that a choice is judged by.
MOST_SINGLE = 64
# Of the range of a ratio: its standard deviation when the strategy is made.
UNKNOWN = 0.2
# The mean deviation of a kernel from its means over bins, at most, as a share of its own.
ROUGH = 1 / 8
# Types up to which neighbours are merged, and into how many bins.
LARGEST_MERGED = 1024
BINS = (16, 32, 64)
# Numbers in the kernels of which it is found how far one user moves their means: 512 MiB.
LARGEST_KERNEL = 2**26


@dataclass(frozen=True)
class PairwiseStatistic(PairwiseForms, Question):
    """mean f over pairs of users, or offset + (mean f) / (mean g) where ``denominator`` g is given.

    A constant in the form costs no noise: h^T (W + c 1 1^T) h = h^T W h + c. Many kernels: forms of
    weights (*answer, r), for all of which users send one message; values are (*answer).

    Args:
        points: (k, r), float64; row x is the vector u_x that a user of type x holds.
        form: f as a quadratic form in these vectors.
        denominator: g likewise, or None.
        pairs: which pairs are averaged over.
        limits: what the statistic can be, where that is narrower than all numbers: intervals stay
            inside.
        approximates: where the form only comes near another statistic's, that one. ``exact`` and
            ``common_diagonal`` are then its own, and what an estimate misses on average counts as
            bias in every predicted error.
        likely: (j, k), public histograms for choices without a prior, or None.
    """

    def queries(self, distinct: bool) -> Tensor:
        """The points' coordinates, of ``wide`` where the channel averages over the other pairs."""
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
    def bounded(self) -> Bounded | None:
        """One user is in 2 of n pairs: D = 2 max |f(x, y) - f(x', y)|, and of all pairs no more.

        There it also moves f(x, x) by D at most, of n^2 pairs. Not known of a ratio, whose
        denominator may be small, nor of kernels that do not fit into memory.
        """
        exact = self.approximates or self
        answers = math.prod(self.answer)
        if self.denominator is not None or answers * self.types**2 > LARGEST_KERNEL:
            return None
        self.refuse_constant()
        f = exact.kernel(exact.form)
        low, high = f.aminmax(dim=-1)
        k, r = exact.points.shape

        def terms(n: Tensor) -> Tensor:
            # k products are added to r sums, whose squares are added, and n of them come off.
            return (2 * k + 2 * r + 32) * (1 + 2 / (n - 1).clamp_min(1))

        return Bounded(
            exact=self.exact,
            moved=2 * (high - low).amax(-1),
            size=exact.size(exact.form),
            terms=terms,
            limits=self.limits or (-math.inf, math.inf),
        )

    @property
    def histograms(self) -> Tensor:
        """Those that a choice without a prior tries: (3 + j, k), or (3, k) for a ratio.

        ``likely`` where it is given. Else uniform, Zipf (1/(x + 1)), Zipf from the other end and,
        unless a ratio may lose its denominator, all users of one type, for each of them, or for
        j = 64 evenly spaced ones of more.
        """
        if self.likely is not None:
            return self.likely
        k = self.types
        zipf = 1 / torch.arange(1, k + 1).to(self.points)
        zipf = zipf / zipf.sum()
        spread = torch.stack([torch.ones_like(zipf) / k, zipf, zipf.flip(0)])
        if self.denominator is not None:
            return spread
        even = torch.linspace(0, k - 1, min(k, MOST_SINGLE), dtype=torch.float64)
        single = torch.eye(k).to(self.points)[even.round().long()]
        return torch.cat([spread, single])

    def aims(self, n: int, family: Tensor | None, covariance: Tensor) -> Tensor:
        """J mean u of one user, at 4/n, and (J C J)^{1/2}, at 4/n^2.

        2 tr(J C J C)/n^2 is linear in C up to its own size.

        Without histograms the first is not known: all directions of the users' mean vector count
        the same. A ratio mean f/mean g is f - r g over mean g to first order, r the ratio at each
        histogram. What r is not known to, the denominator must be: the query 2 g h/mean g joins,
        times the deviation of r, a fifth of its range.
        """
        one_kernel(self)
        centred = self.points - self.points.mean(0)
        weights, queries = self._linearised(family, centred)
        eigenvalues, vectors = torch.linalg.eigh(covariance)
        root = (vectors * eigenvalues.clamp_min(0).sqrt()).mT * weights  # root^T root = J C J
        second_order = root @ centred.mT * math.sqrt(4 / n**2)
        return torch.cat([queries * math.sqrt(4 / n), second_order])

    def _linearised(self, family: Tensor | None, centred: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of J, (r,), and the queries J mean u of one user, (q, k).

        A ratio's at its value for each histogram.
        """
        J = self.form.weights
        g = self.denominator
        if family is None:
            if g is not None:
                raise ValueError(
                    "prior must be given for a ratio: a histogram, or a few such as "
                    "class_histograms gives"
                )
            return J, J[:, None] * centred.mT / math.sqrt(len(J)) * self.radius
        means = family @ self.points
        share = math.sqrt(len(family))
        if g is None:
            return J, (J * means) @ centred.mT / share
        above = means.square() @ J + self.form.constant
        below = means.square() @ g.weights + g.constant
        if (below.abs() <= SAME * self.size(g)).any():
            raise ValueError(
                "prior must hold histograms whose denominator is not 0: no class empty"
            )
        # A ratio of unknown range counts as one of range 1.
        low, high = self.limits or (-0.5, 0.5)
        weights = (J - (above / below)[:, None] * g.weights) / below[:, None]
        doubt = g.weights / below[:, None] * UNKNOWN * (high - low)
        directions = torch.cat([weights * means, doubt * means])
        return weights.mean(0), directions @ centred.mT / share

    def bound(self, n: int, epsilon: float, histogram: Tensor) -> float:
        """No unbiased one-round epsilon-LDP protocol has a smaller root mean squared error.

        On average over users drawn from it. What is expected of the others makes an unbiased
        estimate of the mean an unbiased answer from one user's report to the linear query 2/n f_1,
        f_1(x) = E f(x, Y) (of all pairs, 2/n ((n - 1)/n f_1(x) + f(x, x)/(2 n))), and the variances
        of n users add up to less than that of the whole. A ratio f/g counts as f - ratio g over
        mean g: to first order in 1/n. 0 where f_1 is constant: the first order then says nothing.

        Args:
            n: users, 2 at least.
            epsilon: > 0.
            histogram: of their types, (k,), non-negative.

        Raises TypeError, ValueError, also for a denominator of 0.
        Guarantees: at most the least error of a mean.
        Source: Hoeffding (1948), section 5; see ``strategy_lower_bound``.
        """
        n = checks.integer("n", n, 2)
        exact = one_kernel(self).approximates or self
        h = checks.shares("histogram", histogram, exact.types).to(exact.points)
        f = exact.kernel(exact.form)
        if exact.denominator is not None:
            ratio = exact.exact(h * n) - exact.offset
            g = exact.kernel(exact.denominator)
            f = (f - ratio * g) / exact.mean(h * n, exact.denominator)
        query = f @ h
        if exact.pairs is Pairs.ALL:
            query = (n - 1) / n * query + f.diagonal() / (2 * n)
        low, high = query.aminmax()
        if high - low <= 1e-12 * f.abs().max():
            return 0.0
        return 2 * lower_bound(query[None], n, epsilon, prior=histogram)

    def coarser(
        self, n: int, epsilon: float, family: Tensor | None, generator: torch.Generator
    ) -> Iterator[tuple[str, Any]]:
        """On 16, 32 and 64 bins, of up to 1,024 types, where the kernel varies little in a bin."""
        exact = self.approximates is None and self.pairs is Pairs.DISTINCT
        if not exact or self.types > LARGEST_MERGED:
            return
        for bins in BINS:
            if bins < self.types and self._merges(bins):
                protocol = merged(self, n, epsilon, bins, prior=family, generator=generator)
                yield f"optimised strategy, {bins} bins", protocol

    def _merges(self, bins: int) -> bool:
        """Whether the kernel's means over bins come near it, and the denominator is theirs."""
        bin_of = _bins(self, bins)
        even = _even(bin_of, bins)
        f = self.kernel(self.form)
        means = even @ f @ even.mT
        of_bins = means[bin_of[:, None], bin_of]
        missed = (f - of_bins).abs().mean()
        if missed > ROUGH * (f - f.mean()).abs().mean():
            return False
        if self.denominator is None:
            return True
        g = self.kernel(self.denominator)
        first = torch.searchsorted(bin_of, bin_of)  # type of the same bin
        difference = (g - g[first]).abs().max()
        return bool(difference <= SAME * self.size(self.denominator))


def merged(
    statistic: PairwiseStatistic,
    n: int,
    epsilon: float,
    bins: int,
    *,
    prior: Tensor | None = None,
    generator: torch.Generator,
) -> Any:
    """``LocalOracle.tuned`` on bins of neighbouring types: lower error for few users, with a bias.

    The kernel is replaced by its means over bins. Of a ratio, less its offset, bins keep a part
    that depends little on the data (the scores of two classes differ less): the rest is made up for
    by a factor, of least squares over the prior's histograms. The bias that is left counts in every
    predicted error.

    Args:
        statistic: approximates no other; a ratio's denominator is the same for all types of a bin.
        n: users.
        epsilon: > 0.
        bins: from 2 to the number of types.
        prior: public histograms, (k,) or (j, k), or None.
        generator: of the search, public.

    Raises TypeError, ValueError.
    Guarantees: epsilon-LDP for each user.
    """
    k = one_kernel(statistic).types
    if not 2 <= checks.integer("bins", bins, 2) <= k:
        raise ValueError(f"bins must be in 2..{k}, not {bins}")
    bin_of = _bins(statistic, bins)
    even = _even(bin_of, bins)
    small = _on_bins(statistic, even)
    near = replace(small, points=small.points[bin_of], approximates=statistic)
    binned = None
    if prior is not None:
        family = histograms_of(prior, k).to(statistic.points)
        binned = family @ (even > 0).double().mT
        if statistic.denominator is not None:
            kept = replace(near, approximates=None).exact(family * n) - statistic.offset
            whole = statistic.exact(family * n) - statistic.offset
            # The least squares of whole - factor kept over the prior's histograms.
            factor = float(kept @ whole / (kept @ kept)) if kept.any() else 1.0
            form = Form(factor * near.form.weights, factor * near.form.constant)
            near = replace(near, form=form)
    tuned = LocalOracle.tuned(small, n, epsilon, prior=binned, generator=generator)
    return LocalOracle.of(near, tuned.channel.client.repeated(bin_of))


def _bins(statistic: PairwiseStatistic, bins: int) -> Tensor:
    """The bin of each type, (k,), neighbours together."""
    return torch.arange(statistic.types, device=statistic.points.device) * bins // statistic.types


def _even(bin_of: Tensor, bins: int) -> Tensor:
    """What takes the mean over the types of each bin, (bins, k)."""
    labels = torch.arange(bins, device=bin_of.device)
    members = (labels[:, None] == bin_of).double()
    return members / members.sum(1, keepdim=True)


def _on_bins(statistic: PairwiseStatistic, even: Tensor) -> PairwiseStatistic:
    """The statistic of the kernels' means over bins, in as few coordinates as these need."""
    points = even @ statistic.points
    form = statistic.form
    below = statistic.denominator
    # The denominator's coordinates stay as they are; those of the form alone are factorized anew.
    alone = torch.ones_like(form.weights) > 0 if below is None else below.weights == 0
    own = points[:, alone]
    small, numerator = factorized((own * form.weights[alone]) @ own.mT)
    weights = torch.cat([numerator.weights, form.weights[~alone]])
    if below is not None:
        padded = torch.cat([torch.zeros_like(numerator.weights), below.weights[~alone]])
        below = Form(padded, below.constant)
    constant = numerator.constant + form.constant
    return replace(
        statistic,
        points=torch.cat([small, points[:, ~alone]], 1),
        form=Form(weights, constant),
        denominator=below,
        likely=None,
    )
