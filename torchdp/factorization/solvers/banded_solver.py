"""Banded strategies of least error by L-BFGS: free, of one row of coefficients, and of very many
steps.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.threads import on_host, one_thread

# powers of squared row norms that stand for their maximum
SHARP = (30.0, 100.0, 300.0, 1e3, 3e3, 1e4)
FLOOR = 1e-9  # share of the sensitivity that every step gets, so that none is without weight
FEWER = (30.0, 300.0, 3000.0)  # powers for long matrices
MOST = 15_000  # evaluations at most
AT_ONCE = 2**14  # steps whose blocks are held together


@one_thread
@on_host
def banded_strategy(
    W: Tensor, gap: int, times: int, p: float, max_iterations: int, bands: int | None = None
) -> Tensor:
    """C with ``bands`` bands and sensitivity 1, of least l_p norm of the row norms of W C^{-1}.

    C's diagonal is positive. bands: at most ``gap``, for None as many. Columns that are ``gap``
    apart do not meet, so the squared sensitivity is the largest sum of x = diag(C^T C) over sets of
    at most ``times`` steps, ``gap`` apart. The convex hull of such sets is {0 <= mu, every ``gap``
    consecutive entries add up to at most 1, all to at most ``times``}, so by linear programming's
    duality the sum is at most 1 where x_i <= z + sum_{windows w with i} y_w for some y, z >= 0,
    times z + sum y = 1. Here C = (columns of norm 1) diag(x)^{1/2} with that bound attained, y and
    z squares: L-BFGS.

    W: (n, n), float64; gap <= n; times <= ceil(n / gap). In X = C^T C the problem is convex.
    Source: here; banded strategies: Choquette-Choo et al. (2023), section 4.
    """
    n, device, W, bands = len(W), W.device, W.cpu(), bands or gap
    free = times < -(-n // gap)  # else the number of steps is no limit
    age = torch.arange(bands, dtype=torch.float64)
    first = torch.cumprod(
        torch.cat([torch.ones(1, dtype=torch.float64), (2 * age[1:] - 1) / (2 * age[1:])]), 0
    )
    x = np.concatenate(
        [first[:, None].expand(bands, n).flatten().numpy(), np.ones(n - gap + 1 + free)]
    )
    powers = [p / 2] if p < math.inf else SHARP
    x = _descended(
        lambda x: _squares(W, _strategy(x, n, bands, gap, times)), x, powers, max_iterations, 1e-10
    )
    C = _strategy(torch.from_numpy(x), n, bands, gap, times)
    C = C * C.diagonal().sign()[:, None]  # C Z and C with other signs have one distribution
    return C.to(device)


def _descended(
    squares: Callable[[Tensor], Tensor],
    x: np.ndarray,
    powers: Sequence[float],
    most: int,
    stop: float,
) -> np.ndarray:
    """x of least l_power norm of the squared row norms, for one power after the other, by L-BFGS on
    its logarithm.
    """
    for power in powers:

        def log_norm(x: Tensor, power: float = power) -> Tensor:
            return (power * squares(x).log()).logsumexp(0) / power

        x = quasi_newton(log_norm, x, most, stop=stop)
    return x


def _squares(W: Tensor, C: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).square().sum(1)


def _strategy(x: Tensor, n: int, bands: int, gap: int, times: int) -> Tensor:
    """C from its bands, entry [i, j] that of C[j + i, j], and the roots of y and, where it counts,
    z.
    """
    entries, roots = x[: bands * n].view(bands, n), x[bands * n :].square()
    column = torch.arange(n).expand(bands, n)
    row = column + torch.arange(bands)[:, None]
    inside = row < n
    C = torch.zeros(n, n, dtype=x.dtype).index_put((row[inside], column[inside]), entries[inside])
    y, z = roots[: n - gap + 1], roots[n - gap + 1 :].sum()
    windows = torch.nn.functional.pad(y, (gap - 1, gap - 1)).unfold(0, gap, 1).sum(1)
    sizes = (z + windows) / (times * z + y.sum()) + FLOOR / n
    return C * (sizes.sqrt() / C.norm(dim=0))


def banded_toeplitz(first: np.ndarray, bands: int, p: float) -> np.ndarray:
    """c, (bands,), of norm 1: C[t, s] = c_{t-s} of least l_p norm of W C^{-1}'s row norms,
    W[t, s] = first_{t-s}.

    Row t of W C^{-1} holds b_0, ..., b_t, b(x) = first(x) / c(x), so its squared norm is a running
    sum of squares; a column's norm is that of c. c_j = prod_{i <= j} (logistic function of x_i)
    falls, so c(x) has no root in the unit disc; L-BFGS with d b = -(first / c^2) d c.
    """
    from scipy.special import expit, logit

    ratio = 2.0 * np.arange(1, bands)
    x = np.asarray(logit((ratio - 1) / ratio))
    if bands > 1:
        x = minimize(
            _objective, x, (first, p / 2), jac=True, method="L-BFGS-B", options={"maxcor": 30}
        ).x
    c = np.cumprod(np.concatenate([[1.0], expit(x)]))
    return np.asarray(c / np.linalg.norm(c))


@on_host
def column_scales(W: Tensor, c: Tensor, period: int) -> Tensor:
    """d, (n,): C[t, s] = c_{t-s} d_s of least ||W C^{-1}||_F, a user of one fixed order moving C G
    by 1 at most.

    So the squared norms of columns i, i + period, ... add up to 1 for every i; len(c) <= period.
    With v = 1 / d the error is v^T H v, H = (W^T W) * (T T^T), T the inverse of c's Toeplitz
    matrix: L-BFGS over log d, each class of columns scaled to its sum. On the CPU.
    """
    W, c, step = W.cpu(), c.cpu(), torch.arange(len(W))
    age = step[:, None] - step
    C = torch.where((age >= 0) & (age < len(c)), c[age.clamp(0, len(c) - 1)], 0.0)
    T = torch.linalg.solve_triangular(C, torch.eye(len(W), dtype=C.dtype), upper=False)
    H, squares, place = (W.mT @ W) * (T @ T.mT), C.square().sum(0), step % period

    def scales(x: Tensor) -> Tensor:
        sums = x.new_zeros(period).index_add(0, place, (2 * x).exp() * squares)
        return x.exp() / sums[place].sqrt()

    def value(x: Tensor) -> Tensor:
        v = 1 / scales(x)
        return (v @ H @ v).log()

    return scales(torch.from_numpy(quasi_newton(value, np.zeros(len(W)), MOST)))


def _objective(x: np.ndarray, first: np.ndarray, power: float) -> tuple[float, np.ndarray]:
    """log of the l_power norm of the squared row norms times ||c||^2, and its gradient."""
    from scipy.signal import lfilter
    from scipy.special import expit

    rates, n = expit(x), len(first)
    c = np.cumprod(np.concatenate([[1.0], rates]))
    b = lfilter([1.0], c, first)
    twice = lfilter([1.0], c, b)
    rows = np.cumsum(b * b)
    if power == math.inf:
        value, slopes = rows[-1], np.eye(1, n, n - 1)[0]
    else:
        value = float(np.linalg.norm(rows / rows[-1], power)) * rows[-1]
        slopes = (rows / value) ** (power - 1)
    of_b = 2 * b * np.cumsum(slopes[::-1])[::-1]
    of_c = np.array([-(of_b[j:] @ twice[: n - j]) for j in range(len(c))]) / value + 2 * c / (c @ c)
    of_x = np.cumsum((of_c * c)[:0:-1])[::-1] * (1 - rates)
    return math.log(value) + math.log(c @ c), of_x


@on_host
def long_banded(inverse: Tensor, c: Tensor, period: int, p: float, evaluations: int) -> Tensor:
    """C as (steps, bands), entry [t, j] that of C[t, t - j], of least l_p norm of the row norms of
    W C^{-1}.

    Columns i, i + period, ... do not meet, len(c) <= period, and their squared norms add up to 1:
    no user of one fixed order moves C G by more than 1. Row t of W C^{-1} is as long as the
    standard deviation of x_t in C W^{-1} x = z, a banded system solved block by block, covariances
    and all. L-BFGS from c_{t-s}, columns of one norm.

    inverse: (steps, 3), entry [t, m] that of W^{-1}[t, t - m]. evaluations: for each power.
    """
    n, bands = len(inverse), len(c)
    place = torch.arange(n) % period
    inside = torch.arange(bands)[:, None] + torch.arange(n) < n  # entry [j, s] is C[s + j, s]
    layout = _layout(n, bands + 2)
    x = np.concatenate([c[:, None].expand(bands, n).flatten().numpy(), np.ones(n)])

    def columns(x: Tensor) -> Tensor:
        E, sizes = x[: bands * n].view(bands, n) * inside, x[bands * n :].square() + FLOOR
        whole = torch.zeros(period, dtype=x.dtype).index_add(0, place, sizes)
        return E * ((sizes / whole[place]).sqrt() / E.norm(dim=0))

    powers = [p / 2] if p < math.inf else FEWER
    x = _descended(
        lambda x: _variances(_product(columns(x), inverse), layout)[0], x, powers, evaluations, 1e-8
    )
    found = columns(torch.from_numpy(x))
    age = torch.arange(bands)
    past = torch.arange(n)[:, None] - age
    return torch.where(past >= 0, found[age, past.clamp_min(0)], 0.0)


def _product(E: Tensor, inverse: Tensor) -> Tensor:
    """C W^{-1}, by columns as E: (bands + 2, n)."""
    shifted = [
        torch.nn.functional.pad(E[:, m:] * inverse[m:, m], (0, m, m, 2 - m)) for m in range(3)
    ]
    return torch.stack(shifted).sum(0)


def _layout(n: int, reach: int) -> tuple[Tensor, Tensor, int, int]:
    """Where the entries of a banded matrix by columns lie in block rows of two blocks, that before
    and its own.
    """
    blocks = -(-n // reach)
    column = torch.arange(n).expand(reach, n)
    row = column + torch.arange(reach)[:, None]
    within = row < n
    block = row // reach
    flat = (block * reach + row % reach) * 2 * reach + column - (block - 1) * reach
    return within, flat[within], blocks, reach


def _variances(
    F: Tensor, layout: tuple[Tensor, Tensor, int, int], before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of x in F x = z, z of variance 1: (n,); and the last block's covariance. before: that of the
    first block.
    """
    within, flat, blocks, reach = layout
    n = F.shape[1]
    whole = torch.zeros(blocks * reach * 2 * reach, dtype=F.dtype).index_put((flat,), F[within])
    whole = whole.view(blocks, reach, 2 * reach)
    past, own = whole[..., :reach], whole[..., reach:]
    if blocks * reach > n:
        rest = torch.zeros(reach, dtype=F.dtype)
        rest[reach - (blocks * reach - n) :] = 1.0
        own = torch.cat([own[:-1], (own[-1] + torch.diag(rest))[None]])
    B = torch.linalg.solve_triangular(
        own, torch.eye(reach, dtype=F.dtype).expand_as(own), upper=False
    )
    A, S = B @ past, B @ B.mT
    P = S[0] if before is None else before
    found = [P.diagonal()]
    for k in range(1, blocks):
        P = S[k] + A[k] @ P @ A[k].mT
        found.append(P.diagonal())
    return torch.cat(found)[:n], P


@on_host
def long_row_norms(C: Tensor, inverse: Tensor) -> Tensor:
    """Norms of the rows of W C^{-1}, (steps,), C as (steps or 1, bands), W^{-1} as there; some
    blocks at a time.
    """
    (n, _), bands = inverse.shape, C.shape[1]
    reach, found, P = bands + 2, [], None
    size = max(2, AT_ONCE // reach) * reach
    for start in range(0, n, size):
        first, stop = max(0, start - reach), min(start + size, n)
        # [j, s]: row s + j
        place = torch.arange(first, min(stop + 2, n)) + torch.arange(bands)[:, None]
        E = C.mT.expand(-1, n).gather(1, place.clamp_max(n - 1)) * (place < n)
        F = _product(E, inverse[first : stop + 2])[:, : stop - first]
        variances, P = _variances(F, _layout(stop - first, reach), P)
        found.append(variances[start - first :])
    return torch.cat(found).sqrt()
