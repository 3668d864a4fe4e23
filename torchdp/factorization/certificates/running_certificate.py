"""Certified bounds for running sums without momentum, in time and memory for a few vectors.

They come from Gaussian paths that are observed: the variances of all their points in O(n), without
a subtraction. The path x_t = decay x_{t-1} + N(0, P_t), x_{-1} = 0, seen at each t through noise of
precision leaks_t, has the precision matrix of a resistor network: an edge
(x_t - decay x_{t-1})^2 / P_t between neighbours, and a leak at each point. To leave out every
second point (star-mesh transform) gives such a network on the others, whose numbers are sums,
products and quotients of positive numbers: log2 n levels, each a few operations on whole tensors.

Norms of strategies of a few buffers (buffered_squares) are taken in the widest floats of numpy,
in code of their own, not that of the search for them.

Notation:
    W: running sums of n steps; c, P: weights of its rows and columns, (n,), of sum 1.
    M = diag(c)^{1/2} W diag(P)^{1/2}.
    ell, q: poles and zeros of a strategy's generating function; D1, D2: its diagonals.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from torchdp.factorization.certificates.certificate import (
    Certificate,
    allowance,
    check_exponent,
    conjugate,
    scaled_weights,
)
from torchdp.memory import NUMBERS_AT_ONCE
from torchdp.workloads import RunningSums

# Numbers: what a near cache holds.
AT_ONCE = min(2**16, NUMBERS_AT_ONCE)
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

    Args:
        steps: (n,), the variances P_t > 0.
        leaks: (batch, n), >= 0.
        decay: of the path.

    Relative error of what follows from the levels: a level rounds each edge and leak by at most 10
    eps, and a variance is a decreasing, homogeneous function of all edges and leaks of its level
    (Rayleigh), so it moves by as much; a covariance of neighbours by three times as much;
    decay^(2^k), rounded, by 2 eps times the level's points. In all at most (64 log2 n + 4 n) eps, n
    eps only with a decay; underflow apart.
    Source: Rayleigh's monotonicity law, see Doyle, Snell (1984), for resistances; homogeneity for
    the constants.
    """
    edges = (1 / steps[1:]).expand(len(leaks), -1)
    leaks = leaks.clone()
    # The path begins in 0.
    leaks[:, 0] += 1 / steps[0]
    levels = []
    points = leaks.shape[1]
    span = 1
    while points > 1:
        # A kept point to the left of each point left out, and to the right but of a last one.
        kept = (points + 1) // 2
        out = points // 2
        ratio = decay**span
        left = edges[:, 0::2].contiguous()
        right = pad(edges[:, 1::2], (0, 1 - points % 2)).contiguous()
        leak = leaks[:, 1::2].contiguous()
        variance = 1 / (left + ratio**2 * right + leak)
        before = left * variance
        after = right * variance
        levels.append(_Level(points, variance, ratio * before, ratio * after))
        # What was left out joins its neighbours: an edge between them, and a leak at each.
        edges = (before * right)[:, : kept - 1]
        leaks = leaks[:, 0::2].contiguous()
        leaks[:, :out] += ratio**2 * before * leak
        leaks[:, 1:] += (after * leak)[:, : kept - 1]
        points = kept
        span *= 2
    return levels, 1 / leaks


