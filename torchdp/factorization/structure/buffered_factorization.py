"""factorize for running sums by strategies of a few buffers, beside a bound for every strategy."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.descent import quasi_newton
from torchdp.factorization.certificates.buffered_certificate import buffered_squares
from torchdp.factorization.certificates.certificate import Certificate, allowance, check_exponent
from torchdp.factorization.certificates.passes_certificate import passes_lower
from torchdp.factorization.structure.apart import MOST_TIMES, apart_rounding, apart_squares, buffered_apart
from torchdp.factorization.structure.buffered import (
    FINISH,
    KNOTS,
    SHARP,
    WHOLE,
    BufferedStrategy,
    hats,
    parts,
    reciprocals,
    squares,
)
from torchdp.factorization.structure.passes import APART
from torchdp.factorization.structure.returning import passes_dual
from torchdp.factorization.structure.running import factorize_running
from torchdp.threads import one_thread
from torchdp.workloads import RunningSums


@dataclass(frozen=True)
class BufferedFactorization:
    """W (G + C^{-1} Z) for running sums W: a strategy C that no user moves by more than 1, and how good it is.

    row_norms: of W C^{-1}, (steps,), the standard errors for Z of standard deviation 1 where users take part as was
    asked for. certificate: of gamma_(p), or its like for that participation, its upper bound the l_p norm of row_norms.
    """

    workload: RunningSums
    strategy: BufferedStrategy
    row_norms: Tensor
    certificate: Certificate


@one_thread
def factorize_buffered(
    W: RunningSums,
    buffers: int = 4,
    p: float = math.inf,
    *,
    tol: float = 1e-3,
    gap: int | None = None,
    times: int = 1,
) -> BufferedFactorization:
    """The strategy D1 T D2 of least l_p norm of the row norms of W C^{-1}, by L-BFGS, beside a proved lower bound.

    W: with momentum or without. buffers: from 1 to 16, the numbers kept for each parameter; 4 will do up to 10,000
    steps, 5 for a million. p: in [2, inf], inf for the largest error and 2 for the mean squared one. tol: gap of the
    lower bound, which holds for every strategy (:func:`factorize`). gap, times: a user takes part in at most ``times``
    steps, any two at least ``gap`` apart, as in ``training.Separated``; for None in one step. Then the error counts for
    C scaled to move by 1, and the lower bound is that of passes in one order, whatever ``tol``; with momentum or rates
    that of one step alone. Optimised on the CPU. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= gamma_(p)(W) <= certificate.upper, the l_p norm of row_norms; with ``gap`` the same
    of the least value of any strategy for such users.
    Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), buffered Toeplitz strategies; D1 and D2 are ours.
    """
    checks.instance("W", W, RunningSums)
    buffers, p, tol = checks.integer("buffers", buffers, 1, 16), check_exponent(p), checks.positive("tol", tol)
    times = checks.integer("times", times, 1)
    gap = W.steps if gap is None else min(checks.integer("gap", gap, 1), W.steps)
    times = min(times, -(-W.steps // gap))
    if times > MOST_TIMES:
        raise ValueError(f"times must be at most {MOST_TIMES} where gap leaves room for more, not {times}")
    lower, slack = _lower(W, gap, times, p, tol)
    if times > 1:
        strategy = buffered_apart(W, gap, times, buffers, p)
        moved = apart_squares(strategy, gap, times)[0] * (1 + apart_rounding(strategy))
    else:
        strategy, moved = _once(W, buffers, p), 0.0
    rows, columns, rounding = buffered_squares(strategy.poles, strategy.zeros, strategy.before, strategy.after, W)
    norms = torch.from_numpy((rows * (moved or columns.max())).astype(float)).sqrt()
    upper = torch.linalg.vector_norm(norms, ord=p)
    slack = slack + torch.linalg.vector_norm(torch.from_numpy((rounding / rows**0.5).astype(float)), ord=p)
    certificate = Certificate(upper, lower, torch.zeros_like(upper), rounding=slack + allowance(upper, 8))
    return BufferedFactorization(W, strategy.to(torch.device(W.device)), norms.to(W.device), certificate)


def _lower(W: RunningSums, gap: int, times: int, p: float, tol: float) -> tuple[Tensor, Tensor]:
    """A bound for every strategy, and its rounding, where that counts."""
    if times == 1 or W.momentum or W.rates is not None:
        return factorize_running(W, p, tol, 10_000).certificate.lower.cpu(), torch.zeros((), dtype=torch.float64)
    here, period = (
        RunningSums(W.steps, W.decay),
        max(gap, -(-W.steps // times)),
    )  # passes that the users may keep to
    return passes_lower(here, period, *passes_dual(here, period, p), p)


def _once(W: RunningSums, buffers: int, p: float) -> BufferedStrategy:
    """For users who take part in one step: columns of norm 1."""
    sizes = [W.steps] if W.steps <= WHOLE else [WHOLE, W.steps]
    span = [math.log(4 * n) for n in sizes]
    x = np.concatenate([[span[0]], np.full(2 * buffers - 1, (span[0] + 2) / (2 * buffers)), np.zeros(KNOTS)])
    bounds = [(None, 25.0)] + [APART] * (2 * buffers - 1) + [(None, None)] * KNOTS
    for stage, n in enumerate(sizes):
        if stage:
            x[: 2 * buffers] *= span[1] / span[0]
        coarse, shapes = W if n == W.steps else W.coarse(n), hats(n, KNOTS)
        for power in [p / 2] if p < math.inf else SHARP[2 * stage :]:

            def value(point: Tensor) -> Tensor:
                poles, zeros, before = parts(point, shapes, buffers)  # noqa: B023
                rows = squares(poles, zeros, before, reciprocals(poles, zeros, before), coarse)  # noqa: B023
                return (power * rows.log()).logsumexp(0) / power  # noqa: B023

            x = quasi_newton(value, x, FINISH if stage else 1000, bounds, 1e-10)
    with torch.no_grad():
        poles, zeros, before = parts(torch.from_numpy(x), hats(W.steps, KNOTS), buffers)
        after = reciprocals(poles, zeros, before)
    return BufferedStrategy(poles, zeros, before, after)
