"""Strategies of few buffers for running sums: poles, zeros, D1 and D2, by L-BFGS, beside a bound
for every strategy.

One search for each way to take part.

What is minimised is the l_p norm of the row norms of W C^{-1}, with D2 scaled so that a user moves
by 1, or beside the logarithm of what a user moves. D1's logarithm is piecewise linear in
logit((t + 1/2) / steps), D2's, beside that scale, in the like of each pass or window. A large
problem begins with a smaller one, and a largest value with smooth ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

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

# of D1; of D2 in each pass or window; of A for each pair of passes
KNOTS, LEVELS, PLACES = 12, 6, 3
APART = (-7.0, 30.0)  # of what makes the logits' steps: no pole meets a zero
# by sharpness, of absolute values, relative: their sum over a class is what a user moves
SMOOTH = 3.0
LEAST_PERIOD, MOST_PASSES, MOST_RECALLED = 8, 64, 16
MOST_TIMES, MOST_WINDOWS = 256, 64
Parts = tuple[Tensor, Tensor, Tensor, Tensor]  # poles, zeros, D1 and D2
SHORT = 768  # steps of passes whose matrix is factored for the lower bound
DENSE = 1024  # steps with momentum whose matrix is factored for the lower bound


@dataclass(frozen=True)
class Effort:
    """whole: steps of a problem that is solved from the start; most, finish: evaluations then, and
    on a larger one.

    sharp: powers that stand for the largest squared row norm, and what makes sums of exponentials
    stand for the largest of users. stop: relative fall of the value below which it ends.
    """

    whole: int
    most: int
    finish: int
    sharp: tuple[float, ...] = (30.0, 300.0, 3000.0)
    stop: float = 1e-9


ONCE, PASSES = Effort(2**14, 1000, 30, stop=1e-10), Effort(2**14, 150, 30)
SEPARATED, RECALLED = Effort(2048, 250, 60, (100.0, 1000.0, 10000.0)), Effort(2048, 100, 40)


@dataclass(frozen=True)
class Problem:
    """What is minimised over x, of one size: here for users who take part in one step, all columns
    of norm 1.

    each: steps of a pass, between a user's first two steps; D2 has its levels in ``windows``
    windows of ``window``.
    """

    W: RunningSums
    each: int
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
        """Poles, zeros, D1 and D2's shape of x: a logit, positive decrements, heights at the knots
        and levels.
        """
        head, knots = 2 * self.buffers, 2 * self.buffers + KNOTS
        places = torch.cat([x[:1], -torch.nn.functional.softplus(x[1:head])]).cumsum(0).sigmoid()
        heights = x[knots : knots + LEVELS * self.windows].view(self.windows, LEVELS)
        after = (
            (heights @ self.shapes[1].mT).exp().flatten()[: self.W.steps]
            if self.windows
            else x.new_ones(1)
        )
        return places[0::2], places[1::2], (self.shapes[0] @ x[head:knots]).exp(), after

    def made(self, x: Tensor, sharp: float) -> Parts:
        """Poles, zeros, D1 and D2, scaled: here its levels stand beside the inverse column
        norms.
        """
        poles, zeros, before, after = self.parts(x)
        return poles, zeros, before, after * series.overlaps(poles, zeros, before)[0].rsqrt()

    def rows(self, made: Parts) -> Tensor:
        """Squared row norms of W C^{-1}."""
        return series.squares(*made, self.W)

    def moved(self, made: Parts, sharp: float) -> Tensor | float:
        """log of what a user moves, squared, where that is not 1."""
        return 0.0

    def value(self, x: Tensor, sharp: float) -> Tensor:
        """log of the rows' squared l_p norm, of a large power in place of infinity, and of what a
        user moves.
        """
        made, power = self.made(x, sharp), self.p / 2 if self.p < math.inf else sharp
        return (power * self.rows(made).log()).logsumexp(0) / power + self.moved(made, sharp)


class Passes(Problem):
    """For users who come back in every pass: D2 is scaled so that each of them moves by 1."""

    def made(self, x: Tensor, sharp: float) -> Parts:
        poles, zeros, before, after = self.parts(x)
        scale = series.pass_squares(poles, zeros, before, after, self.each).rsqrt()
        return poles, zeros, before, after * scale.repeat(self.windows)[: len(after)]


@dataclass(frozen=True)
class Apart(Problem):
    """For users of at most ``times`` steps, ``each`` apart."""

    times: int = 2
    smoothed = True

    def moved(self, made: Parts, sharp: float) -> Tensor:
        return series.largest(series.links(*made, self.each, self.times), self.each, sharp).log()


@dataclass(frozen=True)
class Recalled(Problem):
    """With noise drawn again: for each pair of passes at most ``reach`` apart, A's diagonal is
    free; W prefix sums.
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
        return np.concatenate(
            [super().start, np.repeat(np.where(later - sooner == 1, 0.3, 0.0), PLACES)]
        )

    def made(self, x: Tensor, sharp: float) -> Any:
        """And A, a matrix for each class."""
        (poles, zeros, before, after), (later, sooner), each = self.parts(x), self.pairs, self.each
        there = series.folded(torch.ones_like(after), each)
        values = there[:, later] * (
            hats(each, PLACES) @ x[len(x) - PLACES * len(later) :].view(-1, PLACES).mT
        )
        A = torch.eye(self.windows, dtype=x.dtype).repeat(each, 1, 1)
        A, D2 = (
            A.index_put((torch.arange(each)[:, None], later, sooner), values),
            series.folded(after, each),
        )
        X = shared(poles, zeros, before, A) * D2[:, :, None] * D2[:, None, :]
        own = X.diagonal(dim1=1, dim2=2)
        smooth = (SMOOTH / sharp) ** 2 * own[:, :, None] * own[:, None]
        sums = (X.square() + smooth).clamp_min(1e-300).sqrt().sum((1, 2))
        return poles, zeros, before, after * sums.rsqrt().repeat(self.windows)[: len(after)], A

    def rows(self, made: Any) -> Tensor:
        return recalled_squares(*made)


