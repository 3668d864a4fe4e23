"""Noise of many cells at once: only what is not 0 is drawn, and where it lies; from tables of 128 bits."""

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import inversion
from torchdp.kernels.inversion import Table
from torchdp.rounded import guide

MOST_RATE = 2.0**14  # of one draw of a table: below 2^12 thresholds
MOST_RATIO = 0.996  # below it a table of cluster sizes has fewer than 2^15 thresholds
SURELY = 1 + 2.0**-50  # rates are rounded up: more noise of one kind is no less private
OF_A_DRAW = 2.0**-113  # above the distance of any table here from its distribution, (thresholds + 3) 2^-129


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
