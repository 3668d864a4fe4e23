"""Sums over a strategy of few buffers, C = D1 T D2, in O(steps buffers^2), with gradients.

T has the generating function prod_a (1 - zeros_a x) / (1 - poles_a x), 1 > pole_1 > zero_1 >
pole_2 > ... > 0. Column norms of C, row norms of W C^{-1} and what a user moves all follow from
recurrences y_t = rho y_{t-1} + x_t.

Notation:
    poles, zeros: (buffers,).
    before, after: D1 and D2, the diagonals, (steps,).
    w: residues of T; nu: those of T^{-1}, which is T with poles and zeros exchanged.
    u = D1^{-1} z: fresh noise; s_a <- zeros_a s_a + u: the buffers; C^{-1} z = (u + nu s) / D2.

Everything is float64, on the CPU.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchdp.factorization.streams.recurrence import EPS, filtered
from torchdp.workloads import RunningSums


def residues(poles: Tensor, zeros: Tensor) -> Tensor:
    """w of t_m = sum_a w_a poles_a^{m-1}, m > 0, for prod (1 - zeros x) / (1 - poles x)."""
    same = torch.eye(len(poles), dtype=torch.bool, device=poles.device)
    differences = torch.where(same, 1.0, poles[:, None] - poles)
    return (poles[:, None] - zeros).prod(1) / differences.prod(1)


def squares(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, W: RunningSums) -> Tensor:
    """Squared row norms of W C^{-1}, (n,), as in :func:`buffered_squares`.

    They are the variances of the sums o_t = decay o_{t-1} + rates_t v_t of the velocities
    v_t = momentum v_{t-1} + (C^{-1} z)_t.
    """
    decay = W.decay
    momentum = W.momentum
    rates = 1.0 if W.rates is None else W.rates.cpu()
    # Covariances before step t, each from that of the step before.
    nu = residues(zeros, poles)
    fresh = 1 / before.square()  # Var u_t
    first, second = pairs(zeros)
    products = zeros[first] * zeros[second]
    buffers = late(Filter.apply(fresh.expand(len(first), -1), products))  # Cov(s_a, s_b)
    with_sum = each_with(nu, buffers)  # Cov(s_a, nu s)
    with_velocity = (zeros[:, None] * with_sum + fresh) / after  # Cov(s_a, v_t) after step t
    velocity = (fresh + nu @ with_sum) / after**2  # Var v_t
    if momentum:
        with_velocity = Filter.apply(with_velocity, momentum * zeros)
        # 2 momentum Cov(v_{t-1}, (C^{-1} z)_t)
        with_last = 2 * momentum * (nu @ late(with_velocity)) / after
        velocity = _sums(velocity + with_last, momentum**2)
    with_output = Filter.apply(rates * with_velocity, decay * zeros)  # Cov(s_a, o_t)
    covariance = nu @ late(with_output) / after  # Cov(o_{t-1}, v_t)
    if momentum:
        same_step = _sums(rates * velocity + decay * covariance, decay * momentum)
        covariance = momentum * late(same_step) + covariance
    return _sums(rates * (rates * velocity + 2 * decay * covariance), decay**2)


def overlaps(poles: Tensor, zeros: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms of D1 T's columns, (steps,), Q, (buffers, steps), and w, (buffers,).

    <c_i, c_j> = D2_i D2_j sum_a w_a poles_a^{j-i-1} Q_a(j) for i < j, Q_a(j) = D1_j^2 + poles_a
    sum_c w_c q_ac(j + 1), q_ac(j) = D1_j^2 + poles_a poles_c q_ac(j + 1). No term is negative:
    relative rounding is at most some 3 eps steps.
    """
    w = residues(poles, zeros)
    own = before.square()
    first, second = pairs(poles)
    backwards = own.flip(0).expand(len(first), -1)
    q = Filter.apply(backwards, poles[first] * poles[second]).flip(-1)
    mixed = each_with(w, pad(q[:, 1:], (0, 1)))  # of q_ac(j + 1)
    return own + w @ mixed, own + poles[:, None] * mixed, w


def pass_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, period: int
) -> Tensor:
    """||the sum of C's columns i, i + period, ...||^2 for i < period: (min(period, steps),).

    From :func:`overlaps`, sums over i < j of one class pass by pass. No term is negative, so the
    relative rounding is at most some 8 eps steps.
    """
    own, Q, w = overlaps(poles, zeros, before)
    period = min(period, len(before))
    D2 = folded(after, period).mT
    Q = folded(Q, period).mT
    total = folded(own * after.square(), period).sum(1)
    past = own.new_zeros(len(poles), period)  # sum_{i < j} D2_i poles_a^{j-i-1}
    for e in range(1, len(D2)):
        whole_pass = (poles**period)[:, None]
        but_one = (poles ** (period - 1))[:, None]
        past = whole_pass * past + but_one * D2[e - 1]
        total = total + 2 * D2[e] * (w @ (Q[:, e] * past))
    return total


