"""factorize for running sums of up to millions of steps: weights and a rule, never a matrix.

Notation:
    c, P: dual weights of the rows and columns, (steps,); q: conjugate of p/2, of c's norm.
    a, b: squared row norms of L and column norms of R, up to their scales.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, check_exponent, conjugate
from torchdp.factorization.certificates.running_certificate import (
    Quadrature,
    certify_running,
    column_numbers,
    quadrature,
    row_numbers,
)
from torchdp.factorization.solvers.iteration import History, simplex
from torchdp.threads import one_thread
from torchdp.workloads import RunningSums

# Of the multiplicative update, in (0, 2).
POWER = 1.5

# Differences that Anderson's acceleration keeps.
MEMORY = 3

# Steps of the first problem at most, and how much larger the next one is.
COARSEST = 256
RATIO = 8

# Gap at which a smaller problem is good enough, and its iterations at most.
COARSE_GAP = 1e-4
COARSE_ITERATIONS = 40

# Loss of the rule at most: while weights are sought, and in the first certificate.
ROUGH = 1e-3

# Share of the tolerance for the weights, the rest being for the rule.
WITHIN = 0.7

# Least loss of a rule.
LEAST_LOSS = 1e-15

# Steps at both ends whose weights are taken over one by one.
END = 32

# Of a weight, in units of their mean.
LEAST = 1e-9

# p of the l_p norm: the dual weights of a larger one move too slowly.
MOST_ORDER = 300.0

# Certificates, each by a rule twice as fine, before an open gap is reported.
LAST = 6


@dataclass(frozen=True)
class RunningFactorization:
    """W = L R for running sums W, as weights and a rule.

        L L^T = diag(c)^{-1/2} f((M M^T)^{-1}) diag(c)^{-1/2},  M = diag(c)^{1/2} W diag(P)^{1/2};
    f is a sum of len(rule.levels) resolvents.

    Args:
        workload: W.
        row_weights: c, (steps,), with P the dual weights behind ``certificate.lower``.
        column_weights: P, (steps,).
        rule: f.
        row_norms: L's, (steps,), the standard errors of the sums for noise of standard deviation 1.
        sensitivity: no column of R = L^{-1} W is longer.
        certificate: of gamma_(p) for the p that was asked for.
        iterations: on all steps.
    """

    workload: RunningSums
    row_weights: Tensor
    column_weights: Tensor
    rule: Quadrature
    row_norms: Tensor
    sensitivity: float
    certificate: Certificate
    iterations: int


@one_thread
def factorize_running(
    W: RunningSums, p: float, tol: float, max_iterations: int
) -> RunningFactorization:
    """The factorization of least gamma_(p) norm, for :func:`factorize`, which warns where open."""
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    if W.momentum:
        raise ValueError(
            "running sums with momentum are factored as a matrix: pass RunningSums(...).dense()"
        )
    if MOST_ORDER < p < math.inf:
        raise ValueError(
            f"p must lie in [2, {MOST_ORDER:g}] or be inf for running sums, not {p!r}; "
            "inf is near it"
        )
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    c, P = _begun(W, p, tol)
    iterations = 0
    within = WITHIN * tol
    loss = min(tol / 16, ROUGH)
    for _ in range(LAST):
        c, P, used, gap = _iterate(W, c, P, p, within, max_iterations - iterations)
        iterations += used
        rule = quadrature(W, c, P, loss)
        certificate, a, sensitivity = certify_running(W, c, P, p, rule)
        if bool(certificate.closed(tol)) or iterations >= max_iterations:
            break
        within = min(within, gap) / 2
        loss = max(loss / 4, LEAST_LOSS)
    return RunningFactorization(W, c, P, rule, a.sqrt(), sensitivity, certificate, iterations)


def _begun(W: RunningSums, p: float, tol: float) -> tuple[Tensor, Tensor]:
    """c and P from problems of fewer steps, each stretched to the next."""
    sizes = [W.steps]
    while sizes[-1] > COARSEST:
        sizes.append(max(sizes[-1] // RATIO, COARSEST // RATIO))
    P = _start(sizes[-1], W.device)
    c = P if p > 2 else torch.full_like(P, 1 / len(P))
    while len(sizes) > 1:
        steps = sizes.pop()
        within = min(COARSE_GAP, tol / 4)
        c, P, _, _ = _iterate(W.coarse(steps), c, P, p, within, COARSE_ITERATIONS)
        c = _longer(c, sizes[-1], END)
        P = _longer(P, sizes[-1], END)
    return c, P


def _iterate(
    W: RunningSums, c: Tensor, P: Tensor, p: float, within: float, most: int
) -> tuple[Tensor, Tensor, int, float]:
    """Accelerated multiplicative updates until the gap, as the rough rule sees it, is ``within``.

    Returns c, P, how many, the gap: of all weights seen, those of the least gap.
    """
    q = conjugate(p)
    # gamma_2 of W is the same from both ends: c is P reversed
    mirrored = q == 1 and W.rates is None
    loss = min(ROUGH, within / 4)
    history = History(MEMORY)
    least_gap = math.inf
    best = (c, P)
    for iteration in range(max(most, 0) + 1):
        rule = quadrature(W, c, P, loss)
        b = column_numbers(W, c, P, rule)
        trace = (P * b).sum()
        height = trace * W.steps  # for p = 2: c is constant, and the sum of a is that of P b
        if p > 2:
            a = b.flip(0) if mirrored else row_numbers(W, c, P, rule)
            height = torch.linalg.vector_norm(a, ord=p / 2)
        upper = (height * b.max()).sqrt()
        norm_of_c = torch.linalg.vector_norm(c, ord=q)
        gap = float(upper / trace * norm_of_c.sqrt()) - 1
        if gap < least_gap:
            least_gap = gap
            best = (c, P)
        if gap <= within or iteration == most:
            break
        if q == 1 and not mirrored:
            # Both vectors move by the same rule, so one history serves them together.
            weights = torch.cat([P, c])
            slopes = torch.cat([b, a]) / trace
            logs = history.mix(weights.log(), POWER * slopes.log(), weights, None)
            P, c = map(_simplex_of, logs.chunk(2))
            continue
        slopes = b / trace
        P = _simplex_of(history.mix(P.log(), POWER * slopes.log(), P, None))
        if mirrored:
            c = P.flip(0)
        elif p > 2:
            c = _simplex((c * a) ** (1 / q))
    c, P = best
    return c, P, iteration, least_gap


def _simplex(weights: Tensor) -> Tensor:
    """Of sum 1, none below LEAST."""
    return simplex(weights, LEAST / len(weights))


def _simplex_of(logs: Tensor) -> Tensor:
    return _simplex((logs - logs.max()).exp())


def _start(steps: int, device: torch.device | str) -> Tensor:
    """1 / sqrt(x (1 - x)), near the optimum of prefix sums but for the ends."""
    x = _middles(steps, device)
    return _simplex((x * (1 - x)).rsqrt())


def _longer(weights: Tensor, steps: int, end: int) -> Tensor:
    """The weights' density on more steps: as of :func:`_stretched`, and at both ends as it is."""
    density = weights.log()
    values = _stretched(density, steps)
    # Where single steps show, at the same distance from the end.
    end = min(end, len(weights) // 4)
    values[:end] = density[:end] + (values[end] - density[end])
    values[-end:] = density[-end:] + (values[-end - 1] - density[-end - 1])
    return _simplex_of(values)


def _stretched(values: Tensor, length: int) -> Tensor:
    """(m,) -> (length,), linear in logit((i + 1/2) / m), carried on beyond both ends."""
    m = len(values)
    x = _middles(m, values.device).logit()
    y = _middles(length, values.device).logit()
    right = torch.searchsorted(x, y).clamp(1, m - 1)
    share = (y - x[right - 1]) / (x[right] - x[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share


def _middles(steps: int, device: torch.device | str) -> Tensor:
    """(i + 1/2) / steps."""
    return (torch.arange(steps, dtype=torch.float64, device=device) + 0.5) / steps
