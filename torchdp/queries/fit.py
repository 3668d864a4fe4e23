"""Answers of a fitted histogram: biased, of a lower error; the reports say how smooth it is.

Which reports are best for it is chosen by errors simulated on a public prior, or on a public
family.

Notation: W, (m, k), the queries; h, (b, k), histograms; u, (b, m), the unbiased answers.
"""

import itertools
import math
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.protocol import Choice, Estimate, Objective, Tally, Users
from torchdp.protocol.choice import Candidate
from torchdp.protocol.records import tensor_of
from torchdp.queries.oracle import LocalOracle, OracleQueries, decoding
from torchdp.queries.protocol import Channel
from torchdp.randomizers import ShiftStrategy, StrategyMatrix
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomizers.alphabet.translates import FACTORED
from torchdp.randomness import keyed_generator

# Simulated tallies behind a predicted error.
DRAWS = 32

# Nats that a fit may lack before it warns: a histogram e^10 times as likely may be missed.
OPEN = 10.0

# Oracles of the unbiased choice that fits are tried with, and their errors over that of the best.
TRIED = 3
WORSE = 1.5

# Tallies of each public histogram, and of a prior.
FAMILY_DRAWS = 8
PRIOR_DRAWS = 64

# Relative: errors so close are the same to a simulation.
NEAR = 0.02

# Waves of a smooth histogram's logarithm, and how many times their height.
WAVES = 8
HEIGHTS = (1.0, 2.0, 3.0, 4.0)

# Shape of the gamma variables of a histogram whose users are mostly of a small number of types.
SPARSE = 0.1

TINY = 1e-300

# Weight of a fit that is left out.
NEGLIGIBLE = 1e-3

# Relative: what is added so that queries tell all of a histogram.
FAINT = 1e-6

# Of messages that say nothing: rounding must not add to epsilon.
SLACK = 1e-9

Named = tuple[str, FrequencyOracle]


@dataclass(frozen=True, eq=False)
class Fit(Estimate):
    """Answers W h of a fitted histogram h, (*batch, m): biased, of a lower error on much data.

    The standard error and the intervals are those of ``unbiased``, the unbiased estimate of the
    same tally; the value may lie outside of them. No standard error of a fit is known that holds on
    all data.

    Args:
        unbiased: the unbiased estimate.
        histogram: h, (*batch, k).
        gap: (*batch), nats: what the log likelihood of the fit without smoothing may lack.
        weights: (*batch, fits), of the fits whose mixture h is: of falling smoothness, the last but
            one without; the last the consistent answers nearest to the unbiased ones.
    """

    unbiased: Estimate = field(kw_only=True)
    histogram: Tensor = field(kw_only=True)
    gap: Tensor = field(kw_only=True)
    weights: Tensor = field(kw_only=True)

    @property
    def centre(self) -> Tensor:
        return self.unbiased.value

    def of_population(self) -> "Fit":
        """The same answers, with the errors of the unbiased estimate of the population."""
        whole = self.unbiased.of_population()
        return replace(
            self,
            unbiased=whole,
            standard_error=whole.standard_error,
            error=whole.error,
            sampled=whole.sampled,
            covariance=whole.covariance,
        )


