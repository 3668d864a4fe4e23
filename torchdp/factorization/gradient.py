"""Factorization by gradient descent: the first of the relaxations, and batched."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificate import check_exponent
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.fixed_point import Solution, power_norm

SHARPNESS = 4.0, 4000.0  # of the smoothed maximum, first and last step


def gradient(
    W: Tensor,
    p: float = math.inf,
    *,
    steps: int = 1000,
    learning_rate: float = 0.01,
    rank: int | None = None,
) -> Factorization:
    """A factorization W = L R of small norm, by Adam on a smoothed objective, with its certificate.

    With W = U S V^T (of rank r), L = U S^{1/2} T^{-1} and R = T S^{1/2} V^T, where T (r x r) starts at the
    identity; so L R = W at every step. a_i = ||L_i||^2, b_j = ||R_j||^2, and T minimises
        log ||a||_s + log ||b||_t,   t from 4 to 4000 geometrically, s = min(t, p/2):
    ||.||_t is the log-sum-exp smoothing of the maximum on the scale of log b, at temperature 1/t. The learning
    rate falls like a cosine. The dual weights a^{s-1} and b^{t-1} are the objective's gradient in a and b, and
    cost nothing; the T of least norm is kept, with the weights of the last one.

    W: (*batch, m, n), real; each problem of the batch goes its own way. p: in [2, inf]. rank: the largest
    number of rows of R allowed; less than rank(W) is refused. The factors follow W's dtype and device, the
    work is in float64. It draws nothing at random and promises no gap: read ``certificate.gap``.

    Raises ValueError or TypeError on bad arguments.

    Guarantees: certificate.lower <= the norm of W <= certificate.upper.
    Source: Kingma, Ba (2015) for Adam; the dual weights by Nikolov, Tang (2023), Theorem 26.
    """
    p = check_exponent(p)
    steps = checks.integer("steps", steps, 1)
    learning_rate = checks.positive("learning_rate", learning_rate)
    W = checks.matrix("W", W).detach()
    scale = W.double().abs().amax((-2, -1), keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    U, S, Vh = torch.linalg.svd(W.double() / scale, full_matrices=False)
    S = torch.where(S > max(W.shape[-2:]) * torch.finfo(S.dtype).eps * S[..., :1], S, 0.0)
    q = max(1, int((S > 0).sum(-1).max()))
    if rank is not None and checks.integer("rank", rank, 1) < q:
        raise ValueError(
            f"rank must be at least the rank of W, {q}, not {rank}: below it no exact factorization exists"
        )
    root = S[..., :q].sqrt()
    with torch.inference_mode(False), torch.enable_grad():
        left = U[..., :q] * root[..., None, :]  # (*batch, m, q)
        right = root[..., None] * Vh[..., :q, :]  # (*batch, q, n)
        T, row_weights, column_weights = _descend(left, right, p, steps, learning_rate)
    half = scale.sqrt()
    return finish(
        W,
        Solution(
            left=half * _divide(left, T),
            right=half * (T @ right),
            shift=None,
            row_weights=row_weights,
            column_weights=column_weights,
            primal_weights=column_weights,
            iterations=steps,
        ),
        p,
    )


def _descend(
    left: Tensor, right: Tensor, p: float, steps: int, learning_rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The best T (*batch, q, q) seen, and the last row and column weights."""
    q = left.shape[-1]
    best = torch.eye(q, dtype=left.dtype, device=left.device).expand(*left.shape[:-2], q, q)
    least = left.new_full(left.shape[:-2], math.inf)
    T = best.clone().requires_grad_()
    optimizer = torch.optim.Adam([T], lr=learning_rate, betas=(0.9, 0.99))
    first, last = SHARPNESS
    for step in range(steps + 1):
        done = step / steps
        t = first * (last / first) ** done
        s = min(t, p / 2)
        a = _divide(left, T).square().sum(-1).clamp_min(1e-200)  # a zero row has no logarithm
        b = (T @ right).square().sum(-2).clamp_min(1e-200)
        with torch.no_grad():
            value = power_norm(a, p / 2) * b.amax(-1)
            better = value < least
            least = torch.where(better, value, least)
            best = torch.where(better[..., None, None], T, best)
        if step == steps:
            break
        loss = (s * a.log()).logsumexp(-1) / s + (t * b.log()).logsumexp(-1) / t
        optimizer.zero_grad()
        loss.sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 + math.cos(math.pi * done)) / 2
        optimizer.step()
    return best, _weights(a.detach(), s), _weights(b.detach(), t)


def _divide(left: Tensor, T: Tensor) -> Tensor:
    return torch.linalg.solve(T, left, left=False)


def _weights(values: Tensor, exponent: float) -> Tensor:
    return (values / values.amax(-1, keepdim=True)) ** (exponent - 1)
