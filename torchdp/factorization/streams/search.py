"""Strategies of few buffers for running sums, by L-BFGS, beside a bound for every strategy.

One search over poles, zeros, D1 and D2 for each way to take part. What is minimised is the l_p norm
of the row norms of W C^{-1}, with D2 scaled so that a user moves by 1, or beside the logarithm of
what a user moves. D1's logarithm is piecewise linear in logit((t + 1/2) / steps), D2's, beside that
scale, in the like of each pass or window. A large problem begins with a smaller one, and a largest
value with smooth ones.

Notation:
    x: what L-BFGS moves: a logit and 2 buffers - 1 decrements, KNOTS heights of log D1, LEVELS
        heights of log D2 for each window, and PLACES entries of A for each pair of passes.
    sharp: power, or sharpness of exponentials, that stands for a largest value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from torchdp import checks
from torchdp.descent import quasi_newton
from torchdp.factorization.certificates.certificate import Certificate, allowance, check_exponent
from torchdp.factorization.certificates.running_certificate import buffered_squares
from torchdp.factorization.epochs import StreamFactorization, factorize_epochs
from torchdp.factorization.factorize import factorize
from torchdp.factorization.running import factorize_running
from torchdp.factorization.streams import series
from torchdp.factorization.streams.buffered import (
    BufferedStrategy,
    RecalledStrategy,
    recalled_squares,
    shared,
)
from torchdp.factorization.streams.series import apart_squares
from torchdp.threads import on_host, one_thread
from torchdp.workloads import RunningSums

# Heights of log D1; of log D2 in each pass or window; of A for each pair of passes.
KNOTS = 12
LEVELS = 6
PLACES = 3

# Of what makes the logits' decrements: no pole meets a zero.
APART = (-7.0, 30.0)

# The first logit at most, of a pole: 1 - 1e-11.
LARGEST_LOGIT = 25.0

# A of neighbouring passes at first: noise is subtracted again.
RECALLED_AT_FIRST = 0.3

# Absolute values are smoothed by SMOOTH / sharp, relative: their sum over a class is what a user
# moves.
SMOOTH = 3.0
LEAST_SQUARE = 1e-300

LEAST_PERIOD = 8
MOST_PASSES = 64
MOST_RECALLED = 16
MOST_TIMES = 256
MOST_WINDOWS = 64

# Steps, of passes and with momentum, whose matrix is factored for the lower bound.
SHORT = 768
DENSE = 1024
MOST_ITERATIONS = 10_000

Parts = tuple[Tensor, Tensor, Tensor, Tensor]  # poles, zeros, D1 and D2


@dataclass(frozen=True)
class Effort:
    """How long a search takes.

    Args:
        whole: steps of a problem that is solved from the start.
        most: evaluations then.
        finish: evaluations on a larger one.
        sharp: one after the other.
        stop: relative fall of the value below which it ends.
    """

    whole: int
    most: int
    finish: int
    sharp: tuple[float, ...] = (30.0, 300.0, 3000.0)
    stop: float = 1e-9


ONCE = Effort(2**14, 1000, 30, stop=1e-10)
PASSES = Effort(2**14, 150, 30)
SEPARATED = Effort(2048, 250, 60, (100.0, 1000.0, 10000.0))
RECALLED = Effort(2048, 100, 40)


@dataclass(frozen=True)
class Problem:
    """What is minimised over x, of one size: here for users of one step, all columns of norm 1.

    Args:
        W: the running sums.
        period: steps of a pass, between a user's first two steps.
        buffers: of T.
        p: of the l_p norm.
        windows: of D2's levels.
        window: steps of one.
    """

    W: RunningSums
    period: int
    buffers: int
    p: float
    windows: int = 0
    window: int = 1

    @property
    def smoothed(self) -> bool:
        """Whether a largest value is."""
        return self.p == math.inf

    @cached_property
    def shapes(self) -> tuple[Tensor, Tensor]:
        """Of D1's and D2's logarithms."""
        return hats(self.W.steps, KNOTS), hats(self.window, LEVELS)

    @property
    def start(self) -> np.ndarray:
        """What x has beside poles and zeros, at first."""
        return np.zeros(KNOTS + LEVELS * self.windows)

    def parts(self, x: Tensor) -> Parts:
        """Poles, zeros, D1 and D2's shape of x."""
        logits, heights, levels, _ = x.split(
            [2 * self.buffers, KNOTS, LEVELS * self.windows, len(x) - self.size]
        )
        decrements = softplus(logits[1:])
        falling = torch.cat([logits[:1], -decrements]).cumsum(0)
        places = falling.sigmoid()
        of_D1, of_D2 = self.shapes
        before = (of_D1 @ heights).exp()
        after = x.new_ones(1)
        if self.windows:
            logarithm = levels.view(self.windows, LEVELS) @ of_D2.mT
            after = logarithm.exp().flatten()[: self.W.steps]
        return places[0::2], places[1::2], before, after

    @property
    def size(self) -> int:
        """Numbers of x that ``parts`` takes."""
        return 2 * self.buffers + KNOTS + LEVELS * self.windows

    def scaled(self, x: Tensor, sharp: float) -> Parts:
        """Poles, zeros, D1 and D2: here its levels stand beside the inverse column norms."""
        poles, zeros, before, after = self.parts(x)
        columns, _, _ = series.overlaps(poles, zeros, before)
        return poles, zeros, before, after * columns.rsqrt()

    def rows(self, strategy: Parts) -> Tensor:
        """Squared row norms of W C^{-1}."""
        return series.squares(*strategy, self.W)

    def moved(self, strategy: Parts, sharp: float) -> Tensor | float:
        """log of what a user moves, squared, where that is not 1."""
        return 0.0

    def value(self, x: Tensor, sharp: float) -> Tensor:
        """log of the rows' squared l_p norm times what a user moves, squared."""
        strategy = self.scaled(x, sharp)
        power = self.p / 2 if self.p < math.inf else sharp
        error = (power * self.rows(strategy).log()).logsumexp(0) / power
        return error + self.moved(strategy, sharp)


