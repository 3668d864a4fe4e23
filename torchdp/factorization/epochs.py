"""Factorizations for users who take part again and again: in one step of each epoch, always the same one."""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.acceleration import History
from torchdp.factorization.certificate import (
    Certificate,
    _row_norm,
    _weights,
    allowance,
    check_exponent,
    fitting,
    or_infinite,
)
from torchdp.factorization.fixed_point import power_norm
from torchdp.factorization.orthogonal_columns import orthogonal_columns
from torchdp.factorization.spectrum import SQUARE_TOLERANCE
from torchdp.factorization.stopping import working
from torchdp.workloads import Workload

STEP = 0.9  # exponent of the update of M: half of that of single columns' weights
FLOOR = 0.1  # rows' weights stay above FLOOR * tol / m, which costs the lower bound about FLOOR * tol
SPREAD = 40.0  # eigenvalues of M keep a ratio below e^SPREAD
SMALLEST = 1e-20  # share of the largest below which a singular value is not resolved: any small one will do
DEGENERATE = 1e-10  # share of the largest singular value below which W counts as deficient


@dataclass(frozen=True)
class EpochFactorization:
    """W = left right, with a certificate of how close to optimal it is under repeated participation.

    left: (m, n); right: (n, n), its columns of one class orthogonal; the l_p norm of left's row norms equals the
    sensitivity of right. row_weights: (m,) and directions: (n, epochs), the dual variables behind
    ``certificate.lower``, see :func:`certify_epochs`.
    """

    left: Tensor
    right: Tensor
    row_weights: Tensor
    directions: Tensor
    certificate: Certificate
    iterations: int


