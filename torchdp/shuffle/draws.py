"""Noise of many cells at once: only what is not 0 is drawn, and where it lies."""

import math

import torch
from torch import Tensor

from torchdp.draws import poisson


def scattered_poisson(cells: int, places: int, mean: float, generator: torch.Generator) -> Tensor:
    """The places of Poisson(mean) points in each of ``cells`` cells at each of ``places`` places: int32.

    Their total is Poisson too, and given the total they lie anywhere with equal chance: nothing is drawn for the
    cells that stay empty.
    """
    total = poisson(_whole(cells * places * mean, generator), generator)
    return _places(int(total), places, generator)


def scattered_negative_binomial(
    cells: int, places: int, shape: float, ratio: float, generator: torch.Generator
) -> Tensor:
    """The places of NB(shape, ratio) points in each of ``cells`` cells at each of ``places`` places: int32.

    NB(shape, ratio) is the total of Poisson(-shape log(1 - ratio)) clusters whose sizes have the logarithmic law
    Pr[k] = -ratio^k / (k log(1 - ratio)), k >= 1: the clusters are scattered, nothing is drawn for empty cells.
    Source: Quenouille (1949).
    """
    clusters = -shape * math.log1p(-ratio)
    where = scattered_poisson(cells, places, clusters, generator)
    return torch.repeat_interleave(where, logarithmic(len(where), ratio, generator))


def logarithmic(size: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Draws of Pr[k] = -ratio^k / (k log(1 - ratio)), k = 1, 2, ...: (size,), int64.

    Geometric with ratio q = 1 - (1 - ratio)^U, U uniform on (0, 1).
    Source: Kemp (1981), algorithm LK.
    """
    u, v = 1 - torch.rand((2, size), dtype=torch.float64, device=generator.device, generator=generator)
    log_q = torch.log1p(-torch.exp(u * math.log1p(-ratio)))
    return 1 + (v.log() / log_q).floor().to(torch.int64)


def _whole(rate: float, generator: torch.Generator) -> Tensor:
    return torch.tensor(rate, dtype=torch.float64, device=generator.device)


def _places(points: int, places: int, generator: torch.Generator) -> Tensor:
    # randint reduces 32 bits modulo its range, which favours small values
    uniform = torch.rand(points, dtype=torch.float64, device=generator.device, generator=generator)
    return (uniform * places).to(torch.int32)
