"""Exact draws of counts: float64 throughout, so that whole numbers up to 2^53 are exact."""

import math

import torch
from torch import Tensor

FEW = 50.0  # rates up to here are left to torch.poisson, which is exact on a GPU below 64 only


def binomial(counts: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Binomial(counts, probability), int64."""
    counts = counts.double().contiguous()
    return torch.binomial(counts, torch.full_like(counts, probability), generator=generator).to(torch.int64)


def poisson(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Poisson(rate), int64, for rates of any size.

    The m-th arrival of a unit-rate process comes at time T ~ Gamma(m). If T <= rate, m points and those of the
    rest, Poisson(rate - T), lie before ``rate``; else the other m - 1 arrivals are uniform on (0, T) and
    Binomial(m - 1, rate/T) of them do. With m = 7/8 rate the second case is rare, and each round leaves an eighth.
    Source: Ahrens, Dieter (1974).
    """
    left = rate.double().flatten().clone()
    count = torch.zeros_like(left)
    where = (left > FEW).nonzero()[:, 0]
    while len(where):
        m = (left[where] * 0.875).floor()
        time = torch._standard_gamma(m, generator=generator)
        over = time > left[where]
        share = (left[where] / time).clamp(max=1)
        count[where] += torch.where(over, torch.binomial(m - 1, share, generator=generator), m)
        left[where] = torch.where(over, 0.0, left[where] - time)
        where = where[left[where] > FEW]
    return (count + torch.poisson(left, generator=generator)).to(torch.int64).view(rate.shape)


def negative_binomial(shape: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """NB(shape, ratio), int64: Pr[k] = C(k + shape - 1, k) (1 - ratio)^shape ratio^k.

    A Poisson number whose rate is ratio/(1 - ratio) Gamma(shape).
    """
    rate = torch._standard_gamma(shape.double().contiguous(), generator=generator) * (ratio / (1 - ratio))
    return poisson(rate, generator)


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
