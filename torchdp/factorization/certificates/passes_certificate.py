"""A lower bound for running sums of any length with repeated users: O(steps passes^2) numbers, never a matrix."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent, conjugate, fitting, scaled_weights
from torchdp.factorization.certificates.running_certificate import Quadrature
from torchdp.threads import on_host
from torchdp.workloads import RunningSums

LOSS = 1e-6  # of the rule for the root
FIRST = 1e-2  # relative error up to which the first order will do; other nodes are left out
MIXED = 1e-3  # share of unit vectors in each class, against rounding
EPS = torch.finfo(torch.float64).eps


@on_host
def passes_lower(
    W: RunningSums, period: int, row_weights: Tensor, directions: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """A lower bound on (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, S as in ``factorize_epochs``; what rounding may cost.

    It is the trace norm of diag(c)^{1/2} W M^{1/2}, as in :func:`certify_epochs`: c = row_weights scaled to norm 1 in
    l_{p/(p-2)}, M zero between classes i, i + period, ... of steps, mu_i R_i / sum_i mu_i within one: R_i the cosines
    of the rows d_s of ``directions``, times 0.999 off the diagonal, mu_i = max_{s in i} ||d_s||^2. A user who may enter
    i, i + period, ... among other sets of steps moves C G at least as far, so it is a bound for (b, k)-participation,
    too, where period >= b and ceil(steps / period) <= k.

    With N = W^{-T} M^{-1} W^{-1}, sigma(lambda) = lambda^{-1/2} of diag(c)^{-1/2} N diag(c)^{-1/2} is the sum of
    tr diag(c) (N + s diag(c))^{-1} over the nodes s of a rule (:class:`Quadrature`), whose excess is taken off; nodes
    may be left out, as all terms are positive. N is the precision of a path of vectors, one entry for each pass:
        x_i = decay x_{i-1} + N(0, M_i), i < period, where x_{-1} is x_{period-1} one pass before,
    so that filters from i = 0 on serve: sums, inverses and congruences of positive definite matrices, no differences.
    A last pass that is shorter is filled up with steps of weight 0, which changes nothing.

    row_weights: (steps,), non-negative; directions: (steps, j), not all 0 in a class. Float64, on the CPU. Raises
    TypeError, ValueError.
    rounding: to first order. A sum or an inverse of k x k matrices, computed, lies between (1 - e) and (1 + e) times
    the exact one, e = 8 k eps times the condition number after scaling to unit diagonal; the maps are monotone and
    homogeneous, so that such factors carry over unchanged and add up: e is added over all steps and matrices. What
    products of them lose beside is more where R_i are nearly singular, hence the 0.999; tests compare it with e.

    Guarantees: lower - rounding <= the least value, for any weights and directions, good or bad.
    Source: the lines above; for filters Kalman (1960), Rauch, Tung, Striebel (1965).
    """
    checks.instance("W", W, RunningSums)
    if W.momentum or W.rates is not None:
        raise ValueError("W must have neither momentum nor rates: pass RunningSums(steps, decay)")
    n, p, period = W.steps, check_exponent(p), min(checks.integer("period", period, 1), W.steps)
    like, passes = torch.zeros(n, dtype=torch.float64), -(-n // period)
    j = checks.matrix("directions", directions).shape[-1]
    c, D = fitting(like[:, None], row_weights=row_weights, directions=(directions, (n, j)))
    if not (c[:period] > 0).all():
        raise ValueError("row_weights must be positive in the first pass")
    c = scaled_weights(c, conjugate(p))
    fill = passes * period - n
    c, D = (torch.nn.functional.pad(x, (0,) * (2 * x.ndim - 1) + (fill,)) for x in (c, D))
    D = D.unflatten(0, (passes, period)).movedim(0, 1)  # (period, passes, j)
    lengths = D.norm(dim=2)
    sizes, D = lengths.amax(1).square(), D / lengths.clamp_min(torch.finfo(D.dtype).tiny)[..., None]
    if not (sizes > 0).all():
        raise ValueError("directions must not be 0 in all steps of a class i, i + period, ...; take unit vectors")
    blocks = (1 - MIXED) * D @ D.mT
    blocks.diagonal(dim1=1, dim2=2).fill_(1.0)  # of a step that was filled up, too: it is never seen
    blocks *= (sizes / sizes.sum())[:, None, None]
    c = c.view(passes, period).mT
    diagonal = _diagonal(blocks, c, W.decay)
    rule = Quadrature.of(1 / (float(c.sum()) * passes**2), float(diagonal.max()), LOSS, "cpu")
    traces, error = _traces(blocks, c, W.decay, rule.levels)
    sure = error < FIRST  # NaN is not
    if not sure[0]:
        raise ValueError("row_weights and directions must not differ so much in size; bring them closer together")
    traces, error = (torch.where(sure, x, 0.0) for x in (traces, error))
    found = rule.shares @ traces + rule.white * (c > 0).sum()
    excess = rule.low * traces[0] ** 2 + rule.high * diagonal.sum()
    rounding = rule.shares @ (error * traces) + 2 * rule.low * error[0] * traces[0] ** 2
    rounding = rounding + 16 * EPS * (len(traces) + period) * found
    return (found - excess).clamp_min(0) / (1 + rule.loss), rounding


def _diagonal(blocks: Tensor, c: Tensor, decay: float) -> Tensor:
    """Of diag(c)^{-1/2} N diag(c)^{-1/2} where c > 0, else 0, (period, k): no smaller than what leaving out leaves."""
    own = _inverse(blocks).diagonal(dim1=1, dim2=2)
    after = torch.cat([own[1:], torch.nn.functional.pad(own[:1, 1:], (0, 1))])
    return torch.where(c > 0, (own + decay**2 * after) / c, 0.0)


def _traces(blocks: Tensor, c: Tensor, decay: float, levels: Tensor) -> tuple[Tensor, Tensor]:
    """tr diag(c) (N + s diag(c))^{-1} for each level s, (levels,), and their relative errors at most.

    blocks: M_i, (period, k, k); c: (period, k). Given w = x_{-1}, filtering i steps leaves x_i ~ N(A w, P), and the
    form w^T Lambda w of what was seen; F is the derivative in s of the form of (x_i, w) after all earlier points have
    been left out, by halves: xx, xw and ww. A point is left out by its pivot, with tr(pivot^{-1} F_xx) in the trace.
    """
    period, k = c.shape
    eye, s = torch.eye(k, dtype=c.dtype), levels[:, None, None]
    V, A = blocks[0].expand(len(levels), k, k), (decay * eye).expand(len(levels), k, k)
    seen, xx, xw, ww = (torch.zeros_like(V) for _ in range(4))
    total, error, J = levels.new_zeros(len(levels)), levels.new_zeros(len(levels)), _inverse(V)
    for i in range(period):
        information = torch.diag(c[i])
        T = J + s * information
        P = _inverse(T)
        gain = P @ J
        seen = seen + A.mT @ (s * information) @ gain @ A
        A = gain @ A
        xx = xx + information
        error = error + _condition(V, J) + _condition(T, P)
        if i + 1 == period:
            break
        V = decay**2 * P + blocks[i + 1]
        J = _inverse(V)
        back, rest = decay * P @ J, blocks[i + 1] @ J  # x_i = back x_{i+1} + rest A w + N(0, pivot^{-1})
        total = total + ((rest @ P) * xx).sum((1, 2))
        ours = rest @ A
        moved = xx @ ours + xw
        ww = ww + ours.mT @ moved + xw.mT @ ours
        xw, xx, A = back.mT @ moved, back.mT @ xx @ back, decay * A
    shift = torch.diag(torch.ones(k - 1, dtype=c.dtype), -1)  # w is x_{period-1} of the pass before
    ahead = eye - A @ shift
    pivot = ahead.mT @ T @ ahead + shift.mT @ seen @ shift
    both = xx + xw @ shift + (xw @ shift).mT + shift.mT @ ww @ shift
    inverse = _inverse(pivot)
    steered = A @ shift
    lever = (inverse * (steered.mT @ T @ steered)).sum((1, 2)).clamp_min(0).sqrt()
    error = (error + _condition(pivot, inverse)) * (1 + lever)
    return total + (inverse * both).sum((1, 2)), 3 * (k + 1) * EPS * error


def _inverse(A: Tensor) -> Tensor:
    """Of positive definite matrices. Raises ValueError where rounding has made one singular."""
    root, failed = torch.linalg.cholesky_ex(A)
    if failed.any():
        raise ValueError("row_weights and directions must not differ so much in size; bring them closer together")
    return torch.cholesky_inverse(root)


def _condition(A: Tensor, inverse: Tensor) -> Tensor:
    """At least the condition numbers of A scaled to unit diagonal, whose largest eigenvalue is at most k: (...)."""
    size = A.diagonal(dim1=-2, dim2=-1).sqrt()
    return A.shape[-1] * torch.linalg.matrix_norm(inverse * size[..., None] * size[..., None, :])
