"""The plan of least error: sampled with independent or banded noise, or a fixed order with correlated noise."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization import (
    BandedStrategy,
    BufferedStrategy,
    StreamStrategy,
    factorize_buffered,
    factorize_epochs,
    factorize_separated,
)
from torchdp.factorization.solvers.banded_solver import (
    banded_strategy,
    banded_toeplitz,
    column_scales,
    long_banded,
)
from torchdp.factorization.streams.search import (
    LEAST_PERIOD,
    MOST_PASSES,
    MOST_RECALLED,
    buffered_once,
    buffered_passes,
    recalled_passes,
)
from torchdp.factorization.streams.series import squares
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.sampling import LEAST_CHANCE
from torchdp.protocol import Choice
from torchdp.protocol.choice import Candidate
from torchdp.threads import on_host
from torchdp.training.binned import BallsInBins
from torchdp.training.noise import noise_guarantee
from torchdp.training.participation import Epochs, OwnBatches, Participation, sensitivity
from torchdp.training.plan import Plan
from torchdp.training.sampled import CyclicPoisson
from torchdp.training.strategy import (
    MOST_DENSE,
    Descent,
    Iterates,
    causal_strategy,
    lower_triangular,
    standard_errors,
)
from torchdp.workloads import RunningSums, Workload

DENSE = 512  # steps up to which strategies are optimised entry by entry
SCALED = 2048  # steps of a matrix up to which the columns of one row of coefficients are scaled one by one
EVALUATIONS = 60  # of each power, where all entries of so many bands are free
LONG = 2**14  # steps after which such a row's best coefficients hardly change
MOST_BANDS = 64  # of a strategy with one row of coefficients
MIDDLE = 0.25  # the curvature that strategies are made for where all of them count
BUFFERS, SHORT = 4, (2, 3, 5, 9, 17, 33)  # of a fixed order; steps that buffers in bins are made for
DOUBT, TRIES = 0.01, 5  # of delta: that Monte Carlo bounds are wrong; of so many
ITERATIONS = 500


@on_host
def choose(
    W: Tensor | Workload | Iterates | Descent,
    users: int,
    batch: int,
    *,
    epsilon: float,
    delta: float,
    bound: float = 1.0,
    p: float = 2.0,
    bins: bool | int = False,
    generator: torch.Generator | None = None,
    participation: Participation | None = None,
) -> Choice[Plan]:
    """The plans for training, or for releasing W G, at one guarantee, the least error first; ``choice.best`` is one.

    Candidates: Poisson sampling with independent noise (DP-SGD); cyclic Poisson sampling with strategies of 2, 4, 8,
    ... bands, as many groups, up to users / batch; batches in one fixed order, which need not be secret, with the
    certified best strategy for it. Independent noise is among them, so nothing chosen has a larger error than DP-SGD.
    Which is best changes with epsilon: sampling gains most where it is small, correlation where it is large.

    W defines the error. :class:`Descent` is for training: what noise adds to the losses of networks. For any other W it
    is the error of W (G + C^{-1} Z), linear in the gradients: exact where sums are released; for training
    (:class:`Iterates`) it is that on a flat loss, and such plans learned worse than DP-SGD at small epsilon.

    participation: what your own loader keeps to, as ``Separated(gap, times)``; the candidates are then strategies of
    so many bands and up to 512 steps the certified best one, nothing is sampled, and each batch is shown to the run
    first (:meth:`Run.admit`).

    bins: whether balls in bins (:class:`BallsInBins`) are candidates too. True: of any number of steps, in half a
    minute or so, with the number of bands of least error, and for Iterates with one and with two buffers, whose state
    is one or two numbers for each parameter. A number: with bands, whose noise is found by Monte Carlo with so many
    samples of each distribution, 1 / delta or more, in a minute or two; delta holds the chance that the bound is wrong.
    generator: of the samples. There are users / batch bins, rounded up; where users / bins is less than batch, the
    error counts as many times more.

    W: :class:`Descent` or :class:`Iterates` of any number of steps, or (steps, steps), lower triangular, its diagonal
    not 0, of up to 4,096. users, batch: all of them, and those of a step. bound: the clipping norm, the longest that a
    user's gradient may be. p: in [2, inf]; the error is the l_p mean of the standard errors of W's rows: 2 for the
    root mean square, inf for the largest. Above 512 steps strategies have one row of at most 64 coefficients,
    optimised for W's first column (``Iterates.first``). That of the fixed order has each of its bands' entries
    optimised for Iterates of up to 4,096 steps, in half a minute, and for a matrix of up to 2,048 and p = 2 its columns
    scaled. Where ``Iterates.sums`` is not None, a fixed order has a strategy of four buffers if its error is less:
    mostly above so many steps. For Descent strategies are made for one curvature, 1/4. Raises TypeError, ValueError.

    Guarantees: each plan is (epsilon, delta)-DP for adding or removing one user, as its ``guarantee`` states.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), section 4; the strategies ours.
    """
    judged = None
    if isinstance(W, Descent):
        judged, W = W, min(W.curvatures().items(), key=lambda one: abs(one[0] - MIDDLE))[1]
    sums = W.sums() if isinstance(W, Iterates) and not judged else None
    if not isinstance(W, Iterates) or W.steps <= DENSE:
        W = lower_triangular("W", W.dense() if isinstance(W, Workload | Iterates) else W)
        if len(W) > MOST_DENSE:
            raise ValueError(f"W must be Iterates where it has more than {MOST_DENSE} steps, not {len(W)}")
    steps = W.shape[0]
    users, p = checks.integer("users", users, 1), checks.within("p", p, 2, math.inf)
    batch, bound = checks.integer("batch", batch, 1, users), checks.positive("bound", bound)
    if users > batch / LEAST_CHANCE:
        raise ValueError(f"batch must be at least users x {LEAST_CHANCE:g}, not {batch}: no less is followed")
    gaussian_sigma(epsilon, delta, 1.0)  # refuses what no noise gives
    samples = 0 if isinstance(bins, bool) else checks.integer("bins", bins, 0)
    if bins and participation is not None:
        raise ValueError("bins must be False with participation: they draw who comes, and keep to no rule")
    if samples and (generator is None or steps > MOST_DENSE):
        raise ValueError(f"bins must be True or False without a generator and above {MOST_DENSE} steps")
    if generator is not None:
        checks.instance("generator", generator, torch.Generator)
    most = min(users // batch, steps if steps <= DENSE else MOST_BANDS)
    counts = [2**i for i in range(steps.bit_length()) if 2**i <= most]
    task = _Task(W, judged, sums, users, batch, epsilon, delta, bound, p)
    named = {1: "Poisson, independent noise"} | {n: f"cyclic Poisson, {n} bands" for n in counts[1:]}
    if participation is not None:
        plans = task.attended(checks.instance("participation", participation, Participation))
    else:
        plans = {named[groups]: task.sampled(groups) for groups in counts} | {"fixed order": task.ordered()}
    if samples and generator is not None:
        binned = task.binned(samples, generator)
        plans[f"balls in bins, {binned.strategy.bands} bands"] = binned
    elif bins:
        plans |= task.compared()
    notes = {name: f"noise {plan.sigma / plan.bound:.4g} x bound" for name, plan in plans.items()}
    return Choice(tuple(Candidate(name, plan, _error(plan, p), notes[name]) for name, plan in plans.items()))


def _error(plan: Plan, p: float) -> float:
    """The l_p mean of the standard errors; more, where a step sums up fewer users than the other plans' steps."""
    fewer = plan.batch * plan.sampling.bins / plan.users if isinstance(plan.sampling, BallsInBins) else 1.0
    return fewer * _mean(plan.standard_errors, p)


