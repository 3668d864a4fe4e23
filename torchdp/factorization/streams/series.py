"""Sums over a strategy of few buffers, C = D1 T D2, by recurrences y_t = rho y_{t-1} + x_t alone.

T has the generating function prod_a (1 - zeros_a x) / (1 - poles_a x), 1 > pole_1 > zero_1 >
pole_2 > ... > 0. Column norms of C, row norms of W C^{-1} and what a user moves take
O(steps buffers^2). Tensors: poles, zeros (buffers,); before, after, the diagonals of D1 and D2,
(steps,); float64, on the CPU. Those that a search needs have gradients.
"""

from typing import Any

import torch
from torch import Tensor

from torchdp.factorization.streams.recurrence import EPS
from torchdp.workloads import RunningSums


def residues(poles: Tensor, zeros: Tensor) -> Tensor:
    """w of t_m = sum_a w_a poles_a^{m-1}, m > 0: the residues of prod (1 - zeros x) /
    (1 - poles x).
    """
    apart = poles[:, None] - poles
    apart = torch.where(torch.eye(len(poles), dtype=torch.bool, device=poles.device), 1.0, apart)
    return (poles[:, None] - zeros).prod(1) / apart.prod(1)


def squares(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, W: RunningSums) -> Tensor:
    """Squared row norms of W C^{-1}, (n,), as in :func:`buffered_squares`."""
    decay, momentum, rates = W.decay, W.momentum, 1.0 if W.rates is None else W.rates.cpu()
    nu, v, (first, second) = residues(zeros, poles), 1 / before.square(), pairs(zeros)
    G = late(Filter.apply(v.expand(len(first), -1), zeros[first] * zeros[second]))
    mixed = each_with(nu, G)
    H, speeds, both = (
        (zeros[:, None] * mixed + v) / after,
        (v + nu @ mixed) / after**2,
        torch.zeros_like(v),
    )
    if momentum:
        H = Filter.apply(H, momentum * zeros)
        speeds = _sums(speeds + 2 * momentum * (nu @ late(H)) / after, momentum**2)
    with_row = nu @ late(Filter.apply(rates * H, decay * zeros)) / after
    if momentum:
        both = momentum * late(_sums(rates * speeds + decay * with_row, decay * momentum)[None])[0]
    return _sums(rates * (rates * speeds + 2 * decay * (both + with_row)), decay**2)