def variances(steps: Tensor, leaks: Tensor, decay: float) -> Tensor:
    """Of each point of the path, given what is seen: (n,), (batch, n) -> (batch, n).

    Up to the error of :func:`eliminate`.
    """
    levels, kept = eliminate(steps, leaks, decay)
    between = kept[:, :0]  # covariances of neighbours
    for level in reversed(levels):
        # Of an even number of points the last has no neighbour to the right: it counts as 0.
        lacking = 1 - level.points % 2
        left = kept[:, : level.points // 2]
        right = pad(kept[:, 1:], (0, lacking))
        between = pad(between, (0, lacking))
        with_left = level.before * left + level.after * between
        with_right = level.before * between + level.after * right
        middle = level.variance + level.before * with_left + level.after * with_right
        kept = _merged(kept, middle)
        between = _merged(with_left, with_right)[:, : level.points - 1]
    return kept


def _merged(even: Tensor, odd: Tensor) -> Tensor:
    """even_0, odd_0, even_1, ...: (batch, k), (batch, k or k - 1) -> one after the other."""
    merged = even.new_empty(len(even), even.shape[1] + odd.shape[1])
    merged[:, 0::2] = even
    merged[:, 1::2] = odd
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
        # Nodes as far out as e^{2u} = lambda, and until the excess is about loss.
        lowest = 0.5 * math.log(least) - margin
        highest = 0.5 * math.log(most) + margin
        first = math.floor(lowest / h)
        last = math.ceil(highest / h)
        u = h * torch.arange(first, last + 1, dtype=torch.float64, device=device)
        scale = 2 * h / math.pi
        # What is left out at either end is a geometric series, and so is its excess.
        below = (first - 1) * h
        above = -(last + 1) * h
        series = -math.expm1(-h)
        excess = -math.expm1(-3 * h)
        first_share = u.new_tensor([math.exp(below) / series])
        shares = torch.cat([first_share, u.exp()])
        levels = (2 * u).exp()
        return cls(
            levels=torch.cat([u.new_zeros(1), levels]),
            shares=scale * shares,
            white=scale * math.exp(above) / series,
            loss=loss,
            low=scale * math.exp(3 * below) / excess,
            high=scale * math.exp(3 * above) / excess,
        )


def quadrature(W: RunningSums, rows: Tensor, columns: Tensor, loss: float) -> Quadrature:
    """A rule for the spectrum of (M M^T)^{-1}, from weights of sum 1."""
    # The largest entry of W is a rate's; what decay takes makes the least eigenvalue larger.
    largest = 1.0 if W.rates is None else float(W.rates.max())
    most = float(_inverse_diagonal(W, rows, columns).max())
    return Quadrature.of(largest**-2, most, loss, W.device)


def row_numbers(W: RunningSums, rows: Tensor, columns: Tensor, rule: Quadrature) -> Tensor:
    """Squared row norms of the left factor, (n,): the diagonal of (M M^T)^{1/2} over ``rows``.

    By the rule: (M M^T)^{-1} + level is the precision of the path with variances ``columns``, seen
    with precision level rows, in the unit rows^{1/2}.
    """
    total = rule.white / rows
    count = max(1, AT_ONCE // W.steps)
    for level, share in zip(rule.levels.split(count), rule.shares.split(count), strict=True):
        total = total + share @ sum_variances(W, columns, level[:, None] * rows)
    return total


def column_numbers(W: RunningSums, rows: Tensor, columns: Tensor, rule: Quadrature) -> Tensor:
    """The diagonal of (M^T M)^{1/2} by the rule, divided by ``columns``.

    Without rates W^T with both orders reversed is W; rates scale the columns.
    """
    if W.rates is None:
        return row_numbers(W, columns.flip(0), rows.flip(0), rule).flip(0)
    power = W.rates.square()
    return power * column_numbers(replace(W, rates=None), rows, columns * power, rule)


def sum_variances(W: RunningSums, columns: Tensor, leaks: Tensor) -> Tensor:
    """Of the points of W N(0, diag(columns)), each seen with precision leaks: (batch, n).

    Args:
        W: of n steps.
        columns: (n,).
        leaks: (batch, n).
    """
    return variances(_scaled_columns(W, columns), leaks, W.decay)


def _scaled_columns(W: RunningSums, columns: Tensor) -> Tensor:
    """``columns`` times the squared rates: those of sums without rates."""
    return columns if W.rates is None else columns * W.rates.square()


def certify_running(
    W: RunningSums, row_weights: Tensor, column_weights: Tensor, p: float, rule: Quadrature
) -> tuple[Certificate, Tensor, float]:
    """Bounds on gamma_(p)(W).

    With f(lambda) the rule for lambda^{-1/2}: lower = (tr f((M M^T)^{-1}) - excess) / (1 + loss)
    ||c||_q^{-1/2} <= the trace norm of M, q = p / (p - 2), and upper is that of the factors with
    L L^T = diag(c)^{-1/2} f((M M^T)^{-1}) diag(c)^{-1/2} and R = L^{-1} W: L's row norms are known,
    and R^T R <= diag(P)^{-1/2} f((M^T M)^{-1}) diag(P)^{-1/2} / (1 - loss)^2 since f >= (1 - loss)
    lambda^{-1/2} on both sides. rounding = 8 eps (2 n + 64 log2 n + nodes) upper.

    Args:
        W: of n steps.
        row_weights: (n,), positive, of any sum.
        column_weights: (n,), likewise.
        p: in [2, inf].
        rule: f.

    Returns:
        The certificate; the squared row norms of the left factor, (n,); the right one's largest
        column norm.

    Guarantees: lower <= gamma_(p)(W) <= upper, for any positive weights.
    Source: weak duality, as in :func:`certify`; :class:`Quadrature`; for the rounding
    :func:`eliminate`.
    """
    p = check_exponent(p)
    c = row_weights.double() / row_weights.double().sum()
    P = column_weights.double() / column_weights.double().sum()
    a = row_numbers(W, c, P, rule)
    symmetric = W.rates is None and torch.equal(c, P.flip(0))
    b = a.flip(0) if symmetric else column_numbers(W, c, P, rule)
    # ||M||_F^2 bounds each eigenvalue of M M^T, and so 1 / lambda^2 summed.
    unseen = sum_variances(W, P, torch.zeros_like(c)[None])[0]
    size = float((c * unseen).sum())
    total = float(_inverse_diagonal(W, c, P).sum())
    excess = rule.low * size**2 + rule.high * total
    # 1 / ||c||_q
    inverse_norm = scaled_weights(c, conjugate(p)).sum() / c.sum()
    scale = inverse_norm.sqrt()
    trace = (c * a).sum() - excess
    lower = scale * trace.clamp_min(0) / (1 + rule.loss)
    sensitivity = b.max().sqrt() / (1 - rule.loss)
    upper = torch.linalg.vector_norm(a.sqrt(), ord=p) * sensitivity
    # Two sums over the steps, :func:`eliminate`'s levels, and a sum over the nodes.
    levels = W.steps.bit_length()
    terms = 2 * W.steps + 64 * levels + len(rule.levels)
    residual = torch.zeros_like(upper)
    certificate = Certificate(upper, lower, residual, rounding=allowance(upper, terms))
    return certificate, a, float(sensitivity)


def _inverse_diagonal(W: RunningSums, rows: Tensor, columns: Tensor) -> Tensor:
    """The diagonal of (M M^T)^{-1}, (n,): W^{-1} = diag(1 / rates) (1 - decay x)."""
    inverse = 1 / _scaled_columns(W, columns)
    diagonal = inverse.clone()
    diagonal[:-1] += W.decay**2 * inverse[1:]
    return diagonal / rows


def buffered_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, W: RunningSums
) -> tuple[Wide, Wide, Wide]:
    """Squared row norms of W C^{-1} and squared column norms of C = D1 T D2, (n,) each.

    With S_a = sum_{s<t} zeros_a^{t-1-s} e_s / D1_s, the buffers before step t, row t of W C^{-1} is
    row_t = decay row_{t-1} + rates_t v_t, v_t = momentum v_{t-1} + (e_t / D1_t + sum_a nu_a S_a) /
    D2_t; G, H and J are <S_a, S_b>, <v_{t-1}, S_a> and <row_{t-1}, S_a>.
    Rounding: each of six sums of n terms by n eps of its terms' sizes, 8 times over.

    Args:
        poles: of T, (k,).
        zeros: of T, (k,).
        before: D1, (n,).
        after: D2, (n,).
        W: of n steps.

    Returns:
        Both, and a bound on the rows' rounding, (n,).

    Source: the recurrences are the definition of T^{-1} by its generating function, squared.
    """
    ell = _wide(poles)
    q = _wide(zeros)
    D1 = _wide(before)
    D2 = _wide(after)
    own = D1**2
    rates = np.ones_like(D1) if W.rates is None else _wide(W.rates)
    decay = np.longdouble(W.decay)
    momentum = np.longdouble(W.momentum)
    buffers = range(len(q))
    w = _residues(ell, q)
    nu = _residues(q, ell)
    # A column of T is summed from its end.
    tails = np.zeros_like(D1)
    for a in buffers:
        for b in buffers:
            kept = _sums(own[::-1], ell[a] * ell[b])
            tails = tails + w[a] * w[b] * kept[::-1]
    columns = (own + np.append(tails[1:], 0)) * D2**2
    G = [[_late(_sums(1 / own, q_a * q_b)) for q_b in q] for q_a in q]

    def rows(nu: Wide) -> Wide:
        mixed = [sum(nu[b] * G[a][b] for b in buffers) for a in buffers]
        overlaps = [(q[a] * mixed[a] + 1 / own) / D2 for a in buffers]
        H = [_sums(overlaps[a], momentum * q[a]) for a in buffers]
        J = [_sums(rates * H[a], decay * q[a]) for a in buffers]
        # <v_{t-1}, sum_a nu_a S_a> / D2_t, and that of row_{t-1}
        with_v = sum(nu[a] * _late(H[a]) for a in buffers) / D2
        with_row = sum(nu[a] * _late(J[a]) for a in buffers) / D2
        crossed = sum(nu[a] * mixed[a] for a in buffers)
        added = (1 / own + crossed) / D2**2
        speeds = _sums(added + 2 * momentum * with_v, momentum**2)
        products = _sums(rates * speeds + decay * with_row, decay * momentum)  # <row_t, v_t>
        crossed = momentum * _late(products) + with_row
        added = rates * (rates * speeds + 2 * decay * crossed)
        return _sums(added, decay**2)

    return rows(nu), columns, 48 * EPS * len(D1) * rows(abs(nu))


def _wide(x: Tensor) -> Wide:
    return x.cpu().numpy().astype(np.longdouble)


def _residues(poles: Wide, zeros: Wide) -> Wide:
    differences = poles[:, None] - poles + np.eye(len(poles))
    return (poles[:, None] - zeros).prod(1) / differences.prod(1)


def _sums(x: Wide, ratio: np.longdouble) -> Wide:
    """y_t = ratio y_{t-1} + x_t."""
    from scipy.signal import lfilter  # half a second to load

    return lfilter(np.ones(1, np.longdouble), np.array([1, -ratio], np.longdouble), x)


def _late(y: Wide) -> Wide:
    """y_{t-1}."""
    return np.append(np.longdouble(0), y[:-1])
