"""W as the fixed point sees it, and what a mirror symmetry saves: rows and columns that share their weights.

W (*batch, m, n) may be symmetric, or W J, J the reversal of an index (as of every Toeplitz matrix): then W J takes W's
place. The dual value, the trace norm of diag(c)^{1/2} W diag(P)^{1/2}, is concave in the weights together, and a
transposition moves weights without changing it. So some best weights are c = P, and the multiplicative update keeps
such weights.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm
from torchdp.factorization.solvers.spectrum import Spectrum


class Found(NamedTuple):
    """One iteration's numbers: primal (parts of the maps, and dual weights) is what factors come of."""

    value: Tensor  # of the factors, (*batch)
    trace: Tensor  # norm, or less, (*batch)
    norms: Tensor  # squared, of left's rows and right's columns, (*batch, k, L)
    primal: tuple[Tensor, ...]
    maps: Callable[..., tuple[Tensor, Tensor]]
    steady: Tensor  # problems whose trace norm did not fall


class Problem:
    """W, symmetric or not, and how to look at it.

    Weights are held as (*batch, k, L), k = 1 where W is symmetric, else 2, rows first; L = the longer side. ``inside``
    (k, L): 1, and 0 beyond the shorter side.
    """

    def __init__(self, W: Tensor, symmetric: bool, p: float, shift: bool) -> None:
        self.W, self.symmetric, self.p, self.shift = W, symmetric, p, shift
        self.q = 1 / conjugate(p)  # exponent: ||c||_{1/q} = 1 for c = s^q
        m, n = W.shape[-2:]
        places = torch.arange(max(m, n), device=W.device)
        self.inside = torch.stack([(places < side).double() for side in ((m,) if symmetric else (m, n))])

    def split(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the rows, (*batch, m), and of the columns, (*batch, n)."""
        m, n = self.W.shape[-2:]
        return weights[..., 0, :m], weights[..., -1, :n]

    def joined(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(*batch, k, L) from numbers of the rows and of the columns."""
        if self.symmetric:
            return rows[..., None, :]
        if rows.shape != columns.shape:
            length = self.inside.shape[-1]
            rows, columns = (torch.nn.functional.pad(x, (0, length - x.shape[-1])) for x in (rows, columns))
        return torch.stack([rows, columns], -2)

    def dual(self, weights: Tensor) -> Tensor:
        """c and P from the weights s and P, (*batch, k, L)."""
        if self.q == 1.0:
            return weights
        return torch.stack([weights[..., 0, :] ** self.q, weights[..., 1, :]], -2)

    def centred(self, dual: Tensor) -> Tensor:
        """What the weights are weighed on: W, or with a shift W less its mean column."""
        return self.W - self.W @ self.split(dual)[1][..., None] if self.shift else self.W

    def look(self, weights: Tensor, previous: Tensor, spectrum: Spectrum, gap: float) -> Found:
        """One iteration's numbers at these weights, after those of trace norm ``previous``."""
        dual = self.dual(weights)
        step = spectrum.step(self.centred(dual), *self.split(dual), gap)
        norms = self.joined(step.a, step.b)
        if self.p == math.inf:
            value = norms.amax(-1).prod(-1).sqrt() if norms.shape[-2] == 2 else norms.amax((-2, -1))
        else:
            value = power_norm(step.a.sqrt(), self.p) * step.b.amax(-1).sqrt()
        if step.missing is not None:
            value = value + power_norm(step.missing, self.p)
        steady = step.trace >= previous * (1 - 1e-12)
        return Found(value, step.trace, norms, (*step.parts, dual), step.maps, steady)


def symmetry_of(W: Tensor, p: float, shift: bool) -> tuple[bool, bool]:
    """Whether W or W J is symmetric, and whether it is W J; by exact comparison, for all of a batch, p = inf alone."""
    if p < math.inf or shift or W.shape[-2] != W.shape[-1]:
        return False, False
    turned = not torch.equal(W, W.mT) and torch.equal(W.flip(-2, -1), W.mT)
    return turned or torch.equal(W, W.mT), turned
