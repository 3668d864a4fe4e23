"""Balanced block designs: few subsets of the types that serve as all subsets of their size do.

Blocks are balanced if every two points lie in equally many. For any block A of a finite field with generator g the
sets g^i A + t are: multiplying by g maps the family to itself, so every difference occurs in it equally often. Where A
is a union of classes g^i C of the powers C of g^e, with or without 0, they are e times v sets, i < e. A user of type x
sends a block, e^epsilon times as likely if it holds x: the plain decoder has the variances of subset selection, in
log2(e v) bits a message, and few outputs can be counted and decoded once more for the data that they show.
Points beyond the types are left out of the blocks.
Source: Wilson (1972) for the designs; Park, Nam, Lee (2023) for randomizers of them; Feldman, Nelson, Nguyen, Talwar
(2022), of projective planes; Ye, Barg (2018) for all subsets.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.randomizers.alphabet.subset_selection import subset_error

EQUAL = 1e-3  # relative difference of variances that does not count
ENOUGH = 8  # different blocks times the types: with fewer the reports say less about data that are not even
ROOM, SPARE = 1.3, 4  # the largest field tried: ROOM times the types, and SPARE more


@dataclass(frozen=True)
class Design:
    """Blocks of ``size`` of ``points``: all of them (classes = 0), or g^i A + t, A of ``first`` of e classes and 0."""

    points: int
    size: int
    blocks: int
    classes: int = 0
    first: int = 0
    zero: bool = False

    def rows(self, k: int) -> Tensor:
        """Which of the first k points each block holds, (blocks, k), bool."""
        if not self.classes:
            members = torch.tensor(list(itertools.combinations(range(k), self.size)), dtype=torch.int64)
            return torch.zeros(self.blocks, k, dtype=torch.bool).scatter_(1, members, True)
        v, logarithm = self.points, torch.zeros(self.points, dtype=torch.int64)
        logarithm[powers(v)] = torch.arange(v - 1)
        base = (logarithm - torch.arange(self.classes)[:, None]) % self.classes < self.first  # g^i A, (e, v)
        base[:, 0] = self.zero
        x, t = torch.arange(k), torch.arange(v)[:, None]
        return base[:, x ^ t if v & (v - 1) == 0 else (x - t) % v].flatten(0, 1)


def balanced(k: int, epsilon: float, most: int) -> tuple[Tensor, Tensor] | None:
    """(rows (blocks, k), bool; how often each occurs, (blocks,)), of the least variance of the histogram of k types.

    Of all subsets of one size and the designs of fields of a prime number or 2^m elements, with at most ``most`` blocks
    times types; None where none is so small. Unchecked.
    """
    subsets = (Design(k, size, math.comb(k, size)) for size in range(1, k))
    tried = [design for design in (*subsets, *_fields(k, most // k)) if design.blocks * k <= most]
    variances = [subset_error(design.points, design.size, epsilon, k) for design in tried]
    near = [one for one, each in zip(tried, variances, strict=True) if each <= min(variances) * (1 + EQUAL)]
    best: tuple[Tensor, Tensor] | None = None
    for design in sorted(near, key=lambda one: one.blocks):
        found = torch.unique(design.rows(k), dim=0, return_counts=True)
        best = found if best is None or len(found[0]) > len(best[0]) else best
        if len(best[0]) >= ENOUGH * k:
            break
    return best


def powers(v: int) -> list[int]:
    """1, g, g^2, ..., g^(v - 2) for a generator g of the field of v elements, v a prime or a power of two.

    Of 2^m elements these are integers whose bits are coefficients, and g is the polynomial x. Raises ValueError.
    """
    binary = v & (v - 1) == 0
    for g in range(v + 1, 2 * v, 2) if binary else range(2 if v > 2 else 1, v):
        found, value = [1], 1
        while len(found) < v:
            value = value * g % v if not binary else value << 1 ^ (g if value << 1 >= v else 0)
            if value == 1:
                break
            found.append(value)
        if len(found) == v - 1:
            return found
    raise ValueError(f"v must be a prime or a power of two, not {v}")


def _fields(k: int, most: int) -> Iterator[Design]:
    for v in range(max(k, 3), math.floor(ROOM * k) + SPARE + 1):
        if v & (v - 1) and any(v % divisor == 0 for divisor in range(2, math.isqrt(v) + 1)):
            continue
        for e in range(2, min(v, most // v + 1)):
            if (v - 1) % e == 0:
                for first, zero in itertools.product(range(e + 1), (False, True)):
                    size = first * (v - 1) // e + zero
                    if 0 < size < v:
                        yield Design(v, size, e * v, e, first, zero)
