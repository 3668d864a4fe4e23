"""Strategies with a few numbers of memory: C = D1 T D2, T Toeplitz with ``buffers`` geometric parts, D1, D2 diagonal.

T has the generating function prod_a (1 - zeros_a x) / (1 - poles_a x), 1 > pole_1 > zero_1 > pole_2 > ... > 0, and
T^{-1} the same with poles and zeros exchanged: noise C^{-1} z is made step by step from ``buffers`` running numbers. D2
makes all columns of C one long. Column norms of C and row norms of W C^{-1} come from recurrences
y_t = rho y_{t-1} + x_t alone, in O(steps buffers^2).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.workloads import RunningSums

KNOTS = 12  # of D1's logarithm, piecewise linear in logit((t + 1/2) / steps)
SHARP = (30.0, 300.0, 3000.0)  # powers that stand for the largest squared row norm, one after the other
WHOLE, FINISH = 2**14, 30  # steps of a problem that is solved from the start; evaluations that a larger one adds


@dataclass(frozen=True)
class BufferedStrategy:
    """C = D1 T D2, as 2 (buffers + steps) numbers.

    poles, zeros: (buffers,), in (0, 1), falling in turns: pole_1 > zero_1 > pole_2 > ...; before, after: the diagonals
    of D1 and D2, (steps,), positive. All float64 on one device. Raises TypeError, ValueError.
    """

    poles: Tensor
    zeros: Tensor
    before: Tensor
    after: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        for name in ("poles", "zeros", "before", "after"):
            value = checks.floating(name, getattr(self, name)).detach().double()
            if value.ndim != 1 or not len(value) or not (value > 0).all():
                raise ValueError(f"{name} must be positive, of one dimension, not of shape {tuple(value.shape)}")
            object.__setattr__(self, name, value)
        if self.poles.shape != self.zeros.shape or self.before.shape != self.after.shape:
            raise ValueError("there must be as many zeros as poles, and as many numbers before as after")
        places = torch.stack([self.poles, self.zeros], 1).flatten()
        if not (places[0] < 1 and (places.diff() < 0).all()):
            raise ValueError("poles and zeros must lie below 1 and fall in turns: pole_1 > zero_1 > pole_2 > ...")

    @property
    def steps(self) -> int:
        """Rows of C."""
        return len(self.before)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that C is made of."""
        return self.poles, self.zeros, self.before, self.after

    def __str__(self) -> str:
        return f"{len(self.poles)} buffers"

    def to(self, device: torch.device) -> "BufferedStrategy":
        """On another device."""
        return BufferedStrategy(*(x.to(device) for x in self.tensors))

    def leading(self, steps: int) -> "BufferedStrategy":
        """Its first steps alone."""
        return BufferedStrategy(self.poles, self.zeros, self.before[:steps], self.after[:steps])

    @property
    def gains(self) -> Tensor:
        """nu, (buffers,): T^{-1} x = x + sum_a nu_a s_a, s_a <- zeros_a s_a + x; all negative."""
        return residues(self.zeros, self.poles)

    def column_norms(self) -> Tensor:
        """Of C, (steps,), without forming it; their relative rounding is at most 3 eps steps."""
        poles, zeros, before = (y.cpu() for y in (self.poles, self.zeros, self.before))
        return self.after / reciprocals(poles, zeros, before).to(self.after.device)

    def dense(self) -> Tensor:
        """C itself, (steps, steps), lower triangular."""
        n = len(self.before)
        checks.fits("C", n, n)
        age = torch.arange(n, device=self.before.device)
        powers = self.poles[:, None] ** (age - 1).clamp_min(0)
        first = torch.where(age > 0, residues(self.poles, self.zeros) @ powers, 1.0)
        return self.before[:, None] * first[(age[:, None] - age).clamp_min(0)].tril() * self.after


