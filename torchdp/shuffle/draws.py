"""Noise of many cells at once: only what is not 0 is drawn, and where it lies."""

import math

import torch
from torch import Tensor

from torchdp.draws import Draws


def scattered_poisson(cells: int, places: int, mean: float, draws: Draws) -> Tensor:
    """The places of Poisson(mean) points in each of ``cells`` cells at each of ``places`` places: int32.

    Their total is Poisson too, and given the total they lie anywhere with equal chance: nothing is drawn for the
    cells that stay empty.
    """
    rate = torch.tensor(cells * places * mean, dtype=torch.float64, device=draws.device)
    return draws.below(places, (int(draws.poisson(rate)),)).to(torch.int32)


def scattered_negative_binomial(cells: int, places: int, shape: float, ratio: float, draws: Draws) -> Tensor:
    """The places of NB(shape, ratio) points in each of ``cells`` cells at each of ``places`` places: int32.

    NB(shape, ratio) is the total of Poisson(-shape log(1 - ratio)) clusters whose sizes have the logarithmic law
    Pr[k] = -ratio^k / (k log(1 - ratio)), k >= 1: the clusters are scattered, nothing is drawn for empty cells.
    Source: Quenouille (1949).
    """
    clusters = -shape * math.log1p(-ratio)
    where = scattered_poisson(cells, places, clusters, draws)
    return torch.repeat_interleave(where, logarithmic(len(where), ratio, draws))


def logarithmic(size: int, ratio: float, draws: Draws) -> Tensor:
    """Draws of Pr[k] = -ratio^k / (k log(1 - ratio)), k = 1, 2, ...: (size,), int64.

    Geometric with ratio q = 1 - (1 - ratio)^U, U uniform on (0, 1).
    Source: Kemp (1981), algorithm LK.
    """
    u = 1 - draws.uniform((size,))
    log_q = torch.log1p(-torch.exp(u * math.log1p(-ratio)))
    return 1 + (draws.exponential((size,)) / -log_q).floor().to(torch.int64)
