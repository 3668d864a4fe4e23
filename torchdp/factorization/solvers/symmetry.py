"""What a mirror symmetry of W saves: rows and columns that share their weights; W seen by them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm
from torchdp.factorization.solvers.spectrum import Spectrum


@dataclass(frozen=True)
class Symmetry:
    """Symmetries of W (*batch, m, n) under transposition and under J, the reversal of an index.

    turned: J W J = W^T (every Toeplitz matrix); then W J is symmetric, and takes W's place. mirrored: W, or W J, is
    symmetric.

    The dual value, the trace norm of diag(c)^{1/2} W diag(P)^{1/2}, is concave in the weights together, and a symmetry
    moves weights without changing it. So some best weights are equal on the symmetry's orbits: c = P where W is
    symmetric. The multiplicative update keeps such weights.

    Weights are held as (*batch, k, L), k = 1 where mirrored, else 2, rows first; L = the longer side. ``inside``
    (k, L): 1, and 0 beyond the shorter side.
    """

    sides: tuple[int, int]
    turned: bool = False
    mirrored: bool = False

    @property
    def inside(self) -> Tensor:
        """Where there are weights, (k, L)."""
        sides = self.sides[:1] if self.mirrored else self.sides
        places = torch.arange(max(self.sides), dtype=torch.float64)
        return torch.stack([(places < side).double() for side in sides])

    def split(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the rows, (*batch, m), and of the columns, (*batch, n), of the W that is turned already."""
        m, n = self.sides
        return weights[..., 0, :m], weights[..., -1, :n]

    def joined(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(*batch, k, L) from numbers of the rows and of the columns."""
        if self.mirrored:
            return rows[..., None, :]
        if rows.shape != columns.shape:
            length = max(self.sides)
            rows, columns = (torch.nn.functional.pad(x, (0, length - x.shape[-1])) for x in (rows, columns))
        return torch.stack([rows, columns], -2)

    def whole(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Those of :meth:`split`, turned back."""
        rows, columns = self.split(weights)
        return rows, columns.flip(-1) if self.turned else columns


class Found(NamedTuple):
    """One iteration's numbers: primal (parts of the maps, and dual weights) is what factors come of."""

    value: Tensor  # of the factors, (*batch)
    trace: Tensor  # norm, or less, (*batch)
    norms: Tensor  # squared, of left's rows and right's columns, (*batch, k, L)
    primal: tuple[Tensor, ...]
    maps: Callable[..., tuple[Tensor, Tensor]]
    steady: Tensor  # problems whose trace norm did not fall
    notes: Tensor  # of the spectrum


class Problem:
    """W with its symmetry, and how to look at it."""

    def __init__(self, W: Tensor, symmetry: Symmetry, p: float, shift: bool) -> None:
        self.W, self.symmetry, self.p, self.shift = W, symmetry, p, shift
        self.q = 1 / conjugate(p)  # exponent: ||c||_{1/q} = 1 for c = s^q

    def pick(self, which: Tensor) -> "Problem":
        """The problems ``which`` of a flat batch."""
        return Problem(self.W[which], self.symmetry, self.p, self.shift)

    def dual(self, weights: Tensor) -> Tensor:
        """c and P from the weights s and P, (*batch, k, L)."""
        if self.q == 1.0:
            return weights
        return torch.stack([weights[..., 0, :] ** self.q, weights[..., 1, :]], -2)

    def centred(self, dual: Tensor) -> Tensor:
        """What the weights are weighed on: W, or with a shift W less its mean column."""
        return self.W - self.W @ self.symmetry.split(dual)[1][..., None] if self.shift else self.W

    def look(self, weights: Tensor, previous: Tensor, spectrum: Spectrum, gap: float) -> Found:
        """One iteration's numbers at these weights, after those of trace norm ``previous``; nothing is read back."""
        dual = self.dual(weights)
        step = spectrum.step(self.centred(dual), *self.symmetry.split(dual), gap)
        norms = self.symmetry.joined(step.a, step.b)
        if self.p == math.inf:
            value = norms.amax(-1).prod(-1).sqrt() if norms.shape[-2] == 2 else norms.amax((-2, -1))
        else:
            value = power_norm(step.a.sqrt(), self.p) * step.b.amax(-1).sqrt()
        if step.missing is not None:
            value = value + power_norm(step.missing, self.p)
        steady = step.trace >= previous * (1 - 1e-12)
        return Found(value, step.trace, norms, (*step.parts, dual), step.maps, steady, step.notes)


def symmetry_of(W: Tensor, p: float, shift: bool) -> Symmetry:
    """The symmetries of W that the norm shares, by exact comparison; those of a batch are common to all of it."""
    sides = (W.shape[-2], W.shape[-1])
    if p < math.inf or shift or sides[0] != sides[1]:
        return Symmetry(sides)
    mirrored = torch.equal(W, W.mT)
    turned = not mirrored and torch.equal(W.flip(-2, -1), W.mT)
    return Symmetry(sides, turned, mirrored or turned)
