"""Which protocol answers a pairwise statistic best: each candidate's predicted error, and a lower bound for all."""

import math
import warnings
from statistics import fmean

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.messages import OneMessage, TwoMessage
from torchdp.pairwise.protocol import PairwiseProtocol
from torchdp.pairwise.reports import PairReports, merges
from torchdp.pairwise.rounds import ProjectedTwoRound, TwoRound
from torchdp.pairwise.standard import from_kernel
from torchdp.pairwise.statistic import Pairs, PairwiseStatistic, histograms_of, one_kernel
from torchdp.protocol import Choice
from torchdp.protocol.choice import Candidate
from torchdp.randomizers import (
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
    base,
    strategy_lower_bound,
)
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread
from torchdp.workloads import Workload

LARGEST_STRATEGY = 64  # types up to which a strategy is optimised (seconds)
LARGEST_MERGED = 1024  # types up to which neighbours are merged
BINS = (16, 32, 64)
REPORTS = {
    "randomized response": RandomizedResponse,
    "SubsetSelection pairs": SubsetSelection,
    "OptimizedUnaryEncoding pairs": OptimizedUnaryEncoding,
    "SymmetricUnaryEncoding pairs": SymmetricUnaryEncoding,
}
MOST_SINGLE = 64  # histograms of a single type that a choice is judged by
LEAST, MOST = 1e-6, 700.0  # a bound for the one holds for less; beyond the other it is put at 0


@one_thread
def choose(
    statistic: PairwiseStatistic | Tensor | Workload,
    n: int,
    epsilon: float,
    *,
    prior: Tensor | None = None,
    rounds: int = 1,
    search: bool = True,
) -> Choice[PairwiseProtocol]:
    """The protocol of least predicted error for n users, among all of this package's with at most ``rounds`` rounds.

    Candidates: two messages and one, where the kernel's diagonal allows it; randomized response, subset selection,
    OUE and SUE; a strategy matrix optimised for the statistic (up to 64 types, on 16, 32 and 64 bins of up to 1,024);
    with rounds = 2, two rounds, with projection and without (means).
    ``predicted_mse`` decides, with bias.

    statistic: or a symmetric kernel, (k, k), for distinct pairs. prior: (k,), a public histogram that the users' is
    like, or a few, (j, k); None: the :func:`histograms`. The error is the root of the mean over them of the squared
    error: on some data it is larger. rounds: 1, or 2 where users can be asked once more after the first round's sums
    are published. search: False leaves out the candidate that takes seconds, the strategy.
    Raises TypeError, ValueError.

    Guarantees: the best's own; nothing is read from data.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), on choosing by predicted variance.
    """
    if isinstance(statistic, Tensor | Workload):
        statistic = from_kernel(statistic)
    if not isinstance(statistic, PairwiseStatistic):
        kinds = "a PairwiseStatistic, such as pairwise.gini(16), or a symmetric kernel, a torch.Tensor or Workload"
        raise TypeError(f"statistic must be {kinds}, not {type(statistic).__name__}")
    n = checks.integer("n", n, 2)
    # one message takes the whole epsilon, each of two messages half of it
    epsilon = checks.within("epsilon", epsilon, 2 * base.SMALLEST_EPSILON, base.LARGEST_EPSILON)
    statistic = one_kernel(statistic)
    if checks.integer("rounds", rounds, 1) > 2:
        raise ValueError(f"rounds must be 1 or 2, not {rounds}; a third gains nothing over two")
    family = histograms_of(prior, statistic.points)
    judged = histograms(statistic) if family is None else family
    answered = _answered(statistic)
    protocols = _messages(statistic, epsilon)
    if Pairs.DISTINCT in answered:
        protocols += [(name, PairReports(statistic, epsilon, oracle)) for name, oracle in REPORTS.items()]
    if statistic.denominator is None and rounds == 2:
        protocols += _two_rounds(statistic, n, epsilon, None if family is None else family.mean(0))
    varies = bool((statistic.points != statistic.points[:1]).any())
    if search and varies and Pairs.DISTINCT in answered and SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        protocols += _strategies(statistic, n, epsilon, judged)
    with warnings.catch_warnings():
        if prior is None:
            warnings.simplefilter("ignore")  # of classes that are rare in a histogram that nobody named
        candidates = [
            Candidate(name, protocol, math.sqrt(fmean(float(protocol.predicted_mse(each * n)) for each in judged)))
            for name, protocol in protocols
        ]
    least = math.sqrt(fmean(lower_bound(statistic, n, epsilon, h) ** 2 for h in judged)) if rounds == 1 else None
    return Choice(tuple(candidates), least)


