"""The one search of strategies of few buffers: poles, zeros, D1 and D2, by L-BFGS, for each way to take part.

What is minimised is the l_p norm of the row norms of W C^{-1}, with D2 scaled so that a user moves by 1, or beside the
logarithm of what a user moves. D1's logarithm is piecewise linear in logit((t + 1/2) / steps), D2's, beside that scale,
in the like of each pass or window. A large problem begins with a smaller one, and a largest value with smooth ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.factorization.certificates.buffered_certificate import buffered_squares
from torchdp.factorization.streams.buffered import BufferedStrategy
from torchdp.factorization.streams.recalled import RecalledStrategy, folded, recalled_squares, shared
from torchdp.factorization.streams.series import apart_squares, largest, links, overlaps, pass_squares, squares
from torchdp.workloads import RunningSums

KNOTS = 12  # of D1's logarithm
LEVELS, PLACES = 6, 3  # of D2's in each pass or window; of A's diagonals, for each pair of passes
APART = (-7.0, 30.0)  # of what makes the logits' steps: no pole meets a zero
SMOOTH = 3.0  # by sharpness, of absolute values, relative: their sum over a class is what a user moves
LEAST_PERIOD, MOST_PASSES, MOST_RECALLED = 8, 64, 16
MOST_TIMES, MOST_WINDOWS = 256, 64
Made = tuple[Tensor, Tensor, Tensor, Tensor]  # poles, zeros, D1 and D2
Problem = tuple[
    int, Callable[[Tensor, float], Tensor]
]  # steps of a pass; what is minimised over x, more or less sharp


@dataclass(frozen=True)
class Effort:
    """whole: steps of a problem that is solved from the start; most, finish: evaluations then, and on a larger one.

    sharp: powers that stand for the largest squared row norm, and what makes sums of exponentials stand for the largest
    of users. stop: relative fall of the value below which it ends.
    """

    whole: int
    most: int
    finish: int
    sharp: tuple[float, ...] = (30.0, 300.0, 3000.0)
    stop: float = 1e-9


ONCE, PASSES = Effort(2**14, 1000, 30, stop=1e-10), Effort(2**14, 150, 30)
SEPARATED, RECALLED = Effort(2048, 250, 60, (100.0, 1000.0, 10000.0)), Effort(2048, 100, 40)


def buffered_once(W: RunningSums, buffers: int, p: float) -> BufferedStrategy:
    """For users who take part in one step: all columns are of norm 1."""
    sizes = [(n, n, n) for n in sorted({min(W.steps, ONCE.whole), W.steps})]

    def scaled(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, n: int) -> Tensor:
        return overlaps(poles, zeros, before)[0].rsqrt()

    return _buffered(W, buffers, p, ONCE, sizes, 0, scaled)


def buffered_passes(W: RunningSums, period: int, buffers: int, p: float) -> tuple[BufferedStrategy, Tensor]:
    """For users who come back in every pass of ``period`` steps, in one order: none moves by more than 1, to rounding.

    And the row norms of W C^{-1}: (steps,). period: from LEAST_PERIOD, at most MOST_PASSES passes.
    """
    sizes = [(n, each, each) for n, each in _sizes(W.steps, period, PASSES)]

    def scaled(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, each: int) -> Tensor:
        scale = pass_squares(poles, zeros, before, after, each).rsqrt()
        return after * scale.repeat(-(-len(after) // each))[: len(after)]

    C = _buffered(W, buffers, p, PASSES, sizes, -(-W.steps // period), scaled)
    return C, torch.from_numpy(buffered_squares(*C.tensors, W)[0].astype(float)).sqrt()


def buffered_apart(W: RunningSums, gap: int, times: int, buffers: int, p: float) -> BufferedStrategy:
    """For users of at most ``times`` steps, ``gap`` apart: none moves by more than 1, to rounding.

    D2 has its places in each window of ``gap`` steps, beside the inverse column norms. times: at least 2, at most
    MOST_TIMES.
    """
    scale, windows = min(1.0, SEPARATED.whole / W.steps), min(-(-W.steps // gap), MOST_WINDOWS)
    sizes = [(max(2, round(W.steps * scale)), max(1, round(gap * scale)))] * (scale < 1) + [(W.steps, gap)]

    def scaled(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, each: int) -> Tensor:
        return after * overlaps(poles, zeros, before)[0].rsqrt()

    def moved(made: Made, each: int, sharp: float) -> Tensor:
        return largest(links(*made, each, times), each, sharp).log()

    found = [(n, each, -(-n // windows)) for n, each in sizes]
    C = _buffered(W, buffers, p, SEPARATED, found, windows, scaled, moved)
    bound = apart_squares(*C.tensors, gap, times)[0]
    return BufferedStrategy(C.poles, C.zeros, C.before, C.after / math.sqrt(bound))


def recalled_passes(
    n: int, period: int, buffers: int, p: float, reach: int = MOST_RECALLED
) -> tuple[RecalledStrategy, Tensor]:
    """For users who come back in every pass, noise drawn again; and the row norms of W C^{-1}, W prefix sums.

    Beside D1 and D2, for each pair of passes at most ``reach`` apart, A's diagonal is free; D2 is scaled so that each
    class moves C by 1 at most. n: steps; period: from LEAST_PERIOD, below n, at most MOST_RECALLED passes.
    """
    passes = -(-n // period)
    pairs = [pair for pair in zip(*np.tril_indices(passes, -1), strict=True) if pair[0] - pair[1] <= reach]
    later, sooner = torch.tensor(pairs, dtype=torch.int64).mT
    near = np.repeat(np.where(later - sooner == 1, 0.3, 0.0), PLACES)

    def problem(steps: int, each: int) -> tuple[Problem, Callable[[Tensor, float], tuple[Made, Tensor]]]:
        raw, places = _parts(steps, each, passes, buffers), hats(each, PLACES)
        there, eye = folded(torch.ones(steps, dtype=torch.float64), each), torch.eye(passes, dtype=torch.float64)
        place = torch.arange(each)[:, None]

        def made(x: Tensor, smooth: float) -> tuple[Made, Tensor]:
            poles, zeros, before, after = raw(x)
            diagonals = places @ x[len(x) - PLACES * len(pairs) :].view(-1, PLACES).mT
            values = there[:, later] * diagonals
            A, D2 = eye.repeat(each, 1, 1).index_put((place, later, sooner), values), folded(after, each)
            X = shared(poles, zeros, before, A) * D2[:, :, None] * D2[:, None, :]
            own = X.diagonal(dim1=1, dim2=2)
            sums = (X.square() + smooth**2 * own[:, :, None] * own[:, None]).clamp_min(1e-300).sqrt().sum((1, 2))
            return (poles, zeros, before, after * sums.rsqrt().repeat(passes)[:steps]), A

        def value(x: Tensor, sharp: float) -> Tensor:
            found, A = made(x, SMOOTH / sharp)
            return _norm(recalled_squares(*found, A), p, sharp)

        return (each, value), made

    sizes = [problem(*each) for each in _sizes(n, period, RECALLED)]
    start = np.concatenate([np.zeros(KNOTS + LEVELS * passes), near])
    x = _search([each for each, _ in sizes], buffers, start, RECALLED.sharp, RECALLED)
    with torch.no_grad():
        found, A = sizes[-1][1](x, 0.0)
        rows = recalled_squares(*found, A)
    reach = min(reach, passes - 1)
    earlier = [torch.nn.functional.pad(A.diagonal(-m, 1, 2), (m, 0)).mT.flatten()[:n] for m in range(1, reach + 1)]
    return RecalledStrategy(BufferedStrategy(*found), period, torch.stack(earlier)), rows.sqrt()


def _buffered(
    W: RunningSums,
    buffers: int,
    p: float,
    effort: Effort,
    sizes: Sequence[tuple[int, int, int]],
    windows: int,
    scaled: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor],
    moved: Callable[[Made, int, float], Tensor] | None = None,
) -> BufferedStrategy:
    """sizes: steps, those of a pass and of a window, of each problem; scaled: D2; moved: what is added to log rows."""

    def problem(n: int, each: int, window: int) -> tuple[Problem, Callable[[Tensor], Made]]:
        raw, coarse = _parts(n, window, windows, buffers), W if n == W.steps else W.coarse(n)

        def made(x: Tensor) -> Made:
            poles, zeros, before, after = raw(x)
            return poles, zeros, before, scaled(poles, zeros, before, after, each)

        def value(x: Tensor, sharp: float) -> Tensor:
            found = made(x)
            rows = _norm(squares(*found, coarse), p, sharp)
            return rows if moved is None else rows + moved(found, each, sharp)

        return (each, value), made

    found = [problem(*each) for each in sizes]
    sharp = effort.sharp if moved or p == math.inf else effort.sharp[-1:]
    x = _search([each for each, _ in found], buffers, np.zeros(KNOTS + LEVELS * windows), sharp, effort)
    with torch.no_grad():
        return BufferedStrategy(*found[-1][1](x))


def _search(
    problems: Sequence[Problem], buffers: int, start: np.ndarray, sharp: tuple[float, ...], effort: Effort
) -> Tensor:
    """x: a logit and the steps to the next ones, which grow with the pass, then what ``start`` has."""
    spans = [math.log(4 * each) for each, _ in problems]
    x = np.concatenate([[spans[0]], np.full(2 * buffers - 1, (spans[0] + 2) / (2 * buffers)), start])
    bounds = [(None, 25.0)] + [APART] * (2 * buffers - 1) + [(None, None)] * len(start)
    for stage, (span, (_, value)) in enumerate(zip(spans, problems, strict=True)):
        x[: 2 * buffers] *= span / spans[max(0, stage - 1)]
        for each in sharp[-1:] if stage else sharp:
            most = effort.finish if stage else effort.most
            x = quasi_newton(lambda point: value(point, each), x, most, bounds, effort.stop)  # noqa: B023
    return torch.from_numpy(x)


def _sizes(n: int, period: int, effort: Effort) -> list[tuple[int, int]]:
    """Steps, and those of a pass: of a smaller problem of as many passes, and of the problem."""
    passes, coarse = n / period, max(int(effort.whole / (n / period)), LEAST_PERIOD)
    small = (min(round(passes * coarse), math.ceil(passes) * coarse), coarse)
    return [small, (n, period)] if n > effort.whole and coarse < period else [(n, period)]


def _norm(rows: Tensor, p: float, sharp: float) -> Tensor:
    """log of the squared l_p norm of rows given as squares, of a large power in place of infinity."""
    power = p / 2 if p < math.inf else sharp
    return (power * rows.log()).logsumexp(0) / power


def _parts(n: int, window: int, windows: int, buffers: int) -> Callable[[Tensor], Made]:
    """Poles, zeros, D1 and D2 of x: a logit, positive decrements, heights at the knots and in each window."""
    knots, levels, head = hats(n, KNOTS), hats(window, LEVELS), 2 * buffers + KNOTS

    def parts(x: Tensor) -> Made:
        falls = torch.nn.functional.softplus(x[1 : 2 * buffers])
        places = torch.cat([x[:1], -falls]).cumsum(0).sigmoid()
        heights = x[head : head + LEVELS * windows].view(windows, LEVELS)
        after = (heights @ levels.mT).exp().flatten()[:n]
        return places[0::2], places[1::2], (knots @ x[2 * buffers : head]).exp(), after

    return parts


def hats(n: int, knots: int) -> Tensor:
    """Hat functions at so many points of logit((t + 1/2) / n), (n, knots)."""
    y = torch.logit((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    places = torch.linspace(-1, 1, knots, dtype=torch.float64) * max(float(y[-1]), 1.0)
    return (1 - ((y[:, None] - places) / (places[1] - places[0])).abs()).clamp_min(0)
