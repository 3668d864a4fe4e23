"""The nearest histogram: a quadratic program over the simplex, by block pivoting from where a
descent leads.
"""

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
MOST = 20  # rounds of turning signs; some ten are usual
STEPS = 20  # of the descent
NEWTON = 60  # steps of interior points, where turning signs does not end; some 12 are usual
BACK = 0.99  # of the way to the border
FINE = 1e-3  # of the limit that interior points reach
# proximal rounds, the ridge towards the last solution: one where points are affinely independent
PULLS = 10
NOTHING = 1e-9  # a share of 1/k that is 0
NUMBERS_AT_ONCE = 2**26  # in the systems of the problems that are solved together


@one_thread
def nearest_histogram(gram: Tensor, pull: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """argmin over probability vectors h of h^T gram h/2 - <pull, h>, (*batch, k), and the
    Frank-Wolfe gap, (*batch).

    The gap bounds how far the objective is above its minimum; it is recomputed from ``gram``, and
    above ``limit`` only where rounding is, or where ``gram`` is nearly singular, as of a smooth
    kernel: some 500 times 1e-9 there.

    gram: (k, k), positive semidefinite; pull: (*batch, k).
    Source: Portugal, Judice, Vicente (1994), block pivots; Kim, Park (2011), the safeguard; Murty
    (1974), the last
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
        if i:
            tried = [_interior(ridged, q + RIDGE * least[left], FINE * limit)]
        else:
            near = descended(partial(_slope, G, q), least, rate, STEPS)
            tried = [near, _pivoted(ridged, q + RIDGE * near, near > 0)]
        for h in tried:
            gap = _gap(G, q, h)
            better = gap < best[left]  # never where rounding is all that G holds and a root fails
            least[left] = torch.where(better[:, None], h, least[left])
            best[left] = torch.where(better, gap, best[left])
        left = (best > limit).nonzero()[:, 0]
        if not len(left):
            break
    return least, best


def _interior(G: Tensor, p: Tensor, limit: Tensor) -> Tensor:
    """Histograms (n, k) of a gap below about ``limit`` for a positive definite G, however badly
    conditioned.

    Source: Mehrotra (1992): z are the multipliers of h >= 0, and h z = mu is solved for falling mu.
    """
    k = p.shape[1]
    h = torch.full_like(p, 1 / k)
    slope = _slope(G, p, h)
    # feasible: slope - z is the same everywhere
    lowest, highest = slope.aminmax(dim=-1, keepdim=True)
    z = slope - lowest + (highest - lowest).clamp_min(limit)
    for _ in range(NEWTON):
        product = h * z
        going = product.sum(-1, keepdim=True) > limit
        if not bool(going.any()):
            break
        ratio = z / h
        root = torch.linalg.cholesky_ex(G + ratio.diag_embed())[0]
        change = -product
        # to mu = 0 first, which tells how much of mu and of the curvature to leave
        for corrected in (False, True):
            both = torch.stack([change / h, torch.ones_like(h)], -1)
            own, ones = torch.cholesky_solve(both, root).unbind(-1)
            dh = own - own.sum(-1, keepdim=True) / ones.sum(-1, keepdim=True) * ones
            dz = change / h - ratio * dh
            least = torch.minimum(dh / h, dz / z).amin(-1, keepdim=True)
            step = (-BACK / least.clamp(max=-BACK)).nan_to_num()
            if not corrected:
                mu = product.mean(-1, keepdim=True)
                left = ((h + step * dh) * (z + step * dz)).mean(-1, keepdim=True)
                change = (left / mu) ** 3 * mu - product - dh * dz
        h = torch.where(going, h + step * dh, h)
        z = torch.where(going, z + step * dz, z)
    kept = h * (h > NOTHING / k)
    return kept / kept.sum(-1, keepdim=True)


def _slope(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    return h @ G - p


def _gap(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    slope = _slope(G, p, h)
    return (slope * h).sum(-1) - slope.amin(-1)


def _pivoted(G: Tensor, p: Tensor, free: Tensor) -> Tensor:
    """The minimum for a positive definite G, (n, k): from the support ``free``, until no sign is
    wrong.
    """
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
    """h with G h = p + level on the free indices, 0 elsewhere, sum 1; systems as large as the
    largest support.
    """
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