def factorize_epochs(
    W: Tensor | Workload, period: int, p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 1000
) -> EpochFactorization:
    """The W = L R of least error where a user owns columns i, i + period, i + 2 period, ... for one i, certified.

    Minimises (sum_t ||L_t||^p)^{1/p} * S(R), S(R)^2 = max_i max ||sum_s R_s u_s^T||_F^2 over the columns s of class i
    and vectors u_s of norm at most 1: what one user's gradients can move in all epochs together. With X = R^T R and its
    block X_i of class i, S^2 = max_i max <X_i, C> over correlation matrices C. The dual problem is to maximise the
    trace norm of diag(c)^{1/2} W M^{1/2}, M block diagonal with blocks mu_i C_i, mu and c as in :func:`factorize`.
    In a best strategy the columns of a class are orthogonal: see ``orthogonal_columns``, whose factors are returned,
    so that the sensitivity is the largest sum of squared column norms over a class, and attained.

    Iteration: from diag(c)^{1/2} W M^{1/2} = U T V^T and X = M^{-1/2} V T V^T M^{-1/2},
        C_i <- X_i^STEP C_i X_i^STEP scaled to a unit diagonal, mu_i <- mu_i <X_i, C_i>^{2 STEP},
    rows as in :func:`factorize`; the logarithms are accelerated as there. O(m n^2 + n^3) for each.

    W: (m, n) of rank n, or a Workload. period: columns of an epoch; n or more is ``factorize``. p: in [2, inf]. tol:
    relative gap at which it stops. Float64 inside; the factors follow W's dtype. Warns (RuntimeWarning) where the gap
    exceeds ``tol`` after ``max_iterations``. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= the least value of any factorization <= certificate.upper.
    Source: here. The problem: Choquette-Choo, McMahan, Rush, Thakurta (2023), fixed-epoch-order participation; its dual
    for one epoch: Edmonds, Nikolov, Ullman (2020), Lemma 12.
    """
    W = working("W", checks.matrix("W", W.dense() if isinstance(W, Workload) else W).detach())
    if W.ndim != 2:
        raise ValueError(f"W must be one (m, n) matrix, not of shape {tuple(W.shape)}")
    period, p, tol = checks.integer("period", period, 1), check_exponent(p), checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    size, (m, n) = float(W.abs().max()) or 1.0, W.shape
    A = W.double() / size
    values = torch.linalg.svdvals(A)
    if m < n or not values[-1] > DEGENERATE * values[0]:
        raise ValueError(
            f"W of shape {tuple(W.shape)} must have rank {n}: leave out columns that others determine"
        )
    order, shapes = _classes(n, period, W.device)
    solution = _solve(A[:, order], shapes, p, tol, max_iterations)
    left, right, c, roots, iterations = solution
    back = order.argsort()
    directions = torch.cat(
        [torch.nn.functional.pad(B, (0, shapes[0][1] - B.shape[-1])).flatten(0, 1) for B in roots]
    )
    right, directions = right[:, back], directions[back]
    balance, half = (power_norm(left.norm(dim=1), p) / _sensitivity(right, period)).sqrt(), math.sqrt(size)
    left, right = (left * (half / balance)).to(W.dtype), (right * (half * balance)).to(W.dtype)
    certificate = certify_epochs(W, left, right, c, directions, period, p=p)
    if not certificate.gap <= tol:
        warnings.warn(
            f"stopped after {iterations} iterations at a certified gap of {float(certificate.gap):.2e}, above tol = "
            f"{tol:.2e}; raise max_iterations or tol (float32 inputs stop near 1e-6)",
            RuntimeWarning,
            stacklevel=2,
        )
    return EpochFactorization(left, right, c, directions, certificate, iterations)


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
    W, p, period = checks.matrix("W", W).detach().double(), check_exponent(p), checks.integer("period", period, 1)
    if W.ndim != 2:
        raise ValueError(f"W must be one (m, n) matrix, not of shape {tuple(W.shape)}")
    m, n = W.shape
    r, k = checks.matrix("left", left).shape[-1], checks.matrix("directions", directions).shape[-1]
    left, right = fitting("left", left, W, (m, r)), fitting("right", right, W, (r, n))
    weights, directions = (
        fitting("row_weights", row_weights, W, (m,)),
        fitting("directions", directions, W, (n, k)),
    )
    weights = _weights("row_weights", weights, 1.0 if p == math.inf else math.inf if p == 2 else p / (p - 2))
    missing, epochs = W - left @ right, -(-n // period)
    upper = or_infinite(
        _row_norm(left, p) * _sensitivity(right, period) + _row_norm(missing, p) * math.sqrt(epochs)
    )
    size, largest = float(W.abs().max()) or 1.0, float(directions.abs().max()) or 1.0
    W, directions = W / size, directions / largest
    Y = torch.cat([W[:, i::period] @ directions[i::period] for i in range(min(period, n))], 1)
    norm = torch.stack([directions[i::period].square().sum(1).max() for i in range(min(period, n))]).sum().sqrt()
    trace = torch.linalg.svdvals(weights.sqrt()[:, None] * Y).sum()
    lower = torch.where(norm > 0, trace / norm, 0.0) * size
    return Certificate(upper, lower, or_infinite(missing.abs().max()), rounding=allowance(upper, m + n + r + k))


def _solve(
    A: Tensor, shapes: list[tuple[int, int]], p: float, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, list[Tensor], int]:
    """left, right, row weights and the blocks of M^{1/2}, for columns sorted by class; largest entry of A 1."""
    m = len(A)
    exponent = 0.0 if p == 2 else 1.0 if p == math.inf else (p - 2) / p  # c = s^exponent
    classes = sum(count for count, _ in shapes)
    s = A.new_full((m,), 1 / m)
    M = [torch.eye(k, dtype=A.dtype, device=A.device).expand(count, k, k) / classes for count, k in shapes]
    floor, history, step = FLOOR * tol / m, History(8), 1.0
    upper, lower, previous, iterations = math.inf, 0.0, 0.0, 0
    measure = torch.cat(
        [s.sqrt()] + [B.diagonal(dim1=1, dim2=2).sqrt()[..., None].expand_as(B).flatten() for B in M]
    )
    while iterations < max_iterations:
        iterations += 1
        c = s**exponent
        roots, inverses = [_power(B, 0.5) for B in M], [_power(B, -0.5) for B in M]
        Y = _times(A, roots)
        T, V = _right_vectors(c.sqrt()[:, None] * Y)
        left, right = (Y @ V) * T.rsqrt(), T.sqrt()[:, None] * _times(V.mT, inverses)
        a, trace = left.square().sum(1), float(T.sum())
        X = [part.mT @ part for part in _parts(right, shapes)]
        size = torch.cat([B.abs().sum((1, 2)) for B in X]).max()
        left, right, size = orthogonal_columns(A, right, X, [_unit(B) for B in M]) or (left, right, size)
        value = float(power_norm(left.norm(dim=1), p) * size.sqrt())
        if value < upper:
            upper, primal = value, (left, right)
        if trace > lower:
            lower, dual = trace, (c, roots)
        if upper <= lower * (1 + tol / 2):
            break
        fell = torch.tensor(trace < previous * (1 - 1e-12))
        back = fell & history.extrapolated
        step = (step + 0.5) / 2 if fell and not back else step
        previous = 0.0 if back else trace
        if p == math.inf:
            rows = 2 * STEP * (a / trace).clamp_min(1e-20).log()
            rows = torch.where((s <= 2 * floor) & (rows < 0), 0.0, rows)  # at the floor: nowhere to fall
        else:
            rows = torch.zeros_like(s) if p == 2 else ((c * a / (c * a).sum()).clamp_min(1e-20) / s).log()
        moved = _scaled([_grown(B, root, G / trace) for B, root, G in zip(M, roots, X, strict=True)])
        logs = [_log(B) for B in M]
        update = torch.cat([rows] + [(_log(B) - L).flatten() for B, L in zip(moved, logs, strict=True)])
        x = torch.cat([s.log()] + [L.flatten() for L in logs])
        x = history.mix(x, step * update, measure, back)
        parts = x.split([m] + [B.numel() for B in M])
        s = parts[0].softmax(0).clamp_min(floor)
        s = s / s.sum()
        M = _scaled(_exponentials([part.view_as(B) for part, B in zip(parts[1:], M, strict=True)]))
    return *primal, dual[0], dual[1], iterations


def _classes(n: int, period: int, device: torch.device) -> tuple[Tensor, list[tuple[int, int]]]:
    """The columns sorted by class, longer classes first, and (number of classes, columns of each)."""
    step = torch.arange(n, device=device)
    most, longer = -(-n // period), n % period
    shapes = [(longer or min(period, n), most)] + ([(period - longer, most - 1)] if longer and most > 1 else [])
    return torch.argsort(step % period, stable=True), shapes


def _sensitivity(right: Tensor, period: int) -> Tensor:
    """The root of the largest sum of abs(X_st) over a class; of any scale."""
    size, sums = float(right.abs().max()) or 1.0, []
    for i in range(min(period, right.shape[1])):
        part = right[:, i::period] / size
        sums.append((part.mT @ part).abs().sum())
    return torch.stack(sums).max().sqrt() * size


def _parts(right: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    """Columns of each class: (r, n) -> [(classes, r, columns)]."""
    parts = right.split([count * k for count, k in shapes], 1)
    return [part.unflatten(1, shape).movedim(1, 0) for part, shape in zip(parts, shapes, strict=True)]


def _times(Y: Tensor, blocks: list[Tensor]) -> Tensor:
    """Y times the block diagonal matrix."""
    parts = _parts(Y, [(len(B), B.shape[-1]) for B in blocks])
    return torch.cat([(part @ B).movedim(0, 1).flatten(1) for part, B in zip(parts, blocks, strict=True)], 1)


def _right_vectors(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors: of the Gram matrix where its eigenvalues, squares, are accurate."""
    values, V = torch.linalg.eigh(Y.mT @ Y)
    if values[0] > SQUARE_TOLERANCE * values[-1]:
        return values.sqrt(), V
    triangle = torch.linalg.qr(Y, mode="r").R
    _, T, Vh = torch.linalg.svd(triangle)
    return T.clamp_min(SMALLEST * T[0]), Vh.mT


def _grown(B: Tensor, root: Tensor, G: Tensor) -> Tensor:
    """G^STEP B G^STEP, scaled to B's diagonal times <G, C>^{2 STEP}, C = B over its diagonal; root^2 = B."""
    Z = _power(G, STEP) @ root  # its row norms stay positive where rounding would turn signs
    level = B.diagonal(dim1=1, dim2=2)[:, :1, None]
    inner = (G * B).sum((1, 2), keepdim=True).clamp_min(1e-20)
    return _unit(Z @ Z.mT) * level * (inner / level) ** (2 * STEP)


def _scaled(blocks: list[Tensor]) -> list[Tensor]:
    """Each block scaled to a constant diagonal, its geometric mean; all of them so that these add up to 1."""
    levels = [B.diagonal(dim1=1, dim2=2).log().mean(1).exp()[:, None, None] for B in blocks]
    total = sum(level.sum() for level in levels)
    return [_unit(B) * (level / total) for B, level in zip(blocks, levels, strict=True)]


def _unit(B: Tensor) -> Tensor:
    root = B.diagonal(dim1=1, dim2=2).rsqrt()
    return root[:, :, None] * B * root[:, None, :]


def _power(B: Tensor, exponent: float) -> Tensor:
    values, Q = torch.linalg.eigh(B)
    return (Q * _positive(values).pow(exponent)[:, None, :]) @ Q.mT


def _log(B: Tensor) -> Tensor:
    values, Q = torch.linalg.eigh(B)
    return (Q * _positive(values).log()[:, None, :]) @ Q.mT


def _exponentials(logarithms: list[Tensor]) -> list[Tensor]:
    """exp(L) of each, all of them times one number: an extrapolation, however far it goes, overflows nothing."""
    spectra = [torch.linalg.eigh((L + L.mT) / 2) for L in logarithms]
    top = max(float(values.max()) for values, _ in spectra)
    return [(Q * (values - top).clamp_min(-SPREAD).exp()[:, None, :]) @ Q.mT for values, Q in spectra]


def _positive(values: Tensor) -> Tensor:
    """Eigenvalues above what rounding makes of 0."""
    return torch.maximum(values, 1e-14 * values[..., -1:])
