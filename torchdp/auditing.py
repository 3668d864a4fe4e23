"""Audits: from simulated releases, a lower bound of the epsilon that a mechanism really has.

>>> import torch, torchdp
>>> def laplace(x, runs):  # a count, for which half of the noise that epsilon = 1 needs is drawn
...     noise = torch.distributions.Laplace(0.0, 0.5).sample((runs,))
...     return x.sum() + noise
>>> found = torchdp.audit(laplace, torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
>>> 1.8 < found.epsilon < 2.1
True

An audit that finds nothing proves nothing: its attacks are a few, and its releases are finite. One
that finds more than the guarantee says has found a fault, but for the chance that is stated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, betaln, expit, log_expit, ndtri
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.privacy import Guarantee, Neighbours
from torchdp.protocol import Protocol, rows_of

__all__ = ["Audit", "audit", "audit_guesses", "audit_one_run"]

# Releases of each data set, of which a quarter learns scores, a quarter chooses the event.
LEAST_RUNS = 64
# Shares of releases at which bins and thresholds end, from 1e-4 up to 1 - 1e-4: tails are where
# most is lost.
SHARES = expit(np.linspace(-9.0, 9.0, 37))
# Relative to a coordinate's variance: without it, coordinates that noise makes equal have no
# discriminant.
RIDGE = 1e-9
# Numbers of a release up to which their covariance is learned.
MOST_COVARIED = 1024
# Neighbouring releases that differ where all of a second call's equal the first's: by chance in one
# of 2^64 audits at most.
VARIED = 64
# An epsilon at which all guesses may be right.
LARGEST = 700.0
# Of a root, by which epsilon is stated too small.
ROUNDING = 1e-9
# In the place of 0, whose logarithm is none.
TINY = 1e-300

Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""What two chances of an event bound, elementwise."""
Score = Callable[[Tensor], Tensor]
"""Of each release, larger where the first data set is more likely."""


@dataclass(frozen=True)
class _Event:
    """sign * score >= threshold; sign 1 where it is x that makes it often, -1 where it is y."""

    score: Score
    sign: int
    threshold: float

    def count(self, releases: Tensor) -> int:
        return int((self.sign * self.score(releases) >= self.threshold).sum())


@dataclass(frozen=True)
class Audit(Brief):
    """What was found. ``print`` shows it in a line.

    Args:
        epsilon: at least this, at ``delta``; 0 where nothing was found.
        delta: in [0, 1).
        confidence: of both bounds together.
        mu: at least this: an output that is as hard to tell from its neighbour's as N(0, 1) from
            N(m, 1) has an m of at least mu. Of noise that is normal or nearly so it tells more than
            epsilon. 0 where nothing was found.
        claim: the mechanism's guarantee, if it has one.
    """

    epsilon: float
    delta: float
    confidence: float
    mu: float = 0.0
    claim: Guarantee | None = None

    @property
    def broken(self) -> bool:
        """Whether more was found than is claimed, of epsilon or of mu."""
        if self.claim is None:
            return False
        more = self.delta >= self.claim.delta and self.epsilon > self.claim.epsilon
        return more or (self.claim.mu is not None and self.mu > self.claim.mu)

    def __str__(self) -> str:
        mu = f" and mu >= {self.mu:.4g}" if self.mu else ""
        found = f"epsilon >= {self.epsilon:.4g} at delta = {self.delta:g}{mu}"
        text = f"{found}, with {100 * self.confidence:g} % confidence"
        if self.claim is None:
            return text
        mu = "" if self.claim.mu is None else f", mu = {self.claim.mu:.4g}"
        return f"{text}: {'BROKEN' if self.broken else 'not refuted'} ({self.claim}{mu})"