class Passes(Problem):
    """For users who come back in every pass: D2 is scaled so that each of them moves by 1."""

    def scaled(self, x: Tensor, sharp: float) -> Parts:
        poles, zeros, before, after = self.parts(x)
        scale = series.pass_squares(poles, zeros, before, after, self.period).rsqrt()
        return poles, zeros, before, after * scale.repeat(self.windows)[: len(after)]


@dataclass(frozen=True)
class Apart(Problem):
    """For users of at most ``times`` steps, ``period`` apart."""

    times: int = 2
    smoothed = True

    def moved(self, strategy: Parts, sharp: float) -> Tensor:
        links = series.links(*strategy, self.period, self.times)
        return series.largest(links, self.period, sharp).log()


@dataclass(frozen=True)
class Recalled(Problem):
    """With noise drawn again, for prefix sums W.

    For each pair of passes at most ``reach`` apart, A's diagonal is free.
    """

    reach: int = MOST_RECALLED
    smoothed = True

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """The later and the sooner pass of each pair."""
        later, sooner = torch.tril_indices(self.windows, self.windows, -1)
        near = later - sooner <= self.reach
        return later[near], sooner[near]

    @property
    def start(self) -> np.ndarray:
        later, sooner = self.pairs
        neighbours = np.where(later - sooner == 1, RECALLED_AT_FIRST, 0.0)
        return np.concatenate([super().start, np.repeat(neighbours, PLACES)])

    def scaled(self, x: Tensor, sharp: float) -> Any:
        """And A, a matrix for each class."""
        poles, zeros, before, after = self.parts(x)
        later, sooner = self.pairs
        exists = series.folded(torch.ones_like(after), self.period)
        values = hats(self.period, PLACES) @ x[self.size :].view(-1, PLACES).mT
        A = torch.eye(self.windows, dtype=x.dtype).repeat(self.period, 1, 1)
        classes = torch.arange(self.period)[:, None]
        A = A.index_put((classes, later, sooner), exists[:, later] * values)
        D2 = series.folded(after, self.period)
        X = shared(poles, zeros, before, A) * D2[:, :, None] * D2[:, None, :]
        # |X_st| as (X_st^2 + (SMOOTH / sharp)^2 X_ss X_tt)^{1/2}
        norms = X.diagonal(dim1=1, dim2=2)
        smooth = (SMOOTH / sharp) ** 2 * norms[:, :, None] * norms[:, None]
        sizes = (X.square() + smooth).clamp_min(LEAST_SQUARE).sqrt()
        scale = sizes.sum((1, 2)).rsqrt().repeat(self.windows)[: len(after)]
        return poles, zeros, before, after * scale, A

    def rows(self, strategy: Any) -> Tensor:
        return recalled_squares(*strategy)


def buffered_once(W: RunningSums, buffers: int, p: float) -> BufferedStrategy:
    """For users who take part in one step: all columns are of norm 1."""
    sizes = _sizes(W.steps, W.steps, ONCE)
    problems = [Problem(W.coarse(n), period, buffers, p) for n, period in sizes]
    return BufferedStrategy(*_minimised(problems, ONCE))


