"""Strategies of a few buffers for users whose steps keep apart: what such a user moves at most, and the least error.

C = D1 T D2 as in ``buffered``, no entry below 0, so that X = C^T C is what counts:
    X_ij = D2_i D2_j sum_a w_a poles_a^{j-i-1} Q_a(j), i < j (``passes``).
Where j >= i + m gap, X_ij <= x_m(i) = D2_i sum_a w_a poles_a^{m gap - 1} max_{j >= i + m gap} poles_a^{j-i-m gap} D2_j
Q_a(j), maxima that follow from each other. Counting each pair at its earlier step, a user who is in r more steps after
i adds at most v_r(i) = X_ii + 2 sum_{m <= r} x_m(i) there: a sum over the user's steps, and the largest one over all
sets is found backwards. Where D1 and D2 do not rise, the bound is attained by 0, gap, 2 gap, ...
"""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.factorization.structure.buffered import (
    KNOTS,
    BufferedStrategy,
    Filter,
    hats,
    parts,
    residues,
    squares,
)
from torchdp.factorization.structure.passes import APART, LEVELS, overlaps
from torchdp.workloads import RunningSums

WHOLE = 2048  # steps of a problem that is solved from the start
MOST, FINISH = 250, 60  # evaluations for each sharpness, and those that a larger problem adds
SHARP = (100.0, 1000.0, 10000.0)  # what makes sums of exponentials stand for the largest of users and of rows
MOST_TIMES, MOST_LEVELS = 256, 64


def apart_squares(strategy: BufferedStrategy, gap: int, times: int) -> tuple[float, float]:
    """A bound on the squared norm of the sum of C's columns for ``times`` steps ``gap`` apart, and what a set attains.

    O(steps times buffers), in float64; relative rounding of the bound is at most :func:`apart_rounding`.
    """
    C = strategy.to(torch.device("cpu"))
    n, times = C.steps, min(times, -(-C.steps // gap))
    tables = _tables(_links(C.poles, C.zeros, C.before, C.after, gap, times), gap)
    chosen, start = torch.zeros(1, n, dtype=torch.float64), 0
    for table in tables[::-1]:
        if start < n:
            step = start + int((table[start:n] >= table[start]).sum()) - 1
            chosen[0, step], start = 1.0, step + gap
    given = C.after * chosen
    late = torch.nn.functional.pad(Filter.apply(given.expand(len(C.poles), -1), C.poles)[:, :-1], (1, 0))
    moved = C.before * (given[0] + residues(C.poles, C.zeros) @ late)
    return float(tables[-1][0]), float(moved.square().sum())


def apart_rounding(strategy: BufferedStrategy) -> float:
    """Relative, of :func:`apart_squares`: sums of n positive terms, and powers of poles as exponentials."""
    reach = 1 - float(strategy.poles.log().min())
    return (16 * reach * strategy.steps + 256) * torch.finfo(torch.float64).eps


def buffered_apart(W: RunningSums, gap: int, times: int, buffers: int, p: float) -> BufferedStrategy:
    """A strategy that no user moves by more than 1 (up to rounding), the l_p norm of W C^{-1}'s row norms made small.

    By L-BFGS over poles, zeros, D1's logarithm at knots and D2's at LEVELS places of each window of ``gap`` steps,
    beside the inverse column norms. times: at least 2, at most MOST_TIMES.
    """
    scale = min(1.0, WHOLE / W.steps)
    sizes = [(max(2, round(W.steps * scale)), max(1, round(gap * scale)))] * (scale < 1) + [(W.steps, gap)]
    windows = min(-(-W.steps // gap), MOST_LEVELS)
    span = [math.log(4 * each) for _, each in sizes]
    free = KNOTS + LEVELS * windows
    x = np.concatenate([[span[0]], np.full(2 * buffers - 1, (span[0] + 2) / (2 * buffers)), np.zeros(free)])
    bounds = [(None, 25.0)] + [APART] * (2 * buffers - 1) + [(None, None)] * free
    for stage, (n, apart) in enumerate(sizes):
        if stage:
            x[: 2 * buffers] *= span[1] / span[0]
        coarse, shapes = W if n == W.steps else W.coarse(n), (hats(n, KNOTS), hats(-(-n // windows), LEVELS))
        for sharp in SHARP[2 * stage :]:
            power = p / 2 if p < math.inf else sharp

            def value(point: Tensor) -> Tensor:
                made = _made(point, *shapes, buffers)  # noqa: B023
                rows = squares(*made, coarse)  # noqa: B023
                moved = _largest(_links(*made, apart, times), apart, sharp)  # noqa: B023
                return (power * rows.log()).logsumexp(0) / power + moved.log()  # noqa: B023

            x = quasi_newton(value, x, FINISH if stage else MOST, bounds)
    with torch.no_grad():
        found = BufferedStrategy(*_made(torch.from_numpy(x), *shapes, buffers))
        moved, _ = apart_squares(found, gap, times)
    return BufferedStrategy(found.poles, found.zeros, found.before, found.after / math.sqrt(moved))


def _made(x: Tensor, knots: Tensor, levels: Tensor, buffers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Poles, zeros, D1 and D2."""
    head, n = 2 * buffers + KNOTS, len(knots)
    poles, zeros, before = parts(x[:head], knots, buffers)
    after = (x[head:].unflatten(0, (-1, LEVELS)) @ levels.mT).exp().flatten()[:n]
    own, _, _ = overlaps(poles, zeros, before)
    return poles, zeros, before, after * own.rsqrt()


def _links(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, gap: int, times: int) -> Tensor:
    """v_r, (times, n)."""
    own, Q, w = overlaps(poles, zeros, before)
    ages = torch.arange(len(own), dtype=own.dtype) * poles.log()[:, None]
    highest = ((after * Q).log() + ages).flip(-1).cummax(-1).values.flip(-1)
    highest, found = (highest - ages).exp(), [own * after.square()]
    for m in range(1, times):
        reach = min(m * gap, len(own))
        link = (w * poles ** (reach - 1)) @ highest[:, reach:]
        found.append(found[-1] + 2 * after * torch.nn.functional.pad(link, (0, reach)))
    return torch.stack(found)


def _largest(links: Tensor, gap: int, sharp: float) -> Tensor:
    """The largest sum over a set, smoothed from above: a sum of exponentials over all sets."""
    unit = _tables(links.detach(), gap)[-1][0] / sharp
    total = links.new_zeros(links.shape[1] + gap)
    for link in links / unit:
        taken = torch.nn.functional.pad(link + total[gap:], (0, 1)).flip(0)  # and the empty set
        total = torch.nn.functional.pad(taken.logcumsumexp(0).flip(0)[:-1], (0, gap))
    return total[0] * unit


def _tables(links: Tensor, gap: int) -> list[Tensor]:
    """For r = 0, 1, ...: the largest sum over sets of at most r + 1 steps from i on, (n + gap,)."""
    table, found = links.new_zeros(links.shape[1] + gap), []
    for link in links:
        taken = (link + table[gap:]).flip(0).cummax(0).values.flip(0)
        table = torch.nn.functional.pad(taken, (0, gap))
        found.append(table)
    return found
