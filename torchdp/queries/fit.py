"""Answers of a fitted histogram: the reports' own likelihood, smoothed as much as they ask for.
Biased, lower error.

Which reports are best for it is chosen by errors simulated on a public prior, or on a public
family.
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

DRAWS = 32  # simulated tallies behind a predicted error
# nats that a fit may lack before it warns: a histogram e^10 times as likely may be missed
OPEN = 10.0
# oracles of the unbiased choice, and their errors over that of the best oracle
TRIED, WORSE = 3, 1.5
FAMILY_DRAWS = 8  # tallies of each public histogram
PRIOR_DRAWS = 64  # of a prior
NEAR = 0.02  # errors that are alike
WAVES = 8  # of a smooth histogram's logarithm
FEW = 0.1  # shape of the gamma variables of a histogram of few frequent types
TINY = 1e-300
NEGLIGIBLE = 1e-3  # weight of a fit
FAINT = 1e-6  # of what queries do not tell, relative
SLACK = 1e-9  # of messages that say nothing
Named = tuple[str, FrequencyOracle]


@dataclass(frozen=True, eq=False)
class Fit(Estimate):
    """Answers W h of a fitted histogram h: value (*batch, m), biased, of a lower error on much
    data.

    The standard error and the intervals are those of ``unbiased``, the unbiased estimate of the
    same tally; the value may lie outside of them. No standard error of a fit is known that holds on
    all data.

    histogram: (*batch, k). gap (*batch), nats: what the log likelihood of the fit without smoothing
    may lack. weights (*batch, fits): of the fits whose mixture h is: of falling smoothness, the
    last but one without; the last the consistent answers nearest to the unbiased ones.
    """

    unbiased: Estimate = field(kw_only=True)
    histogram: Tensor = field(kw_only=True)
    gap: Tensor = field(kw_only=True)
    weights: Tensor = field(kw_only=True)

    @property
    def centre(self) -> Tensor:
        return self.unbiased.value

    def of_population(self) -> "Fit":
        """The same answers, with the errors and intervals of the unbiased estimate of the
        population.
        """
        whole = self.unbiased.of_population()
        own = {
            name: getattr(whole, name)
            for name in ("standard_error", "error", "sampled", "covariance")
        }
        return replace(self, unbiased=whole, **own)


def fitted(protocol: Channel, tally: Tally, *, ordered: bool = True) -> Fit:
    """The histogram that makes the reports likely, and smooth where they do not say otherwise: no
    privacy is spent.

    Where the chance of each message is known (strategies, randomized and Hadamard response) fits by
    EM at thirteen strengths of smoothing, from even shares to none; of all reports but a
    strategy's, projections onto the histograms in the metric of the noise, with a penalty on second
    differences. The answer is their mixture with Akaike's weights, softmax of -R/2 for R the
    estimated risk for these users in units of the noise (Mallows). Fits whose R is above that of
    the unbiased histogram have none, and the consistent answers nearest to the unbiased ones have
    the weight of that R. In the mean over the queries the mixture then gives way to them as far as
    its own estimated risk (Stein: squared distance to the unbiased answers, plus twice the
    covariance with them, put at its degrees of freedom, less their variance) is above theirs: exact
    reports are the fit.

    On ten shapes of 32 ordered types, four kinds of report, epsilon .5 to 8, 1e3 and 1e5 users, its
    error over that of the unbiased answers is .33 to 1.01 in geometric mean of the shapes, on the
    worst shape 1.19 up to epsilon 4 and 1.14 at 8; over the best of three columns
    (unbiased, consistent, without smoothing) .75 to 1.03, on the worst shape 1.75
    (``experiments/queries/fitted.py``, ``fitted.csv``).

    Args:
        protocol: for linear queries, local or central.
        tally: of its messages, with any leading dimensions.
        ordered: whether neighbouring types are alike; if not, the fit without smoothing.

    Warns where the fit without smoothing may lack more than 10 nats of the largest log likelihood
    (``gap``). Raises TypeError, ValueError.

    Guarantees: the protocol's: post-processing.
    Source: Silverman, Jones, Wilson, Nychka (1990); Akaike (1974); Mallows (1973); Stein (1981);
    Li, Wang,
        Lopuhaa-Zwakenberg, Li, Skoric (2020).
    """
    found = _fitted(protocol, tally, ordered)
    if bool((found.gap > OPEN).any()):
        lack = float(found.gap.max())
        warnings.warn(
            f"the fit was stopped: a histogram may be likelier by {lack:.3g} nats (gap); ask for fewer types",
            stacklevel=2,
        )
    return found


def _fitted(protocol: Channel, tally: Tally, ordered: bool) -> Fit:
    checks.instance("protocol", protocol, Channel)
    checks.instance("ordered", ordered, bool)
    unbiased = protocol.analyse(tally)
    batch, k = unbiased.value.shape[:-1], protocol.workload.shape[1]
    fits, score, freedoms, gap = protocol.fits(protocol.flat(tally, batch), ordered and k > 2)
    # the unbiased answers count as well, and what is estimated to be worse than they does not
    advantages = torch.cat([score.masked_fill(score < 0, -torch.inf), torch.zeros_like(score[:1])])
    weights = torch.softmax(advantages, 0)
    weights = weights * (weights > NEGLIGIBLE)
    weights = weights / weights.sum(0)
    fits = torch.cat([fits, fits[-1:]])
    value = unbiased.value.reshape(-1, len(protocol.workload))
    # The risk of a mixture v of the answers u is estimated as |v - u|^2 + 2 tr Cov(v, u) - tr Cov
    # u, that covariance is put at the share of its degrees of freedom: above tr Cov u it gives way
    # to the unbiased answers.
    variance = unbiased.standard_error.reshape(value.shape).square().sum(-1)
    removed = (1 - (weights[:-1] * freedoms).sum(0) - weights[-1]).clamp_min(0)
    mixed = (weights[..., None] * fits).sum(0)
    distance = (mixed @ protocol.workload.mT - value).square().sum(-1)
    kept = (2 * removed * variance / distance.clamp_min(TINY)).sqrt().clamp(max=1)
    weights = weights * kept
    weights[-1] += 1 - kept
    used = weights[-1] > 0
    if bool(used.any()):
        fits[-1, used] = _consistent(protocol.workload, value[used], fits[-1, used])
    h = (weights[..., None] * fits).sum(0).view(*batch, k)
    own = {each.name: getattr(unbiased, each.name) for each in fields(Estimate)}
    own["value"] = h @ protocol.workload.mT
    return Fit(
        **own,
        unbiased=unbiased,
        histogram=h,
        gap=gap.view(batch),
        weights=weights.mT.reshape(*batch, len(weights)),
    )


def _consistent(W: Tensor, value: Tensor, near: Tensor) -> Tensor:
    """The histograms (b, k) whose answers are nearest to these, (b, m); of those with the same,
    nearest to ``near``.

    Their answers are nearer to those of any histogram than ``value`` is, in the sum of squares.
    """
    centred = W - W.mean(1, keepdim=True)
    gram = centred.mT @ centred
    scale = gram.diagonal().amax()
    pull = (value - W.mean(1)) @ centred + FAINT * scale * near
    faint = FAINT * scale * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return nearest_histogram(gram + faint, pull, float(FAINT**2 * scale))[0]


@dataclass(frozen=True, eq=False)
class FittedOracle(OracleQueries):
    """Each user reports its type through a frequency oracle; the answers are those of the
    :func:`fitted` histogram.

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
        # refuses queries that the client's reports can not answer
        checks.validated(self, "unbiased")

    @cached_property
    def unbiased(self) -> LocalOracle:
        """The protocol of the unbiased answers from the same reports."""
        return decoding(self.workload, self.client)

    def analyse(self, tally: Tally) -> Fit:
        return fitted(self.unbiased, tally, ordered=self.ordered)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """A bound, whatever n: the answers of two histograms to a query differ by its range at
        most.
        """
        wide = (self.workload.amax(1) - self.workload.amin(1)).square()
        worst = checks.instance("objective", objective, Objective).of(wide)
        return worst.expand(tensor_of(checks.people("n", n, 1)).shape)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Of each query, (*batch, m), in ``DRAWS`` simulated tallies of the nearest whole numbers
        of users.

        Its own relative standard error is about (2/DRAWS)^(1/2). Raises TypeError, ValueError.
        """
        return self.simulated(summary, DRAWS)

    def simulated(self, summary: Tensor, times: int) -> Tensor:
        """``predicted_mse`` by so many tallies of each, always the same ones. Raises TypeError,
        ValueError.
        """
        h, n = self._shares(summary)
        counts, users = whole(h.reshape(-1, h.shape[-1]), n.reshape(-1, 1).round().clamp_min(1))
        found = torch.empty(
            len(counts), len(self.workload), dtype=torch.float64, device=counts.device
        )
        for total in users.unique():
            alike = (users == total)[:, 0].nonzero()[:, 0]
            drawn = []
            for one in counts[alike]:
                generator = keyed_generator(b"fits", counts.device)
                drawn.append(
                    self.sample_tally(one, generator=generator, sample_shape=(times,))["reports"]
                )
            tally = Tally(int(total), {"reports": torch.stack(drawn)})
            value = _fitted(self.unbiased, tally, self.ordered).value  # (alike, times, m)
            truth = (counts[alike] / total) @ self.workload.mT
            found[alike] = (value - truth[:, None]).square().mean(1)
        return found.view(*h.shape[:-1], -1)


def whole(h: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """The whole numbers nearest to h n of n users, (b, k) and (b, 1)."""
    counts = (h * n).floor()
    missing = n - counts.sum(-1, keepdim=True)
    rank = (h * n - counts).argsort(-1, descending=True).argsort(-1)
    return (counts + (rank < missing)).long(), n


def fitted_choice(
    choice: Choice[Channel], n: int, objective: Objective, prior: Tensor | None, ordered: bool
) -> Choice[Channel]:
    """The oracles of an unbiased choice, and others that are meant for fits, by the error of the
    fitted answers.
    """
    every = ((one.name, one.protocol, one.error) for one in choice.candidates)
    asked = [(name, p, error) for name, p, error in every if isinstance(p, OracleQueries)]
    if not asked:  # one type
        return choice
    _, first, least = asked[0]
    W, usual = (
        first.workload,
        [(name, p.client) for name, p, error in asked[:TRIED] if error <= WORSE * least],
    )
    meant = _meant(W, n, first.client.epsilon) if ordered and W.shape[1] > 2 else []
    shapes = family(W.shape[1], W.device) if prior is None else prior[None]
    draws, found = FAMILY_DRAWS if prior is None else PRIOR_DRAWS, []
    for name, client in [*usual, *meant, *_halved(W, usual, meant)]:
        protocol = FittedOracle(W, client, ordered)
        errors = [
            math.sqrt(float(objective.of(each))) for each in protocol.simulated(n * shapes, draws)
        ]
        error = math.exp(sum(math.log(max(each, 1e-300)) for each in errors) / len(errors))
        found.append(Candidate(name, protocol, error, f"{min(errors):.4g} to {max(errors):.4g}"))
    return Choice(tuple(found), choice.bound, NEAR)


def _meant(W: Tensor, n: int, epsilon: float) -> list[Named]:
    """The square wave, and shifts of least posterior variance under a rough prior."""
    k, found = W.shape[1], list[Named]()
    if SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        with suppress(ValueError):  # these reports can not tell all types apart
            found.append(("square wave", ShiftStrategy.square_wave(k, epsilon)))
    if found and k <= FACTORED:
        with suppress(ValueError):
            generator = keyed_generator(b"fitted", W.device)
            tuned = ShiftStrategy.tuned(W, epsilon, generator=generator, users=n)
            found.append(("shift strategy for fits", tuned))
    return found


def _halved(W: Tensor, usual: list[Named], meant: list[Named]) -> list[Named]:
    """Half of the messages by the best oracle whose messages are listed, half by the square wave: a
    hedge.

    Fisher informations add up: on every shape its error is near the lower of the two, at most
    2^(1/2) times that.
    """
    types = torch.arange(W.shape[1], device=W.device)
    for (name, one), (other, two) in itertools.product(usual, meant):
        if one.k <= FACTORED and one.entry_variance is None:
            Q = torch.cat([one.laws(types), two.laws(types)], 1).mT / 2
            # rounding must not add to epsilon
            made = StrategyMatrix((1 - SLACK) * Q + SLACK / len(Q))
            return [(f"{name} or {other}", made)]
    return []


def family(k: int, device: torch.device) -> Tensor:
    """Eight public histograms of k ordered types, (8, k): smooth ones, few frequent types, and both
    at once.
    """
    generator = keyed_generator(b"histograms", device)
    place = (torch.arange(k, dtype=torch.float64, device=device) + 0.5) / k
    waves = torch.arange(1, WAVES + 1, dtype=torch.float64, device=device)
    heights = torch.randn(4, WAVES, dtype=torch.float64, device=device, generator=generator) / waves
    size = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64, device=device)
    smooth = torch.softmax(size * heights @ torch.cos(torch.pi * waves[:, None] * place), -1)
    steep = torch.rand(3, k, dtype=torch.float64, device=device, generator=generator) ** (1 / FEW)
    few = steep / steep.sum(-1, keepdim=True)
    return torch.cat([smooth, few, (smooth[-1:] + few[:1]) / 2])
