"""factorize for running sums of up to millions of steps: weights and a few numbers, never a
matrix.
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
    draw,
    quadrature,
    row_numbers,
)
from torchdp.factorization.solvers.iteration import History, simplex
from torchdp.noise import Noise, source
from torchdp.threads import one_thread
from torchdp.workloads import RunningSums

# of the multiplicative update, in (0, 2); differences that Anderson's acceleration keeps
POWER, MEMORY = 1.5, 3
COARSEST, RATIO = 256, 8  # steps of the first problem; how much larger the next one is
# loss of the rule while weights are looked for; gap of smaller problems
ROUGH, COARSE_GAP = 1e-3, 1e-4
END = 32  # steps at both ends whose weights are taken over one by one
LEAST = 1e-9  # of a weight, in units of their mean
MOST_ORDER = 300.0  # p of the l_p norm: the dual weights of a larger one move too slowly
LAST = 6  # certificates, each by a rule twice as fine, before an open gap is reported


@dataclass(frozen=True)
class RunningFactorization:
    """W = L R for running sums W, as weights and a rule: L L^T = diag(c)^{-1/2} f((M M^T)^{-1})
    diag(c)^{-1/2}.

    M = diag(c)^{1/2} W diag(P)^{1/2}; f is a sum of len(rule.levels) resolvents, so that the noise
    L Z is a sum of as many Gaussian paths. row_weights c, column_weights P: (steps,), the dual
    weights behind ``certificate.lower``. row_norms: L's, (steps,), the standard errors of the sums
    for noise of standard deviation 1; sensitivity: no column of R = L^{-1} W is longer. The
    certificate is of gamma_(p) for the p that was asked for.
    """

    workload: RunningSums
    row_weights: Tensor
    column_weights: Tensor
    rule: Quadrature
    row_norms: Tensor
    sensitivity: float
    certificate: Certificate
    iterations: int

    def correlated_noise(self, size: int = 1, *, noise: Noise | None = None) -> Tensor:
        """L Z, Z of standard normal entries: the noise of all sums, (steps, size); ``size``
        independent columns.

        Where each user enters one step with a part of norm at most 1 and noise is multiplied by
        sigma sensitivity, the noisy sums of all steps are as private as one Gaussian of standard
        deviation sigma. In time for len(rule.levels) times as many normals, and memory for a few.
        noise: from the system for None.
        Guarantees: its covariance is L L^T, in each column.
        Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), Theorem 2.1.
        """
        size, draws = checks.integer("size", size, 1), source(noise, self.row_weights.device)
        c, P, W = self.row_weights, self.column_weights, self.workload
        steps = P if W.rates is None else P * W.rates.square()
        total = (self.rule.white / c).sqrt()[:, None] * draws.normal((len(c), size))
        for level, share in zip(self.rule.levels, self.rule.shares, strict=True):
            total += share.sqrt() * draw(steps, level * c, W.decay, size, draws)
        return total


@one_thread
def factorize_running(
    W: RunningSums, p: float, tol: float, max_iterations: int
) -> RunningFactorization:
    """The factorization of least gamma_(p) norm; see :func:`factorize`, which calls it and warns
    where it is open.
    """
    p, tol = check_exponent(p), checks.positive("tol", tol)
    if W.momentum:
        raise ValueError(
            "running sums with momentum are factored as a matrix: pass RunningSums(...).dense()"
        )
    if MOST_ORDER < p < math.inf:
        raise ValueError(
            f"p must lie in [2, {MOST_ORDER:g}] or be inf for running sums, not {p!r}; inf is near it"
        )
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    sizes = [W.steps]
    while sizes[-1] > COARSEST:
        sizes.append(max(sizes[-1] // RATIO, COARSEST // RATIO))
    P, iterations = _start(sizes[-1], W.device), 0
    c = P if p > 2 else torch.full_like(P, 1 / len(P))
    for steps in reversed(sizes[1:]):
        c, P, used, _ = _iterate(W.coarse(steps), c, P, p, min(COARSE_GAP, tol / 4), 40)
        above = sizes[sizes.index(steps) - 1]
        c, P = (_longer(x, above, END) for x in (c, P))
    within, loss = 0.7 * tol, min(tol / 16, 1e-3)
    for _ in range(LAST):
        c, P, used, gap = _iterate(W, c, P, p, within, max_iterations - iterations)
        iterations += used
        rule = quadrature(W, c, P, loss)
        certificate, a, sensitivity = certify_running(W, c, P, p, rule)
        if bool(certificate.closed(tol)) or iterations >= max_iterations:
            break
        within, loss = min(within, gap) / 2, max(loss / 4, 1e-15)
    return RunningFactorization(W, c, P, rule, a.sqrt(), sensitivity, certificate, iterations)


def _iterate(
    W: RunningSums, c: Tensor, P: Tensor, p: float, within: float, most: int
) -> tuple[Tensor, Tensor, int, float]:
    """Accelerated multiplicative updates until the gap, as the rough rule sees it, is ``within``.

    Returns c, P, how many, the gap: of all weights seen, those of the least gap.
    """
    q = conjugate(p)
    turned = q == 1 and W.rates is None  # gamma_2 of W, the same from both ends: c is P reversed
    loss, history = min(ROUGH, within / 4), History(MEMORY)
    best = math.inf, c, P
    for iteration in range(max(most, 0) + 1):
        rule = quadrature(W, c, P, loss)
        b = column_numbers(W, c, P, rule)
        a = b.flip(0) if turned else row_numbers(W, c, P, rule) if p > 2 else None
        trace = (P * b).sum()
        height = trace * W.steps if a is None else torch.linalg.vector_norm(a, ord=p / 2)
        gap = (
            float((height * b.max()).sqrt() / trace * torch.linalg.vector_norm(c, ord=q).sqrt()) - 1
        )
        best = min(best, (gap, c, P), key=lambda each: each[0])
        if gap <= within or iteration == most:
            break
        if a is not None and q == 1 and not turned:  # both vectors move alike
            logs, moves = torch.cat([P, c]).log(), torch.cat([b, a]) / trace
            P, c = map(
                _simplex_of,
                history.mix(logs, POWER * moves.log(), torch.cat([P, c]), None).chunk(2),
            )
        else:
            P = _simplex_of(history.mix(P.log(), POWER * (b / trace).log(), P, None))
            c = P.flip(0) if turned else c if a is None else _simplex((c * a) ** (1 / q))
    gap, c, P = best
    return c, P, iteration, gap


def _simplex(weights: Tensor) -> Tensor:
    """Of sum 1, none below LEAST."""
    return simplex(weights, LEAST / len(weights))


def _simplex_of(logs: Tensor) -> Tensor:
    return _simplex((logs - logs.max()).exp())


def _start(steps: int, device: torch.device | str) -> Tensor:
    """1 / sqrt(x (1 - x)), near the optimum of prefix sums but for the ends."""
    x = (torch.arange(steps, dtype=torch.float64, device=device) + 0.5) / steps
    return _simplex((x * (1 - x)).rsqrt())


def _longer(weights: Tensor, steps: int, end: int) -> Tensor:
    """The weights' density on more steps, its logarithm as of :func:`_stretched`, at both ends as
    it is.
    """
    n, density = len(weights), weights.log()
    values = _stretched(density, steps)
    end = min(end, n // 4)  # where single steps show, at the same distance from the end
    values[:end] = density[:end] + (values[end] - density[end])
    values[-end:] = density[-end:] + (values[-end - 1] - density[-end - 1])
    return _simplex_of(values)


def _stretched(values: Tensor, length: int) -> Tensor:
    """(m,) -> (length,), linear in logit((i + 1/2) / m), carried on beyond both ends."""
    m = len(values)
    x, y = (
        ((torch.arange(k, dtype=values.dtype, device=values.device) + 0.5) / k).logit()
        for k in (m, length)
    )
    right = torch.searchsorted(x, y).clamp(1, m - 1)
    share = (y - x[right - 1]) / (x[right] - x[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share
