"""The nearest histogram: a quadratic program over the simplex, solved exactly by block pivoting."""

import torch
from torch import Tensor

from torchdp.threads import one_thread

PATIENCE = 3  # rounds without a new least number of wrong signs before one index at a time is turned
RIDGE = 1e-10  # of the largest diagonal entry: makes the solution unique where points are not affinely independent
ROUNDING = 1e-12  # of the same: what a multiplier may miss 0 by
MOST = 400  # rounds of turning signs; some ten are usual
PULLS = 10  # proximal rounds, the ridge towards the last solution: one where points are affinely independent
NUMBERS_AT_ONCE = 2**26  # in the systems of the problems that are solved together


@one_thread
def nearest_histogram(gram: Tensor, pull: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """argmin over probability vectors h of h^T gram h/2 - <pull, h>, (*batch, k), and the Frank-Wolfe gap, (*batch).

    The gap bounds how far the objective is above its minimum; it is recomputed from ``gram``, and above ``limit`` only
    where rounding is.

    gram: (k, k), positive semidefinite; pull: (*batch, k).
    Source: Portugal, Judice, Vicente (1994), block pivots; Kim, Park (2011), the safeguard; Murty (1974), that it ends.
    """
    k, scale = pull.shape[-1], gram.diagonal().amax().clamp_min(1e-300)
    G = gram / scale
    ridged = G + RIDGE * torch.eye(k, dtype=G.dtype, device=G.device)
    parts = (pull / scale).reshape(-1, k).split(NUMBERS_AT_ONCE // k**2 + 1)
    found = [_solved(G, ridged, p, limit / scale) for p in parts]
    h, gap = (torch.cat(each) for each in zip(*found, strict=True))
    return h.view(pull.shape), gap.view(pull.shape[:-1]) * scale


def _solved(G: Tensor, ridged: Tensor, p: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """(n, k) histograms and (n,) gaps."""
    h, free = torch.full_like(p, 1 / p.shape[1]), torch.ones_like(p, dtype=torch.bool)
    least, best = h, _gap(G, p, h)
    for _ in range(PULLS):
        h, free = _pivoted(ridged, p + RIDGE * h, free)
        gap = _gap(G, p, h)
        better = gap < best  # never where rounding is all that G holds and a root fails
        least, best = torch.where(better[:, None], h, least), torch.where(better, gap, best)
        if bool((best <= limit).all()):
            break
    return least, best


def _gap(G: Tensor, p: Tensor, h: Tensor) -> Tensor:
    slope = h @ G - p
    return (slope * h).sum(-1) - slope.amin(-1)


def _pivoted(G: Tensor, p: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum for a positive definite G, (n, k), and its support: from ``free``, until no sign is wrong."""
    k, place = p.shape[1], torch.arange(p.shape[1], device=p.device)
    slack = ROUNDING * (1 + p.abs().amax(-1, keepdim=True))
    least, tries = torch.full_like(slack, k + 1), torch.full_like(slack, PATIENCE)
    answer, support, at = torch.zeros_like(p), free, torch.arange(len(p), device=p.device)
    for _ in range(MOST):
        h, level = _restricted(G, p, free)
        wrong = torch.where(free, h < 0, h @ G - p - level < -slack)
        many = wrong.sum(-1, keepdim=True)
        tries = torch.where(many < least, PATIENCE, tries - 1)
        least = torch.minimum(many, least)
        answer, support = answer.index_copy(0, at, h), support.index_copy(0, at, free)
        left = many[:, 0].nonzero()[:, 0]
        if not len(left):
            break
        last = (wrong * (place + 1)).amax(-1, keepdim=True) - 1  # Murty: the wrong one of the largest number
        free = free ^ (wrong & ((tries >= 0) | (place == last)))
        at, p, free, slack, least, tries = (each[left] for each in (at, p, free, slack, least, tries))
    h = answer.clamp_min(0)
    return h / h.sum(-1, keepdim=True), support


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
