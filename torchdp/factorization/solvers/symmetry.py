"""What a mirror symmetry of W saves: rows and columns that share their weights, and half-size blocks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
