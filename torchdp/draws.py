"""Exact draws of counts, on any device: float64 throughout, so that whole numbers up to 2^53 are exact."""

import torch
from torch import Tensor

FEW = 50.0  # rates up to here are left to torch.poisson, which is exact on a GPU below 64 only


def binomial(counts: Tensor, probability: Tensor | float, generator: torch.Generator) -> Tensor:
    """Binomial(counts, probability), int64; the two broadcast."""
    chance = torch.as_tensor(probability, dtype=torch.float64, device=counts.device)
    counts, chance = torch.broadcast_tensors(counts.double(), chance)
    return torch.binomial(counts.contiguous(), chance.contiguous(), generator=generator).to(torch.int64)


def poisson(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Poisson(rate), int64, for rates up to 1e14, as far as torch.binomial keeps its law.

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