def hats(n: int, knots: int) -> Tensor:
    """Hat functions at so many points of logit((t + 1/2) / n), (n, knots)."""
    y = torch.logit((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    places = torch.linspace(-1, 1, knots, dtype=torch.float64) * max(float(y[-1]), 1.0)
    return (1 - ((y[:, None] - places) / (places[1] - places[0])).abs()).clamp_min(0)


def parts(x: Tensor, shapes: Tensor, buffers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Poles, zeros and D1: a logit, positive decrements, heights at the knots."""
    falls = torch.nn.functional.softplus(x[1 : 2 * buffers])
    places = torch.cat([x[:1], -falls]).cumsum(0).sigmoid()
    return places[0::2], places[1::2], (shapes @ x[2 * buffers :]).exp()


def residues(poles: Tensor, zeros: Tensor) -> Tensor:
    """w of t_m = sum_a w_a poles_a^{m-1}, m > 0: the residues of prod (1 - zeros x) / (1 - poles x)."""
    apart = poles[:, None] - poles
    apart = torch.where(torch.eye(len(poles), dtype=torch.bool, device=poles.device), 1.0, apart)
    return (poles[:, None] - zeros).prod(1) / apart.prod(1)


def reciprocals(poles: Tensor, zeros: Tensor, before: Tensor) -> Tensor:
    """1 / the column norms of D1 T, (n,)."""
    first, second = torch.triu_indices(len(poles), len(poles))
    w, own = residues(poles, zeros), before.square()
    pairs = torch.where(first == second, 1.0, w.new_tensor(2.0)) * w[first] * w[second]
    tails = Filter.apply(own.flip(0).expand(len(first), -1), poles[first] * poles[second]).flip(-1)
    return (own + torch.nn.functional.pad((pairs @ tails)[1:], (0, 1))).rsqrt()


def squares(poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, W: RunningSums) -> Tensor:
    """Squared row norms of W C^{-1}, (n,), as in :func:`buffered_squares`, with gradients."""
    decay, momentum, rates = W.decay, W.momentum, 1.0 if W.rates is None else W.rates.cpu()
    first, second = torch.triu_indices(len(poles), len(poles))
    nu, v = residues(zeros, poles), 1 / before.square()
    G = late(Filter.apply(v.expand(len(first), -1), zeros[first] * zeros[second]))
    place = torch.zeros(len(nu), len(nu), dtype=torch.long)
    place[first, second] = place[second, first] = torch.arange(len(first))
    mixed = torch.stack([nu @ G[row] for row in place])  # (buffers, n)
    H, speeds, both = (zeros[:, None] * mixed + v) / after, (v + nu @ mixed) / after**2, torch.zeros_like(v)
    if momentum:
        H = Filter.apply(H, momentum * zeros)
        speeds = _sums(speeds + 2 * momentum * (nu @ late(H)) / after, momentum**2)
    with_row = nu @ late(Filter.apply(rates * H, decay * zeros)) / after
    if momentum:
        both = momentum * late(_sums(rates * speeds + decay * with_row, decay * momentum)[None])[0]
    return _sums(rates * (rates * speeds + 2 * decay * (both + with_row)), decay**2)


def _sums(x: Tensor, ratio: float) -> Tensor:
    return Filter.apply(x[None], x.new_tensor([ratio]))[0]


def late(y: Tensor) -> Tensor:
    """One step later, 0 first."""
    return torch.nn.functional.pad(y[:, :-1], (1, 0))


class Filter(torch.autograd.Function):
    """y_t = rho y_{t-1} + x_t along the last dimension: x (k, n), rho (k,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rho: Tensor) -> Tensor:
        from scipy.signal import lfilter  # here, because loading it takes half a second

        y = torch.empty(x.shape, dtype=x.dtype)
        for row, ratio, into in _rows(x, rho, y):
            into[:] = lfilter([1.0], [1.0, -ratio], row)
        ctx.save_for_backward(y, rho)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        y, rho = ctx.saved_tensors
        back = Filter.apply(gradients[0].flip(-1), rho).flip(-1)
        return back, (back[:, 1:] * y[:, :-1]).sum(-1)


def _rows(x: Tensor, rho: Tensor, y: Tensor) -> Iterator[tuple[np.ndarray, float, np.ndarray]]:
    return zip(x.numpy(), rho.tolist(), y.numpy(), strict=True)
