"""The nearest histogram, by block pivoting from where a descent leads, then by interior points.

Notation:
    G: the Gram matrix of k points, (k, k), scaled to largest diagonal entry 1.
    p: the pull, (n, k), a row for each problem.
    h: histograms, (n, k); the objective is h^T G h / 2 - <p, h>, its slope G h - p.

A descent finds the support, pivots solve on it exactly; interior points take what is then open.
"""

from functools import partial

import torch
from torch import Tensor

from torchdp.factorization.solvers.iteration import descended
from torchdp.threads import one_thread

# Rounds without a new least number of wrong signs before one index at a time is turned.
PATIENCE = 3
# Of the largest diagonal entry: makes the solution unique where points are affinely dependent.
RIDGE = 1e-10
# Of the same: what a multiplier may miss 0 by.
ROUNDING = 1e-12
# Rounds of turning signs; some ten are usual.
MOST = 20
# Steps of the descent.
STEPS = 20
# Steps of interior points, where turning signs does not end; some 12 are usual.
NEWTON = 60
# Share of the way to the border that a step of interior points goes.
BACK = 0.99
# Share of the limit that interior points reach.
FINE = 1e-3
# Proximal rounds, the ridge towards the last solution: one where points are affinely independent.
PULLS = 10
# A share of 1/k that is 0.
NOTHING = 1e-9
# In the systems of the problems that are solved together.
NUMBERS_AT_ONCE = 2**26


