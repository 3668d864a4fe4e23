"""A curator's sums of real vectors under Gaussian noise: whole steps leave, as private as the real
numbers would be.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, reduce

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.grid import moved
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol.records import Limits, Users, farthest, tensor_of
from torchdp.rounded import RoundedNormal

BLOCK = 2**13  # users whose vectors floats add up
ADDED = 2.0**-25  # of norm: twice the rounding errors of such a sum
FINE = 2.0**26  # steps of the noise's deviation, at most
# of one number's noise: above ``RoundedNormal.variation`` of every sigma from 2^20 steps on
VARIATION = 2.0**-112


@dataclass(frozen=True)
class RoundedSum:
    """Y = step (sum over blocks of round(sum of v_u over the block / step) + R), R rounded normals:
    (size,).

    v_u is any function of what user u holds, as a machine computes it, of norm ``norm`` at most,
    and two of them are ``distance`` apart at most. Users are in blocks of up to 2^13, in the order
    of their rows. Floats add up a block's vectors in any order, with an error of 2^-26 norm at
    most: k terms take k roundings of 2^-53 of their sizes' sum. So replacing one user moves one
    block's sum by distance + 2^-25 norm at most, and rounded to whole steps by ``sensitivity`` =
    distance + 2^-25 norm + step sqrt(size) (``torchdp.grid``, 1 and 2). Whole numbers are added
    without error. step is a power of two, 2^-26 to 2^-25 of ``sigma``, and costs next to nothing.

    sigma: of the normals; 0, without noise, where distance is 0. Raises ValueError.

    Guarantees: Y is a function of the Gaussian mechanism of this sigma and sensitivity, and it is
    within size
        2^-112 of that in total variation, for uniform words.
    Source: Higham (2002), section 4.2, for sums of floats; Balle, Wang (2018), Theorem 8, for the
    mechanism.
    """

    sigma: float
    distance: float
    norm: float
    size: int

    def __post_init__(self) -> None:
        for name in ("distance", "norm"):
            object.__setattr__(self, name, checks.non_negative(name, getattr(self, name)))
        object.__setattr__(self, "size", checks.integer("size", self.size, 0))
        checks.non_negative("sigma", self.sigma)
        if not self.sigma and self.distance:
            raise ValueError(
                f"sigma must be positive, not 0: vectors are up to distance = {self.distance:g} apart"
            )
        if not self.step and (self.sigma or self.norm):
            raise ValueError(
                f"sigma = {self.sigma:g} and norm = {self.norm:g} are too small for steps; use a larger unit"
            )

    @staticmethod
    def least(multiplier: float, distance: float, norm: float, size: int) -> "RoundedSum":
        """With sigma at least ``multiplier`` times the sensitivity, and hardly more. Raises
        ValueError.
        """
        taken = 2 * multiplier * math.sqrt(size) / FINE
        if not taken < 0.5:
            raise ValueError(
                f"multiplier = {multiplier:g} and size = {size} are too large: a step for each of so many numbers "
                "would move them by more than the noise; ask for less privacy or fewer numbers"
            )
        sigma = (
            multiplier * (distance + ADDED * norm) / (1 - taken) * (1 + 1e-15) if distance else 0.0
        )
        return RoundedSum(sigma, distance, norm, size)

    @property
    def step(self) -> float:
        """A power of two."""
        return math.ldexp(1 / FINE, math.frexp(self.sigma or self.norm)[1])

    def limits(self, n: Users) -> Limits:
        """What a number of Y can be for n users."""
        return Limits.around(n * (self.norm + self.step) + farthest(self.sigma))

    @property
    def sensitivity(self) -> float:
        """Of the whole steps, in the units of v."""
        return moved(self.distance + ADDED * self.norm, self.step, self.size) if self.sigma else 0.0

    @cached_property
    def noise(self) -> RoundedNormal:
        """Of each number."""
        return RoundedNormal(self.sigma, self.step)

    def blocks(self, sums: Iterable[Tensor], n: Users) -> Tensor:
        """Whole steps (*batch, size), int64, of the float64 sums of blocks (*batch, size) of n
        users in all.

        Raises ValueError.
        """
        most = int(tensor_of(n).max())
        if most * self.norm >= 2.0**62 * self.step:
            raise ValueError(
                f"summary must count fewer users than {most}: their sum is more than 2^62 steps of the noise"
            )
        steps = ((each / self.step).round_().to(torch.int64) for each in sums)
        return reduce(torch.add, steps)

    def released(self, whole: Tensor, draws: Draws, shape: tuple[int, ...] = ()) -> Tensor:
        """Y, (*shape, *batch, size) float64, of whole steps (*batch, size)."""
        if not self.sigma:
            return (whole.double() * self.step).expand(*shape, *whole.shape)
        return (self.noise.draw((*shape, *whole.shape), draws) + whole).double().mul_(self.step)


def in_blocks(values: Tensor, counts: Tensor, rows: int = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a crowd and how many users hold each, float64, block by block, or ``rows`` at a time
    if that is less.
    """
    size = min(BLOCK, rows)
    return zip(values.split(size, counts.ndim - 1), counts.double().split(size, -1), strict=True)


def exact_sums(columns: Tensor, counts: Tensor, step: float) -> Tensor:
    """sum_x counts_x columns_x in whole steps, rounded once, (*batch, size) int64, from (size, k),
    (*batch, k) int64.

    Entries are rounded to multiples of 2^-45 of about the largest first. Numbers are cut into limbs
    so short that products of matrices of floats make no error. Raises ValueError where a sum is
    2^62 steps or more.
    """
    unit = math.ldexp(1.0, math.frexp(float(columns.abs().max()))[1] - 45)
    bits = (52 - counts.shape[-1].bit_length()) // 2
    whole = (columns / unit).round().to(torch.int64)
    places = [(i, j) for i in range(-(-46 // bits)) for j in range(-(-63 // bits))]
    each = (_limb(counts, j, bits) @ _limb(whole, i, bits).mT for i, j in places)
    parts = torch.stack([sums.flatten() for sums in each]).mT.cpu().tolist()
    shifts = [bits * (i + j) for i, j in places]
    totals = [
        sum(int(part) << shift for part, shift in zip(row, shifts, strict=True)) for row in parts
    ]
    ratio = Fraction(unit) / Fraction(step)
    steps = [round(total * ratio) for total in totals]
    if max(map(abs, steps)) >= 2**62:
        most = int(counts.sum(-1).max())
        raise ValueError(
            f"summary must count fewer users than {most}: 2^62 steps of the noise, and more"
        )
    return torch.tensor(steps, dtype=torch.int64, device=columns.device).view(
        *counts.shape[:-1], -1
    )


def _limb(whole: Tensor, place: int, bits: int) -> Tensor:
    """Of so many bits, with the sign of the number, float64."""
    return ((whole.abs() >> bits * place & ((1 << bits) - 1)) * whole.sign()).double()


def released_guarantee(multiplier: float, delta: float, numbers: int) -> Guarantee:
    """At ``delta``, of a :class:`RoundedSum` of so many numbers, sigma ``multiplier`` times its
    sensitivity.

    Of real numbers alone where epsilon is so large that 2^-40 of delta does not pay for the tables.
    """
    kept = checks.fraction("delta", delta) * ROUNDED
    real = gaussian_guarantee(multiplier, kept, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
    return real.leaving(numbers * VARIATION, delta)