def fitted(protocol: Channel, tally: Tally, *, ordered: bool = True) -> Fit:
    """The histogram that makes the reports likely, and smooth where they do not say otherwise.

    No privacy is spent. Where the chance of each message is known (strategies, randomized and
    Hadamard response) fits by EM at thirteen strengths of smoothing, from even shares to none; of
    all reports but a strategy's, projections onto the histograms in the metric of the noise, with a
    penalty on second differences. The answer is their mixture with Akaike's weights, softmax of
    -R/2 for R the estimated risk for these users in units of the noise (Mallows). Fits whose R is
    above that of the unbiased histogram have none, and the consistent answers nearest to the
    unbiased ones have the weight of that R. In the mean over the queries the mixture then gives way
    to them up to the least estimated risk (Stein: squared distance to the unbiased answers, plus
    twice the covariance with them, less their variance). Where messages are expected less than once
    a single report brings in a type that was absent; the degrees of freedom and the covariance
    count such types. Exact reports are the fit.

    On 18 histograms of 32 ordered types (ten shapes, six real columns, all users of one type,
    sparse bits), six kinds of report, epsilon .5 to 12, 30 to 1e6 users, its error over that of
    the unbiased answers is .27 to 1.00 in geometric mean of the histograms. Its squared error is
    above theirs by more than two standard errors of twelve trials in 18 of 3,456 cells, and at most
    1.35 times (standard error .17; bits of 30 users at epsilon 10). Over the best single column
    (unbiased, consistent, without smoothing) for these reports, its error is .81 to 1.01 in
    geometric mean and 1.63 times on the worst histogram (a strategy, epsilon 6, 3e4 users)
    (``experiments/queries/fitted.py``, ``fitted.csv``).

    Args:
        protocol: for linear queries, local or central.
        tally: of its messages, with any leading dimensions.
        ordered: whether neighbouring types are alike; if not, the fit without smoothing.

    Warns where the fit without smoothing may lack more than 10 nats of the largest log likelihood
    (``gap``). Raises TypeError, ValueError.

    Guarantees: the protocol's: post-processing.
    Source: Silverman, Jones, Wilson, Nychka (1990); Akaike (1974); Mallows (1973); Stein (1981);
    Li, Wang, Lopuhaa-Zwakenberg, Li, Skoric (2020).
    """
    checks.instance("protocol", protocol, Channel)
    checks.instance("ordered", ordered, bool)
    fit = _fitted(protocol, tally, ordered)
    gap = float(fit.gap.amax()) if fit.gap.numel() else 0.0
    if gap > OPEN:
        warnings.warn(
            f"the fit was stopped: a histogram may be likelier by {gap:.3g} nats (gap); ask for "
            "fewer types",
            stacklevel=2,
        )
    return fit


def _fitted(protocol: Channel, tally: Tally, ordered: bool) -> Fit:
    """``fitted`` of checked arguments, without a warning."""
    tally = protocol.whole(tally)
    unbiased = protocol.analyse(tally)
    W = protocol.workload
    m, k = W.shape
    batch = unbiased.value.shape[:-1]
    fits, scores, covariances, gap = protocol.fits(protocol.flat(tally, batch), ordered and k > 2)
    # Until these are needed the fit without smoothing stands for the consistent answers.
    fits = torch.cat([fits, fits[-1:]])
    u = unbiased.value.reshape(-1, m)
    weights = _akaike_weights(scores)

    # The risk of a mixture v is estimated as |v - u|^2 + 2 tr Cov(v, u) - tr Cov u: that of
    # a v + (1 - a) u is least at this a.
    variance = unbiased.standard_error.reshape(-1, m).square().sum(-1)
    covariance = (weights[:-1] * covariances).sum(0) + weights[-1] * variance
    mixed = (weights[..., None] * fits).sum(0)
    distance = (mixed @ W.mT - u).square().sum(-1)
    kept = ((variance - covariance) / distance.clamp_min(TINY)).clamp(0, 1)
    weights = weights * kept
    weights[-1] += 1 - kept

    used = weights[-1] > 0
    if used.any():
        fits[-1, used] = _consistent(W, u[used], fits[-1, used])
    h = (weights[..., None] * fits).sum(0).view(*batch, k)
    own = {each.name: getattr(unbiased, each.name) for each in fields(Estimate)}
    own["value"] = h @ W.mT
    return Fit(
        **own,
        unbiased=unbiased,
        histogram=h,
        gap=gap.view(batch),
        weights=weights.mT.reshape(*batch, len(weights)),
    )


def _akaike_weights(scores: Tensor) -> Tensor:
    """Of fits of these scores, (fits, b), and of the unbiased answers, of score 0: (fits + 1, b).

    What is estimated to be worse than the unbiased answers has no weight.
    """
    advantages = scores.masked_fill(scores < 0, -torch.inf)
    weights = torch.softmax(torch.cat([advantages, torch.zeros_like(scores[:1])]), 0)
    weights = weights * (weights > NEGLIGIBLE)
    return weights / weights.sum(0)


