"""Certified bounds for running sums without momentum, of any number of steps, in time and memory
for a few vectors.

They come from Gaussian paths that are observed: variances and draws of all their points in O(n),
without a subtraction. The path x_t = decay x_{t-1} + N(0, P_t), x_{-1} = 0, seen at each t through
noise of precision leaks_t, has the precision matrix of a resistor network: an edge
(x_t - decay x_{t-1})^2 / P_t between neighbours, and a leak at each point. To leave out every
second point (star-mesh transform) gives such a network on the others, whose numbers are sums,
products and quotients of positive numbers: log2 n levels, each a few operations on whole tensors.

Norms of strategies of a few buffers are taken in the widest floats of numpy, apart from the code
that looks for them.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdp.draws import Draws
from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    check_exponent,
    conjugate,
    scaled_weights,
)
from torchdp.memory import NUMBERS_AT_ONCE
from torchdp.workloads import RunningSums

AT_ONCE = min(2**16, NUMBERS_AT_ONCE)  # numbers: what a near cache holds
Wide = NDArray[np.longdouble]
EPS = float(np.finfo(np.longdouble).eps)


@dataclass(frozen=True)
class _Level:
    """The points left out at one level: x = before x_left + after x_right + N(0, variance)."""

    points: int
    variance: Tensor
    before: Tensor
    after: Tensor


def eliminate(steps: Tensor, leaks: Tensor, decay: float) -> tuple[list[_Level], Tensor]:
    """The levels, the finest first, and the variance of the one point that is left, (batch, 1).

    steps: (n,), the variances P_t > 0; leaks: (batch, n), >= 0.

    Relative error of what follows from the levels: a level rounds each edge and leak by at most 10
    eps, and a variance is a decreasing, homogeneous function of all edges and leaks of its level
    (Rayleigh), so it moves by as much; a covariance of neighbours by three times as much;
    decay^(2^k), rounded, by 2 eps times the level's points. In all at most (64 log2 n + 4 n) eps, n
    eps only with a decay; underflow apart.
    Source: Rayleigh's monotonicity law, see Doyle, Snell (1984), for resistances; homogeneity for
    the constants.
    """
    edges, leaks = (1 / steps[1:]).expand(len(leaks), -1), leaks.clone()
    leaks[:, 0] += 1 / steps[0]
    levels, span = [], 1
    while (points := leaks.shape[1]) > 1:
        ratio, kept, out = decay**span, (points + 1) // 2, points // 2
        left, leak = edges[:, 0::2].contiguous(), leaks[:, 1::2].contiguous()
        right = (
            edges[:, 1::2].contiguous()
            if points % 2
            else torch.nn.functional.pad(edges[:, 1::2], (0, 1))
        )
        variance = 1 / (left + ratio**2 * right + leak)
        before, after = left * variance, right * variance
        levels.append(_Level(points, variance, ratio * before, ratio * after))
        edges, leaks = (before * right)[:, : kept - 1], leaks[:, 0::2].contiguous()
        leaks[:, :out] += ratio**2 * before * leak
        leaks[:, 1:] += (after * leak)[:, : kept - 1]
        span *= 2
    return levels, 1 / leaks


def variances(steps: Tensor, leaks: Tensor, decay: float) -> Tensor:
    """Of each point of the path, given what is seen: (n,), (batch, n) -> (batch, n), with
    :func:`eliminate`'s error.
    """
    levels, found = eliminate(steps, leaks, decay)
    between = found[:, :0]  # covariances of neighbours
    for level in reversed(levels):
        right, out = found[:, 1:], level.points // 2
        if level.points % 2 == 0:
            right, between = (torch.nn.functional.pad(x, (0, 1)) for x in (right, between))
        first = level.before * found[:, :out] + level.after * between
        last = level.before * between + level.after * right
        found = _merged(found, level.variance + level.before * first + level.after * last)
        between = _merged(first, last)[:, : level.points - 1]
    return found


def draw(steps: Tensor, leaks: Tensor, decay: float, size: int, draws: Draws) -> Tensor:
    """The path given that 0 was seen at every t: (n,), (n,) -> (n, size), independent columns; n
    size normals.
    """
    levels, last = eliminate(steps, leaks[None], decay)
    x = last.sqrt() * draws.normal((1, size))
    for level in reversed(levels):
        out = level.points // 2
        right = x[1:] if level.points % 2 else torch.nn.functional.pad(x[1:], (0, 0, 0, 1))
        before, after, variance = (
            y[0, :, None] for y in (level.before, level.after, level.variance)
        )
        middle = before * x[:out] + after * right + variance.sqrt() * draws.normal((out, size))
        x = _merged(x.mT, middle.mT).mT
    return x


def _merged(even: Tensor, odd: Tensor) -> Tensor:
    """even_0, odd_0, even_1, ...: (batch, k), (batch, k or k - 1) -> one after the other."""
    merged = even.new_empty(len(even), even.shape[1] + odd.shape[1])
    merged[:, 0::2], merged[:, 1::2] = even, odd
    return merged


@dataclass(frozen=True)
class Quadrature:
    """sigma = lambda^{-1/2} as a positive sum: sum_k shares_k / (lambda + levels_k) + white.

    The trapezoidal rule of (2 / pi) integral e^u / (lambda + e^{2u}) du at spacing h, whole: below
    the first node e^{2u} counts as 0 (one share at level 0), above the last lambda does (white). So
    it is at least (1 - loss) lambda^{-1/2} for every lambda > 0, loss = 4.1 e^{-pi^2 / h}, and
    above (1 + loss) lambda^{-1/2} by at most low / lambda^2 + high lambda.
    Source: Poisson's summation formula; the Fourier transform of 1 / cosh is 1 / cosh.
    """

    levels: Tensor
    shares: Tensor
    white: float
    loss: float
    low: float
    high: float

    @classmethod
    def of(cls, least: float, most: float, loss: float, device: torch.device | str) -> "Quadrature":
        """For the lambda in [least, most], with the excess at both ends about ``loss``, too."""
        h = math.pi**2 / math.log(4.1 / loss)
        margin = -math.log(loss) / 3
        first = math.floor((0.5 * math.log(least) - margin) / h)
        last = math.ceil((0.5 * math.log(most) + margin) / h)
        u = h * torch.arange(first, last + 1, dtype=torch.float64, device=device)
        scale, beyond = 2 * h / math.pi, -math.expm1(-h)
        below, above = (first - 1) * h, -(last + 1) * h
        return cls(
            torch.cat([u.new_zeros(1), (2 * u).exp()]),
            scale * torch.cat([u.new_tensor([math.exp(below) / beyond]), u.exp()]),
            scale * math.exp(above) / beyond,
            loss,
            scale * math.exp(3 * below) / -math.expm1(-3 * h),
            scale * math.exp(3 * above) / -math.expm1(-3 * h),
        )


def quadrature(W: RunningSums, rows: Tensor, columns: Tensor, loss: float) -> Quadrature:
    """A rule for the spectrum of (M M^T)^{-1}, M = diag(rows)^{1/2} W diag(columns)^{1/2}, weights
    of sum 1.
    """
    largest = 1.0 if W.rates is None else float(W.rates.max())
    least = largest**-2  # the rates' share of W's entries; what decay takes makes it larger
    return Quadrature.of(least, float(_inverse_diagonal(W, rows, columns).max()), loss, W.device)


def row_numbers(W: RunningSums, rows: Tensor, columns: Tensor, rule: Quadrature) -> Tensor:
    """The diagonal of (M M^T)^{1/2} by the rule, divided by ``rows``: squared row norms of the left
    factor, (n,).

    (M M^T)^{-1} + level is the precision of the path with variances ``columns``, seen with
    precision level rows, in the unit rows^{1/2}.
    """
    found = rule.white / rows
    levels = max(1, AT_ONCE // W.steps)
    for level, share in zip(rule.levels.split(levels), rule.shares.split(levels), strict=True):
        found = found + share @ sum_variances(W, columns, level[:, None] * rows)
    return found


def column_numbers(W: RunningSums, rows: Tensor, columns: Tensor, rule: Quadrature) -> Tensor:
    """The diagonal of (M^T M)^{1/2} by the rule, divided by ``columns``.

    Without rates W^T with both orders reversed is W; rates scale the columns.
    """
    if W.rates is None:
        return row_numbers(W, columns.flip(0), rows.flip(0), rule).flip(0)
    power = W.rates.square()
    return power * column_numbers(replace(W, rates=None), rows, columns * power, rule)


def sum_variances(W: RunningSums, columns: Tensor, leaks: Tensor) -> Tensor:
    """Of the points of W N(0, diag(columns)), each seen with precision leaks: (n,), (batch, n) ->
    (batch, n).
    """
    return variances(columns if W.rates is None else columns * W.rates.square(), leaks, W.decay)


def certify_running(
    W: RunningSums, row_weights: Tensor, column_weights: Tensor, p: float, rule: Quadrature
) -> tuple[Certificate, Tensor, float]:
    """Bounds on gamma_(p)(W); the squared row norms of the left factor, (n,); the right one's
    largest column norm.

    With M = diag(c)^{1/2} W diag(P)^{1/2}, ||c||_1 = ||P||_1 = 1, and f(lambda) the rule for
    lambda^{-1/2}: lower = (tr f((M M^T)^{-1}) - excess) / (1 + loss) ||c||_q^{-1/2} <= the trace
    norm of M, q = p / (p - 2), and upper is that of the factors with L L^T = diag(c)^{-1/2}
    f((M M^T)^{-1}) diag(c)^{-1/2} and R = L^{-1} W: L's row norms are known, and R^T R <=
    diag(P)^{-1/2} f((M^T M)^{-1}) diag(P)^{-1/2} / (1 - loss)^2 since f >= (1 - loss) lambda^{-1/2}
    on both sides. Weights: (n,), positive. rounding = 8 eps (2 n + 64 log2 n + nodes) upper.

    Guarantees: lower <= gamma_(p)(W) <= upper, for any positive weights.
    Source: weak duality, as in :func:`certify`; :class:`Quadrature`; for the rounding
    :func:`eliminate`.
    """
    p = check_exponent(p)
    c, P = (x.double() / x.double().sum() for x in (row_weights, column_weights))
    a = row_numbers(W, c, P, rule)
    symmetric = W.rates is None and torch.equal(c, P.flip(0))
    b = a.flip(0) if symmetric else column_numbers(W, c, P, rule)
    size = float((c * sum_variances(W, P, torch.zeros_like(c)[None])[0]).sum())  # ||M||_F^2
    excess = rule.low * size**2 + rule.high * float(_inverse_diagonal(W, c, P).sum())
    scale = (scaled_weights(c, conjugate(p)).sum() / c.sum()).sqrt()
    lower = scale * ((c * a).sum() - excess).clamp_min(0) / (1 + rule.loss)
    sensitivity = b.max().sqrt() / (1 - rule.loss)
    upper = torch.linalg.vector_norm(a.sqrt(), ord=p) * sensitivity
    terms = 2 * W.steps + 64 * W.steps.bit_length() + len(rule.levels)
    certificate = Certificate(
        upper, lower, torch.zeros_like(upper), rounding=allowance(upper, terms)
    )
    return certificate, a, float(sensitivity)


def _inverse_diagonal(W: RunningSums, rows: Tensor, columns: Tensor) -> Tensor:
    """The diagonal of (M M^T)^{-1}, (n,): W^{-1} = diag(1 / rates) (1 - decay x)."""
    inverse = 1 / columns if W.rates is None else 1 / (columns * W.rates.square())
    found = inverse.clone()
    found[:-1] += W.decay**2 * inverse[1:]
    return found / rows


def buffered_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, W: RunningSums
) -> tuple[Wide, Wide, Wide]:
    """Squared row norms of W C^{-1}, squared column norms of C = D1 T D2, and a bound on the rows'
    rounding, (n,) each.

    With S_a = sum_{s<t} zeros_a^{t-1-s} e_s / D1_s, the buffers before step t, row t of W C^{-1} is
    row_t = decay row_{t-1} + rates_t v_t, v_t = momentum v_{t-1} + (e_t / D1_t + sum_a nu_a S_a) /
    D2_t; G, H and J are <S_a, S_b>, <v_{t-1}, S_a> and <row_{t-1}, S_a>.
    Rounding: each of six sums of n terms by n eps of its terms' sizes, 8 times over.
    Source: the recurrences are the definition of T^{-1} by its generating function, squared.
    """
    ell, q, D1, D2 = (y.cpu().numpy().astype(np.longdouble) for y in (poles, zeros, before, after))
    count, own, decay, momentum = range(len(ell)), D1**2, W.decay, W.momentum
    rates = (
        np.ones(len(D1), np.longdouble)
        if W.rates is None
        else W.rates.cpu().numpy().astype(np.longdouble)
    )
    w, nu = _residues(ell, q), _residues(q, ell)
    tails = sum(w[a] * w[b] * _sums(own[::-1], ell[a] * ell[b])[::-1] for a in count for b in count)
    columns = (own + np.append(tails[1:], 0)) * D2**2
    G = [[_late(_sums(1 / own, q[a] * q[b])) for b in count] for a in count]

    def rows(nu: Wide) -> Wide:
        mixed = [sum(nu[b] * G[a][b] for b in count) for a in count]
        H = [_sums((q[a] * mixed[a] + 1 / own) / D2, momentum * q[a]) for a in count]
        J = [_sums(rates * H[a], decay * q[a]) for a in count]
        with_v, with_row = (sum(nu[a] * _late(y[a]) for a in count) / D2 for y in (H, J))
        new = (1 / own + sum(nu[a] * mixed[a] for a in count)) / D2**2
        speeds = _sums(new + 2 * momentum * with_v, np.longdouble(momentum) ** 2)
        # <row_t, v_t>
        both = _sums(rates * speeds + decay * with_row, np.longdouble(decay) * momentum)
        new = rates * (rates * speeds + 2 * decay * (momentum * _late(both) + with_row))
        return _sums(new, np.longdouble(decay) ** 2)

    return rows(nu), columns, 48 * EPS * len(D1) * rows(abs(nu))


def _residues(poles: Wide, zeros: Wide) -> Wide:
    apart = poles[:, None] - poles + np.eye(len(poles))
    return (poles[:, None] - zeros).prod(1) / apart.prod(1)


def _sums(x: Wide, ratio: np.longdouble) -> Wide:
    """y_t = ratio y_{t-1} + x_t."""
    from scipy.signal import lfilter  # half a second to load

    return lfilter(np.ones(1, np.longdouble), np.array([1, -ratio], np.longdouble), x)


def _late(y: Wide) -> Wide:
    return np.append(np.longdouble(0), y[:-1])
