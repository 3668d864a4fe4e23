"""The evaluator of factorizations under repeated participation, in passes or with a minimum separation.

It shares nothing with the solvers. For running sums of any length a lower bound alone, from O(steps passes^2) numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    check_exponent,
    conjugate,
    fitting,
    or_infinite,
    row_norm,
    scaled_weights,
)
from torchdp.factorization.certificates.running_certificate import Quadrature
from torchdp.factorization.certificates.worst_sets import worst_separated
from torchdp.threads import on_host
from torchdp.workloads import RunningSums

LOSS = 1e-6  # of the rule for the root
FIRST = 1e-2  # relative error up to which the first order will do; other nodes are left out
MIXED = 1e-3  # share of unit vectors in each class, against rounding
EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class SeparatedDual:
    """Weights c of the rows, (m,), and sets of steps that one user may own, with what the user contributes there.

    steps: (N, k) whole numbers, each row increasing, filled up with n; directions: (N, k, j), those of the filling 0;
    weights: (N,).
    """

    row_weights: Tensor
    steps: Tensor
    directions: Tensor
    weights: Tensor


def certify_epochs(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    row_weights: Tensor,
    directions: Tensor,
    period: int,
    *,
    p: float = math.inf,
) -> Certificate:
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64; S as in ``factorize_epochs``.

    upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row norms * sqrt(epochs), E = W - left right (the
    factorization E = E I); S+^2 = max_i sum of abs(X_st) over the pairs of columns of class i, S^2 at least.
    lower = trace norm of [diag(c)^{1/2} W_i D_i]_i / sqrt(sum_i max_{s in i} ||d_s||^2), W_i the columns of class i,
    D_i the rows d_s of ``directions``, c = row_weights scaled to norm 1 in l_{p/(p-2)}. It is a lower bound since
    ||diag(c)^{1/2} L [R_i D_i]_i||_tr <= ||diag(c)^{1/2} L||_F ||[R_i D_i]_i||_F, and ||R_i D_i||_F is what a user
    whose gradients are the rows d_s moves, at most S max ||d_s||.

    W: (m, n); left: (m, r); right: (r, n); row_weights: (m,), non-negative; directions: (n, k), any k at most the
    length of a gradient. Raises ValueError, TypeError.

    Guarantees: lower <= least value <= upper for any factors, weights and directions, good or bad.
    Source: the two lines above; Hoelder's inequality for trace and Frobenius norms.
    """
    period = checks.integer("period", period, 1)
    given = W, _, right, _ = _given(W, left, right, row_weights, p)
    n, k = W.shape[1], checks.matrix("directions", directions).shape[-1]
    (D,) = fitting(W, directions=(directions, (n, k)))
    D = D / (float(D.abs().max()) or 1.0)
    place = torch.arange(n, device=W.device) % period
    moved = (
        D.square()
        .sum(1)
        .new_zeros(min(period, n))
        .scatter_reduce_(0, place, D.square().sum(1), "amax")
        .sum()
    )
    root = torch.cat([D * (place == i)[:, None] for i in range(min(period, n))], 1)
    root = torch.where(moved > 0, root / moved.sqrt(), 0.0)
    return _certified(given, p, sensitivity(right, period), -(-n // period), root, k)


def certify_separated(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    dual: SeparatedDual,
    gap: int,
    times: int,
    *,
    p: float = math.inf,
) -> Certificate:
    """Bounds on the least value of (sum_t ||L_t||^p)^{1/p} S(R) over W = L R, in float64; S as in ``Separated``.

    upper = l_p norm of left's row norms * S+(right) + l_p norm of E's row norms * sqrt(times), E = W - left right;
    S+^2 is ``worst_separated`` of abs(right^T right), at least S^2.
    lower = trace norm of diag(c)^{1/2} W M^{1/2}, c = row_weights scaled to norm 1 in l_{p/(p-2)} and
    M = sum_q w_q E_q U_q U_q^T E_q^T over sets q that one user may own, E_q the columns of the identity for its steps,
    the rows of U_q of norm at most 1, w >= 0 of sum 1. It is a lower bound since
    ||diag(c)^{1/2} L R M^{1/2}||_tr <= ||diag(c)^{1/2} L||_F ||R M^{1/2}||_F, and
    ||R M^{1/2}||_F^2 = sum_q w_q ||R E_q U_q||_F^2 <= S^2, U_q being what the user with the steps q might contribute.

    W: (m, n); left: (m, r); right: (r, n). dual: row_weights and weights non-negative, directions, all of any scale.
    Raises ValueError, TypeError, also where a row of ``steps`` is none that a user may own.

    Guarantees: lower <= least value <= upper for any factors, weights, sets and directions, good or bad.
    Source: the lines above; Hoelder's inequality for trace and Frobenius norms.
    """
    given = W, _, right, _ = _given(W, left, right, dual.row_weights, p)
    gap, times = checks.integer("gap", gap, 1), checks.integer("times", times, 1)
    n, size = W.shape[1], float(right.abs().max()) or 1.0
    gram = (right / size).mT @ (right / size)
    bound, _ = worst_separated(gram.abs().cpu().numpy(), gap, times)
    values, Q = torch.linalg.eigh(_moment(W, dual, gap, times))
    # rounding E of M adds <X, E> <= ||E|| tr X <= ||E|| n S^2 at most, X = R^T R, and ||E|| <= 4 n eps ||M||
    defect = 2 * n * n * torch.finfo(W.dtype).eps * float(values[-1])
    root, moved, most = (
        Q * values.clamp_min(0).sqrt(),
        W.new_tensor(math.sqrt(bound) * size),
        min(times, n),
    )
    return _certified(given, p, moved, most, root, n + most, defect)


def _given(
    W: Tensor, left: Tensor, right: Tensor, row_weights: Tensor, p: float
) -> tuple[Tensor, ...]:
    """W, left, right and c in float64. Raises TypeError, ValueError."""
    W, p = checks.one_matrix("W", W), check_exponent(p)
    left, right, c = fitting(W, left=left, right=right, row_weights=row_weights)
    return W, left, right, scaled_weights(c, conjugate(p))


def _certified(
    given: tuple[Tensor, ...],
    p: float,
    moved: Tensor,
    most: int,
    root: Tensor,
    terms: int,
    defect: float = 0.0,
) -> Certificate:
    """upper from what right moves and how many steps a user has at most; lower from root = M^{1/2}, or its like."""
    W, left, right, c = given
    missing, size = W - left @ right, float(W.abs().max()) or 1.0
    upper = or_infinite(row_norm(left, p) * moved + row_norm(missing, p) * math.sqrt(most))
    lower = torch.linalg.svdvals(c.sqrt()[:, None] * (W / size) @ root).sum() * size
    rounding = allowance(upper, sum(W.shape) + len(right) + terms) + lower * defect
    return Certificate(upper, lower, or_infinite(missing.abs().max()), rounding=rounding)


def sensitivity(right: Tensor, period: int) -> Tensor:
    """The root of the largest sum of abs(X_st) over a class; of any scale."""
    size, sums = float(right.abs().max()) or 1.0, []
    for i in range(min(period, right.shape[1])):
        part = right[:, i::period] / size
        sums.append((part.mT @ part).abs().sum())
    return torch.stack(sums).max().sqrt() * size


def _moment(W: Tensor, dual: SeparatedDual, gap: int, times: int) -> Tensor:
    """M, from sets that a user may own."""
    steps, directions, weights = dual.steps, dual.directions, dual.weights
    n, count = W.shape[1], len(weights)
    k = checks.indices("steps", steps, n + 1).shape[-1]
    if steps.shape != (count, k) or directions.shape[:-1] != (count, k) or steps.device != W.device:
        raise ValueError(
            "steps, directions and weights must be (N, k), (N, k, j) and (N,), on W's device"
        )
    real = steps < n
    apart = (steps[:, 1:] - steps[:, :-1] >= gap) | ~real[:, 1:]
    many = real.sum(1) > times
    if not bool(apart.all()) or bool(many.any()) or bool((real[:, 1:] > real[:, :-1]).any()):
        raise ValueError(
            f"steps must be rows of at most {times} increasing steps, {gap} apart, filled up with {n}"
        )
    weights, directions = fitting(
        W, weights=(weights, (count,)), directions=(directions, tuple(directions.shape))
    )
    weights, directions = scaled_weights(weights, 1.0), directions * real[:, :, None]
    directions = directions / (
        directions.norm(dim=2).max().clamp_min(torch.finfo(W.dtype).tiny) * (1 + 1e-15)
    )
    M = W.new_zeros(n + 1, n + 1)
    blocks = weights[:, None, None] * directions @ directions.mT
    rows, columns = (each.expand_as(blocks) for each in (steps[:, :, None], steps[:, None, :]))
    M.index_put_((rows, columns), blocks, accumulate=True)
    return M[:n, :n]


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
        raise ValueError(
            "directions must not be 0 in all steps of a class i, i + period, ...; take unit vectors"
        )
    blocks = (1 - MIXED) * D @ D.mT
    # of a step that was filled up, too: it is never seen
    blocks.diagonal(dim1=1, dim2=2).fill_(1.0)
    blocks *= (sizes / sizes.sum())[:, None, None]
    c = c.view(passes, period).mT
    diagonal = _diagonal(blocks, c, W.decay)
    rule = Quadrature.of(1 / (float(c.sum()) * passes**2), float(diagonal.max()), LOSS, "cpu")
    traces, error = _traces(blocks, c, W.decay, rule.levels)
    sure = error < FIRST  # NaN is not
    if not sure[0]:
        raise ValueError(
            "row_weights and directions must not differ so much in size; bring them closer together"
        )
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
        # x_i = back x_{i+1} + rest A w + N(0, pivot^{-1})
        back, rest = decay * P @ J, blocks[i + 1] @ J
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
        raise ValueError(
            "row_weights and directions must not differ so much in size; bring them closer together"
        )
    return torch.cholesky_inverse(root)


def _condition(A: Tensor, inverse: Tensor) -> Tensor:
    """At least the condition numbers of A scaled to unit diagonal, whose largest eigenvalue is at most k: (...)."""
    size = A.diagonal(dim1=-2, dim2=-1).sqrt()
    return A.shape[-1] * torch.linalg.matrix_norm(inverse * size[..., None] * size[..., None, :])