def buffered_once(W: RunningSums, buffers: int, p: float) -> BufferedStrategy:
    """For users who take part in one step: all columns are of norm 1."""
    sizes = _sizes(W.steps, W.steps, ONCE)
    problems = [Problem(W.coarse(n), each, buffers, p) for n, each in sizes]
    return BufferedStrategy(*_found(problems, ONCE))


def buffered_passes(
    W: RunningSums, period: int, buffers: int, p: float
) -> tuple[BufferedStrategy, Tensor]:
    """For users who come back in every pass of ``period`` steps, in one order: none moves by more
    than 1, to rounding.

    And the row norms of W C^{-1}: (steps,). period: from LEAST_PERIOD, at most MOST_PASSES passes.
    """
    passes = -(-W.steps // period)
    problems = [
        Passes(W.coarse(n), each, buffers, p, passes, each)
        for n, each in _sizes(W.steps, period, PASSES)
    ]
    C = BufferedStrategy(*_found(problems, PASSES))
    return C, torch.from_numpy(buffered_squares(*C.tensors, W)[0].astype(float)).sqrt()


def buffered_apart(
    W: RunningSums, gap: int, times: int, buffers: int, p: float
) -> BufferedStrategy:
    """For users of at most ``times`` steps, ``gap`` apart: none moves by more than 1, to rounding.

    times: at least 2, at most MOST_TIMES.
    """
    scale, windows = min(1.0, SEPARATED.whole / W.steps), min(-(-W.steps // gap), MOST_WINDOWS)
    sizes = [(max(2, round(W.steps * scale)), max(1, round(gap * scale)))] * (scale < 1) + [
        (W.steps, gap)
    ]
    problems = [
        Apart(W.coarse(n), each, buffers, p, windows, -(-n // windows), times) for n, each in sizes
    ]
    poles, zeros, before, after = _found(problems, SEPARATED)
    moved = series.apart_squares(poles, zeros, before, after, gap, times)[0]
    return BufferedStrategy(poles, zeros, before, after / math.sqrt(moved))


@on_host
def recalled_passes(
    n: int, period: int, buffers: int, p: float, reach: int = MOST_RECALLED
) -> tuple[RecalledStrategy, Tensor]:
    """For users who come back in every pass, noise drawn again; and the row norms of W C^{-1}, W
    prefix sums.

    D2 is scaled so that each class moves C by 1 at most. n: steps; period: from LEAST_PERIOD, below
    n, at most MOST_RECALLED passes.
    """
    passes, sizes = -(-n // period), _sizes(n, period, RECALLED)
    problems = [
        Recalled(RunningSums(m), each, buffers, p, passes, each, reach) for m, each in sizes
    ]
    poles, zeros, before, after, A = _found(problems, RECALLED)
    reach = min(reach, passes - 1)
    earlier = [
        torch.nn.functional.pad(A.diagonal(-m, 1, 2), (m, 0)).mT.flatten()[:n]
        for m in range(1, reach + 1)
    ]
    C = RecalledStrategy(
        BufferedStrategy(poles, zeros, before, after), period, torch.stack(earlier)
    )
    return C, recalled_squares(poles, zeros, before, after, A).sqrt()


@on_host
def _found(problems: Sequence[Problem], effort: Effort) -> Any:
    """What the last problem makes of the best x: a logit and the steps to the next ones grow with
    the pass.
    """
    spans, head = [math.log(4 * each.each) for each in problems], 2 * problems[0].buffers
    x = np.concatenate([[spans[0]], np.full(head - 1, (spans[0] + 2) / head), problems[0].start])
    bounds = [(None, 25.0)] + [APART] * (head - 1) + [(None, None)] * (len(x) - head)
    for stage, problem in enumerate(problems):
        x[:head] *= spans[stage] / spans[max(0, stage - 1)]
        most = effort.finish if stage else effort.most
        for each in effort.sharp[-1:] if stage or not problem.smoothed else effort.sharp:
            x = quasi_newton(lambda point: problem.value(point, each), x, most, bounds, effort.stop)  # noqa: B023
    with torch.no_grad():
        return problems[-1].made(torch.from_numpy(x), math.inf)


def _sizes(n: int, period: int, effort: Effort) -> list[tuple[int, int]]:
    """Steps, and those of a pass: of a smaller problem of as many passes, and of the problem."""
    passes, coarse = n / period, max(int(effort.whole / (n / period)), LEAST_PERIOD)
    small = (min(round(passes * coarse), math.ceil(passes) * coarse), coarse)
    return [small, (n, period)] if n > effort.whole and coarse < period else [(n, period)]


def hats(n: int, knots: int) -> Tensor:
    """Hat functions at so many points of logit((t + 1/2) / n), (n, knots)."""
    y = torch.logit((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    places = torch.linspace(-1, 1, knots, dtype=torch.float64) * max(float(y[-1]), 1.0)
    return (1 - ((y[:, None] - places) / (places[1] - places[0])).abs()).clamp_min(0)


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
    """The strategy D1 T D2 of least l_p norm of the row norms of W C^{-1}, by L-BFGS, beside a
    proved lower bound.

    W: with momentum or without. buffers: from 1 to 16, the numbers kept for each parameter; 4 will
    do up to 10,000 steps, 5 for a million. p: in [2, inf], inf for the largest error and 2 for the
    mean squared one. tol: gap of the lower bound, which holds for every strategy
    (:func:`factorize`; with momentum it is that of the first 1,024 steps). gap, times: a user takes
    part in at most ``times`` steps, any two at least ``gap`` apart, as in ``training.Separated``;
    for None in one step. Then the error counts for C scaled to move by 1, and the lower bound is
    that of passes in one order, as close as some 700 steps of them tell; with momentum or rates
    that of one step alone. Optimised on the CPU. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= gamma_(p)(W) <= certificate.upper, the l_p norm of row_norms;
    with ``gap`` the same of the least value of any strategy for such users.
    Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), buffered Toeplitz strategies; D1
    and D2 are ours.
    """
    checks.instance("W", W, RunningSums)
    buffers, p, tol = (
        checks.integer("buffers", buffers, 1, 16),
        check_exponent(p),
        checks.positive("tol", tol),
    )
    times = checks.integer("times", times, 1)
    gap = W.steps if gap is None else min(checks.integer("gap", gap, 1), W.steps)
    times = min(times, -(-W.steps // gap))
    if times > MOST_TIMES:
        raise ValueError(f"times must be at most {MOST_TIMES} where gap allows more, not {times}")
    lower, slack = _lower(W, gap, times, p, tol)
    if times > 1:
        strategy = buffered_apart(W, gap, times, buffers, p)
        moved, _, rounded = apart_squares(*strategy.tensors, gap, times)
        moved *= 1 + rounded
    else:
        strategy, moved = buffered_once(W, buffers, p), 0.0
    rows, columns, rounding = buffered_squares(*strategy.tensors, W)
    norms = torch.from_numpy((rows * (moved or columns.max())).astype(float)).sqrt()
    upper = torch.linalg.vector_norm(norms, ord=p)
    slack = slack + torch.linalg.vector_norm(
        torch.from_numpy((rounding / rows**0.5).astype(float)), ord=p
    )
    certificate = Certificate(
        upper, lower, torch.zeros_like(upper), rounding=slack + allowance(upper, 8)
    )
    return StreamFactorization(strategy.to(torch.device(W.device)), norms.to(W.device), certificate)


def _lower(W: RunningSums, gap: int, times: int, p: float, tol: float) -> tuple[Tensor, Tensor]:
    """A bound for every strategy, and its rounding, where that counts."""
    exact = torch.zeros((), dtype=torch.float64)
    # what holds for the first steps holds for all: factors of W hold factors of its leading block
    if W.momentum:
        steps = min(W.steps, DENSE)
        rates = None if W.rates is None else W.rates[:steps]
        block = RunningSums(steps, W.decay, W.momentum, rates, W.device)
        return factorize(block.dense(), p, tol=tol).certificate.lower.cpu(), exact
    if times == 1 or W.rates is not None:
        return factorize_running(W, p, tol, 10_000).certificate.lower.cpu(), exact
    return passes_bound(W, gap, times, p, tol)


@on_host
def passes_bound(
    W: RunningSums, gap: int, times: int, p: float, tol: float, most: int = SHORT
) -> tuple[Tensor, Tensor]:
    """A bound for every strategy where users take part ``times`` times, ``gap`` steps apart; its
    rounding.

    It is that of users who keep to passes (:func:`factorize_epochs`), some of them, so it holds for
    Epochs, too. Of more than ``most`` steps it counts every k-th alone. For each offset the rows
    and columns there are running sums of floor(steps / k) steps at least, and their users keep
    ceil(gap / k) apart, so that with v the least value of those sum_t ||L_t||^p S^p >= v^p over the
    rows of an offset, and k v^p over all: the bound is k^{1/p} v.

    W: without momentum and rates. Source: here.
    """
    stride = -(-W.steps // most)
    steps = W.steps // stride
    sums = RunningSums(steps, W.decay**stride)
    period = max(-(-gap // stride), -(-steps // times))
    found = factorize_epochs(sums.dense(), period, p, tol).certificate
    offsets = stride ** (1 / p)
    return offsets * found.lower, torch.as_tensor(offsets * found.rounding, dtype=torch.float64)