def apart_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, gap: int, times: int
) -> tuple[float, float, float]:
    """Of ||the sum of ``times`` columns ``gap`` apart||^2: a bound, what a set attains, rounding.

    By :func:`links`: a sum over the user's steps, and the largest one over all sets is found
    backwards. Where D1 and D2 do not rise, the bound is attained by 0, gap, 2 gap, ...
    O(steps times buffers). Rounding, relative: sums of n positive terms, and powers of poles as
    exponentials.
    """
    n = len(before)
    times = min(times, -(-n // gap))
    tables = _tables(links(poles, zeros, before, after, gap, times), gap)
    chosen = before.new_zeros(n)
    start = 0
    for table in reversed(tables):
        if start >= n:
            break
        # Tables fall: the last step with the value at start is where its set begins.
        as_good = table[start:n] >= table[start]
        step = start + int(as_good.sum()) - 1
        chosen[step] = 1.0
        start = step + gap
    weights = after * chosen
    earlier = late(Filter.apply(weights.expand(len(poles), -1), poles))
    moved = before * (weights + residues(poles, zeros) @ earlier)
    bound = tables[-1][0]
    attained = moved.square().sum()
    exponent = -float(poles.log().min())
    return float(bound), float(attained), (16 * (1 + exponent) * n + 256) * EPS


def links(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, gap: int, times: int
) -> Tensor:
    """v_r(i), (times, n): what a user adds at step i at most, with r more steps to come.

    Each pair counts at its earlier step. With X = C^T C as in :func:`overlaps`, X_ij <= x_m(i)
    where j >= i + m gap:
        x_m(i) = D2_i sum_a w_a poles_a^{m gap - 1} max_{j >= i + m gap} poles_a^{j-i-m gap} D2_j
        Q_a(j),
    maxima that follow from each other; v_r(i) = X_ii + 2 sum_{m <= r} x_m(i).
    """
    own, Q, w = overlaps(poles, zeros, before)
    # In logarithms, since powers of a pole over all steps underflow.
    ages = torch.arange(len(own), dtype=own.dtype, device=own.device) * poles.log()[:, None]
    logs = (after * Q).log() + ages
    highest_logs = _highest_from(logs)
    highest = (highest_logs - ages).exp()
    added = own * after.square()
    rows = [added]
    for m in range(1, times):
        reach = min(m * gap, len(own))
        x = (w * poles ** (reach - 1)) @ highest[:, reach:]
        added = added + 2 * after * pad(x, (0, reach))
        rows.append(added)
    return torch.stack(rows)


def largest(links: Tensor, gap: int, sharp: float) -> Tensor:
    """The largest sum of links over a set, smoothed from above by exponentials over all sets."""
    # Temperature in units of the largest sum, so that sharp means the same for every strategy.
    unit = _tables(links.detach(), gap)[-1][0] / sharp
    total = links.new_zeros(links.shape[1] + gap)
    for link in links / unit:
        begun = pad(link + total[gap:], (0, 1))  # and the empty set
        sums = begun.flip(0).logcumsumexp(0).flip(0)
        total = pad(sums[:-1], (0, gap))
    return total[0] * unit


def _tables(links: Tensor, gap: int) -> list[Tensor]:
    """For r = 0, 1, ...: the largest sum over sets of at most r + 1 steps from i on, (n + gap,)."""
    table = links.new_zeros(links.shape[1] + gap)
    tables = []
    for link in links:
        begun = link + table[gap:]
        table = pad(_highest_from(begun), (0, gap))
        tables.append(table)
    return tables


def _highest_from(y: Tensor) -> Tensor:
    """max_{t >= i} y_t."""
    return y.flip(-1).cummax(-1).values.flip(-1)


def folded(y: Tensor, period: int) -> Tensor:
    """(..., steps) -> (..., period, passes), 0 beyond the last step."""
    n = y.shape[-1]
    period = min(period, n)
    passes = -(-n // period)
    whole = pad(y, (0, passes * period - n))
    return whole.unflatten(-1, (passes, period)).mT


def pairs(y: Tensor) -> tuple[Tensor, Tensor]:
    """All a <= b below the length of y, each once."""
    first, second = torch.triu_indices(len(y), len(y), device=y.device)
    return first, second


def each_with(weights: Tensor, y: Tensor) -> Tensor:
    """sum_b weights_b y_ab, (buffers, n), of a symmetric y, a row for each of :func:`pairs`."""
    first, second = pairs(weights)
    numbers = torch.arange(len(first), device=y.device)
    row_of_pair = first.new_zeros(len(weights), len(weights))
    row_of_pair[first, second] = numbers
    row_of_pair[second, first] = numbers
    return torch.stack([weights @ y[rows] for rows in row_of_pair])


def _sums(x: Tensor, ratio: float) -> Tensor:
    return Filter.apply(x[None], x.new_tensor([ratio]))[0]


def late(y: Tensor) -> Tensor:
    """One step later, 0 first."""
    return pad(y[..., :-1], (1, 0))


class Filter(torch.autograd.Function):
    """y_t = rho y_{t-1} + x_t along the last dimension: x (k, n), rho (k,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rho: Tensor) -> Tensor:
        y = torch.empty_like(x)
        for row, ratio, into in zip(x.numpy(), rho.tolist(), y.numpy(), strict=True):
            into[:] = filtered([1.0], [1.0, -ratio], row)
        ctx.save_for_backward(y, rho)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        y, rho = ctx.saved_tensors
        # The transposed recurrence runs backwards.
        reversed_ = gradients[0].flip(-1)
        back = Filter.apply(reversed_, rho).flip(-1)
        products = back[:, 1:] * y[:, :-1]
        return back, products.sum(-1)
