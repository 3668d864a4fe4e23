"""Weights behind a lower bound for long runs in which users come back: those of a short run, stretched."""

import torch
from torch import Tensor

from torchdp.factorization.epochs import factorize_epochs
from torchdp.factorization.structure.running import stretched
from torchdp.threads import on_host
from torchdp.workloads import RunningSums

SHORT = 768  # steps of the run whose dual is solved
LEAST = 6  # classes of it
TOL = 3e-4  # gap of it
MIXED = 1e-3  # share of equal row weights, against rounding
STEADY = 1e-9  # of the identity, for the root


@on_host
def passes_dual(W: RunningSums, period: int, p: float) -> tuple[Tensor, Tensor]:
    """Row weights, (steps,), and directions, (steps, passes), for :func:`passes_lower`.

    Those of ``factorize_epochs`` for shorter passes; the logarithms of rows' and classes' weights and the classes'
    correlations are linear in logit((i + 1/2) / period), the ends carried on.
    """
    n, period = W.steps, min(period, W.steps)
    passes = -(-n // period)
    short = min(period, max(LEAST, SHORT // passes))
    rest = max(1, round((n - (passes - 1) * period) * short / period))
    small = (passes - 1) * short + rest
    found = factorize_epochs(RunningSums(small, W.decay ** (n / small)).dense(), short, p, TOL)
    c, D = found.row_weights, found.directions
    fill = passes * short - small
    c = torch.nn.functional.pad(c, (0, fill), value=float(c[-1])).view(passes, short)
    D = torch.nn.functional.pad(D, (0, 0, 0, fill)).view(passes, short, -1).movedim(0, 1)
    M = D @ D.mT
    if fill:
        M[rest:, -1, -1] = M[rest:, 0, 0]
    sizes = M.diagonal(dim1=1, dim2=2)
    R = M / (sizes[:, :, None] * sizes[:, None, :]).sqrt()
    R = (1 - STEADY) * R + STEADY * torch.eye(passes, dtype=R.dtype)
    mu = stretched(sizes.amax(1).log(), period).exp()
    B = torch.linalg.cholesky(stretched(R.flatten(1).mT, period, within=True).mT.view(period, passes, passes))
    D = (mu.sqrt()[:, None, None] * B).movedim(0, 1).flatten(0, 1)[:n]
    c = stretched(c.clamp_min(MIXED * float(c.mean())).log(), period).exp().flatten()[:n]
    return c, D
