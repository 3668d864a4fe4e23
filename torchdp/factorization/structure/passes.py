"""Strategies of a few buffers for users who come back in every pass through the batches, in one order.

C = D1 T D2 as in ``buffered``. A user of batch i is in steps i, i + period, ..., and moves the outputs by the norm of
the sum of C's columns of these steps, as no entry of C is negative. All these sums have recurrences like T's, in
O(steps buffers^2), so that D2 can make each of them one long; what it is in one pass beside another stays free.
"""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.factorization.certificates.buffered_certificate import buffered_squares
from torchdp.factorization.structure.buffered import (
    FINISH,
    KNOTS,
    SHARP,
    WHOLE,
    BufferedStrategy,
    Filter,
    hats,
    parts,
    residues,
    squares,
)
from torchdp.workloads import RunningSums

LEVELS = 6  # numbers for each pass: D2's logarithm at so many places of it
MOST = 150  # evaluations
APART = (-7.0, 30.0)  # of what makes the logits' steps: no pole meets a zero
LEAST_PERIOD, MOST_PASSES = 8, 64


def buffered_passes(W: RunningSums, period: int, buffers: int, p: float) -> tuple[BufferedStrategy, Tensor]:
    """A strategy that no user moves by more than 1 (up to rounding), and the row norms of W C^{-1}: (steps,).

    Their l_p norm is made small by L-BFGS. period: from LEAST_PERIOD, at most MOST_PASSES passes.
    """
    passes = W.steps / period
    periods = [period] if W.steps <= WHOLE else [max(int(WHOLE / passes), LEAST_PERIOD), period]
    span = [math.log(4 * each) for each in periods]
    free = KNOTS + LEVELS * math.ceil(passes)
    x = np.concatenate([[span[0]], np.full(2 * buffers - 1, (span[0] + 2) / (2 * buffers)), np.zeros(free)])
    bounds = [(None, 25.0)] + [APART] * (2 * buffers - 1) + [(None, None)] * free
    for stage, each in enumerate(periods):
        n = W.steps if each == period else min(round(passes * each), math.ceil(passes) * each)
        if stage:
            x[: 2 * buffers] *= span[1] / span[0]
        sums, shapes, levels = W if n == W.steps else W.coarse(n), hats(n, KNOTS), hats(each, LEVELS)
        for power in [p / 2] if p < math.inf else SHARP[2 * stage :]:

            def value(point: Tensor) -> Tensor:
                rows = squares(*_made(point, shapes, levels, buffers), sums)  # noqa: B023
                return (power * rows.log()).logsumexp(0) / power  # noqa: B023

            x = quasi_newton(value, x, FINISH if stage else MOST, bounds)
    with torch.no_grad():
        poles, zeros, before, after = _made(torch.from_numpy(x), shapes, levels, buffers)
    rows = buffered_squares(poles, zeros, before, after, W)[0]
    return BufferedStrategy(poles, zeros, before, after), torch.from_numpy(rows.astype(float)).sqrt()


def pass_squares(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, period: int) -> Tensor:
    """||the sum of C's columns i, i + period, ...||^2 for i < period: (min(period, steps),).

    From :func:`overlaps`, sums over i < j of one class pass by pass. No term is negative, so the relative rounding is
    at most some 8 eps steps.
    """
    n, period, buffers = len(before), min(period, len(before)), len(poles)
    passes = -(-n // period)
    own, Q, w = overlaps(poles, zeros, before)

    def folded(y: Tensor) -> Tensor:
        """(..., n) -> (..., passes, period)."""
        return torch.nn.functional.pad(y, (0, passes * period - n)).unflatten(-1, (passes, period))

    D2, Q, total = folded(after), folded(Q), folded(own * after.square()).sum(0)
    past = torch.zeros(buffers, period, dtype=own.dtype)  # sum_{i < j} D2_i poles_a^{j-i-1}
    for e in range(1, passes):
        past = (poles**period)[:, None] * past + (poles ** (period - 1))[:, None] * D2[e - 1]
        total = total + 2 * D2[e] * (w @ (Q[:, e] * past))
    return total


def overlaps(poles: Tensor, zeros: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms of D1 T's columns, (steps,), Q, (buffers, steps), and w, (buffers,), of what they share.

    <c_i, c_j> = D2_i D2_j sum_a w_a poles_a^{j-i-1} Q_a(j) for i < j, Q_a(j) = D1_j^2 + poles_a sum_c w_c q_ac(j + 1),
    q_ac(j) = D1_j^2 + poles_a poles_c q_ac(j + 1).
    """
    buffers, w, own = len(poles), residues(poles, zeros), before.square()
    first, second = torch.triu_indices(buffers, buffers)
    place = torch.zeros(buffers, buffers, dtype=torch.long)
    place[first, second] = place[second, first] = torch.arange(len(first))
    q = Filter.apply(own.flip(0).expand(len(first), -1), poles[first] * poles[second]).flip(-1)
    after_j = torch.nn.functional.pad(q[:, 1:], (0, 1))  # q_ac(j + 1)
    mixed = torch.stack([w @ after_j[row] for row in place])  # (buffers, n)
    return own + w @ mixed, own + poles[:, None] * mixed, w


def _made(x: Tensor, shapes: Tensor, levels: Tensor, buffers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Poles, zeros, D1 and D2."""
    head, n, period = 2 * buffers + KNOTS, len(shapes), len(levels)
    poles, zeros, before = parts(x[:head], shapes, buffers)
    after = (x[head:].unflatten(0, (-1, LEVELS)) @ levels.mT).exp().flatten()[:n]
    scale = pass_squares(poles, zeros, before, after, period).rsqrt()
    return poles, zeros, before, after * scale.repeat(-(-n // period))[:n]
