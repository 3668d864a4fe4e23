"""Distributions of integer noise, followed until what is left cannot matter, and their draws in many cells at once.

Only noise that is not 0 is drawn, and where it lies; from tables of 128 bits.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.kernels import inversion
from torchdp.kernels.inversion import Table
from torchdp.rounded import guide

# Masses are followed until they fall below e^-FAR of the largest; the rest counts as lost privacy.
FAR = 100.0
_LARGEST_LAW = 1 << 24
BLOCKS = 1 << 11  # of neighbouring counts; a distribution on more than four times as many is kept in blocks
MOST_RATE = 2.0**14  # of one draw of a table: below 2^12 thresholds
MOST_RATIO = 0.996  # below it a table of cluster sizes has fewer than 2^15 thresholds
SURELY = 1 + 2.0**-50  # rates are rounded up: more noise of one kind is no less private
OF_A_DRAW = 2.0**-113  # above the distance of any table here from its distribution, (thresholds + 3) 2^-129


class NotFollowed(ValueError):
    """Noise that spreads over more counts than its distribution is followed on."""


@dataclass(frozen=True)
class CountLaw:
    """A count D >= 0: Pr[D = first + i] = mass[i], step[i] = ln Pr[D = first + i + 1]/Pr[D = first + i].

    lost: what lies outside [first, first + len(mass)), at most.
    """

    first: int
    mass: np.ndarray  # (width,)
    step: np.ndarray  # (width - 1,)
    lost: float

    def neighbours(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A pair of distributions that dominates (D, 1 + D) where both are known: the masses a, b, and losses ln a/b.

        The pair itself for up to 4 BLOCKS counts; beyond, that of ``merged`` blocks. For wide distributions this costs
        3e-5 of the noise's deviation.
        """
        a, b, loss = self.mass[1:], self.mass[:-1], self.step
        if len(a) <= 4 * BLOCKS:
            return a, b, loss
        alone = BLOCKS // 4  # the first outcomes, where a negative binomial's losses vary most
        step = -(-len(a) // (BLOCKS - alone))
        starts = np.concatenate([np.arange(alone), np.arange(alone, len(a), step)])
        b, ratio = (each[0] for each in merged(b[None], np.exp(loss)[None], starts))
        return b * ratio, b, np.log(ratio)


def merged(mass: np.ndarray, ratio: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fewer outcomes of a pair (P, Q), for each row: Q's ``mass``, and P's over it.

    Each outcome is split into two, of the least and the largest ratio of its block, such that both masses stay: who
    forgets which of the two it was has the outcome back. Those of one block and ratio are one outcome.
    """
    total, moved = (np.add.reduceat(each, starts, axis=1) for each in (mass, mass * ratio))
    low = np.minimum.reduceat(np.where(mass > 0, ratio, np.inf), starts, axis=1)
    high = np.maximum.reduceat(np.where(mass > 0, ratio, -np.inf), starts, axis=1)
    low, high = np.where(total > 0, low, 1.0), np.where(total > 0, high, 1.0)
    room = np.where(high > low, high - low, 1.0)
    share = np.clip((moved / np.where(total > 0, total, 1.0) - low) / room, 0.0, 1.0)
    return np.concatenate([total * (1 - share), total * share], 1), np.concatenate([low, high], 1)


def poisson_law(mean: float) -> CountLaw:
    """D ~ Poisson(mean): Pr[D = y]/Pr[D = y - 1] = mean/y. Raises ValueError."""
    mean = checks.positive("mean", mean)
    return _count_law(lambda y: np.log(mean / y), math.floor(mean), math.sqrt(mean), 0.0)


def negative_binomial_law(shape: float, ratio: float) -> CountLaw:
    """D ~ NB(shape r, ratio p), Pr[D = y]/Pr[D = y - 1] = p (y - 1 + r)/y, mean r p/(1 - p). Raises ValueError."""
    shape, ratio = checks.positive("shape", shape), checks.fraction("ratio", ratio)
    mode = math.floor(max(0.0, (shape - 1) * ratio / (1 - ratio)))
    deviation = math.sqrt(shape * ratio) / (1 - ratio)
    return _count_law(lambda y: np.log((y - 1 + shape) * ratio / y), mode, deviation, ratio)


def _count_law(step: Callable[[np.ndarray], np.ndarray], mode: int, deviation: float, limit: float) -> CountLaw:
    """The distribution around its mode; limit: what Pr[D = y]/Pr[D = y - 1] tends to.

    Where the ratios fall with y (all but NB of shape < 1) each step outside is at least FAR/width away from 0; at
    shape < 1 the ratios rise to ``limit``. Either way at most e^-FAR (2 width + 1/(1 - limit)) is outside.
    """
    width = 32.0 + 16.0 * deviation
    while True:
        low, high = max(0, math.floor(mode - width)), math.ceil(mode + width)
        if high - low > _LARGEST_LAW:
            raise NotFollowed(
                f"the noise spreads over {high - low} counts; at most {_LARGEST_LAW} can be followed: take less of it, "
                "by a larger epsilon or delta"
            )
        steps = step(np.arange(low + 1, high + 1, dtype=np.float64))
        logs = np.concatenate([-np.cumsum(steps[: mode - low][::-1])[::-1], [0.0], np.cumsum(steps[mode - low :])])
        if (low == 0 or logs[0] < -FAR) and logs[-1] < -FAR:
            break
        width *= 2
    keep = np.flatnonzero(logs >= -FAR)
    first, last = int(keep[0]), int(keep[-1])
    mass = np.exp(logs[first : last + 1])
    lost = math.exp(-FAR) * (2 * (high - low + 1) + 1 / (1 - limit))
    return CountLaw(low + first, mass / mass.sum(), steps[first:last], lost)


def plus_geometric(law: CountLaw, ratio: float) -> CountLaw:
    """That of D + G, Pr[G = j] = (1 - ratio) ratio^j: h(y) = (1 - ratio) g(y) + ratio h(y - 1), no subtraction."""
    more = math.ceil(-FAR / math.log(ratio))
    if more > _LARGEST_LAW:
        raise NotFollowed(f"ratio is too close to 1: its noise spreads over more than {_LARGEST_LAW} counts")
    from scipy.signal import lfilter  # here, because loading it takes half a second

    mass = lfilter([1 - ratio], [1, -ratio], np.append(law.mass, np.zeros(more)))
    mass = mass[: 1 + int(np.flatnonzero(mass > math.exp(-2 * FAR))[-1])]
    return CountLaw(law.first, mass / mass.sum(), np.diff(np.log(mass)), law.lost + 2 * more * math.exp(-FAR))


def scattered_poisson(cells: int, places: int, mean: float, draws: Draws) -> Tensor:
    """The places of Poisson(mean) points in each of ``cells`` cells at each of ``places`` places: int32.

    Their total is Poisson too, and given the total they lie anywhere with equal chance: nothing is drawn for the
    cells that stay empty.

    Guarantees: means up to 1e-15 above; the total is within ``variation_of`` of this distribution, for uniform words.
    """
    rate = cells * places * mean * SURELY
    pieces = max(1, math.ceil(rate / MOST_RATE))
    total = int(tabulated(pieces, inversion.poisson, rate / pieces, draws).sum()) if rate > 0 else 0
    return draws.below(places, (total,)).to(torch.int32)


def variation_of(users: int, points: float) -> float:
    """Above the total variation distance of the users' points in all, however many speak at a time."""
    return (users + points / MOST_RATE) * OF_A_DRAW


def tabulated(size: int, law: Callable[[Any], Table], parameter: Hashable, draws: Draws) -> Tensor:
    """Draws of law(parameter), (size,), int64."""
    out = torch.empty(size, dtype=torch.int64, device=draws.device)
    guide(law, parameter, str(draws.device)).fill(out, draws)
    return out


def scattered_negative_binomial(cells: int, places: int, shape: float, ratio: float, draws: Draws) -> Tensor:
    """The places of NB(shape, ratio) points in each of ``cells`` cells at each of ``places`` places: int32.

    NB(shape, ratio) is the total of Poisson(-shape log(1 - ratio)) clusters of logarithmic sizes,
    Pr[k] = -ratio^k / (k log(1 - ratio)), k >= 1: the clusters are scattered, nothing is drawn for empty cells.
    Source: Quenouille (1949).
    """
    clusters = -shape * math.log1p(-ratio)
    where = scattered_poisson(cells, places, clusters, draws)
    return torch.repeat_interleave(where, logarithmic(len(where), ratio, draws))


def logarithmic(size: int, ratio: float, draws: Draws) -> Tensor:
    """Draws of Pr[k] = -ratio^k / (k log(1 - ratio)), k = 1, 2, ...: (size,), int64.

    From a table up to ratio 0.996; beyond, where no table holds them, geometric with ratio q = 1 - (1 - ratio)^U, U
    uniform on (0, 1), in floats. Source: Kemp (1981), algorithm LK.
    """
    if ratio <= MOST_RATIO:
        return tabulated(size, inversion.logarithmic, ratio, draws).add_(1)
    u = 1 - draws.uniform((size,))
    log_q = torch.log1p(-torch.exp(u * math.log1p(-ratio)))
    return 1 + (draws.exponential((size,)) / -log_q).floor().to(torch.int64)
