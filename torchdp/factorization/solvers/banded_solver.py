"""Banded strategies of least error by L-BFGS: free, of one row of coefficients, and very long ones.

Notation:
    W: the workload, (n, n), lower triangular where steps are answered in order.
    C: the strategy, (n, n), with so many bands: C[t, s] is 0 unless 0 <= t - s < bands.
    E: C by columns, (bands, n), E[j, s] = C[s + j, s].
    c: one row of coefficients, (bands,), for C[t, s] = c_{t-s}.
    p: the l_p norm of the row norms of W C^{-1}, in [2, inf].
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import pad

from torchdp.descent import quasi_newton
from torchdp.threads import on_host, one_thread

# Powers of squared row norms that stand, one after the other, for their maximum.
SHARP = (30.0, 100.0, 300.0, 1e3, 3e3, 1e4)
# The same for long matrices, whose evaluations are dear.
FEWER = (30.0, 300.0, 3000.0)
# Share of the sensitivity that every step gets, so that none is without weight.
FLOOR = 1e-9
# Evaluations at most, for scales of columns.
MOST = 15_000
# Steps whose blocks are held together.
AT_ONCE = 2**14


@one_thread
@on_host
def banded_strategy(
    W: Tensor,
    gap: int,
    times: int,
    p: float,
    max_iterations: int,
    bands: int | None = None,
) -> Tensor:
    """C of sensitivity 1 with least l_p norm of the row norms of W C^{-1}.

    Its diagonal is positive. Columns that are ``gap`` apart do not meet, so the squared sensitivity
    is the largest sum of x = diag(C^T C) over sets of at most ``times`` steps, ``gap`` apart. The
    convex hull of such sets is {0 <= mu, every ``gap`` consecutive entries add up to at most 1, all
    to at most ``times``}, so by linear programming's duality the sum is at most 1 where x_i <= z +
    sum_{windows w with i} y_w for some y, z >= 0, times z + sum y = 1. Here C = (columns of norm 1)
    diag(x)^{1/2} with that bound attained, y and z squares: L-BFGS. In X = C^T C the problem is
    convex.

    Args:
        W: float64.
        gap: at most n.
        times: at most ceil(n / gap).
        max_iterations: evaluations, for each power that stands for a maximum.
        bands: at most ``gap``; None for as many.

    Source: here; banded strategies: Choquette-Choo et al. (2023), section 4.
    """
    n = len(W)
    device = W.device
    W = W.cpu()
    bands = bands or gap
    windows = n - gap + 1
    # z only where the number of steps is a limit.
    limited = times < -(-n // gap)
    column = torch.arange(n).expand(bands, n)
    row = column + torch.arange(bands)[:, None]
    inside = row < n
    places = (row[inside], column[inside])

    def strategy(x: Tensor) -> Tensor:
        entries = x[: bands * n].view(bands, n)[inside]
        C = torch.zeros(n, n, dtype=x.dtype).index_put(places, entries)
        roots = x[bands * n :].square()
        y = roots[:windows]
        z = roots[windows:].sum()
        windows_with = pad(y, (gap - 1, gap - 1)).unfold(0, gap, 1)
        bounds = z + windows_with.sum(1)
        sizes = bounds / (times * z + y.sum()) + FLOOR / n
        return C * (sizes.sqrt() / C.norm(dim=0))

    def squares(x: Tensor) -> Tensor:
        rows = torch.linalg.solve_triangular(strategy(x), W, upper=False, left=False)
        return rows.square().sum(1)

    # Starts from the coefficients of (1 - x)^{-1/2}, best for prefix sums and one pass.
    age = torch.arange(bands, dtype=torch.float64)
    ratio = (2 * age - 1) / (2 * age)
    ratio[0] = 1.0
    x = _start(ratio.cumprod(0), n, windows + limited)
    x = _descended(squares, x, p, SHARP, max_iterations, 1e-10)
    C = strategy(torch.from_numpy(x))
    # C Z and C with other signs have one distribution.
    C = C * C.diagonal().sign()[:, None]
    return C.to(device)


def _start(c: Tensor, n: int, weights: int) -> np.ndarray:
    """Parameters of columns c, all alike, and of so many equal weights."""
    entries = c[:, None].expand(-1, n)
    return np.concatenate([entries.flatten().numpy(), np.ones(weights)])


def _descended(
    squares: Callable[[Tensor], Tensor],
    x: np.ndarray,
    p: float,
    powers: Sequence[float],
    evaluations: int,
    stop: float,
) -> np.ndarray:
    """x of least l_p norm of the row norms whose squares are ``squares(x)``, by L-BFGS.

    For p = inf the maximum of the squares is their l_power norm, for one power after the other.
    """
    for power in powers if p == math.inf else [p / 2]:

        def log_norm(x: Tensor, power: float = power) -> Tensor:
            return (power * squares(x).log()).logsumexp(0) / power

        x = quasi_newton(log_norm, x, evaluations, stop=stop)
    return x


def banded_toeplitz(first: np.ndarray, bands: int, p: float) -> np.ndarray:
    """c of norm 1 with least l_p norm of the row norms of W C^{-1}, W[t, s] = first_{t-s}.

    Row t of W C^{-1} holds b_0, ..., b_t, b(x) = first(x) / c(x), so its squared norm is a running
    sum of squares; a column's norm is that of c. c_j = prod_{i <= j} (logistic function of x_i)
    falls, so c(x) has no root in the unit disc; L-BFGS with d b = -(first / c^2) d c.
    """
    from scipy.special import expit, logit

    ratio = 2.0 * np.arange(1, bands)
    x = np.asarray(logit((ratio - 1) / ratio))
    if bands > 1:
        options = {"maxcor": 30}
        arguments = (first, p / 2)
        x = minimize(_toeplitz_error, x, arguments, "L-BFGS-B", jac=True, options=options).x
    c = np.cumprod(np.concatenate([[1.0], expit(x)]))
    return np.asarray(c / np.linalg.norm(c))


def _toeplitz_error(x: np.ndarray, first: np.ndarray, power: float) -> tuple[float, np.ndarray]:
    """log of the l_power norm of the squared row norms times ||c||^2, and its gradient."""
    from scipy.signal import lfilter
    from scipy.special import expit

    n = len(first)
    rates = expit(x)
    c = np.cumprod(np.concatenate([[1.0], rates]))
    b = lfilter([1.0], c, first)
    derivative = lfilter([1.0], c, b)  # first / c^2
    rows = np.cumsum(b * b)
    if power == math.inf:
        value = rows[-1]
        slopes = np.eye(1, n, n - 1)[0]
    else:
        value = float(np.linalg.norm(rows / rows[-1], power)) * rows[-1]
        slopes = (rows / value) ** (power - 1)
    # The chain rule backwards: from rows to b, from b to c, from c to x.
    of_b = 2 * b * np.cumsum(slopes[::-1])[::-1]
    products = [-(of_b[j:] @ derivative[: n - j]) for j in range(len(c))]
    of_c = np.array(products) / value + 2 * c / (c @ c)
    of_log_c = of_c * c
    of_x = np.cumsum(of_log_c[:0:-1])[::-1] * (1 - rates)
    return math.log(value) + math.log(c @ c), of_x


@on_host
def column_scales(W: Tensor, c: Tensor, period: int) -> Tensor:
    """d, (n,): C[t, s] = c_{t-s} d_s of least ||W C^{-1}||_F, for users of one fixed order.

    No user moves C G by more than 1: the squared norms of columns i, i + period, ... add up to 1
    for every i; len(c) <= period. With v = 1 / d the error is v^T H v, H = (W^T W) * (T T^T), T the
    inverse of c's Toeplitz matrix: L-BFGS over log d, each class of columns scaled to its sum. On
    the CPU.
    """
    W = W.cpu()
    c = c.cpu()
    step = torch.arange(len(W))
    age = step[:, None] - step
    inside = (age >= 0) & (age < len(c))
    C = torch.where(inside, c[torch.where(inside, age, 0)], 0.0)
    T = torch.linalg.solve_triangular(C, torch.eye(len(W), dtype=C.dtype), upper=False)
    H = (W.mT @ W) * (T @ T.mT)
    squares = C.square().sum(0)
    place = step % period

    def scales(x: Tensor) -> Tensor:
        sums = x.new_zeros(period).index_add(0, place, (2 * x).exp() * squares)
        return x.exp() / sums[place].sqrt()

    def log_error(x: Tensor) -> Tensor:
        v = 1 / scales(x)
        return (v @ H @ v).log()

    x = quasi_newton(log_error, np.zeros(len(W)), MOST)
    return scales(torch.from_numpy(x))


@on_host
def long_banded(inverse: Tensor, c: Tensor, period: int, p: float, evaluations: int) -> Tensor:
    """C of very many steps with least l_p norm of the row norms of W C^{-1}.

    Columns i, i + period, ... do not meet, len(c) <= period, and their squared norms add up to 1:
    no user of one fixed order moves C G by more than 1. Row t of W C^{-1} is as long as the
    standard deviation of x_t in C W^{-1} x = z, a banded system solved block by block, covariances
    and all. L-BFGS from c_{t-s}, columns of one norm.

    Args:
        inverse: (n, 3), entry [t, m] that of W^{-1}[t, t - m].
        c: where it starts.
        evaluations: for each power that stands for a maximum.

    Returns:
        (n, bands), entry [t, j] that of C[t, t - j].
    """
    n = len(inverse)
    bands = len(c)
    place = torch.arange(n) % period
    age = torch.arange(bands)
    inside = age[:, None] + torch.arange(n) < n
    blocks = _blocks(n, bands + 2)

    def columns(x: Tensor) -> Tensor:
        E = x[: bands * n].view(bands, n) * inside
        sizes = x[bands * n :].square() + FLOOR
        sums = torch.zeros(period, dtype=x.dtype).index_add(0, place, sizes)
        return E * ((sizes / sums[place]).sqrt() / E.norm(dim=0))

    def squares(x: Tensor) -> Tensor:
        F = _product(columns(x), inverse)
        return _variances(F, blocks)[0]

    x = _descended(squares, _start(c, n, n), p, FEWER, evaluations, 1e-8)
    E = columns(torch.from_numpy(x))
    past = torch.arange(n)[:, None] - age
    return torch.where(past >= 0, E[age, past.clamp_min(0)], 0.0)


@on_host
def long_row_norms(C: Tensor, inverse: Tensor) -> Tensor:
    """Norms of the rows of W C^{-1}, (n,); some blocks at a time.

    Args:
        C: (n or 1, bands), entry [t, j] that of C[t, t - j].
        inverse: as of :func:`long_banded`.
    """
    n = len(inverse)
    bands = C.shape[1]
    reach = bands + 2
    size = max(2, AT_ONCE // reach) * reach
    variances = []
    P = None
    for start in range(0, n, size):
        # The last block before is there again: its covariance P begins the next.
        first = max(0, start - reach)
        stop = min(start + size, n)
        # The row s + j of entry [j, s].
        row = torch.arange(first, min(stop + 2, n)) + torch.arange(bands)[:, None]
        entries = C.mT.expand(-1, n).gather(1, row.clamp_max(n - 1))
        E = entries * (row < n)
        F = _product(E, inverse[first : stop + 2])[:, : stop - first]
        found, P = _variances(F, _blocks(stop - first, reach), P)
        variances.append(found[start - first :])
    return torch.cat(variances).sqrt()


def _product(E: Tensor, inverse: Tensor) -> Tensor:
    """C W^{-1}, by columns as E: (bands + 2, n)."""
    shifted = []
    for m in range(3):
        products = E[:, m:] * inverse[m:, m]
        shifted.append(pad(products, (0, m, m, 2 - m)))
    return torch.stack(shifted).sum(0)


class _Blocks(NamedTuple):
    """Where a matrix by columns, (reach, n), lies in block rows of two blocks.

    within: its entries, (reach, n); place: theirs in ``empty``, flat, (count, reach, 2 reach), of
    the block before and the row's own.
    """

    within: Tensor
    place: Tensor
    empty: Tensor
    reach: int


def _blocks(n: int, reach: int) -> _Blocks:
    size = -(-n // reach) * reach
    column = torch.arange(n).expand(reach, n)
    row = column + torch.arange(reach)[:, None]
    within = row < n

    def flat(row: Tensor, column: Tensor) -> Tensor:
        return row * 2 * reach + column - (row // reach - 1) * reach

    # The last block is filled up with ones on the diagonal, so that it can be inverted.
    empty = torch.zeros(size * 2 * reach, dtype=torch.float64)
    filling = torch.arange(n, size)
    empty[flat(filling, filling)] = 1.0
    return _Blocks(within, flat(row, column)[within], empty, reach)


def _variances(F: Tensor, blocks: _Blocks, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of x in F x = z, z of variance 1: (n,); and the last block's covariance.

    Args:
        F: by columns, (reach, n).
        before: the covariance of the first block, where it is known.
    """
    reach = blocks.reach
    flat = blocks.empty.index_put((blocks.place,), F[blocks.within])
    rows = flat.view(-1, reach, 2 * reach)
    past = rows[..., :reach]
    own = rows[..., reach:].contiguous()
    eye = torch.eye(reach, dtype=F.dtype).expand_as(own)
    B = torch.linalg.solve_triangular(own, eye, upper=False)
    # x_k = B_k (z_k - past_k x_{k-1})
    A = B @ past
    S = B @ B.mT
    P = S[0] if before is None else before
    diagonals = [P.diagonal()]
    for k in range(1, len(S)):
        P = S[k] + A[k] @ P @ A[k].mT
        diagonals.append(P.diagonal())
    return torch.cat(diagonals)[: F.shape[1]], P
