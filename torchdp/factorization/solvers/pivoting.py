"""The nearest histogram: a quadratic program over the simplex, by block pivoting from where a descent leads."""

from functools import partial

import torch
from torch import Tensor

from torchdp.factorization.solvers.iteration import descended
from torchdp.threads import one_thread

# rounds without a new least number of wrong signs before one index at a time is turned
PATIENCE = 3
# of the largest diagonal entry: makes the solution unique where points are not affinely independent
RIDGE = 1e-10
ROUNDING = 1e-12  # of the same: what a multiplier may miss 0 by
MOST = 40  # rounds of turning signs; some ten are usual
STEPS = 20  # of the first descent; each is twice as long as the last
# proximal rounds, the ridge towards the last solution: one where points are affinely independent
PULLS = 10
NUMBERS_AT_ONCE = 2**26  # in the systems of the problems that are solved together


@one_thread
def nearest_histogram(gram: Tensor, pull: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """argmin over probability vectors h of h^T gram h/2 - <pull, h>, (*batch, k), and the Frank-Wolfe gap, (*batch).

    The gap bounds how far the objective is above its minimum; it is recomputed from ``gram``, and above ``limit`` only
    where rounding is, or where ``gram`` is nearly singular, as of a smooth kernel: some 500 times 1e-9 there.

    gram: (k, k), positive semidefinite; pull: (*batch, k).
    Source: Portugal, Judice, Vicente (1994), block pivots; Kim, Park (2011), the safeguard; Murty (1974), the last
        resort; Beck, Teboulle (2009), the descent.
    """
    if not pull.numel():  # of no repetition
        return pull, pull.sum(-1)
    k, scale = pull.shape[-1], gram.diagonal().amax().clamp_min(1e-300)
    G = gram / scale
    ridged = G + RIDGE * torch.eye(k, dtype=G.dtype, device=G.device)
    parts = (pull / scale).reshape(-1, k).split(NUMBERS_AT_ONCE // k**2 + 1)
    found = [_solved(G, ridged, p, limit / scale) for p in parts]
    h, gap = (torch.cat(each) for each in zip(*found, strict=True))
    return h.view(pull.shape), gap.view(pull.shape[:-1]) * scale


def _solved(G: Tensor, ridged: Tensor, p: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """(n, k) histograms and (n,) gaps."""
    least = torch.full_like(p, 1 / p.shape[1])
    best, left, rate = (
        _gap(G, p, least),
        torch.arange(len(p), device=p.device),
        torch.linalg.matrix_norm(G, 2).clamp_min(1e-300),
    )
    for i in range(PULLS):
        q = p[left]
        near = descended(partial(_slope, G, q), least[left], rate, STEPS << i)
        for h in (near, _pivoted(ridged, q + RIDGE * near, near > 0)):
            gap = _gap(G, q, h)
            better = gap < best[left]  # never where rounding is all that G holds and a root fails
            least[left] = torch.where(better[:, None], h, least[left])
            best[left] = torch.where(better, gap, best[left])
        left = (best > limit).nonzero()[:, 0]
        if not len(left):
            break
    return least, best


def _slope(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    return h @ G - p


def _gap(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    slope = _slope(G, p, h)
    return (slope * h).sum(-1) - slope.amin(-1)


def _pivoted(G: Tensor, p: Tensor, free: Tensor) -> Tensor:
    """The minimum for a positive definite G, (n, k): from the support ``free``, until no sign is wrong."""
    k, place = p.shape[1], torch.arange(p.shape[1], device=p.device)
    slack = ROUNDING * (1 + p.abs().amax(-1, keepdim=True))
    least, tries = torch.full_like(slack, k + 1), torch.full_like(slack, PATIENCE)
    answer, at = torch.zeros_like(p), torch.arange(len(p), device=p.device)
    for _ in range(MOST):
        h, level = _restricted(G, p, free)
        wrong = torch.where(free, h < 0, h @ G - p - level < -slack)
        many = wrong.sum(-1, keepdim=True)
        tries = torch.where(many < least, PATIENCE, tries - 1)
        least = torch.minimum(many, least)
        answer = answer.index_copy(0, at, h)
        left = many[:, 0].nonzero()[:, 0]
        if not len(left):
            break
        # Murty: the wrong one of the largest number
        last = (wrong * (place + 1)).amax(-1, keepdim=True) - 1
        free = free ^ (wrong & ((tries >= 0) | (place == last)))
        at, p, free, slack, least, tries = (
            each[left] for each in (at, p, free, slack, least, tries)
        )
    h = answer.clamp_min(0)
    return h / h.sum(-1, keepdim=True)


def _restricted(G: Tensor, p: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """h with G h = p + level on the free indices, 0 elsewhere, sum 1; systems as large as the largest support."""
    size = int(free.sum(-1).amax())
    order = free.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :size]
    kept = free.gather(1, order).to(p.dtype)
    if bool(free.all()):
        system = G[None]  # one root for all
    else:
        system = G[order[:, :, None], order[:, None, :]] * kept[:, :, None] * kept[:, None, :]
        system.diagonal(dim1=-2, dim2=-1).add_(1 - kept)
    both = torch.stack([p.gather(1, order) * kept, kept], -1)
    own, ones = torch.cholesky_solve(both, torch.linalg.cholesky_ex(system)[0]).unbind(-1)
    level = (1 - own.sum(-1, keepdim=True)) / ones.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(1, order, own + level * ones), level