def overlaps(poles: Tensor, zeros: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms of D1 T's columns, (steps,), Q, (buffers, steps), and w, (buffers,), of what
    they share.

    <c_i, c_j> = D2_i D2_j sum_a w_a poles_a^{j-i-1} Q_a(j) for i < j, Q_a(j) = D1_j^2 + poles_a
    sum_c w_c q_ac(j + 1), q_ac(j) = D1_j^2 + poles_a poles_c q_ac(j + 1). No term is negative:
    relative rounding is at most some 3 eps steps.
    """
    w, own, (first, second) = residues(poles, zeros), before.square(), pairs(poles)
    q = Filter.apply(own.flip(0).expand(len(first), -1), poles[first] * poles[second]).flip(-1)
    mixed = each_with(w, torch.nn.functional.pad(q[:, 1:], (0, 1)))  # of q_ac(j + 1)
    return own + w @ mixed, own + poles[:, None] * mixed, w


def pass_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, period: int
) -> Tensor:
    """||the sum of C's columns i, i + period, ...||^2 for i < period: (min(period, steps),).

    From :func:`overlaps`, sums over i < j of one class pass by pass. No term is negative, so the
    relative rounding is at most some 8 eps steps.
    """
    (own, Q, w), period = overlaps(poles, zeros, before), min(period, len(before))
    D2, Q, total = (
        folded(after, period).mT,
        folded(Q, period).mT,
        folded(own * after.square(), period).sum(1),
    )
    past = own.new_zeros(len(poles), period)  # sum_{i < j} D2_i poles_a^{j-i-1}
    for e in range(1, len(D2)):
        past = (poles**period)[:, None] * past + (poles ** (period - 1))[:, None] * D2[e - 1]
        total = total + 2 * D2[e] * (w @ (Q[:, e] * past))
    return total


def apart_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, gap: int, times: int
) -> tuple[float, float, float]:
    """A bound on ||the sum of C's columns of ``times`` steps ``gap`` apart||^2, what a set attains,
    relative rounding.

    By :func:`links`: a sum over the user's steps, and the largest one over all sets is found
    backwards. Where D1 and D2 do not rise, the bound is attained by 0, gap, 2 gap, ...
    O(steps times buffers). Rounding: sums of n positive terms, and powers of poles as exponentials.
    """
    n, times = len(before), min(times, -(-len(before) // gap))
    tables = _tables(links(poles, zeros, before, after, gap, times), gap)
    chosen, start = before.new_zeros(1, n), 0
    for table in tables[::-1]:
        if start < n:
            step = start + int((table[start:n] >= table[start]).sum()) - 1
            chosen[0, step], start = 1.0, step + gap
    given = after * chosen
    before_it = late(Filter.apply(given.expand(len(poles), -1), poles))
    moved = before * (given[0] + residues(poles, zeros) @ before_it)
    rounding = (16 * (1 - float(poles.log().min())) * n + 256) * EPS
    return float(tables[-1][0]), float(moved.square().sum()), rounding


def links(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, gap: int, times: int
) -> Tensor:
    """v_r(i), (times, n): what a user adds at step i at most, counting each pair at its earlier
    step, r more to come.

    With X = C^T C as in :func:`overlaps`, X_ij <= x_m(i) where j >= i + m gap: x_m(i) = D2_i sum_a
    w_a poles_a^{m gap - 1} max_{j >= i + m gap} poles_a^{j-i-m gap} D2_j Q_a(j), maxima that follow
    from each other; v_r(i) = X_ii + 2 sum_{m <= r} x_m(i).
    """
    own, Q, w = overlaps(poles, zeros, before)
    ages = torch.arange(len(own), dtype=own.dtype, device=own.device) * poles.log()[:, None]
    highest = ((after * Q).log() + ages).flip(-1).cummax(-1).values.flip(-1)
    highest, found = (highest - ages).exp(), [own * after.square()]
    for m in range(1, times):
        reach = min(m * gap, len(own))
        link = (w * poles ** (reach - 1)) @ highest[:, reach:]
        found.append(found[-1] + 2 * after * torch.nn.functional.pad(link, (0, reach)))
    return torch.stack(found)


def largest(links: Tensor, gap: int, sharp: float) -> Tensor:
    """The largest sum of links over a set, smoothed from above: a sum of exponentials over all
    sets.
    """
    unit = _tables(links.detach(), gap)[-1][0] / sharp
    total = links.new_zeros(links.shape[1] + gap)
    for link in links / unit:
        taken = torch.nn.functional.pad(link + total[gap:], (0, 1)).flip(0)  # and the empty set
        total = torch.nn.functional.pad(taken.logcumsumexp(0).flip(0)[:-1], (0, gap))
    return total[0] * unit


def _tables(links: Tensor, gap: int) -> list[Tensor]:
    """For r = 0, 1, ...: the largest sum over sets of at most r + 1 steps from i on, (n + gap,)."""
    table, found = links.new_zeros(links.shape[1] + gap), []
    for link in links:
        taken = (link + table[gap:]).flip(0).cummax(0).values.flip(0)
        table = torch.nn.functional.pad(taken, (0, gap))
        found.append(table)
    return found


def folded(y: Tensor, period: int) -> Tensor:
    """(..., steps) -> (..., period, passes), 0 beyond the last step."""
    n, period = y.shape[-1], min(period, y.shape[-1])
    passes = -(-n // period)
    return torch.nn.functional.pad(y, (0, passes * period - n)).unflatten(-1, (passes, period)).mT


def pairs(y: Tensor) -> tuple[Tensor, Tensor]:
    """All a <= b below the length of y, each once."""
    first, second = torch.triu_indices(len(y), len(y), device=y.device)
    return first, second


def each_with(weights: Tensor, y: Tensor) -> Tensor:
    """sum_b weights_b y_ab, y symmetric in a and b, a row for each of :func:`pairs`:
    (buffers, n).
    """
    (first, second), buffers = pairs(weights), len(weights)
    place = first.new_zeros(buffers, buffers)
    place[first, second] = place[second, first] = torch.arange(len(first), device=y.device)
    return torch.stack([weights @ y[row] for row in place])


def _sums(x: Tensor, ratio: float) -> Tensor:
    return Filter.apply(x[None], x.new_tensor([ratio]))[0]


def late(y: Tensor) -> Tensor:
    """One step later, 0 first."""
    return torch.nn.functional.pad(y[:, :-1], (1, 0))


class Filter(torch.autograd.Function):
    """y_t = rho y_{t-1} + x_t along the last dimension: x (k, n), rho (k,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rho: Tensor) -> Tensor:
        from scipy.signal import lfilter  # here, because loading it takes half a second

        y = torch.empty_like(x)
        for row, ratio, into in zip(x.numpy(), rho.tolist(), y.numpy(), strict=True):
            into[:] = lfilter([1.0], [1.0, -ratio], row)
        ctx.save_for_backward(y, rho)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        y, rho = ctx.saved_tensors
        back = Filter.apply(gradients[0].flip(-1), rho).flip(-1)
        return back, (back[:, 1:] * y[:, :-1]).sum(-1)
