"""What a mirror symmetry of W saves: rows and columns that share their weights, half-size blocks; W seen by them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate
from torchdp.factorization.solvers.spectrum import Spectrum, Step


@dataclass(frozen=True)
class Symmetry:
    """Symmetries of W (*batch, m, n) under transposition and under J, the reversal of an index.

    turned: J W J = W^T (every Toeplitz matrix); then W J is symmetric, and takes W's place. mirrored: W, or W J, is
    symmetric. sign: +1 or -1 where J W J = sign W, else 0.

    The dual value, the trace norm of diag(c)^{1/2} W diag(P)^{1/2}, is concave in the weights together, and a symmetry
    moves weights without changing it. So some best weights are equal on the symmetry's orbits: c = P where W is
    symmetric; c = J c, P = J P where J W J = sign W. The multiplicative update keeps such weights.
    With weights equal under J the orthogonal maps e_i -> (e_i +- e_{-i}) / sqrt 2 commute with the weights and take the
    weighted W to two blocks, even rows with even columns and odd with odd (sign 1) or even with odd (sign -1). The
    middle row of an odd number is even.

    Weights are held as the masses of orbits: (*batch, k, L), k = 1 where mirrored, else 2, rows first; L = the longer
    side's orbits. ``counts`` (k, L): members of each orbit, 0 beyond the shorter side's.
    """

    sides: tuple[int, int]
    turned: bool = False
    mirrored: bool = False
    sign: int = 0

    @property
    def counts(self) -> Tensor:
        """Members of each orbit, (k, L)."""
        sides = self.sides[:1] if self.mirrored else self.sides
        counts = torch.zeros(len(sides), max(self._orbits(side) for side in sides), dtype=torch.float64)
        for row, side in zip(counts, sides, strict=True):
            row[: self._orbits(side)] = 2.0 if self.sign else 1.0
            if self.sign and side % 2:
                row[side // 2] = 1.0
        return counts

    def parities(self) -> list[tuple[int, int]]:
        """(rows', columns') parity of each block, 1 or -1; 0: all rows and columns."""
        pairs = [(1, self.sign), (-1, -self.sign)] if self.sign else [(0, 0)]
        return [pair for pair in pairs if all(map(_length, self.sides, pair))]

    def blocks(self, W: Tensor) -> list[Tensor]:
        """The blocks of W, which is turned already."""
        return [_folded(_folded(W, -2, rows), -1, columns) for rows, columns in self.parities()]

    def split(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weights of rows and columns of each block from those of orbits, (*batch, k, L)."""
        (m, n), last = self.sides, weights.shape[-2] - 1
        return [
            (weights[..., 0, : _length(m, rows)], weights[..., last, : _length(n, columns)])
            for rows, columns in self.parities()
        ]

    def joined(self, squares: list[tuple[Tensor, Tensor]], counts: Tensor) -> Tensor:
        """Squared norms of each orbit, (*batch, k, L), from those of the blocks' rows and columns."""
        k, length = counts.shape
        if self.sign == 0 and squares[0][0].shape[-1] == squares[0][k - 1].shape[-1]:
            return torch.stack(squares[0][:k], -2)
        padded = [
            torch.stack([torch.nn.functional.pad(side, (0, length - side.shape[-1])) for side in pair[:k]], -2)
            for pair in squares
        ]
        return sum(padded[1:], padded[0]) / counts.clamp_min(1.0) if self.sign else padded[0]

    def whole(self, orbit: Tensor) -> tuple[Tensor, Tensor]:
        """Values of all rows, (*batch, m), and columns, (*batch, n), from those of the orbits; turned back."""
        rows, columns = (
            _spread(orbit[..., min(k, orbit.shape[-2] - 1), : self._orbits(side)], side)
            for k, side in enumerate(self.sides)
        )
        return rows, columns.flip(-1) if self.turned else columns

    def assembled(self, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """left (*batch, m, r) and right (*batch, r, n) of W from the blocks' factors; turned back."""
        parities = self.parities()
        lefts = [_unfolded(pair[0], -2, s[0], self.sides[0]) for pair, s in zip(pairs, parities, strict=True)]
        rights = [_unfolded(pair[1], -1, s[1], self.sides[1]) for pair, s in zip(pairs, parities, strict=True)]
        left, right = (x[0] if len(x) == 1 else torch.cat(x, d) for x, d in ((lefts, -1), (rights, -2)))
        return left, right.flip(-1) if self.turned else right

    def _orbits(self, side: int) -> int:
        return (side + 1) // 2 if self.sign else side


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
    """W, or its blocks where it has a symmetry, and how to look at them."""

    def __init__(self, W: Tensor, symmetry: Symmetry, p: float, shift: bool) -> None:
        self.W, self.symmetry, self.p, self.shift = W, symmetry, p, shift
        self.blocks = symmetry.blocks(W)
        self.counts = symmetry.counts.to(W.device)
        self.q = 1 / conjugate(p)  # exponent: ||c||_{1/q} = 1 for c = s^q

    def pick(self, which: Tensor) -> "Problem":
        """The problems ``which`` of a flat batch."""
        return Problem(self.W[which], self.symmetry, self.p, self.shift)

    def dual(self, weights: Tensor) -> Tensor:
        """c and P of the orbits from the weights s and P, (*batch, k, L)."""
        if self.q == 1.0:
            return weights
        return torch.stack([weights[..., 0, :] ** self.q, weights[..., 1, :]], -2)

    def split(self, dual: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(X, c, P) of each block."""
        blocks = self.blocks
        if self.shift:
            P = self.symmetry.whole(dual)[1]
            blocks = self.symmetry.blocks(self.W - self.W @ P[..., None])
        return [(X, c, P) for X, (c, P) in zip(blocks, self.symmetry.split(dual), strict=True)]

    def look(self, weights: Tensor, previous: Tensor, spectrum: Spectrum, gap: float) -> Found:
        """One iteration's numbers at these weights, after those of trace norm ``previous``; nothing is read back."""
        dual = self.dual(weights)
        steps = [spectrum.step(X, c, P, gap) for X, c, P in self.split(dual)]
        norms = self.symmetry.joined([(step.a, step.b) for step in steps], self.counts)
        trace = steps[0].trace if len(steps) == 1 else torch.stack([s.trace for s in steps]).sum(0)
        notes = steps[0].notes if len(steps) == 1 else torch.stack([s.notes for s in steps]).amin(0)
        primal = (*[part for step in steps for part in step.parts], dual)
        steady = trace >= previous * (1 - 1e-12)
        return Found(self._value(steps, norms), trace, norms, primal, steps[0].maps, steady, notes)

    def _value(self, steps: list[Step], norms: Tensor) -> Tensor:
        if self.p == math.inf:
            value = norms.amax(-1).prod(-1).sqrt() if len(self.counts) == 2 else norms.amax((-2, -1))
        else:
            rows, columns = self.symmetry.whole(norms)
            value = power_norm(rows.sqrt(), self.p) * columns.amax(-1).sqrt()
        missing = [step.missing for step in steps]
        if any(rest is not None for rest in missing):
            squares = [(torch.zeros_like(s.a) if s.missing is None else s.missing.square(), s.b) for s in steps]
            rows = self.symmetry.whole(self.symmetry.joined(squares, self.counts))[0]
            value = value + power_norm(rows.sqrt(), self.p)
        return value


def symmetry_of(W: Tensor, p: float, shift: bool) -> Symmetry:
    """The symmetries of W that the norm shares, by exact comparison; those of a batch are common to all of it."""
    sides, turned, mirrored = (W.shape[-2], W.shape[-1]), False, False
    around = W.flip(-2, -1)
    if p == math.inf and not shift and sides[0] == sides[1]:
        mirrored = torch.equal(W, W.mT)
        turned = not mirrored and torch.equal(around, W.mT)
    sign = 1 if torch.equal(around, W) else -1 if torch.equal(around, -W) else 0
    mirrored = (mirrored or turned) and sign != -1
    return Symmetry(sides, turned and mirrored, mirrored, sign if max(sides) > 1 else 0)


def _length(side: int, parity: int) -> int:
    return side if parity == 0 else (side + 1) // 2 if parity == 1 else side // 2


def _folded(W: Tensor, dim: int, parity: int) -> Tensor:
    """The even or odd part of W along ``dim``."""
    if parity == 0:
        return W
    side = W.shape[dim]
    first, last = W.narrow(dim, 0, side // 2), W.flip(dim).narrow(dim, 0, side // 2)
    part = (first + parity * last) * math.sqrt(0.5)
    return torch.cat([part, W.narrow(dim, side // 2, 1)], dim) if parity == 1 and side % 2 else part


def _unfolded(part: Tensor, dim: int, parity: int, side: int) -> Tensor:
    """The matrix of ``side`` along ``dim`` whose even or odd part this is, and whose other part is 0."""
    if parity == 0:
        return part
    half = part.narrow(dim, 0, side // 2) * math.sqrt(0.5)
    pieces = [half, parity * half.flip(dim)]
    if side % 2:
        middle = part.narrow(dim, side // 2, 1) if parity == 1 else torch.zeros_like(part.narrow(dim, 0, 1))
        pieces.insert(1, middle)
    return torch.cat(pieces, dim)


def _spread(orbit: Tensor, side: int) -> Tensor:
    """Each member's value from its orbit's."""
    return orbit if orbit.shape[-1] == side else torch.cat([orbit, orbit[..., : side // 2].flip(-1)], -1)


def power_norm(values: Tensor, p: float) -> Tensor:
    """l_p norm over the last dimension; large p neither overflows nor underflows."""
    top = values.amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return torch.linalg.vector_norm(values / top, ord=p, dim=-1) * top[..., 0]
