"""factorize for running sums by strategies of a few buffers, beside a bound for every strategy."""

import math
from typing import cast

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, allowance, check_exponent
from torchdp.factorization.certificates.passes_certificate import passes_lower
from torchdp.factorization.certificates.running_certificate import buffered_squares
from torchdp.factorization.epochs import StreamFactorization, factorize_epochs
from torchdp.factorization.factorize import factorize
from torchdp.factorization.streams.search import MOST_TIMES, buffered_apart, buffered_once
from torchdp.factorization.streams.series import apart_squares
from torchdp.factorization.structure.running import factorize_running, stretched
from torchdp.threads import on_host, one_thread
from torchdp.workloads import RunningSums

SHORT = 768  # steps of the run whose dual is solved
LEAST = 6  # classes of it
TOL = 3e-4  # gap of it
MIXED = 1e-3  # share of equal row weights, against rounding
STEADY = 1e-9  # of the identity, for the root
DENSE = 1024  # steps with momentum whose matrix is factored for the lower bound


@on_host
def passes_dual(W: RunningSums, period: int, p: float) -> tuple[Tensor, Tensor]:
    """Row weights, (steps,), and directions, (steps, passes), for :func:`passes_lower`.

    Those of ``factorize_epochs`` for shorter passes; the logarithms of rows' and classes' weights and the classes'
    correlations are linear in logit((i + 1/2) / period), the ends carried on.
    """
    n, period = W.steps, min(period, W.steps)
    passes = -(-n // period)
    short = min(period, max(LEAST, SHORT // passes))
    rest = max(1, round((n - (passes - 1) * period) * short / period))
    small = (passes - 1) * short + rest
    found = factorize_epochs(RunningSums(small, W.decay ** (n / small)).dense(), short, p, TOL)
    c, D = found.row_weights, cast(Tensor, found.witness)
    fill = passes * short - small
    c = torch.nn.functional.pad(c, (0, fill), value=float(c[-1])).view(passes, short)
    D = torch.nn.functional.pad(D, (0, 0, 0, fill)).view(passes, short, -1).movedim(0, 1)
    M = D @ D.mT
    if fill:
        M[rest:, -1, -1] = M[rest:, 0, 0]
    sizes = M.diagonal(dim1=1, dim2=2)
    R = M / (sizes[:, :, None] * sizes[:, None, :]).sqrt()
    R = (1 - STEADY) * R + STEADY * torch.eye(passes, dtype=R.dtype)
    mu = stretched(sizes.amax(1).log(), period).exp()
    B = torch.linalg.cholesky(stretched(R.flatten(1).mT, period, within=True).mT.view(period, passes, passes))
    D = (mu.sqrt()[:, None, None] * B).movedim(0, 1).flatten(0, 1)[:n]
    c = stretched(c.clamp_min(MIXED * float(c.mean())).log(), period).exp().flatten()[:n]
    return c, D


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
    """The strategy D1 T D2 of least l_p norm of the row norms of W C^{-1}, by L-BFGS, beside a proved lower bound.

    W: with momentum or without. buffers: from 1 to 16, the numbers kept for each parameter; 4 will do up to 10,000
    steps, 5 for a million. p: in [2, inf], inf for the largest error and 2 for the mean squared one. tol: gap of the
    lower bound, which holds for every strategy (:func:`factorize`; with momentum it is that of the first 1,024 steps).
    gap, times: a user takes part in at most ``times`` steps, any two at least ``gap`` apart, as in
    ``training.Separated``; for None in one step. Then the error counts for C scaled to move by 1, and the lower bound
    is that of passes in one order, whatever ``tol``; with momentum or rates that of one step alone. Optimised on the
    CPU. Raises TypeError, ValueError.

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
    slack = slack + torch.linalg.vector_norm(torch.from_numpy((rounding / rows**0.5).astype(float)), ord=p)
    certificate = Certificate(upper, lower, torch.zeros_like(upper), rounding=slack + allowance(upper, 8))
    return StreamFactorization(strategy.to(torch.device(W.device)), norms.to(W.device), certificate)


def _lower(W: RunningSums, gap: int, times: int, p: float, tol: float) -> tuple[Tensor, Tensor]:
    """A bound for every strategy, and its rounding, where that counts."""
    exact = torch.zeros((), dtype=torch.float64)
    if W.momentum:  # what holds for the first steps holds for all: factors of W hold factors of its leading block
        steps = min(W.steps, DENSE)
        rates = None if W.rates is None else W.rates[:steps]
        block = RunningSums(steps, W.decay, W.momentum, rates, W.device)
        return factorize(block.dense(), p, tol=tol).certificate.lower.cpu(), exact
    if times == 1 or W.rates is not None:
        return factorize_running(W, p, tol, 10_000).certificate.lower.cpu(), exact
    period = max(gap, -(-W.steps // times))  # of passes that the users may keep to
    return passes_lower(W, period, *passes_dual(W, period, p), p)