def _two_rounds(
    statistic: PairwiseStatistic, n: int, epsilon: float, h: Tensor | None
) -> list[tuple[str, PairwiseProtocol]]:
    """For means, where the kernel's diagonal allows it."""
    if Pairs.ALL not in _answered(statistic) or not 3 * SMALLEST_EPSILON < epsilon < LARGEST_EPSILON:
        return []
    return [
        ("two rounds", TwoRound.tuned(statistic, n, epsilon, prior=h)),
        ("two rounds, projected", ProjectedTwoRound.tuned(statistic, n, epsilon)),
    ]


def _strategies(
    statistic: PairwiseStatistic, n: int, epsilon: float, judged: Tensor
) -> list[tuple[str, PairwiseProtocol]]:
    """Optimised for the histograms by which all are judged: on the types, or on bins of very many."""
    generator = keyed_generator(b"choose", judged.device)
    if statistic.types <= LARGEST_STRATEGY:
        found = PairReports.tuned(statistic, n, epsilon, prior=judged, generator=generator)
        return [("optimised strategy", found)]
    if statistic.types > LARGEST_MERGED or statistic.approximates is not None:
        return []
    bins = [bins for bins in BINS if bins < statistic.types and merges(statistic, bins)]

    def on(bins: int) -> PairReports:
        return PairReports.merged(statistic, n, epsilon, bins, prior=judged, generator=generator)

    return [(f"optimised strategy, {bins} bins", on(bins)) for bins in bins]


def histograms(statistic: PairwiseStatistic) -> Tensor:
    """The histograms that a choice without a prior tries: the statistic's own, or (3 + j, k), or (3, k) for a ratio.

    Uniform, Zipf (1/(x + 1)), Zipf from the other end and, unless a ratio may lose its denominator, all users of one
    type, for each of them, or for j = 64 evenly spaced ones of more.
    """
    k, device = one_kernel(statistic).types, statistic.points.device
    if statistic.likely is not None:
        return statistic.likely
    zipf = 1 / torch.arange(1, k + 1, dtype=torch.float64, device=device)
    spread = torch.stack([torch.ones_like(zipf) / k, zipf / zipf.sum(), (zipf / zipf.sum()).flip(0)])
    if statistic.denominator is not None:
        return spread
    some = torch.linspace(0, k - 1, min(k, MOST_SINGLE), dtype=torch.float64, device=device).round().long()
    return torch.cat([spread, torch.eye(k, dtype=torch.float64, device=device)[some]])


def _messages(statistic: PairwiseStatistic, epsilon: float) -> list[tuple[str, PairwiseProtocol]]:
    """Those whose distribution is drawn without messages first: they are taken where errors are equal."""
    if Pairs.ALL not in _answered(statistic):
        return []
    found: list[tuple[str, PairwiseProtocol]] = [("two messages", TwoMessage(statistic, epsilon))]
    found.append(("one message", OneMessage(statistic, epsilon)))
    return found


def _answered(statistic: PairwiseStatistic) -> tuple[Pairs, ...]:
    """The kinds of pairs that the analyst may average over: the statistic's own alone where its diagonal varies."""
    try:
        for form in statistic.forms:
            statistic.common_diagonal(form)
    except ValueError:
        return (statistic.pairs,)
    return tuple(Pairs)


def lower_bound(statistic: PairwiseStatistic, n: int, epsilon: float, histogram: Tensor) -> float:
    """No unbiased one-round epsilon-LDP protocol has a smaller root mean squared error over n users of ``histogram``.

    On average over users drawn from it. What is expected of the others makes an unbiased estimate of the mean an
    unbiased answer from one user's report to the linear query 2/n f_1, f_1(x) = E f(x, Y) (of all pairs, 2/n ((n - 1)/n
    f_1(x) + f(x, x)/(2 n))), and the variances of n users add up to less than that of the whole. A ratio f/g counts as
    f - ratio g over mean g: to first order in 1/n. 0 where f_1 is constant: the first order then says nothing.
    histogram: (k,), non-negative. Raises TypeError, ValueError, also for a denominator of 0.

    Guarantees: at most the least error of a mean.
    Source: Hoeffding (1948), section 5; see ``strategy_lower_bound``.
    """
    n = checks.integer("n", n, 2)
    epsilon = max(checks.positive("epsilon", epsilon), LEAST)
    asked = one_kernel(statistic).approximates or statistic
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
