"""Norms of strategies of a few buffers in the widest floats of numpy, apart from the code that looks for them."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchdp.workloads import RunningSums

Wide = NDArray[np.longdouble]
EPS = float(np.finfo(np.longdouble).eps)


def buffered_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, W: RunningSums
) -> tuple[Wide, Wide, Wide]:
    """Squared row norms of W C^{-1}, squared column norms of C = D1 T D2, and a bound on the rows' rounding, (n,) each.

    With S_a = sum_{s<t} zeros_a^{t-1-s} e_s / D1_s, the buffers before step t, row t of W C^{-1} is
    row_t = decay row_{t-1} + rates_t v_t, v_t = momentum v_{t-1} + (e_t / D1_t + sum_a nu_a S_a) / D2_t; G, H and J are
    <S_a, S_b>, <v_{t-1}, S_a> and <row_{t-1}, S_a>.
    Rounding: each of six sums of n terms by n eps of its terms' sizes, 8 times over.
    Source: the recurrences are the definition of T^{-1} by its generating function, squared.
    """
    l, q, D1, D2 = (y.cpu().numpy().astype(np.longdouble) for y in (poles, zeros, before, after))
    count, own, decay, momentum = range(len(l)), D1**2, W.decay, W.momentum
    rates = np.ones(len(D1), np.longdouble) if W.rates is None else W.rates.cpu().numpy().astype(np.longdouble)
    w, nu = _residues(l, q), _residues(q, l)
    tails = sum(w[a] * w[b] * _sums(own[::-1], l[a] * l[b])[::-1] for a in count for b in count)
    columns = (own + np.append(tails[1:], 0)) * D2**2
    G = [[_late(_sums(1 / own, q[a] * q[b])) for b in count] for a in count]

    def rows(nu: Wide) -> Wide:
        mixed = [sum(nu[b] * G[a][b] for b in count) for a in count]
        H = [_sums((q[a] * mixed[a] + 1 / own) / D2, momentum * q[a]) for a in count]
        J = [_sums(rates * H[a], decay * q[a]) for a in count]
        with_v, with_row = (sum(nu[a] * _late(y[a]) for a in count) / D2 for y in (H, J))
        new = (1 / own + sum(nu[a] * mixed[a] for a in count)) / D2**2
        speeds = _sums(new + 2 * momentum * with_v, np.longdouble(momentum) ** 2)
        both = _sums(rates * speeds + decay * with_row, np.longdouble(decay) * momentum)  # <row_t, v_t>
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