def _consistent(W: Tensor, value: Tensor, near: Tensor) -> Tensor:
    """The histograms (b, k) whose answers are nearest to these, (b, m).

    Of those with the same answers nearest to ``near``. Their answers are nearer to those of any
    histogram than ``value`` is, in the sum of squares.
    """
    centred = W - W.mean(1, keepdim=True)
    gram = centred.mT @ centred
    scale = gram.diagonal().amax()
    pull = (value - W.mean(1)) @ centred + FAINT * scale * near
    ridge = FAINT * scale * torch.eye(len(gram)).to(gram)
    h, _ = nearest_histogram(gram + ridge, pull, float(FAINT**2 * scale))
    return h


@dataclass(frozen=True, eq=False)
class FittedOracle(OracleQueries):
    """Each user reports its type through a frequency oracle; answers are :func:`fitted`.

    An estimate is a :class:`Fit`: its value is fitted, its standard error and intervals are those
    of the unbiased estimate that it holds. ``predicted_mse`` is simulated; ``worst_mse`` is proved,
    and wide: the fit is a histogram.

    workload: (m, k) or a :class:`~torchdp.workloads.Workload`; client: an oracle on the same k
    types; ordered: whether neighbouring types are alike. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: see :func:`fitted`.
    """

    ordered: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.instance("ordered", self.ordered, bool)
        # Refuses queries that the client's reports can not answer.
        checks.validated(self, "unbiased")

    @cached_property
    def unbiased(self) -> LocalOracle:
        """The protocol of the unbiased answers from the same reports."""
        return decoding(self.workload, self.client)

    def analyse(self, tally: Tally) -> Fit:
        return fitted(self.unbiased, tally, ordered=self.ordered)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """A bound, whatever n: the answers of two histograms to a query differ by its range."""
        ranges = self.workload.amax(1) - self.workload.amin(1)
        return objective.of(ranges.square()).expand(tensor_of(n).shape)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Of each query, (*batch, m), in ``DRAWS`` simulated tallies of the nearest whole counts.

        Its own relative standard error is about (2/DRAWS)^(1/2). Raises TypeError, ValueError.
        """
        return self.simulated(summary, DRAWS)

    def simulated(self, summary: Tensor, times: int) -> Tensor:
        """``predicted_mse`` by so many tallies of each, always the same ones.

        Raises TypeError, ValueError.
        """
        h, n = self._shares(summary)
        users = n.reshape(-1, 1).round().clamp_min(1)
        counts = whole(h.reshape(-1, h.shape[-1]), users)
        mse = self.workload.new_empty(len(counts), len(self.workload))
        for total in users.unique():
            rows = users[:, 0] == total
            same = counts[rows]
            drawn = [self._drawn(one, times) for one in same]
            tally = Tally(int(total), {"reports": torch.stack(drawn)})
            value = _fitted(self.unbiased, tally, self.ordered).value  # (same, times, m)
            truth = (same / total) @ self.workload.mT
            error = value - truth[:, None]
            mse[rows] = error.square().mean(1)
        return mse.view(*h.shape[:-1], -1)

    def _drawn(self, counts: Tensor, times: int) -> Tensor:
        """Reports of users (k,) of so many tallies, (times, outputs)."""
        generator = keyed_generator(b"fits", counts.device)
        return self.sample_tally(counts, generator=generator, sample_shape=(times,))["reports"]


def whole(h: Tensor, n: Tensor) -> Tensor:
    """The whole numbers nearest to h n that sum to n, (b, k). n: (b, 1)."""
    counts = (h * n).floor()
    missing = n - counts.sum(-1, keepdim=True)
    # The largest fractions are rounded up.
    rank = (h * n - counts).argsort(-1, descending=True).argsort(-1)
    return (counts + (rank < missing)).long()


def fitted_choice(
    choice: Choice[Channel], n: int, objective: Objective, prior: Tensor | None, ordered: bool
) -> Choice[Channel]:
    """The oracles of an unbiased choice, and others that are meant for fits, by fitted errors."""
    oracles = [one for one in choice.candidates if isinstance(one.protocol, OracleQueries)]
    if not oracles:  # one type
        return choice
    W = oracles[0].protocol.workload
    usual = []
    for one in oracles[:TRIED]:
        if isinstance(one.protocol, OracleQueries) and one.error <= WORSE * oracles[0].error:
            usual.append((one.name, one.protocol.client))
    k = W.shape[1]
    meant = []
    if ordered and k > 2:
        meant = _meant(W, n, usual[0][1].epsilon)
    if prior is None:
        histograms = family(k, W.device)
        draws = FAMILY_DRAWS
    else:
        histograms = prior[None]
        draws = PRIOR_DRAWS
    candidates = []
    for name, client in [*usual, *meant, *_halved(usual, meant)]:
        protocol = FittedOracle(W, client, ordered)
        mses = protocol.simulated(n * histograms, draws)
        errors = [math.sqrt(float(objective.of(mse))) for mse in mses]
        # The geometric mean: on some histograms errors are many times those on others.
        logs = [math.log(max(error, TINY)) for error in errors]
        note = f"{min(errors):.4g} to {max(errors):.4g}"
        candidates.append(Candidate(name, protocol, math.exp(sum(logs) / len(logs)), note))
    return Choice(tuple(candidates), choice.bound, NEAR)


def _meant(W: Tensor, n: int, epsilon: float) -> list[Named]:
    """The square wave, and shifts of least posterior variance under a rough prior."""
    k = W.shape[1]
    clients: list[Named] = []
    if SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        with suppress(ValueError):  # these reports can not tell all types from another
            clients.append(("square wave", ShiftStrategy.square_wave(k, epsilon)))
    if clients and k <= FACTORED:
        with suppress(ValueError):
            generator = keyed_generator(b"fitted", W.device)
            tuned = ShiftStrategy.tuned(W, epsilon, generator=generator, users=n)
            clients.append(("shift strategy for fits", tuned))
    return clients


def _halved(usual: list[Named], meant: list[Named]) -> list[Named]:
    """Half of the messages by the best oracle whose messages are listed, half by the square wave.

    A hedge. Fisher informations add up: on every shape its error is near the lower of the two, at
    most 2^(1/2) times that.
    """
    for (name, one), (other, two) in itertools.product(usual, meant):
        if one.k <= FACTORED and one.entry_variance is None:
            types = torch.arange(one.k, device=one.device)
            Q = torch.cat([one.laws(types), two.laws(types)], 1).mT / 2
            halves = StrategyMatrix((1 - SLACK) * Q + SLACK / len(Q))
            return [(f"{name} or {other}", halves)]
    return []


def family(k: int, device: torch.device) -> Tensor:
    """Eight public histograms of k ordered types, (8, k): smooth, sparse, and one of each kind."""
    generator = keyed_generator(b"histograms", device)
    place = (torch.arange(k, dtype=torch.float64, device=device) + 0.5) / k
    waves = torch.arange(1, WAVES + 1).to(place)
    normals = torch.randn(4, WAVES, dtype=torch.float64, device=device, generator=generator)
    cosines = torch.cos(torch.pi * waves[:, None] * place)
    size = place.new_tensor(HEIGHTS)[:, None]
    smooth = torch.softmax(size * (normals / waves) @ cosines, -1)
    # U^(1/shape) is in distribution a gamma variable of a small shape, but for its scale.
    uniform = torch.rand(3, k, dtype=torch.float64, device=device, generator=generator)
    steep = uniform ** (1 / SPARSE)
    sparse = steep / steep.sum(-1, keepdim=True)
    return torch.cat([smooth, sparse, (smooth[-1:] + sparse[:1]) / 2])