def _mean(errors: Tensor, p: float) -> float:
    """The l_p mean of the standard errors."""
    count = 1.0 if p == math.inf else len(errors) ** (1 / p)
    return float(torch.linalg.vector_norm(errors, ord=p)) / count


@dataclass(frozen=True)
class _Task:
    """What is asked for, and its plan for each way to sample."""

    W: Tensor | Iterates
    judged: Descent | None
    sums: tuple[float, RunningSums] | None
    users: int
    batch: int
    epsilon: float
    delta: float
    bound: float
    p: float

    def plan(self, C: StreamStrategy, sampling: Any, sigma: float, guarantee: Guarantee, errors: Tensor) -> Plan:
        """errors: of noise of standard deviation 1 in W, for which C is made; others where others judge it."""
        errors = standard_errors(self.judged, C) if self.judged else errors
        return Plan(C, sampling, self.bound, sigma, self.users, self.batch, guarantee, sigma * errors)

    def sampled(self, groups: int) -> Plan:
        """Cyclic Poisson sampling with columns of one norm."""
        sampling, C = CyclicPoisson(groups, self.batch * groups / self.users), _banded(self.W, groups, self.p)
        sigma = sampling.sigma(C, self.bound, self.epsilon, self.delta)
        guarantee = sampling.guarantee(C, sigma, self.bound, self.delta)
        return self.plan(C, sampling, sigma, guarantee, standard_errors(self.W, C))

    def ordered(self) -> Plan:
        """One fixed order, gone through again and again."""
        order = Epochs(self.users // self.batch)
        C, errors = _correlated(self.W, order.period, self.p, self.judged is None)
        return self.kept(C, order, order, errors)

    def kept(self, C: StreamStrategy, rule: Participation, sampling: Any, errors: Tensor) -> Plan:
        """Of batches that keep to this rule."""
        sigma = gaussian_sigma(self.epsilon, self.delta, self.bound * sensitivity(C, rule).value)
        return self.plan(C, sampling, sigma, noise_guarantee(C, sigma, self.bound, self.delta, rule), errors)

    def attended(self, rule: Participation) -> dict[str, Plan]:
        """Batches that are made elsewhere and keep to a rule, by name."""
        W, steps = self.W, self.W.shape[0]
        most = min(rule.apart(steps), steps if steps <= DENSE else MOST_BANDS)
        found: dict[str, StreamStrategy] = {
            f"{2**i} bands": _banded(W, 2**i, self.p) for i in range(most.bit_length())
        }
        found["independent noise"] = found.pop("1 bands")
        if isinstance(W, Tensor) and steps <= DENSE:
            best = factorize_separated(W, rule.apart(steps), rule.most(steps), self.p)
            found["certified"] = best.strategy
        own = OwnBatches(rule)
        return {name: self.kept(C, rule, own, standard_errors(W, C)) for name, C in found.items()}

    def compared(self) -> dict[str, Plan]:
        """Balls in bins by comparison, with bands and with buffers: the first ones after which the error rises."""
        sampling = BallsInBins(-(-self.users // self.batch))
        kinds: list[Iterator[tuple[StreamStrategy, Tensor]]] = [map(self._clamped, self._counts(sampling.bins))]
        if self.sums is not None:
            kinds += [_short_buffers(*self.sums, buffers) for buffers in (1, 2)]
        plans = {}
        for strategies in kinds:
            found: list[tuple[float, float, StreamStrategy, Tensor]] = []
            for C, errors in strategies:
                sigma = sampling.sigma(C, self.bound, self.epsilon, self.delta)
                found.append((sigma * _mean(errors, self.p), sigma, C, errors))
                if len(found) > 1 and found[-1][0] > found[-2][0]:
                    break
            _, sigma, C, errors = min(found, key=lambda one: one[0])
            guarantee = sampling.guarantee(C, sigma, self.bound, self.delta)
            plans[f"balls in bins, {C}"] = self.plan(C, sampling, sigma, guarantee, errors)
        return plans

    def _counts(self, bins: int) -> list[int]:
        """Numbers of bands, for so many bins."""
        steps = self.W.shape[0]
        most = min(bins, steps, steps if steps <= DENSE else MOST_BANDS)
        return sorted({2**i for i in range(most.bit_length())} | {most})

    def _clamped(self, bands: int) -> tuple[BandedStrategy, Tensor]:
        """With no negative entry, as bins ask; and the row norms of W C^{-1}."""
        C = BandedStrategy(_banded(self.W, bands, self.p).coefficients.clamp_min(0), self.W.shape[0])
        return C, standard_errors(self.W, C)

    def binned(self, samples: int, generator: torch.Generator) -> Plan:
        """Balls in bins; bands and noise by few samples, the guarantee by many others, TRIES times at most."""
        sampling, doubt, found = BallsInBins(-(-self.users // self.batch)), DOUBT * self.delta / TRIES, []
        given: dict[str, Any] = {"doubt": doubt, "samples": samples, "generator": generator}
        for C, errors in map(self._clamped, self._counts(sampling.bins)):
            rough = sampling.likely_sigma(C, self.bound, self.epsilon, self.delta, **given)
            found.append((rough * _mean(errors, self.p), rough, C, errors))
        _, sigma, C, errors = min(found, key=lambda one: one[0])
        for _ in range(TRIES):
            kept = sampling.likely_guarantee(C, sigma, self.bound, self.epsilon, **given)
            if kept.delta + (TRIES - 1) * doubt <= self.delta:  # the doubts of all tries
                return self.plan(C, sampling, sigma, replace(kept, delta=self.delta), errors)
            sigma *= 1.003 * max(1.0, kept.delta / self.delta) ** 0.1
        raise ValueError(f"bins = {samples} samples are too few for delta = {self.delta:g}; take 4 times as many")


def _correlated(W: Tensor | Iterates, period: int, p: float, flat: bool) -> tuple[StreamStrategy, Tensor]:
    """A strategy for a fixed order, and the row norms of W C^{-1}; without buffers where more than W judges it."""
    steps = W.shape[0]
    if isinstance(W, Tensor) and steps <= DENSE:
        C = BandedStrategy.of(causal_strategy(W, factorize_epochs(W, period, p)))
        return C, standard_errors(W, C)
    C = _banded(W, min(period, MOST_BANDS), p)
    if isinstance(W, Iterates) and steps <= MOST_DENSE:
        C = BandedStrategy(long_banded(W.inverse(), C.coefficients[0], period, p, EVALUATIONS), steps)
    elif isinstance(W, Tensor) and p == 2 and steps <= SCALED:
        c = C.coefficients[0]
        scales = column_scales(W, c, period).to(c)
        place = torch.arange(steps, device=c.device)[:, None] - torch.arange(len(c), device=c.device)
        C = BandedStrategy(c * scales[place.clamp_min(0)], steps)
    errors = standard_errors(W, C)
    found = _buffered(W, period, p) if flat and isinstance(W, Iterates) else None
    if found and _mean(found[1], p) < sensitivity(C, Epochs(period)).value * _mean(errors, p):
        return found
    return C, errors


def _buffered(W: Iterates, period: int, p: float) -> tuple[StreamStrategy, Tensor] | None:
    """Four buffers that a user moves by 1, and the row norms of W C^{-1}; None where they are not made for W."""
    if (sums := W.sums()) is None or period < LEAST_PERIOD or W.steps > MOST_PASSES * period:
        return None
    C: StreamStrategy
    rate, S = sums
    if period >= W.steps:
        once = factorize_buffered(S, BUFFERS, p)
        C, norms = once.strategy, once.row_norms
    elif W.steps <= MOST_RECALLED * period and S.decay == 1 and not S.momentum and S.rates is None:
        C, norms = recalled_passes(W.steps, period, BUFFERS, p)
    else:
        C, norms = buffered_passes(S, period, BUFFERS, p)
    return C, rate * norms


def _short_buffers(rate: float, S: RunningSums, buffers: int) -> Iterator[tuple[StreamStrategy, Tensor]]:
    """Toeplitz buffers that are best for so few steps that a user's bins meet little; and the row norms of W C^{-1}."""
    ones = torch.ones(S.steps, dtype=torch.float64)
    for steps in SHORT:
        if buffers < steps <= S.steps:
            short = buffered_once(RunningSums(steps, S.decay, S.momentum), buffers, 2.0)
            C = BufferedStrategy(short.poles, short.zeros, ones, ones)
            yield C, rate * squares(*C.tensors, S).sqrt()


def _banded(W: Tensor | Iterates, bands: int, p: float) -> BandedStrategy:
    """Columns of norm 1, of shorter ones at the end, with so many bands."""
    steps = W.shape[0]
    if bands == 1:
        return BandedStrategy(torch.ones(1, 1, dtype=torch.float64, device=_device(W)), steps)
    if isinstance(W, Tensor) and steps <= DENSE:
        return BandedStrategy.of(banded_strategy(W / W.abs().max(), steps, 1, p, ITERATIONS, bands)[0].tril())
    first = W.first(min(steps, LONG)) if isinstance(W, Iterates) else W[:, 0]
    c = torch.from_numpy(banded_toeplitz(first.cpu().numpy(), min(bands, len(first)), p))
    return BandedStrategy(c[None].to(_device(W)), steps)


def _device(W: Tensor | Iterates) -> torch.device:
    return W.device if isinstance(W, Tensor) else torch.device("cpu")
