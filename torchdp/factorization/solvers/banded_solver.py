"""The banded strategy of least error for users whose steps keep apart: a smooth problem without constraints."""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.threads import on_host, one_thread

SHARP = (30.0, 100.0, 300.0, 1e3, 3e3, 1e4)  # powers of squared row norms that stand for their maximum
FLOOR = 1e-9  # share of the sensitivity that every step gets, so that none is without weight


@one_thread
@on_host
def banded_strategy(
    W: Tensor, gap: int, times: int, p: float, max_iterations: int, bands: int | None = None
) -> tuple[Tensor, Tensor]:
    """C with ``bands`` bands and sensitivity 1, of least l_p norm of the row norms of W C^{-1}; rows' dual weights.

    C's diagonal is positive. bands: at most ``gap``, for None as many. Columns that are ``gap`` apart do not meet, so
    the squared sensitivity is the largest sum of x = diag(C^T C) over sets of at most ``times`` steps, ``gap`` apart.
    The convex hull of such sets is {0 <= mu, every ``gap`` consecutive entries add up to at most 1, all to at most
    ``times``}, so by linear programming's duality the sum is at most 1 where x_i <= z + sum_{windows w with i} y_w for
    some y, z >= 0, times z + sum y = 1. Here C = (columns of norm 1) diag(x)^{1/2} with that bound attained, y and z
    squares: L-BFGS.

    W: (n, n), float64; gap <= n; times <= ceil(n / gap). In X = C^T C the problem is convex.
    Source: here; banded strategies: Choquette-Choo et al. (2023), section 4.
    """
    n, device, W, bands = len(W), W.device, W.cpu(), bands or gap
    free = times < -(-n // gap)  # else the number of steps is no limit
    age = torch.arange(bands, dtype=torch.float64)
    first = torch.cumprod(torch.cat([torch.ones(1, dtype=torch.float64), (2 * age[1:] - 1) / (2 * age[1:])]), 0)
    x = np.concatenate([first[:, None].expand(bands, n).flatten().numpy(), np.ones(n - gap + 1 + free)])
    for power in [p / 2] if p < math.inf else SHARP:

        def value(point: Tensor) -> Tensor:
            """log of the l_power norm of the squared row norms."""
            squares = _squares(W, _strategy(point, n, bands, gap, times))
            return (power * squares.log()).logsumexp(0) / power  # noqa: B023

        x = quasi_newton(value, x, max_iterations, stop=1e-10)
    C = _strategy(torch.from_numpy(x), n, bands, gap, times)
    C = C * C.diagonal().sign()[:, None]  # C Z and C with other signs have one law
    squares = _squares(W, C)
    c = ((power - 1) * (squares / squares.max()).log()).exp()
    return C.to(device), c.to(device)


def _squares(W: Tensor, C: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).square().sum(1)


def _strategy(x: Tensor, n: int, bands: int, gap: int, times: int) -> Tensor:
    """C from its bands, entry [i, j] that of C[j + i, j], and the roots of y and, where it counts, z."""
    entries, roots = x[: bands * n].view(bands, n), x[bands * n :].square()
    column = torch.arange(n).expand(bands, n)
    row = column + torch.arange(bands)[:, None]
    inside = row < n
    C = torch.zeros(n, n, dtype=x.dtype).index_put((row[inside], column[inside]), entries[inside])
    y, z = roots[: n - gap + 1], roots[n - gap + 1 :].sum()
    windows = torch.nn.functional.pad(y, (gap - 1, gap - 1)).unfold(0, gap, 1).sum(1)
    sizes = (z + windows) / (times * z + y.sum()) + FLOOR / n
    return C * (sizes.sqrt() / C.norm(dim=0))