@one_thread
def nearest_histogram(gram: Tensor, pull: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """argmin over probability vectors h of h^T gram h/2 - <pull, h>, and how good it is.

    Args:
        gram: (k, k), positive semidefinite.
        pull: (*batch, k).
        limit: the gap that is small enough.

    Returns:
        h, (*batch, k), and the Frank-Wolfe gap, (*batch). The gap bounds how far the objective is
        above its minimum; it is recomputed from ``gram``, and above ``limit`` only where rounding
        is, or where ``gram`` is nearly singular, as of a smooth kernel: some 500 times 1e-9 there.

    Source: Portugal, Judice, Vicente (1994), block pivots; Kim, Park (2011), the safeguard; Murty
    (1974), the last
        resort; Beck, Teboulle (2009), the descent.
    """
    if not pull.numel():  # of no repetition
        return pull, pull.sum(-1)
    k = pull.shape[-1]
    scale = gram.diagonal().amax().clamp_min(1e-300)
    G = gram / scale
    problems = (pull / scale).reshape(-1, k)
    histograms = []
    gaps = []
    for p in problems.split(NUMBERS_AT_ONCE // k**2 + 1):
        h, gap = _solved(G, p, limit / scale)
        histograms.append(h)
        gaps.append(gap)
    h = torch.cat(histograms).view(pull.shape)
    gap = torch.cat(gaps).view(pull.shape[:-1])
    return h, gap * scale


def _solved(G: Tensor, p: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """(n, k) histograms and (n,) gaps."""
    k = p.shape[1]
    eye = torch.eye(k, dtype=G.dtype, device=G.device)
    ridged = G + RIDGE * eye
    best = torch.full_like(p, 1 / k)
    gaps = _gap(G, p, best)
    rate = torch.linalg.matrix_norm(G, 2).clamp_min(1e-300)
    near = descended(partial(_slope, G, p), best, rate, STEPS)
    candidates = [near, _pivoted(ridged, p + RIDGE * near, near > 0)]
    left = torch.arange(len(p), device=p.device)
    for _ in range(PULLS):
        for h in candidates:
            gap = _gap(G, p[left], h)
            # Never where rounding is all that G holds and a root fails.
            better = gap < gaps[left]
            best[left] = torch.where(better[:, None], h, best[left])
            gaps[left] = torch.where(better, gap, gaps[left])
        left = (gaps > limit).nonzero()[:, 0]
        if not len(left):
            break
        candidates = [_interior(ridged, p[left] + RIDGE * best[left], FINE * limit)]
    return best, gaps


def _interior(G: Tensor, p: Tensor, limit: Tensor) -> Tensor:
    """Histograms of a gap below about ``limit`` for a positive definite G.

    However badly it is conditioned. Source: Mehrotra (1992): z are the multipliers of h >= 0, and h
    z = mu is solved for falling mu.
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
        # To mu = 0 first, which tells how much of mu and of the curvature to leave.
        dh, dz, step = _newton_step(root, ratio, h, z, -product)
        mu = product.mean(-1, keepdim=True)
        reached = (h + step * dh) * (z + step * dz)
        remaining = reached.mean(-1, keepdim=True)
        change = (remaining / mu) ** 3 * mu - product - dh * dz
        dh, dz, step = _newton_step(root, ratio, h, z, change)
        h = torch.where(going, h + step * dh, h)
        z = torch.where(going, z + step * dz, z)
    kept = h * (h > NOTHING / k)
    return kept / kept.sum(-1, keepdim=True)


def _newton_step(
    root: Tensor,
    ratio: Tensor,
    h: Tensor,
    z: Tensor,
    change: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """dh of sum 0 and dz that change h z by ``change``, linearly, and how far they may be gone."""
    force = change / h
    free, ones = _solve_with_ones(force, torch.ones_like(h), root)
    level = free.sum(-1, keepdim=True) / ones.sum(-1, keepdim=True)
    dh = free - level * ones
    dz = force - ratio * dh
    fastest = torch.minimum(dh / h, dz / z).amin(-1, keepdim=True)
    step = -BACK / fastest.clamp(max=-BACK)
    return dh, dz, step.nan_to_num()


def _slope(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    return h @ G - p


def _gap(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    slope = _slope(G, p, h)
    return (slope * h).sum(-1) - slope.amin(-1)


def _pivoted(G: Tensor, p: Tensor, free: Tensor) -> Tensor:
    """The minimum for a positive definite G: from the support ``free``, until no sign is wrong."""
    n, k = p.shape
    place = torch.arange(k, device=p.device)
    size = p.abs().amax(-1, keepdim=True)
    slack = ROUNDING * (1 + size)
    fewest = torch.full_like(slack, k + 1)
    tries = torch.full_like(slack, PATIENCE)
    answer = torch.zeros_like(p)
    rows = torch.arange(n, device=p.device)
    for _ in range(MOST):
        h, level = _restricted(G, p, free)
        wrong = torch.where(free, h < 0, _slope(G, p, h) - level < -slack)
        count = wrong.sum(-1, keepdim=True)
        tries = torch.where(count < fewest, PATIENCE, tries - 1)
        fewest = torch.minimum(count, fewest)
        answer = answer.index_copy(0, rows, h)
        left = count[:, 0].nonzero()[:, 0]
        if not len(left):
            break
        # Murty: of the wrong ones the last alone, which cannot go round in circles.
        last = (wrong * (place + 1)).amax(-1, keepdim=True) - 1
        turned = wrong & ((tries >= 0) | (place == last))
        free = free ^ turned
        rows = rows[left]
        p = p[left]
        free = free[left]
        slack = slack[left]
        fewest = fewest[left]
        tries = tries[left]
    h = answer.clamp_min(0)
    return h / h.sum(-1, keepdim=True)


def _restricted(G: Tensor, p: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """h with G h = p + level on the free indices, 0 elsewhere, sum 1; and level, (n, 1)."""
    # Systems as large as the largest support, filled up with rows of the identity.
    size = int(free.sum(-1).amax())
    free_first = free.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    order = free_first[:, :size]
    kept = free.gather(1, order).to(p.dtype)
    if bool(free.all()):
        system = G[None]  # one root for all
    else:
        system = G[order[:, :, None], order[:, None, :]]
        system = system * kept[:, :, None] * kept[:, None, :]
        system.diagonal(dim1=-2, dim2=-1).add_(1 - kept)
    root = torch.linalg.cholesky_ex(system)[0]
    own, ones = _solve_with_ones(p.gather(1, order) * kept, kept, root)
    level = (1 - own.sum(-1, keepdim=True)) / ones.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(1, order, own + level * ones), level


def _solve_with_ones(right: Tensor, ones: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """G^{-1} of both, (n, k) each, by Cholesky's factor of G."""
    solved = torch.cholesky_solve(torch.stack([right, ones], -1), root)
    return solved[..., 0], solved[..., 1]