def audit(
    mechanism: Protocol[Any] | Callable[[Any, int], Tensor],
    x: Any,
    y: Any,
    *,
    runs: int = 100_000,
    delta: float | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Audit:
    """Lower bounds of epsilon and mu from releases on two neighbouring data sets.

    *Method.* Half of the releases learn: from half of these, scores (a linear discriminant, and the
    sum over coordinates of the log ratio of their bins); from the other half, which score passing
    which threshold tells most, of epsilon and of mu. These two events are counted in releases that
    learned nothing, and their four chances are bounded by Clopper and Pearson: no correction for
    the other events is needed.

    Args:
        mechanism: a protocol, whose ``sample_tally`` is asked, or your own function of (data,
            count): so many independent releases, a tensor (count, ...) of finite numbers. Whatever
            else it computes of a release may be appended.
        x: data for it; of a protocol that is private message by message, one user's tell most.
        y: a neighbour of x; of a protocol, rows in the same order that differ in one.
        runs: releases of each.
        delta: at which epsilon is bounded; by default the guarantee's, or 0.
        confidence: in (0, 1).
        generator: of a protocol's draws; by default one of a new seed.

    Raises TypeError, ValueError: also where a function repeats its noise from call to call.

    Guarantees: a bound is above its true value with a chance of at most 1 - confidence.
    Source: Clopper, Pearson (1934); Ding, Wang, Wang, Zhang, Kifer (2018), on choosing the event
        from other releases; Jagielski, Ullman, Oprea (2020).
    """
    runs = checks.integer("runs", runs, LEAST_RUNS)
    confidence = checks.fraction("confidence", confidence)
    claim = None
    if isinstance(mechanism, Protocol):
        claim = mechanism.guarantee
        releases = _of_protocol(mechanism, x, y, generator)
    else:
        made = checks.function("mechanism", mechanism)
        releases = [partial(_made, made, x), partial(_made, made, y)]
    if delta is None:
        delta = claim.delta if claim else 0.0
    delta = checks.below_one("delta", delta)
    half = runs // 2
    learning = [release(half) for release in releases]
    testing = [release(half) for release in releases]
    for first, second in zip(learning, testing, strict=True):
        varied = (first[1:] != first[:-1]).any(1).sum()
        if varied >= VARIED and torch.equal(first, second):
            raise ValueError(
                "mechanism repeats itself: two calls on the same data made the same releases, so "
                "its noise comes from a fixed seed. Whoever knows the seed takes the noise off; "
                "draw it anew in each call"
            )
    quarter = half // 2
    x_learned, y_learned = learning
    halves = x_learned[:quarter], y_learned[:quarter]
    scores = [_by_bins(*halves)]
    if x_learned.shape[1] <= MOST_COVARIED:
        scores.append(_discriminant(*halves))
    # What may fail is shared by two bounds, of two chances each.
    failure = (1 - confidence) / 4

    def bounded(measure: Measure) -> float:
        event = _most_telling(scores, x_learned[quarter:], y_learned[quarter:], measure, failure)
        counts = [event.count(part) for part in testing]
        often, seldom = counts[:: event.sign]
        return max(0.0, float(measure(*_chances(often, seldom, half, failure))))

    epsilon = bounded(partial(_log_ratio, delta))
    mu = bounded(partial(_distance, claim.variation if claim else 0.0))
    return Audit(epsilon, delta, confidence, mu, claim)


def audit_one_run(
    train: Callable[[Tensor], Tensor],
    canaries: int,
    *,
    guesses: int | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Audit:
    """A lower bound of epsilon from one run, into which fair coins put canaries or not.

    The canaries of the highest scores are guessed to be in, those of the lowest to be out, and
    ``audit_guesses`` counts how many guesses are right.

    Args:
        train: of which canaries are in, (canaries,) bool: runs the mechanism once, and returns
            scores (canaries,), high where the canary looks as if it was in.
        canaries: how many, each a user's part or none: records, gradients, sequences.
        guesses: how many, chosen before the run; by default a fifth of the canaries.
        delta: at which epsilon is bounded.
        confidence: in (0, 1).
        generator: of the coins; by default one of a new seed.

    Raises TypeError, ValueError.

    Guarantees: that of ``audit_guesses``.
    Source: Steinke, Nasr, Jagielski (2023), Algorithm 1.
    """
    canaries = checks.integer("canaries", canaries, 1)
    if guesses is None:
        guesses = max(1, canaries // 5)
    guesses = checks.integer("guesses", guesses, 1, canaries)
    coins = _seeded(generator)
    included = torch.randint(2, (canaries,), generator=coins, device=coins.device).cpu() == 1
    scores = checks.as_tensor("train", train(included.clone())).detach().cpu()
    if scores.shape != (canaries,) or scores.isnan().any():
        raise ValueError(
            f"train must return a score for each of {canaries} canaries, none of them NaN, "
            f"not shape {tuple(scores.shape)}"
        )
    order = scores.argsort()
    said_in = order[canaries - (guesses + 1) // 2 :]
    said_out = order[: guesses // 2]
    right = int(included[said_in].sum() + (~included[said_out]).sum())
    return audit_guesses(right, guesses, canaries, delta=delta, confidence=confidence)


def audit_guesses(
    right: int, guesses: int, canaries: int, *, delta: float = 0.0, confidence: float = 0.95
) -> Audit:
    """A lower bound of epsilon from how many guesses of independent fair coins are right.

    Coin i decides whether a neighbour differs: canary i is in, or has one of two values. With
    W right of r guesses, their number fixed beforehand, m coins, B binomial of r and
    q = e^epsilon/(1 + e^epsilon), and (epsilon, delta)-privacy:

        P(W >= v) <= P(B >= v) + m delta P(B >= v) P(B < v) / (v P(B = v)).

    *Proof.* For a function a of values in [0, l], f = 1{guess i is right} a(W), and flipping coin i
    alone: E f <= e^epsilon E 1{guess i is wrong} a(W + 1) + l delta. The sum over coins is
    E W a(W) <= e^epsilon E (r - W) a(W + 1) + m l delta. Let a solve Stein's equation
    w a(w) - e^epsilon (r - w) a(w + 1) = 1{w >= v} - P(B >= v); it is positive, and largest at v,
    where it is the fraction above. No bound is smaller for all mechanisms: one attains it.

    Args:
        right: guesses that are right.
        guesses: made, fixed in number before the run; for other canaries nothing is guessed.
        canaries: coins thrown.
        delta: at which epsilon is bounded.
        confidence: in (0, 1).

    Raises TypeError, ValueError.

    Guarantees: the bound is above the true epsilon with a chance of at most 1 - confidence.
    Source: Steinke, Nasr, Jagielski (2023), Theorem 5.2, whose term of delta is larger; the proof
        above.
    """
    canaries = checks.integer("canaries", canaries, 1)
    guesses = checks.integer("guesses", guesses, 1, canaries)
    right = checks.integer("right", right, 0, guesses)
    delta = checks.below_one("delta", delta)
    confidence = checks.fraction("confidence", confidence)

    def excess(epsilon: float) -> float:
        return _chance(epsilon, right, guesses, canaries, delta) - (1 - confidence)

    # Of no right guess nothing follows. The chance grows with epsilon: it is that of the worst of
    # all mechanisms, of which there are more at a larger one.
    if not right or excess(0.0) >= 0:
        return Audit(0.0, delta, confidence)
    return Audit(max(0.0, brentq(excess, 0.0, LARGEST) - ROUNDING), delta, confidence)


def _chance(epsilon: float, right: int, guesses: int, canaries: int, delta: float) -> float:
    """The largest P(W >= right) of all (epsilon, delta)-private mechanisms."""
    q = float(expit(epsilon))
    tail = float(betainc(right, guesses - right + 1, q))
    if not 0 < tail < 1 or not delta:
        return tail
    # v P(B = v) is q times the density of a Beta(v, r - v + 1) at q.
    log_mass = (
        right * log_expit(epsilon)
        + (guesses - right) * log_expit(-epsilon)
        - betaln(right, guesses - right + 1)
    )
    largest = math.exp(math.log(tail) + math.log1p(-tail) - log_mass)
    return tail + canaries * delta * largest


def _of_protocol(
    protocol: Protocol[Any], x: Any, y: Any, generator: torch.Generator | None
) -> list[Callable[[int], Tensor]]:
    rows = protocol.validate(rows_of(x, protocol.held))
    others = protocol.validate(rows_of(y, protocol.held, "y"))
    if protocol.guarantee.neighbours is Neighbours.REPLACE_ONE:
        if rows.shape != others.shape or (rows != others).reshape(len(rows), -1).any(1).sum() != 1:
            raise ValueError(
                "x and y must be of as many users, in the same order, of whom exactly one differs"
            )
    draws = _seeded(generator, rows.device)
    return [partial(_sampled, protocol, protocol.summary(part), draws) for part in (rows, others)]


def _sampled(
    protocol: Protocol[Any], summary: Any, generator: torch.Generator, count: int
) -> Tensor:
    tally = protocol.sample_tally(summary, generator=generator, sample_shape=(count,))
    return torch.cat([part.reshape(count, -1).double() for part in tally.parts.values()], 1)


def _made(mechanism: Callable[[Any, int], Tensor], data: Any, count: int) -> Tensor:
    made = checks.as_tensor("mechanism", mechanism(data, count)).detach()
    if made.shape[:1] != (count,) or not made.isfinite().all():
        raise ValueError(
            f"mechanism must return a row of finite numbers for each of {count} releases, "
            f"not shape {tuple(made.shape)}, or others"
        )
    return made.reshape(count, -1).double()


def _seeded(generator: torch.Generator | None, device: Any = "cpu") -> torch.Generator:
    if generator is None:
        generator = torch.Generator(device)
        generator.seed()
    return generator


def _discriminant(x: Tensor, y: Tensor) -> Score:
    """Linear, of Fisher: best where both are normal with one covariance."""
    difference = x.mean(0) - y.mean(0)
    spread = torch.cat([x - x.mean(0), y - y.mean(0)])
    # Coordinates without noise get a deviation that is far below their difference.
    scale = spread.std(0) + RIDGE * difference.abs() + TINY
    spread = spread / scale
    covariance = spread.mT @ spread / len(spread)
    covariance.diagonal().add_(RIDGE)
    direction = torch.linalg.solve(covariance, difference / scale) / scale
    # So that little is rounded where noise is small beside the numbers.
    centre = y.mean(0)
    return lambda releases: (releases - centre) @ direction


def _by_bins(x: Tensor, y: Tensor) -> Score:
    """The sum over coordinates of the log ratio of how often their bins came."""
    both = torch.cat([x, y]).sort(0).values
    # Ends are values that came, so that each of few values has a bin of its own.
    places = torch.from_numpy(SHARES * (len(both) - 1)).long()
    edges = both[places].mT.contiguous()  # (numbers, shares)

    def bins(releases: Tensor) -> Tensor:
        return torch.searchsorted(edges, releases.mT.contiguous(), right=True)

    def counts(releases: Tensor) -> Tensor:
        # Half a release more in each bin: none is impossible because it did not come.
        halves = releases.new_full((len(edges), len(SHARES) + 1), 0.5)
        return halves.scatter_add_(1, bins(releases), torch.ones_like(releases.mT))

    ratios = (counts(x) / counts(y)).log()
    return lambda releases: ratios.gather(1, bins(releases)).sum(0)


def _most_telling(
    scores: list[Score], x: Tensor, y: Tensor, measure: Measure, failure: float
) -> _Event:
    """The event of the largest bound: a score of at least a threshold, or of at most."""
    best = -math.inf
    for score in scores:
        # Of y's releases low scores tell: the same scores with the other sign.
        for sign, likely, other in ((1, x, y), (-1, y, x)):
            here = np.sort(sign * score(likely).cpu().numpy())
            there = np.sort(sign * score(other).cpu().numpy())
            thresholds = np.quantile(np.concatenate([here, there]), SHARES, method="lower")
            often = len(here) - np.searchsorted(here, thresholds)
            seldom = len(there) - np.searchsorted(there, thresholds)
            bounds = measure(*_chances(often, seldom, len(here), failure))
            # "not less": one is taken where all are -inf.
            if not bounds.max() < best:
                best = bounds.max()
                event = _Event(score, sign, float(thresholds[bounds.argmax()]))
    return event


def _chances(often: Any, seldom: Any, runs: int, failure: float) -> tuple[np.ndarray, np.ndarray]:
    """Below which the chance of an event is not, and above which another's is not.

    From how often the two came in so many runs of each; each fails with this chance.
    """
    often = np.asarray(often, dtype=float)
    seldom = np.asarray(seldom, dtype=float)
    least = np.where(often > 0, betaincinv(np.maximum(often, 1), runs - often + 1, failure), 0.0)
    others = np.maximum(runs - seldom, 1)
    most = np.where(seldom < runs, betaincinv(seldom + 1, others, 1 - failure), 1.0)
    return least, most


def _log_ratio(delta: float, least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Epsilon of an event: log((P(A) - delta)/Q(A))."""
    return np.log(np.maximum(least - delta, TINY) / most)


def _distance(variation: float, least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Mu of an event: the distance of normal variables whose best test has its two chances.

    variation: that the chances may be away from such a mechanism's.
    """
    return ndtri(np.maximum(least - variation, 0.0)) - ndtri(np.minimum(most + variation, 1.0))
