"""Kernels on [0, 1]: into how many bins to cut the interval, by the total error predicted."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks, workloads
from torchdp.brief import Brief
from torchdp.pairwise.choose import histograms
from torchdp.pairwise.messages import OneMessage, OneMessagePairs
from torchdp.pairwise.standard import from_kernel
from torchdp.pairwise.statistic import Pairs, PairwiseStatistic

SMALL = 0.1  # a share of the error below which a smaller bias is not worth more bins


@dataclass(frozen=True)
class Discretised(Brief):
    """The statistic on k equal bins of [0, 1], each bin standing for its midpoint, and what the bins may cost.

    bias: G/k, the most by which the mean over pairs changes when every value moves to its bin's midpoint.
    error: sqrt(predicted MSE + bias^2), the bound that k was chosen by.
    """

    statistic: PairwiseStatistic
    bias: float
    error: float

    def types(self, values: Tensor) -> Tensor:
        """The bin of each value: int64, in [0, k). values: any shape, in [0, 1]. Raises ValueError, TypeError."""
        values = checks.floating("values", values)
        if values.numel() and (float(values.min()) < 0 or float(values.max()) > 1):
            raise ValueError("values must lie in [0, 1]; scale or clip them by public bounds")
        k = self.statistic.types
        return (values.double() * k).long().clamp_max(k - 1)


def lipschitz(
    kernel: Callable[[Tensor, Tensor], Tensor],
    constant: float,
    n: int,
    epsilon: float,
    *,
    pairs: Pairs = Pairs.DISTINCT,
    largest: int = 256,
    tol: float = 1e-2,
    device: torch.device | str | None = None,
) -> Discretised:
    """The mean of a G-Lipschitz kernel over pairs of values in [0, 1], on the number of bins of least total error.

    abs(f(x, y) - f(x', y)) <= G abs(x - x'), and f(x, y) = f(y, x): the two values of a pair move by 1/(2k) each, so
    the bins cost at most G/k. Tried are k = 2, 4, 8, ... up to ``largest`` (factored by gamma_2 with a free constant),
    until the bias is a small part; the error is the worst over :func:`histograms` of one message by PrivUnitG.
    kernel: called with broadcasting, on float64. constant: G > 0, taken on trust.
    Raises ValueError for a kernel that is not symmetric or breaks G on the grid.

    Source: Bell, Bellet, Gascon, Kulkarni (2020), section 3, for the bias; they set k by the order of the error.
    """
    G, n = checks.squarable("constant", constant), checks.integer("n", n, 2)
    epsilon, largest = checks.positive("epsilon", epsilon), checks.integer("largest", largest, 2)
    best: Discretised | None = None
    for k in (2**i for i in range(1, largest.bit_length())):
        points = (torch.arange(k, dtype=torch.float64, device=device) + 0.5) / k
        W = workloads.from_callable(kernel, points).dense().double()
        size = float(W.abs().max())
        if float((W - W.mT).abs().max()) > 1e-12 * size:
            raise ValueError("kernel must be symmetric, f(x, y) = f(y, x); average it with its transpose")
        steps = float((W[1:] - W[:-1]).abs().max())
        if steps > G / k * (1 + 1e-9) + 1e-12 * size:
            raise ValueError(
                f"constant must be at least {steps * k:.6g}: the kernel changes that fast on {k} bins"
            )
        statistic = from_kernel((W + W.mT) / 2, tol=tol, pairs=pairs, name=f"Lipschitz kernel on {k} bins")
        diagonal = W.diagonal()
        apart = float(diagonal.max() - diagonal.min())
        alike = pairs is Pairs.ALL or apart <= statistic.rounding(statistic.form)
        protocol = (OneMessage if alike else OneMessagePairs)(statistic, epsilon)
        mse = max(float(protocol.predicted_mse(h * n)) for h in histograms(statistic))
        found = Discretised(statistic, G / k, math.sqrt(mse + (G / k) ** 2))
        if best is None or found.error < best.error:
            best = found
        if found.bias < SMALL * found.error:
            break
    if best is None:
        raise ValueError("largest must leave at least 2 bins")
    return best