def buffered_passes(
    W: RunningSums, period: int, buffers: int, p: float
) -> tuple[BufferedStrategy, Tensor]:
    """For users of every pass, in one order, and the row norms of W C^{-1}: (steps,).

    No user moves by more than 1, to rounding. period: steps of a pass, from LEAST_PERIOD, at most
    MOST_PASSES passes.
    """
    passes = -(-W.steps // period)
    problems = [
        Passes(W.coarse(n), steps, buffers, p, passes, steps)
        for n, steps in _sizes(W.steps, period, PASSES)
    ]
    C = BufferedStrategy(*_minimised(problems, PASSES))
    rows, _, _ = buffered_squares(*C.tensors, W)
    return C, _float64(rows).sqrt()


def buffered_apart(
    W: RunningSums, gap: int, times: int, buffers: int, p: float
) -> BufferedStrategy:
    """For users of at most ``times`` steps, ``gap`` apart: none moves by more than 1, to rounding.

    times: at least 2, at most MOST_TIMES.
    """
    windows = min(-(-W.steps // gap), MOST_WINDOWS)
    sizes = [(W.steps, gap)]
    scale = SEPARATED.whole / W.steps
    if scale < 1:
        steps = max(2, round(W.steps * scale))
        sizes.insert(0, (steps, max(1, round(gap * scale))))
    problems = []
    for n, distance in sizes:
        window = -(-n // windows)
        problems.append(Apart(W.coarse(n), distance, buffers, p, windows, window, times))
    poles, zeros, before, after = _minimised(problems, SEPARATED)
    moved, _, _ = series.apart_squares(poles, zeros, before, after, gap, times)
    return BufferedStrategy(poles, zeros, before, after / math.sqrt(moved))


@on_host
def recalled_passes(
    n: int, period: int, buffers: int, p: float, reach: int = MOST_RECALLED
) -> tuple[RecalledStrategy, Tensor]:
    """For users of every pass, noise drawn again; and the row norms of W C^{-1}, W prefix sums.

    D2 is scaled so that each class moves C by 1 at most. n: steps; period: from LEAST_PERIOD, below
    n, at most MOST_RECALLED passes.
    """
    passes = -(-n // period)
    problems = [
        Recalled(RunningSums(m), steps, buffers, p, passes, steps, reach)
        for m, steps in _sizes(n, period, RECALLED)
    ]
    poles, zeros, before, after, A = _minimised(problems, RECALLED)
    earlier = []
    for m in range(1, min(reach, passes - 1) + 1):
        diagonal = pad(A.diagonal(-m, 1, 2), (m, 0))
        earlier.append(diagonal.mT.flatten()[:n])
    buffered = BufferedStrategy(poles, zeros, before, after)
    C = RecalledStrategy(buffered, period, torch.stack(earlier))
    return C, recalled_squares(poles, zeros, before, after, A).sqrt()


@on_host
def _minimised(problems: Sequence[Problem], effort: Effort) -> Any:
    """What the last problem makes of the best x, which goes from one problem to the next."""
    # Logits and their decrements grow with the logarithm of a pass.
    spans = [math.log(4 * problem.period) for problem in problems]
    logits = 2 * problems[0].buffers
    decrements = np.full(logits - 1, (spans[0] + 2) / logits)
    x = np.concatenate([[spans[0]], decrements, problems[0].start])
    bounds: list[tuple[float | None, float | None]] = [(None, LARGEST_LOGIT)]
    bounds += [APART] * (logits - 1) + [(None, None)] * (len(x) - logits)
    first = problems[0]
    last = problems[-1]
    for sharp in effort.sharp if first.smoothed else effort.sharp[-1:]:
        x = _descended(first, sharp, x, effort.most, bounds, effort.stop)
    if last is not first:
        x[:logits] *= spans[-1] / spans[0]
        x = _descended(last, effort.sharp[-1], x, effort.finish, bounds, effort.stop)
    with torch.no_grad():
        return last.scaled(torch.from_numpy(x), math.inf)


def _descended(problem: Problem, sharp: float, x: np.ndarray, *limits: Any) -> np.ndarray:
    return quasi_newton(lambda point: problem.value(point, sharp), x, *limits)


def _sizes(n: int, period: int, effort: Effort) -> list[tuple[int, int]]:
    """Steps, and those of a pass: of a smaller problem of as many passes, and of the problem."""
    passes = n / period
    coarse = max(int(effort.whole / passes), LEAST_PERIOD)
    if n <= effort.whole or coarse >= period:
        return [(n, period)]
    steps = min(round(passes * coarse), math.ceil(passes) * coarse)
    return [(steps, coarse), (n, period)]


def hats(n: int, knots: int) -> Tensor:
    """Hat functions at so many points of logit((t + 1/2) / n), (n, knots)."""
    y = torch.logit((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    places = torch.linspace(-1, 1, knots, dtype=torch.float64) * max(float(y[-1]), 1.0)
    distances = (y[:, None] - places) / (places[1] - places[0])
    return (1 - distances.abs()).clamp_min(0)


@on_host
@one_thread
def factorize_buffered(
    W: RunningSums,
    buffers: int = 4,
    p: float = math.inf,
    *,
    tol: float = 1e-3,
    gap: int | None = None,
    times: int = 1,
) -> StreamFactorization:
    """The strategy D1 T D2 of least error, by L-BFGS, beside a proved lower bound.

    The error is the l_p norm of the row norms of W C^{-1}, for C scaled to move by 1.

    Args:
        W: with momentum or without.
        buffers: from 1 to 16, the numbers kept for each parameter; 4 will do up to 10,000 steps, 5
            for a million.
        p: in [2, inf], inf for the largest error and 2 for the mean squared one.
        tol: gap of the lower bound, which holds for every strategy (:func:`factorize`; with
            momentum it is that of the first 1,024 steps).
        gap: a user takes part in at most ``times`` steps, any two at least ``gap`` apart, as in
            ``training.Separated``; for None in one step. Then the lower bound is that of passes in
            one order, as close as some 700 steps of them tell; with momentum or rates that of one
            step alone.
        times: at most 256 where ``gap`` allows more.

    Optimised on the CPU. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= gamma_(p)(W) <= certificate.upper, the l_p norm of row_norms;
    with ``gap`` the same of the least value of any strategy for such users.
    Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), buffered Toeplitz strategies; D1
    and D2 are ours.
    """
    checks.instance("W", W, RunningSums)
    buffers = checks.integer("buffers", buffers, 1, 16)
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    times = checks.integer("times", times, 1)
    gap = W.steps if gap is None else min(checks.integer("gap", gap, 1), W.steps)
    times = min(times, -(-W.steps // gap))
    if times > MOST_TIMES:
        raise ValueError(f"times must be at most {MOST_TIMES} where gap allows more, not {times}")
    lower, slack = _lower(W, gap, times, p, tol)
    if times > 1:
        strategy = buffered_apart(W, gap, times, buffers, p)
    else:
        strategy = buffered_once(W, buffers, p)
    # In the widest floats, and with a bound on rounding: the search's own sums prove nothing.
    rows, columns, rounding = buffered_squares(*strategy.tensors, W)
    moved = columns.max()
    if times > 1:
        bound, _, rounded = apart_squares(*strategy.tensors, gap, times)
        moved = bound * (1 + rounded)
    norms = _float64(rows * moved).sqrt()
    upper = torch.linalg.vector_norm(norms, ord=p)
    slack = slack + torch.linalg.vector_norm(_float64(rounding / rows**0.5), ord=p)
    certificate = Certificate(
        upper, lower, torch.zeros_like(upper), rounding=slack + allowance(upper, 8)
    )
    return StreamFactorization(strategy.to(torch.device(W.device)), norms.to(W.device), certificate)


def _float64(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(float))


def _lower(W: RunningSums, gap: int, times: int, p: float, tol: float) -> tuple[Tensor, Tensor]:
    """A bound for every strategy, and its rounding, where that counts."""
    exact = torch.zeros((), dtype=torch.float64)
    if W.momentum:
        # What holds for the first steps holds for all: factors of W hold factors of its leading
        # block.
        steps = min(W.steps, DENSE)
        rates = None if W.rates is None else W.rates[:steps]
        block = RunningSums(steps, W.decay, W.momentum, rates, W.device)
        certificate = factorize(block.dense(), p, tol=tol).certificate
        return certificate.lower.cpu(), exact
    if times == 1 or W.rates is not None:
        return factorize_running(W, p, tol, MOST_ITERATIONS).certificate.lower.cpu(), exact
    return passes_bound(W, gap, times, p, tol)


@on_host
def passes_bound(
    W: RunningSums, gap: int, times: int, p: float, tol: float, most: int = SHORT
) -> tuple[Tensor, Tensor]:
    """A bound for every strategy where users take part ``times`` times, and its rounding.

    Two of a user's steps are ``gap`` apart or more. The bound is that of users who keep to passes
    (:func:`factorize_epochs`), some of them, so it holds for Epochs, too. Of more than ``most``
    steps it counts every k-th alone. For each offset the rows and columns there are running sums of
    floor(steps / k) steps at least, and their users keep ceil(gap / k) apart, so that with v the
    least value of those sum_t ||L_t||^p S^p >= v^p over the rows of an offset, and k v^p over all:
    the bound is k^{1/p} v.

    W: without momentum and rates. Source: here.
    """
    stride = -(-W.steps // most)
    steps = W.steps // stride
    sums = RunningSums(steps, W.decay**stride)
    period = max(-(-gap // stride), -(-steps // times))
    certificate = factorize_epochs(sums.dense(), period, p, tol).certificate
    offsets = stride ** (1 / p)
    rounding = torch.as_tensor(offsets * certificate.rounding, dtype=torch.float64)
    return offsets * certificate.lower, rounding
